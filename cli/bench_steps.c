/* cli/bench_steps.c: the speed of prompts and of steps: on the CPU, on a GPU, with simulated speculation, of each stage
   alone. It measures the session that bench.c has opened, and knows nothing of text or files.

   Random tokens, so that the experts are as spread as they can be. On the CPU, and where several GPUs share a model, decoding
   starts again from one checkpoint each time, and bytes are reckoned: the weights one token uses, the recurrent state read and written,
   the KV rows at half of the way. On a GPU the library times the steps by the GPU's clock and counts the bytes of the experts really chosen. Both are set
   against the read ceiling: what a loop or kernel that only streams these weights reaches, measured first. */

/* Reading prompts, and decoding timed from outside. */

static int time_prefill(const bench *b, int length, timing *result) {
    double rates[99];
    mote_error error = {0, ""};
    for (int r = 0; r < b->o->repeat; r++) {
        mote_reset(b->session, NULL);
        double start = clock_seconds();
        if (mote_feed(b->session, b->ids, (size_t)length, &error)) return report(&error);
        rates[r] = length / (clock_seconds() - start);
    }
    *result = summarise(rates, b->o->repeat);
    return 0;
}

static int time_steps(const bench *b, const mote_checkpoint *from, timing *result) {
    double rates[99];
    mote_sampling sampling = {.temperature = 1.0f, .top_k = 20, .seed = 1};
    mote_error error = {0, ""};
    int32_t id;
    for (int r = 0; r < b->o->repeat; r++) {
        if (mote_rewind(b->session, from, &error)) return report(&error);
        double start = clock_seconds();
        for (int i = 0; i < b->o->steps; i++) {
            if (interrupted) return EXIT_INTERRUPTED;
            if (mote_step(b->session, &sampling, &id, &error)) return report(&error);
        }
        rates[r] = b->o->steps / (clock_seconds() - start);
    }
    *result = summarise(rates, b->o->repeat);
    return 0;
}

static int time_decode(const bench *b, int depth, timing *result) {
    mote_checkpoint *from = NULL;
    mote_error error = {0, ""};
    mote_reset(b->session, NULL);
    if (mote_feed(b->session, b->ids, depth ? (size_t)depth : 1, &error)) return report(&error);
    if (mote_checkpoint_take(b->session, &from, &error)) return report(&error);
    int code = time_steps(b, from, result);
    mote_checkpoint_free(from);
    return code;
}

enum { LABEL = 18 };                       /* columns: "tg200 @ d131072 x4" */

static int bench_prefill(bench *b) {
    timing t = {0, 0, 0};
    char label[LABEL + 14];
    int code = 0;
    fprintf(b->table, "%-*s%8s%12s%12s%12s", LABEL, "", "tokens", "tok/s", "lowest", "highest");
    fprintf(b->table, on_one_gpu(b->info) ? "\n" : "%12s%9s%9s\n", "MB/token", "GB/s", "ceiling%");
    for (int i = 0; i < b->o->prompts.count && !code; i++) {
        code = time_prefill(b, b->o->prompts.value[i], &t);
        if (code) break;
        snprintf(label, sizeof label, "pp%d", b->o->prompts.value[i]);
        begin_row(b, "prefill", label, LABEL);
        put_timing(b, b->o->prompts.value[i], t);
        end_row(b);
    }
    return code;
}

/* Steps at a depth, as llama-bench calls them; x4: of four rows. */
static void decode_label(const bench *b, int depth, int rows, char label[LABEL + 14]) {
    int n = snprintf(label, LABEL + 14, depth ? "tg%d @ d%d" : "tg%d", b->o->steps, depth);
    if (rows > 1) snprintf(label + n, (size_t)(LABEL + 14 - n), " x%d", rows);
}

/* By the clock of the caller. */
static int bench_decode_timed(bench *b) {
    static const double kv_size[] = {0, 4, 2, 1};              /* bytes, by MOTE_KV_... */
    const int usual = on_gpu(b->info) ? MOTE_KV_BF16 : MOTE_KV_F32;
    const double kv = kv_size[b->o->kv ? b->o->kv : usual] / kv_size[usual];
    char label[LABEL + 14];
    timing t = {0, 0, 0};
    int code = 0;
    for (int i = 0; i < b->o->depths.count && !code; i++) {
        double depth = b->o->depths.value[i] + b->o->steps / 2.0;
        const double seen = depth < b->info->window ? depth : b->info->window;
        double read = (double)b->info->weight_bytes_per_token + 2.0 * (double)b->info->state_bytes +
                      ((double)b->info->kv_bytes_per_token * depth + (double)b->info->window_bytes_per_token * seen) * kv;
        code = time_decode(b, b->o->depths.value[i], &t);
        if (code) break;
        decode_label(b, b->o->depths.value[i], 1, label);
        begin_row(b, "decode", label, LABEL);
        put_timing(b, b->o->depths.value[i], t);
        put_bytes(b, read, 1 / t.median, 12);
        end_row(b);
    }
    return code;
}

/* Decoding on a GPU. */

enum { PROMPT_TIMES = 5 };                 /* how often a prompt's rows are measured */

/* Whether steps find experts in slots, or read them from host memory. */
static int has_slots(const bench *b) {
    return b->info->expert_layers && !b->info->experts_shared;
}

/* stages: count of them, 0: all. */
static int measure(const bench *b, int depth, int rows, int drafts, const char *const *stages, int count,
                   mote_measurement *m) {
    mote_error error = {0, ""};
    memset(m, 0, sizeof *m);
    m->rows = rows;
    m->depth = depth;
    m->steps = rows > MOTE_ROWS_MAX ? PROMPT_TIMES : b->o->steps;
    m->stages = stages;
    m->stage_count = count;
    m->drafts = drafts;
    for (int k = 0; k < drafts; k++) m->accept[k] = b->o->accept.value[k];
    if (drafts && b->o->overlap > 0) m->overlap = b->o->overlap;
    if (mote_measure(b->session, m, &error)) return report(&error);
    return interrupted ? EXIT_INTERRUPTED : 0;
}

/* The same of whole steps, and *seen: what they have found in slots. */
static int measure_seen(const bench *b, int depth, int rows, mote_measurement *m, mote_experts_seen *seen) {
    mote_experts_seen before;
    mote_error error = {0, ""};
    if (mote_session_experts(b->session, &before, &error)) return report(&error);
    const int code = measure(b, depth, rows, 0, NULL, 0, m);
    if (code) return code;
    if (mote_session_experts(b->session, seen, &error)) return report(&error);
    seen->hits -= before.hits;
    seen->misses -= before.misses;
    seen->passes -= before.passes;
    seen->bytes -= before.bytes;
    return 0;
}

/* SM clock and power while the same steps run again, as nvidia-smi tells them; NAN where it does not. */
static void sample_gpu(const bench *b, mote_measurement again, double *clock, double *power) {
    char command[160], line[64] = "", *end;
    snprintf(command, sizeof command,
             "nvidia-smi --query-gpu=clocks.sm,power.draw --format=csv,noheader,nounits -i %d 2>/dev/null",
             atoi(b->info->device + strcspn(b->info->device, "0123456789")));
    *clock = *power = NAN;
    FILE *in = popen(command, "r");
    if (!in) return;
    struct pollfd answer = {fileno(in), POLLIN, 0};
    while (poll(&answer, 1, 0) == 0 && !mote_measure(b->session, &again, NULL)) continue;
    if (fgets(line, sizeof line, in)) {
        double value = strtod(line, &end);
        if (end != line) *clock = value * 1e6;
        char *second = line + strcspn(line, ",");
        if (*second) value = strtod(++second, &end);
        if (*second && end != second) *power = value;
    }
    pclose(in);
}

/* one: seconds of a step of one row at this depth; NAN: not measured. */
static void print_step(bench *b, const mote_measurement *m, const mote_experts_seen *seen, double one) {
    double clock, power;
    char label[LABEL + 14];
    sample_gpu(b, *m, &clock, &power);
    decode_label(b, m->depth, m->rows, label);
    begin_row(b, "decode", label, LABEL);
    put(b, "depth", m->depth, 1, 0, 0);
    put(b, "rows", m->rows, 1, 0, 0);
    put(b, "tokens_per_second", m->rows == 1 ? 1 / m->median : NAN, 1, 9, 1);
    put(b, "tokens_per_second_wall", m->rows == 1 ? 1 / m->wall : NAN, 1, 9, 1);
    put(b, "seconds_wall", m->wall, 1, 0, 0);
    put(b, "seconds", m->median, 1e3, 9, 3);
    put(b, "fastest", m->fastest, 1, 0, 0);
    put(b, "slowest", m->slowest, 1, 0, 0);
    put(b, "relative_to_one_row", m->median / one, 1, 7, 2);
    put_bytes(b, (double)m->bytes, m->median, 10);
    put(b, "idle", m->rows == 1 ? (m->wall - m->median) / m->wall : NAN, 100, 7, 1);
    put(b, "sm_clock", clock, 1e-6, 6, 0);
    put(b, "power", power, 1, 6, 0);
    put(b, "launches", m->launches, 1, 0, 0);
    if (has_slots(b)) {
        put(b, "expert_slots", seen->slots, 1, 7, 0);
        put(b, "expert_hits", (double)seen->hits / (double)(seen->hits + seen->misses), 100, 7, 1);
        put(b, "link_bytes", (double)seen->bytes / (double)seen->passes, 1e-6, 9, 1);
    }
    end_row(b);
}

static int bench_decode_gpu(bench *b) {
    const options *o = b->o;
    int code = 0;
    fprintf(b->table, "\n%-*s%9s%9s%9s%7s%10s%9s%9s%7s%6s%6s%s\n", LABEL, "", "tok/s", "by wall", "ms/step", "x one", "MB/step",
            "GB/s", "ceiling%", "idle%", "MHz", "W", has_slots(b) ? "  slots  hits%  MB link" : "");
    for (int i = 0; i < o->depths.count && !code; i++) {
        double one = NAN;
        for (int k = 0; k < o->rows.count && !code; k++) {
            mote_measurement m;
            mote_experts_seen seen;
            code = measure_seen(b, o->depths.value[i], o->rows.value[k], &m, &seen);
            if (!code && m.rows == 1) one = m.median;
            if (!code) print_step(b, &m, &seen, one);
        }
    }
    return code;
}

/* plain: seconds of a step without drafts at this depth. */
static void print_cycle(bench *b, const mote_measurement *m, double plain) {
    begin_row(b, "speculation_simulated", "simulated", 9);
    put(b, "depth", m->depth, 1, 7, 0);
    put(b, "drafts", m->drafts, 1, 7, 0);
    put(b, "accept_1", m->accept[0], 1, 6, 2);
    put(b, "accept_2", m->drafts > 1 ? m->accept[1] : NAN, 1, 6, 2);
    put(b, "accept_3", m->drafts > 2 ? m->accept[2] : NAN, 1, 6, 2);
    put(b, "overlap", m->overlap, 1, 0, 2);
    put(b, "tokens_per_cycle", m->tokens, 1, 7, 2);
    put(b, "seconds", m->median, 1e3, 9, 3);
    put(b, "fastest", m->fastest, 1, 0, 0);
    put(b, "slowest", m->slowest, 1, 0, 0);
    put(b, "seconds_wall", m->wall, 1, 0, 0);
    put(b, "relative_to_plain", m->median / plain, 1, 0, 2);
    put(b, "verify", m->verify, 1e3, 8, 3);
    put(b, "choose", m->choose, 1e3, 0, 3);
    put(b, "draft", m->draft, 1e3, 8, 3);
    put(b, "tokens_per_second", m->tokens / m->median, 1, 9, 1);
    put(b, "tokens_per_second_wall", m->tokens / m->wall, 1, 0, 1);
    put(b, "speedup", m->tokens / m->median * plain, 1, 9, 2);
    put(b, "idle", (m->wall - m->median) / m->wall, 100, 0, 1);
    put(b, "bytes", (double)m->bytes, 1e-6, 9, 0);
    end_row(b);
}

/* Cycles of verifying drafts, accepting them at the rates asked for, and drafting again, on random tokens. */
static int bench_speculation(bench *b) {
    const options *o = b->o;
    int least = o->mtp ? o->mtp : 1, most = o->mtp ? o->mtp : MOTE_ROWS_MAX - 1, code = 0;
    fprintf(b->table, "\nspeculation (simulated)\n%-9s%7s%7s%18s%7s%9s%8s%8s%9s%9s%9s\n", "", "depth", "drafts", "accepted",
            "tokens", "ms/cycle", "verify", "draft", "tok/s", "speed-up", "MB/cycle");
    for (int i = 0; i < o->depths.count && !code; i++) {
        mote_measurement plain, m;
        code = measure(b, o->depths.value[i], 1, 0, NULL, 0, &plain);
        for (int drafts = least; drafts <= most && !code; drafts++) {
            code = measure(b, o->depths.value[i], drafts + 1, drafts, NULL, 0, &m);
            if (!code) print_cycle(b, &m, plain.median);
        }
    }
    return code;
}

static void print_stage(bench *b, const char *name, const mote_measurement *m, double all) {
    if (!m->launches) return;
    begin_row(b, "stage", name, 16);
    put(b, "depth", m->depth, 1, 0, 0);
    put(b, "rows", m->rows, 1, 0, 0);
    put(b, "launches", m->launches, 1, 9, 0);
    put(b, "seconds", m->median, 1e6, 10, 1);
    put(b, "fastest", m->fastest, 1e6, 10, 1);
    put(b, "slowest", m->slowest, 1e6, 10, 1);
    put(b, "of_step", m->median / all, 100, 9, 1);
    put_bytes(b, (double)m->bytes, m->median, 10);
    end_row(b);
}

/* 1: the model has all of these stages. */
static int has_stages(const mote_info *info, const char *const *names, int count) {
    int found = 0;
    for (int i = 0; i < info->stage_count; i++)
        for (int k = 0; k < count; k++) found += !strcmp(info->stages[i], names[k]);
    return found == count;
}

/* Steps cut down to one stage each, to those of the experts, and whole ones. The parts need not add up to the whole:
   alone, a stage overlaps with no other. */
static int bench_stages(bench *b) {
    static const char *const experts[] = {"norm_router", "experts_up", "experts_down"};
    const mote_info *info = b->info;
    int depth = b->o->depths.value[0], rows = b->o->rows.value[0];
    mote_measurement all, m;
    int code = measure(b, depth, rows, 0, NULL, 0, &all);
    if (code) return code;
    fprintf(b->table, "\n%-16s%9s%10s%10s%10s%9s%10s%9s%9s\n", "", "launches", "us/step", "fastest", "slowest",
            "of all%", "MB/step", "GB/s", "ceiling%");
    for (int i = 0; i < info->stage_count && !code; i++) {
        code = measure(b, depth, rows, 0, info->stages + i, 1, &m);
        if (!code) print_stage(b, info->stages[i], &m, all.median);
    }
    if (!code && has_stages(info, experts, 3)) {
        code = measure(b, depth, rows, 0, experts, 3, &m);
        if (!code) print_stage(b, "moe", &m, all.median);
    }
    if (!code) print_stage(b, "all", &all, all.median);
    return code;
}

static void print_prefill_stage(bench *b, const char *name, const mote_measurement *m, double all) {
    begin_row(b, "prefill_stage", name, 16);
    put(b, "rows", m->rows, 1, 9, 0);
    put(b, "seconds", m->median, 1e3, 10, 3);
    put(b, "fastest", m->fastest, 1, 0, 0);
    put(b, "slowest", m->slowest, 1, 0, 0);
    put(b, "of_all", m->median / all, 100, 9, 1);
    put(b, "operations_per_second", m->operations / m->median, 1e-12, 10, 1);
    put_bytes(b, (double)m->bytes, m->median, 10);
    end_row(b);
}

/* All layers over the rows of a prompt, cut down to one stage each, and whole. Of a longer prompt than a chunk, its last
   one. */
static int bench_prefill_stages(bench *b, int tokens) {
    mote_measurement all, m;
    int rows = tokens < PROMPT_CHUNK ? tokens : PROMPT_CHUNK, depth = tokens - rows, code;
    const mote_info *info = b->info;
    code = measure(b, depth, rows, 0, NULL, 0, &all);
    if (code) return code;
    fprintf(b->table, "\n%-16s%9s%10s%9s%10s%10s%9s%9s\n", "", "rows", "ms", "of all%", "TFLOP/s", "MB", "GB/s", "ceiling%");
    for (int i = 0; i < info->stage_count && !code; i++) {
        code = measure(b, depth, rows, 0, info->stages + i, 1, &m);
        if (!code && m.operations > 0) print_prefill_stage(b, info->stages[i], &m, all.median);
    }
    if (!code) print_prefill_stage(b, "all", &all, all.median);
    return code;
}
