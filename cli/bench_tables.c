/* cli/bench_tables.c: what a bench is, the median of its measurements, and its output. It knows nothing of how a number
   was measured. */

typedef struct question { char *text; int line; bytes first; } question;       /* first: token ids of its first answer */

typedef struct bench {
    const options *o;
    const mote_info *info;
    mote_session *session;
    int32_t *ids;                          /* enough for the longest prompt and depth */
    bytes file;                            /* of --ask, and the questions in it */
    question *questions;
    int question_count;
    FILE *table, *json;                    /* json: NULL when not wanted */
    int json_rows;
    double ceiling;                        /* bytes per second; NAN: not measured */
} bench;

typedef struct timing { double median, low, high; } timing;    /* tokens per second, or ratios of them */

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static timing summarise(double *rates, int count) {
    qsort(rates, (size_t)count, sizeof *rates, ascending);
    timing t = {(rates[(count - 1) / 2] + rates[count / 2]) / 2, rates[0], rates[count - 1]};
    return t;
}

static const char *kv_name(const bench *b) {
    return kv_names[b->o->kv ? b->o->kv : on_gpu(b->info) ? MOTE_KV_BF16 : MOTE_KV_F32];
}

/* Output: a table for people, and the same rows as JSON. A row begins with its name, then put() adds its numbers. */

static void json_text(FILE *out, const char *name, const char *text) {
    fprintf(out, "\"%s\": \"", name);
    for (size_t plain; *text; text += plain) {
        for (plain = 0; (unsigned char)text[plain] >= ' ' && text[plain] != '"' && text[plain] != '\\';) plain++;
        show(out, text, plain);
        if (!plain && (unsigned char)*text < ' ') fprintf(out, "\\u%04x", *text++);
        else if (!plain) fprintf(out, "\\%c", *text++);
    }
    fputc('"', out);
}

static void begin_row(bench *b, const char *kind, const char *label, int width) {
    fprintf(b->table, "%-*s", width, label);
    if (!b->json) return;
    fprintf(b->json, "%s\n  {\"kind\": \"%s\", ", b->json_rows++ ? "," : "", kind);
    json_text(b->json, "name", label);
}

/* One number: as it is (SI units) in the JSON, times `scale` in the table, if it has a width there. Unknown: NAN, INF. */
static void put(const bench *b, const char *name, double value, double scale, int width, int decimals) {
    int known = isfinite(value) != 0;
    if (width && known) fprintf(b->table, "%*.*f", width, decimals, value * scale);
    if (width && !known) fprintf(b->table, "%*s", width, "-");
    if (b->json && known) fprintf(b->json, ", \"%s\": %.12g", name, value);
    if (b->json && !known) fprintf(b->json, ", \"%s\": null", name);
}

static void end_row(const bench *b) {
    fputc('\n', b->table);
    fflush(b->table);
    if (b->json) fputc('}', b->json);
}

static void put_timing(const bench *b, int tokens, timing t) {
    put(b, "tokens", tokens, 1, 8, 0);
    put(b, "tokens_per_second", t.median, 1, 12, 1);
    put(b, "lowest", t.low, 1, 12, 1);
    put(b, "highest", t.high, 1, 12, 1);
}

/* The bytes of a step and what they mean; step: its seconds. */
static void put_bytes(const bench *b, double read, double step, int width) {
    put(b, "bytes", read, 1e-6, width, 1);
    put(b, "bytes_per_second", read / step, 1e-9, 9, 1);
    put(b, "of_ceiling", read / step / b->ceiling, 100, isfinite(b->ceiling) ? 9 : 0, 1);
}

static void print_head(const bench *b, const char *name) {
    const options *o = b->o;
    char text[32];
    show_format(b->table, "model    %s%s\n", name, o->synthetic ? " (synthetic: random weights)" : "");
    show_format(b->table, "device   %s", b->info->device);
    if (o->sms) fprintf(b->table, ", blocks for %d SMs", o->sms);
    if (isfinite(b->ceiling)) {
        human(b->ceiling, "B/s", text);
        fprintf(b->table, "; it reads at most %s (the ceiling)", text);
    }
    fprintf(b->table, "\nsession  %s KV cache, context %d\n\n", kv_name(b),
            mote_context(b->session));
}

static void json_head(const bench *b, const char *name) {
    const options *o = b->o;
    struct utsname system;
    char machine[160];
    if (!b->json) return;
    if (uname(&system)) memset(&system, 0, sizeof system);
    snprintf(machine, sizeof machine, "%.60s %.60s, %ld processors", system.sysname, system.machine,
             sysconf(_SC_NPROCESSORS_ONLN));
    fputs("{", b->json);
    json_text(b->json, "mote", mote_version());
    fputs(", ", b->json);
    json_text(b->json, "machine", machine);
    fputs(",\n ", b->json);
    json_text(b->json, "model", name);
    fprintf(b->json, ", \"synthetic\": %s, ", o->synthetic ? "true" : "false");
    json_text(b->json, "device", b->info->device);
    fputs(",\n ", b->json);
    json_text(b->json, "kv", kv_name(b));
    put(b, "sms", o->sms ? o->sms : NAN, 1, 0, 0);
    put(b, "context", mote_context(b->session), 1, 0, 0);
    put(b, "weight_bytes", (double)b->info->weight_bytes, 1, 0, 0);
    put(b, "read_ceiling", b->ceiling, 1, 0, 0);
    fputs(",\n \"rows\": [", b->json);
}

static int32_t *random_ids(int count, int vocab_size) {
    int32_t *ids = malloc((size_t)count * sizeof *ids);
    uint64_t random = 1;
    for (int i = 0; ids && i < count; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (int32_t)((random >> 33) % (uint64_t)vocab_size);
    }
    return ids;
}
