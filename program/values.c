/* program/values.c: the values of options, from text: numbers, lists, devices, addresses, words. Each function says whether the text is one. It
   knows nothing of options. */

enum { STOPS_MAX = 16, LIST_MAX = 16 };

typedef struct texts { const char *text[STOPS_MAX]; int count; } texts;
typedef struct list { int value[LIST_MAX], count; } list;
typedef struct ranges { int first[LIST_MAX], last[LIST_MAX], count; } ranges;
typedef struct reals { double value[MOTE_ROWS_MAX - 1]; int count; } reals;
typedef struct seed { uint64_t value; int given; } seed;

typedef struct sides { int width[LIST_MAX], height[LIST_MAX], count; } sides;   /* pixels */
typedef struct speeds { double link, memory; } speeds;          /* GB/s */

static int parse_real(const char *text, double low, double high, double *out) {
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || text[0] == ' ' || !(value >= low && value <= high)) return 0;
    *out = value;
    return 1;
}

static int parse_whole(const char *text, double low, double high, int *out) {
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno || end == text || *end || text[0] == ' ' || (double)value < low || (double)value > high) return 0;
    *out = (int)value;
    return 1;
}

static int parse_seed(const char *text, uint64_t *out) {
    char *end;
    errno = 0;
    unsigned long long value = strtoull(text, &end, 10);
    if (errno || *end || text[0] < '0' || text[0] > '9') return 0;
    *out = value;
    return 1;
}

static int parse_switch(const char *text, int *out) {
    int on = strcmp(text, "on") == 0;
    if (!on && strcmp(text, "off")) return 0;
    *out = on ? MOTE_THINK_ON : MOTE_THINK_OFF;
    return 1;
}

/* Takes the first item off a list with commas; *text is NULL after the last one. 0: too long to be a number. */
static int next_item(const char **text, char item[32]) {
    size_t length = strcspn(*text, ",");
    if (length >= 32) return 0;
    memcpy(item, *text, length);
    item[length] = 0;
    *text = (*text)[length] ? *text + length + 1 : NULL;
    return 1;
}

static int parse_list(const char *text, double low, double high, list *out) {
    char item[32];
    for (out->count = 0; text; out->count++)
        if (out->count == LIST_MAX || !next_item(&text, item) ||
            !parse_whole(item, low, high, &out->value[out->count]))
            return 0;
    return 1;
}

/* 0-3,7: whole numbers, and from one to another. */
static int parse_ranges(const char *text, ranges *out) {
    char item[32];
    for (out->count = 0; text; out->count++) {
        int *first = &out->first[out->count], *last = &out->last[out->count];
        if (out->count == LIST_MAX || !next_item(&text, item)) return 0;
        char *dash = strchr(item, '-');
        if (dash) *dash = 0;
        if (!parse_whole(item, 0, INT_MAX, first) || !parse_whole(dash ? dash + 1 : item, 0, INT_MAX, last) || *first > *last) return 0;
    }
    return 1;
}

/* Those that are missing are as the last one. */
static int parse_reals(const char *text, double low, double high, reals *out) {
    char item[32];
    for (out->count = 0; text; out->count++)
        if (out->count == MOTE_ROWS_MAX - 1 || !next_item(&text, item) ||
            !parse_real(item, low, high, &out->value[out->count]))
            return 0;
    for (int i = out->count; i < MOTE_ROWS_MAX - 1; i++) out->value[i] = out->value[i - 1];
    return 1;
}

static int parse_device(const char *text, const char **out) {
    *out = text;
    if (strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0) return 1;
    return strncmp(text, "cuda:", 5) == 0 && text[5] && strspn(text + 5, "0123456789") == strlen(text + 5);
}

/* 0,1 or cuda:0,cuda:1 or cpu,cpu; the library tells what is wrong with a list of devices. */
static int parse_devices(const char *text, const char **out) {
    char item[32];
    int count = 0;
    *out = text;
    for (const char *name; text; count++)
        if (count == LIST_MAX || !next_item(&text, item) || (!parse_device(item, &name) && (!*item || item[strspn(item, "0123456789")]))) return 0;
    return 1;
}

/* The first n bytes of a text: 10.0.0.2:7000 or [::1]:7000. */
static int parse_address(const char *text, size_t n) {
    char host[64], *port;
    struct in6_addr any;
    int number;
    if (n >= sizeof host) return 0;
    memcpy(host, text, n);
    host[n] = 0;
    port = strrchr(host, ':');
    if (!port || !parse_whole(port + 1, 0, 65535, &number)) return 0;
    *port = 0;
    if (inet_pton(AF_INET, host, &any) == 1) return 1;
    if (host[0] != '[' || port[-1] != ']') return 0;
    port[-1] = 0;
    return inet_pton(AF_INET6, host + 1, &any) == 1;
}

/* Several with commas between them; the library tells what else is wrong with them. */
static int parse_addresses(const char *text, const char **out) {
    *out = text;
    for (size_t n;; text += n + 1) {
        n = strcspn(text, ",");
        if (!parse_address(text, n)) return 0;
        if (!text[n]) return 1;
    }
}

static const char *const kv_names[] = {NULL, "f32", "bf16", "fp8"};        /* by MOTE_KV_... */

static const char *const experts_names[] = {"auto", "device", "host"};     /* by MOTE_EXPERTS_... */

static int parse_experts(const char *text, int *out) {
    for (*out = MOTE_EXPERTS_AUTO; *out <= MOTE_EXPERTS_HOST; ++*out)
        if (!strcmp(text, experts_names[*out])) return 1;
    return 0;
}

/* 16G is 16 * 10^9 bytes, 16Gi is 16 * 2^30. */
static int parse_bytes(const char *text, double *out) {
    char *end;
    const double value = strtod(text, &end);
    const double of = !strcmp(end, "G") || !strcmp(end, "GB") ? 1e9 : !strcmp(end, "Gi") || !strcmp(end, "GiB") ? 0x1p30 : 0;
    if (end == text || text[0] == ' ' || of == 0 || !(value * of >= 1 && value <= 1e6)) return 0;
    *out = value * of;
    return 1;
}

/* 25, or 25:936: a link's GB/s and a memory's. */
static int parse_speeds(const char *text, speeds *out) {
    char item[32];
    const size_t n = strcspn(text, ":");
    if (n >= sizeof item) return 0;
    memcpy(item, text, n);
    item[n] = 0;
    out->memory = 0;
    return parse_real(item, 0.01, 1e6, &out->link) && (!text[n] || parse_real(text + n + 1, 0.01, 1e6, &out->memory));
}

/* 1024x1024,640x480 */
static int parse_sides(const char *text, sides *out) {
    enum { SIDE_MOST = 32768 };
    char item[32];
    for (out->count = 0; text; out->count++) {
        if (out->count == LIST_MAX || !next_item(&text, item)) return 0;
        char *by = strchr(item, 'x');
        if (!by) return 0;
        *by = 0;
        if (!parse_whole(item, 1, SIDE_MOST, &out->width[out->count]) || !parse_whole(by + 1, 1, SIDE_MOST, &out->height[out->count])) return 0;
    }
    return 1;
}

static int parse_kv(const char *text, int *out) {
    for (int kv = MOTE_KV_F32; kv <= MOTE_KV_FP8; kv++)
        if (strcmp(text, kv_names[kv]) == 0) return *out = kv;
    return 0;
}

static int parse_mtp(const char *text, int *out) {
    *out = MOTE_MTP_AUTO;
    if (strcmp(text, "auto") == 0) return 1;
    if (!parse_whole(text, 0, MOTE_ROWS_MAX - 1, out)) return 0;
    if (*out == 0) *out = MOTE_MTP_OFF;
    return 1;
}

static const char *const quantize_names[] = {NULL, "fp8", "head-fp8"};       /* of MOTE_QUANTIZE_... */

static int parse_quantize(const char *text, int *out) {
    for (*out = MOTE_QUANTIZE_HEAD_FP8; *out && strcmp(text, quantize_names[*out]); --*out) continue;
    return *out;
}
