/* mote, the program: a command line over engine.h, and over nothing else of mote.

   Contents   1. Showing text, signals, callbacks  2. Options            3. Files and buffers
              4. Opening a model                   5. Text commands      6. run
              7. chat                              8. logits             9. info
             10. bench                            11. selftest          12. Commands, help and main

   Answers and data go to standard output, everything else to standard error. Exit codes: 0 done, 1 failed,
   2 not asked for properly, 130 stopped with Ctrl-C. */
#include "engine.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <locale.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>
#ifdef MOTE_LIBEDIT
#include <editline/readline.h>
#include <wchar.h>
#endif

enum { EXIT_USAGE = 2, EXIT_INTERRUPTED = 130 };

// ---- 1. Showing text, signals, callbacks --------------------------------------------------------------------------
// Text that mote did not write itself (of a model, a file, a path) reaches a terminal through show() alone. Functions
// that can fail print one line `mote: ...` and return an exit code; 0 means go on. Ctrl-C only sets a flag,
// which the library polls through the cancel callback.

static volatile sig_atomic_t interrupted;
static int progress_shown = -1;            // per cent on the screen now, -1 = none

// The first character of a text that is not empty, and how many bytes it takes; -1: one byte that is no UTF-8. Overlong
// forms are read as what they stand for.
static int32_t first_character(const char *text, size_t size, size_t *length) {
    unsigned char first = (unsigned char)text[0];
    size_t n = first < 0x80 ? 1 : first < 0xc0 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : first < 0xf8 ? 4 : 0;
    int32_t c = n < 2 ? first : first & (0x7f >> n);
    *length = 1;
    if (n == 0 || n > size) return -1;
    for (size_t i = 1; i < n; i++) {
        if ((text[i] & 0xc0) != 0x80) return -1;
        c = c << 6 | (text[i] & 0x3f);
    }
    *length = n;
    return c;
}

// Would a terminal do anything with it but draw it? Controls do: among them carriage return, which overwrites the line.
// So do bidirectional embeddings, overrides and isolates, which show the text around them in another order.
static int steers_terminal(int32_t c) {
    if (c == '\n' || c == '\t') return 0;
    return c < ' ' || (c >= 0x7f && c <= 0x9f) || (c >= 0x202a && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

// Writes text. What would steer a terminal is shown there instead: ^[ for ESC, ^? for DEL, <U+009B> for characters
// beyond ASCII, <9B> for a byte that is no UTF-8. Pipes and files get the text as it is.
static void show(FILE *out, const char *text, size_t size) {
    size_t shown = 0, length;
    int failure = errno, terminal = isatty(fileno(out));
    errno = failure;                       // isatty sets it for a pipe; main may still have to tell why a write failed
    for (size_t at = 0; at < size && terminal; at += length) {
        int32_t c = first_character(text + at, size - at, &length);
        if (!steers_terminal(c)) continue;
        fwrite(text + shown, 1, at - shown, out);
        if (c < 0) fprintf(out, "<%02X>", (unsigned char)text[at]);
        else if (c < 0x80) fprintf(out, "^%c", (int)c ^ 0x40);
        else fprintf(out, "<U+%04X>", (unsigned)c);
        shown = at + length;
    }
    fwrite(text + shown, 1, size - shown, out);
}

static void show_arguments(FILE *out, const char *format, va_list arguments) {
    char *text;
    int size = vasprintf(&text, format, arguments);
    if (size < 0) return;
    show(out, text, (size_t)size);
    free(text);
}

// fprintf for a format with strings that mote did not write itself.
__attribute__((format(printf, 2, 3)))
static void show_format(FILE *out, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    show_arguments(out, format, arguments);
    va_end(arguments);
}

static void clear_progress(void) {
    if (progress_shown >= 0) fputs("\r\033[K", stderr);
    progress_shown = -1;
}

static void on_progress(void *user, const char *what, double fraction) {
    int percent = (int)(fraction * 100);
    (void)user;
    if (fraction >= 1) {
        clear_progress();
    } else if (percent != progress_shown) {
        fputs("\r\033[K", stderr);
        show_format(stderr, "%s %d %%", what, percent);
        progress_shown = percent;
    }
}

static void on_log(void *user, const char *line) {
    (void)user;
    clear_progress();
    show_format(stderr, "mote: note: %s\n", line);
}

static int on_cancel(void *user) {
    (void)user;
    return interrupted;
}

static mote_callbacks callbacks(void) {
    mote_callbacks c = {on_log, isatty(STDERR_FILENO) ? on_progress : NULL, on_cancel, NULL};
    return c;
}

__attribute__((format(printf, 2, 3)))
static int complain(int exit_code, const char *format, ...) {
    va_list arguments;
    clear_progress();
    fputs("mote: ", stderr);
    va_start(arguments, format);
    show_arguments(stderr, format, arguments);
    va_end(arguments);
    fputc('\n', stderr);
    return exit_code;
}

// What the library complained about. Being stopped by the user is no complaint.
static int report(const mote_error *error) {
    if (error->code != MOTE_ECANCELLED || !interrupted) return complain(EXIT_FAILURE, "%s", error->message);
    clear_progress();
    return EXIT_INTERRUPTED;
}

static void on_interrupt(int signal) {
    (void)signal;
    interrupted = 1;
}

// once: a second Ctrl-C ends the program the hard way. No SA_RESTART: waiting for a line must end, too.
static void catch_interrupt(int once) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = once ? (int)SA_RESETHAND : 0;
    sigaction(SIGINT, &action, NULL);
}

// ---- 2. Options ---------------------------------------------------------------------------------------------------
// One table describes every option: what it takes, where the value goes, which commands know it, its line of help.

enum { CHAT = 1, RUN = 2, INFO = 4, TOKENIZE = 8, DETOKENIZE = 16, RENDER = 32, LOGITS = 64, BENCH = 128, HELP = 256,
       SELFTEST = 512 };
enum { STOPS_MAX = 16, LIST_MAX = 16, DRAFTS_MAX = 3 };

typedef struct texts { const char *text[STOPS_MAX]; int count; } texts;
typedef struct list { int value[LIST_MAX], count; } list;
typedef struct reals { double value[DRAFTS_MAX]; int count; } reals;
typedef struct seed { uint64_t value; int given; } seed;

typedef struct options {                   // zero or NULL: not given, except where defaults() says otherwise
    const char *model, *prompt, *system, *tokens, *output, *mtp_output, *topic, *device, *synthetic, *json, *ask;
    texts stop;
    list prompts, depths, rows;
    reals accept;
    seed seed;
    int max_tokens, context, threads, chunk, steps, repeat, think, top_k, raw, greedy, ids, nul_separated, help;
    int kv, sms, stages, verbose, mtp, draft_rows, verify;
    double temperature, top_p, min_p, overlap;
} options;

static options defaults(void) {
    options o;
    memset(&o, 0, sizeof o);
    o.top_k = -1;
    o.temperature = o.top_p = o.min_p = o.overlap = -1;
    o.repeat = 3;
    return o;
}

enum { FLAG, TEXT, TEXTS, WHOLE, REAL, SEED, SWITCH, LIST, REALS, DEVICE, KV, MTP };

typedef struct option {
    const char *name, *value;              // value: how the help calls it
    int kind;
    size_t offset;
    double low, high;
    int commands;
    const char *help;
} option;

#define AT(field) offsetof(options, field)
#define EVERY (CHAT | RUN | INFO | TOKENIZE | DETOKENIZE | RENDER | LOGITS | BENCH)
#define COMPUTES (CHAT | RUN | INFO | LOGITS | BENCH)

static const option option_table[] = {
    {"-m", "DIR", TEXT, AT(model), 0, 0, EVERY, "checkpoint folder (default: the bundled model, models/demo)"},
    {"-p", "TEXT", TEXT, AT(prompt), 0, 0, RUN, "the prompt (default: what is piped in)"},
    {"--system", "TEXT", TEXT, AT(system), 0, 0, CHAT | RUN, "system message"},
    {"--think", "on|off", SWITCH, AT(think), 0, 0, CHAT | RUN, "think first (default: as the template has it)"},
    {"--raw", NULL, FLAG, AT(raw), 0, 0, RUN, "feed the prompt as it is, print all that comes"},
    {"--tokens", "FILE.i32", TEXT, AT(tokens), 0, 0, RUN | LOGITS, "token ids to read, as little-endian int32"},
    {"--ids", NULL, FLAG, AT(ids), 0, 0, RUN, "print token ids on one line instead of text (always so with --tokens)"},
    {"-o", "OUT.f32", TEXT, AT(output), 0, 0, LOGITS, "write float32 [tokens, vocabulary] here"},
    {"--mtp", "OUT.f32", TEXT, AT(mtp_output), 0, 0, LOGITS,
     "write the MTP layer's float32 [tokens - 1, vocabulary] here"},
    {"--chunk", "N", WHOLE, AT(chunk), 1, 1024, LOGITS, "tokens computed at a time"},
    {"-n", "N", WHOLE, AT(max_tokens), 1, INT_MAX, CHAT | RUN, "at most N tokens (default: until the context is full)"},
    {"--stop", "TEXT", TEXTS, AT(stop), 0, 0, CHAT | RUN, "end the answer before TEXT; may be repeated"},
    {"--greedy", NULL, FLAG, AT(greedy), 0, 0, CHAT | RUN, "always the most probable token, no penalties"},
    {"--temp", "T", REAL, AT(temperature), 0, 100, CHAT | RUN, "temperature; 0 is greedy (default: the model's own)"},
    {"--top-k", "K", WHOLE, AT(top_k), 0, INT_MAX, CHAT | RUN, "only the K most probable tokens; 0: all"},
    {"--top-p", "P", REAL, AT(top_p), 0, 1, CHAT | RUN, "only the most probable tokens that sum up to P"},
    {"--min-p", "P", REAL, AT(min_p), 0, 1, CHAT | RUN, "only tokens at least P times as probable as the best"},
    {"--seed", "N", SEED, AT(seed), 0, 0, CHAT | RUN, "same seed, same text (default: a fresh one)"},
    {"-0", NULL, FLAG, AT(nul_separated), 0, 0, TOKENIZE, "the input holds texts separated by zero bytes"},
    {"--prompt", "N,N...", LIST, AT(prompts), 1, 1 << 24, BENCH, "prompt lengths to read (default: 128,512)"},
    {"--depth", "N,N...", LIST, AT(depths), 0, 1 << 24, BENCH,
     "context depths to decode at (default: 0,1024; on a GPU 0,4096,32768,131072)"},
    {"--rows", "N,N...", LIST, AT(rows), 1, 4, BENCH, "GPU: tokens decoded in one step (default: 1,2,3,4)"},
    {"--tokens", "N", WHOLE, AT(steps), 1, 1 << 20, BENCH,
     "steps decoded in one measurement (default: 32; on a GPU 200, at most 1000); with --ask of an answer (128)"},
    {"--repeat", "N", WHOLE, AT(repeat), 1, 99, BENCH,
     "measurements of which the median counts (default: 3); not for decoding on a GPU"},
    {"--ask", "FILE", TEXT, AT(ask), 0, 0, BENCH,
     "instead: answer its questions, one a line, without and with speculation, and compare"},
    {"--accept", "P,P,P", REALS, AT(accept), 0, 1, BENCH,
     "GPU: speculation, too, simulated: the rates at which first, second, third drafts are accepted"},
    {"--overlap", "R", REAL, AT(overlap), 0, 1, BENCH,
     "with --accept: share of its experts that a row has in common with the first, simulated"},
    {"--synthetic", "NAME[:FORMAT]", TEXT, AT(synthetic), 0, 0, BENCH,
     "random weights of a known model's shapes instead of a folder, as qwen3.5-35b-a3b:fp8"},
    {"--stages", NULL, FLAG, AT(stages), 0, 0, BENCH, "GPU: each stage alone, too, at the first depth and rows"},
    {"--json", "FILE|-", TEXT, AT(json), 0, 0, BENCH, "write the numbers for machines; -: to standard output"},
    {"--context", "N", WHOLE, AT(context), 1, INT_MAX, CHAT | RUN | INFO,
     "tokens of context (default: the model's maximum, at most 8192)"},
    {"--context", "N", WHOLE, AT(context), 1, INT_MAX, BENCH, "tokens of context (default: what the depths need)"},
    {"--device", "cpu|cuda[:N]", DEVICE, AT(device), 0, 0, COMPUTES, "what computes (default: a GPU if there is one)"},
    {"--device", "cuda[:N]", DEVICE, AT(device), 0, 0, SELFTEST, "the GPU to test (default: the first)"},
    {"--kv", "f32|bf16|fp8", KV, AT(kv), 0, 0, COMPUTES,
     "type of the KV cache (default: f32 on the CPU, bf16 on a GPU)"},
    {"--mtp", "auto|0|1|2|3", MTP, AT(mtp), 0, 0, CHAT | RUN | BENCH,
     "tokens to draft for each pass; auto: as many as pay (default)"},
    {"--draft-rows", "N", WHOLE, AT(draft_rows), 1, INT_MAX, CHAT | RUN | BENCH,
     "drafts come from the first N tokens of the vocabulary (default: 65536)"},
    {"--verify-spec", NULL, FLAG, AT(verify), 0, 0, CHAT | RUN,
     "check speculation: decode plainly beside it and stop at the first difference"},
    {"--sms", "N", WHOLE, AT(sms), 1, 4096, BENCH | SELFTEST, "GPU: blocks for N multiprocessors (default: all)"},
    {"--threads", "N", WHOLE, AT(threads), 1, 256, CHAT | RUN | LOGITS | BENCH,
     "threads, on the CPU (default: one for each processor, at most 256)"},
    {"-v", NULL, FLAG, AT(verbose), 0, 0, CHAT | RUN | BENCH, "list the kernels that a step on the GPU launches"},
    {"--help", NULL, FLAG, AT(help), 0, 0, EVERY | SELFTEST | HELP, "print this"},
};
enum { OPTION_COUNT = sizeof option_table / sizeof option_table[0] };

// Levenshtein distance, for "did you mean". Names here are short: what does not fit is simply far away.
static int distance(const char *a, const char *b) {
    int row[32], n = (int)strlen(b);
    if (n >= 32) return INT_MAX;
    for (int j = 0; j <= n; j++) row[j] = j;
    for (int i = 1; a[i - 1]; i++) {
        int diagonal = row[0];
        row[0] = i;
        for (int j = 1; j <= n; j++) {
            int best = diagonal + (a[i - 1] != b[j - 1]);
            if (row[j] + 1 < best) best = row[j] + 1;
            if (row[j - 1] + 1 < best) best = row[j - 1] + 1;
            diagonal = row[j];
            row[j] = best;
        }
    }
    return row[n];
}

// Keeps the candidate nearest to `typed` in *best, if it is near enough to be a slip of the hand.
static void consider(const char *typed, const char *candidate, const char **best) {
    int d = distance(typed, candidate);
    if (d <= 2 && d < (int)strlen(candidate) && (!*best || d < distance(typed, *best))) *best = candidate;
}

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

// Takes the first item off a list with commas; *text is NULL after the last one. 0: too long to be a number.
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

// Those that are missing are as the last one.
static int parse_reals(const char *text, double low, double high, reals *out) {
    char item[32];
    for (out->count = 0; text; out->count++)
        if (out->count == DRAFTS_MAX || !next_item(&text, item) ||
            !parse_real(item, low, high, &out->value[out->count]))
            return 0;
    for (int i = out->count; i < DRAFTS_MAX; i++) out->value[i] = out->value[i - 1];
    return 1;
}

static int parse_device(const char *text, const char **out) {
    *out = text;
    if (strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0) return 1;
    return strncmp(text, "cuda:", 5) == 0 && text[5] && strspn(text + 5, "0123456789") == strlen(text + 5);
}

static const char *const kv_names[] = {NULL, "f32", "bf16", "fp8"};        // by MOTE_KV_...

static int parse_kv(const char *text, int *out) {
    for (int kv = MOTE_KV_F32; kv <= MOTE_KV_FP8; kv++)
        if (strcmp(text, kv_names[kv]) == 0) return *out = kv;
    return 0;
}

static int parse_mtp(const char *text, int *out) {
    *out = MOTE_MTP_AUTO;
    if (strcmp(text, "auto") == 0) return 1;
    if (!parse_whole(text, 0, DRAFTS_MAX, out)) return 0;
    if (*out == 0) *out = MOTE_MTP_OFF;
    return 1;
}

// Stores one option's value. Returns NULL, or what the option needs instead of this value.
static const char *set_option(const option *d, const char *value, options *o) {
    void *at = (char *)o + d->offset;
    texts *several = at;
    switch (d->kind) {
    case FLAG: *(int *)at = 1; return NULL;
    case TEXT: *(const char **)at = value; return NULL;
    case TEXTS:
        if (several->count == STOPS_MAX) return "at most 16 texts";
        several->text[several->count++] = value;
        return NULL;
    case WHOLE: return parse_whole(value, d->low, d->high, at) ? NULL : "a whole number";
    case REAL: return parse_real(value, d->low, d->high, at) ? NULL : "a number";
    case SEED: ((seed *)at)->given = 1; return parse_seed(value, &((seed *)at)->value) ? NULL : "a whole number";
    case SWITCH: return parse_switch(value, at) ? NULL : "on or off";
    case DEVICE: return parse_device(value, at) ? NULL : "cpu, cuda or cuda:N";
    case KV: return parse_kv(value, at) ? NULL : "f32, bf16 or fp8";
    case MTP: return parse_mtp(value, at) ? NULL : "auto, 0, 1, 2 or 3";
    case REALS: return parse_reals(value, d->low, d->high, at) ? NULL : "up to 3 numbers with commas between them";
    default: return parse_list(value, d->low, d->high, at) ? NULL : "up to 16 whole numbers with commas between them";
    }
}

// The options of one command; name: the command's, for messages.
static int parse_options(const char *name, int command, int count, char **arguments, options *o) {
    for (int i = 0; i < count; i++) {
        char *typed = arguments[i], *value = NULL;
        const option *d = NULL;
        const char *near = NULL, *needs;
        if (typed[0] != '-' || !typed[1]) {
            if (command != HELP || o->topic)
                return complain(EXIT_USAGE, "%s: unexpected argument '%s'; see mote %s --help", name, typed, name);
            o->topic = typed;
            continue;
        }
        if (typed[1] == '-' && (value = strchr(typed, '='))) *value++ = 0;
        for (int k = 0; k < OPTION_COUNT; k++) {
            if (!(option_table[k].commands & command)) continue;
            if (strcmp(typed, option_table[k].name) == 0) d = &option_table[k];
            consider(typed, option_table[k].name, &near);
        }
        if (!d && near && strlen(typed) > 2)
            return complain(EXIT_USAGE, "%s: unknown option '%s'; did you mean %s?", name, typed, near);
        if (!d) return complain(EXIT_USAGE, "%s: unknown option '%s'; see mote %s --help", name, typed, name);
        if (d->kind == FLAG && value) return complain(EXIT_USAGE, "%s: %s takes no value", name, typed);
        if (d->kind != FLAG && !value && ++i < count) value = arguments[i];
        if (d->kind != FLAG && !value) return complain(EXIT_USAGE, "%s: %s needs a value: %s", name, typed, d->value);
        needs = set_option(d, value, o);
        if (needs && d->high > 0)
            return complain(EXIT_USAGE, "%s: %s needs %s from %.0f to %.0f, not '%s'", name, typed, needs, d->low,
                            d->high, value);
        if (needs) return complain(EXIT_USAGE, "%s: %s needs %s, not '%s'", name, typed, needs, value);
    }
    return 0;
}

// ---- 3. Files and buffers -----------------------------------------------------------------------------------------

enum { TEXT_MAX = 64 << 20 };              // bytes of a text that is read from a file, a pipe or a terminal

typedef struct bytes { char *data; size_t size, capacity; } bytes;

static int grow(bytes *b, size_t capacity) {
    if (capacity <= b->capacity) return 0;
    if (capacity < 2 * b->capacity) capacity = 2 * b->capacity;
    char *data = realloc(b->data, capacity);
    if (!data) return complain(EXIT_FAILURE, "out of memory (%zu bytes)", capacity);
    b->data = data;
    b->capacity = capacity;
    return 0;
}

static int append(bytes *b, const char *data, size_t size) {
    if (grow(b, b->size + size + 1)) return EXIT_FAILURE;
    memcpy(b->data + b->size, data, size);
    b->size += size;
    b->data[b->size] = 0;
    return 0;
}

// What errno says of a file. Ctrl-C also ends waiting for the other side of a FIFO.
static int file_failure(const char *name) {
    if (errno == EINTR && interrupted) return EXIT_INTERRUPTED;
    return complain(EXIT_FAILURE, "%s: %s", name, strerror(errno));
}

// A stream to its end, but at most limit + 1 bytes: a pipe or a device may have no end. A zero byte that is not counted
// follows.
static int read_some(FILE *in, const char *name, size_t limit, bytes *b) {
    char block[16384];
    size_t n;
    if (append(b, "", 0)) return EXIT_FAILURE;
    while (b->size <= limit) {
        n = limit + 1 - b->size < sizeof block ? limit + 1 - b->size : sizeof block;
        if ((n = fread(block, 1, n, in)) == 0) break;
        if (append(b, block, n)) return EXIT_FAILURE;
    }
    return ferror(in) ? file_failure(name) : 0;
}

// All of a text.
static int read_text(FILE *in, const char *name, bytes *b) {
    int code = read_some(in, name, TEXT_MAX, b);
    if (!code && b->size > TEXT_MAX)
        code = complain(EXIT_FAILURE, "%s: longer than %d MiB, the most that mote reads of a text", name,
                        TEXT_MAX >> 20);
    return code;
}

// The token ids of an .i32 file, no more than fit into the context, each checked against the vocabulary.
static int read_tokens(const char *path, const mote_info *info, int context, bytes *b, size_t *count) {
    int vocab_size = info->vocab_size, most = info->context_max;
    if (context && context < most) most = context;
    FILE *in = fopen(path, "rb");
    if (!in) return file_failure(path);
    int code = read_some(in, path, (size_t)most * 4, b);
    fclose(in);
    if (code) return code;
    if (b->size > (size_t)most * 4)
        return complain(EXIT_FAILURE, "%s: more than %d tokens, the %s", path, most,
                        most < info->context_max ? "context asked for" : "model's longest context");
    if (b->size == 0) return complain(EXIT_FAILURE, "%s: holds no tokens", path);
    if (b->size % 4)
        return complain(EXIT_FAILURE, "%s: %zu bytes are no int32 token ids: not a multiple of 4", path, b->size);
    *count = b->size / 4;
    for (size_t i = 0; i < *count; i++) {
        int32_t id = ((const int32_t *)(const void *)b->data)[i];
        if (id < 0 || id >= vocab_size)
            return complain(EXIT_FAILURE, "%s: token %zu is %" PRId32 ", but the vocabulary has ids 0 to %d", path, i,
                            id, vocab_size - 1);
    }
    return 0;
}

// A file that a command writes, in place: symbolic links are followed, devices and FIFOs are written as they are. After a
// failure a file that the command itself created is removed. A regular file that was there before is left empty once
// writing has begun, because its old content is gone and half of the new would look like a result; until then it stays
// as it was. Nothing else is ever removed.
typedef struct output {
    const char *path;
    FILE *file;                            // NULL: not open
    struct stat status;
    int created, begun;
} output;

static int same_file(const struct stat *a, const struct stat *b) {
    return a->st_dev == b->st_dev && a->st_ino == b->st_ino;
}

// Opens the file without changing what it holds, so that all else can be checked first.
static int open_output(output *o, const char *path) {
    int file = open(path, O_WRONLY | O_CREAT | O_EXCL | O_NOCTTY, 0666);
    o->path = path;
    o->created = file >= 0;
    // O_CREAT again: the path may be a symbolic link to a file that is not there yet.
    if (file < 0 && errno == EEXIST) file = open(path, O_WRONLY | O_CREAT | O_NOCTTY, 0666);
    if (file >= 0 && fstat(file, &o->status) == 0) o->file = fdopen(file, "wb");
    if (o->file) return 0;
    int code = file_failure(path);
    if (file >= 0) close(file);
    return code;
}

static int begin_outputs(output *outputs, int count) {
    for (output *o = outputs; o < outputs + count; o++) {
        if (!o->file) continue;
        if (S_ISREG(o->status.st_mode) && ftruncate(fileno(o->file), 0))
            return file_failure(o->path);
        o->begun = 1;
    }
    return 0;
}

// The path is looked at again: by now it may name another file, which is none of ours.
static void discard_output(const output *o) {
    struct stat now;
    if (!o->path || !S_ISREG(o->status.st_mode)) return;
    if ((o->created ? lstat : stat)(o->path, &now) || !same_file(&now, &o->status)) return;
    if (o->created) unlink(o->path);
    else if (o->begun && truncate(o->path, 0)) complain(0, "%s: %s: it is incomplete", o->path, strerror(errno));
}

// Ends files that belong together: when one could not be written, or `code` says that the command failed, all are
// discarded. Those that are not open are passed over. Returns the exit code.
static int close_outputs(output *outputs, int count, int code) {
    for (output *o = outputs; o < outputs + count; o++) {
        if (!o->file) continue;
        int broken = ferror(o->file);
        if ((fclose(o->file) || broken) && !code) code = file_failure(o->path);
        o->file = NULL;
    }
    for (int i = 0; i < count && code; i++) discard_output(&outputs[i]);
    return code;
}

// ---- 4. Opening a model -------------------------------------------------------------------------------------------

// The bundled model: models/demo here, beside the program, or beside the program's folder.
static int find_bundled(char *path, size_t capacity) {
    char program[PATH_MAX];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    snprintf(path, capacity, "models/demo");
    for (int up = 0; access(path, F_OK) && up < 2; up++) {
        while (length > 0 && program[length - 1] != '/') length--;
        if (length <= 0) break;
        snprintf(path, capacity, "%.*smodels/demo", (int)length, program);
        length--;
    }
    if (access(path, F_OK) == 0) return 0;
    return complain(EXIT_FAILURE, "models/demo is neither here nor beside the program; name a folder with -m DIR");
}

// The model that the options name. With --synthetic it is made up instead.
static int open_model(options *o, int parts, mote_model **model) {
    static char bundled[PATH_MAX + 16];
    mote_options how = {parts, callbacks(), o->device, o->draft_rows};
    mote_error error = {0, ""};
    int code;
    if (!o->model && !o->synthetic) {
        if (find_bundled(bundled, sizeof bundled)) return EXIT_FAILURE;
        o->model = bundled;
    }
    if (o->synthetic) code = mote_open_synthetic(o->synthetic, &how, model, &error);
    else code = mote_open(o->model, &how, model, &error);
    if (code) code = report(&error);
    clear_progress();
    return code;
}

static int on_gpu(const mote_info *info) {
    return strncmp(info->device, "cuda", 4) == 0;
}

static int same_launch(const mote_launch *a, const mote_launch *b) {
    return !strcmp(a->stage, b->stage) && !strcmp(a->kernel, b->kernel) && !strcmp(a->format, b->format) &&
           !memcmp(a->grid, b->grid, sizeof a->grid) && a->arch == b->arch && a->block == b->block &&
           a->registers == b->registers && a->shared_bytes == b->shared_bytes && a->stack_bytes == b->stack_bytes;
}

// One line for all launches that are alike, where the first of them stands.
static void print_launches(const mote_launch *launches, size_t count) {
    fprintf(stderr, "  %-16s%6s%7s%14s%7s%6s%8s%7s  %-14s%s\n", "stage", "times", "code", "grid", "block", "regs",
            "shared", "stack", "weights", "kernel");
    for (size_t i = 0; i < count; i++) {
        const mote_launch *l = &launches[i];
        char grid[40], code[16];
        size_t times = 0, first = 0;
        while (!same_launch(l, &launches[first])) first++;
        if (first < i) continue;
        for (size_t k = i; k < count; k++) times += (size_t)same_launch(l, &launches[k]);
        snprintf(grid, sizeof grid, l->grid[2] > 1 ? "%d x %d x %d" : l->grid[1] > 1 ? "%d x %d" : "%d", l->grid[0],
                 l->grid[1], l->grid[2]);
        snprintf(code, sizeof code, "sm_%d", l->arch);
        fprintf(stderr, "  %-16s%6zu%7s%14s%7d%6d%8d%7d  %-14s%s\n", l->stage, times, code, grid, l->block,
                l->registers, l->shared_bytes, l->stack_bytes, *l->format ? l->format : "-", l->kernel);
    }
}

// -v: what a step launches, for each number of rows asked for.
static int log_launches(const mote_info *info, const options *o, mote_session *session) {
    mote_error error = {0, ""};
    if (!on_gpu(info)) on_log(NULL, "the model is on the CPU: a step launches no kernels");
    for (int i = 0; on_gpu(info) && (i < o->rows.count || i == 0); i++) {
        const mote_launch *launches;
        size_t count;
        int rows = o->rows.count ? o->rows.value[i] : 1;
        if (mote_launches(session, rows, &launches, &count, &error)) return report(&error);
        clear_progress();
        show_format(stderr, "a step of %d row%s on %s: %zu launches\n", rows, rows == 1 ? "" : "s", info->device,
                    count);
        print_launches(launches, count);
    }
    return 0;
}

static mote_session_options session_options(const options *o) {
    mote_session_options s = {o->context, o->chunk, o->threads, callbacks(), o->kv, o->mtp, o->sms};
    return s;
}

static int open_session(const mote_model *model, const options *o, mote_session **session) {
    mote_session_options how = session_options(o);
    mote_error error = {0, ""};
    int code = mote_session_open(model, &how, session, &error) ? report(&error) : 0;
    if (!code && o->verbose) code = log_launches(mote_model_info(model), o, *session);
    return code;
}

// The model's own sampling, with what the user asked for instead.
static mote_sampling sampling_for(const mote_model *model, const options *o) {
    mote_sampling s;
    mote_sampling_defaults(model, &s);
    if (o->greedy) {
        uint64_t fresh = s.seed;
        memset(&s, 0, sizeof s);
        s.seed = fresh;
    }
    if (o->temperature >= 0) s.temperature = (float)o->temperature;
    if (o->top_k >= 0) s.top_k = o->top_k;
    if (o->top_p >= 0) s.top_p = (float)o->top_p;
    if (o->min_p >= 0) s.min_p = (float)o->min_p;
    if (o->seed.given) s.seed = o->seed.value;
    return s;
}

// ---- 5. Text commands: tokenize, detokenize, render ---------------------------------------------------------------
// The library's buffer calls say how much they need. Each is tried with a likely size first and once more if that was
// too small.

static int tokenize(const mote_model *model, const char *text, size_t size, bytes *ids, size_t *count) {
    mote_error error = {0, ""};
    for (size_t need = size + 16;; need = *count) {
        if (grow(ids, need * sizeof(int32_t))) return EXIT_FAILURE;
        *count = 0;
        if (!mote_tokenize(model, text, size, 1, (int32_t *)(void *)ids->data, need, count, &error)) return 0;
        if (error.code != MOTE_EINVAL || *count <= need) return report(&error);
    }
}

static int detokenize(const mote_model *model, const int32_t *ids, size_t count, bytes *text) {
    mote_error error = {0, ""};
    for (size_t need = 8 * count + 64;; need = text->size) {
        if (grow(text, need)) return EXIT_FAILURE;
        text->size = 0;
        if (!mote_detokenize(model, ids, count, text->data, need, &text->size, &error)) return 0;
        if (error.code != MOTE_EINVAL || text->size <= need) return report(&error);
    }
}

static int tokenize_all(const options *o, const mote_model *model, bytes *input) {
    bytes ids = {NULL, 0, 0};
    int code = 0;
    for (size_t at = 0, size, count; at < input->size && !code; at += size + 1) {
        size = o->nul_separated ? strlen(input->data + at) : input->size;
        code = tokenize(model, input->data + at, size, &ids, &count);
        for (size_t i = 0; i < count && !code; i++)
            printf("%s%" PRId32, i ? " " : "", ((int32_t *)(void *)ids.data)[i]);
        if (!code) putchar('\n');
    }
    free(ids.data);
    return code;
}

// One line of ids, which ends where `end` points, to ids.
static int parse_ids(char *line, char *end, size_t number, bytes *ids) {
    *end = 0;
    ids->size = 0;
    if (line + strlen(line) < end) return complain(EXIT_FAILURE, "line %zu: holds a zero byte", number);
    for (char *word = strtok(line, " \t\r"); word; word = strtok(NULL, " \t\r")) {
        int32_t id;
        if (!parse_whole(word, 0, INT32_MAX, &id))
            return complain(EXIT_FAILURE, "line %zu: '%s' is not a token id", number, word);
        if (append(ids, (const char *)&id, sizeof id)) return EXIT_FAILURE;
    }
    return 0;
}

static int detokenize_all(const options *o, const mote_model *model, bytes *input) {
    bytes ids = {NULL, 0, 0}, text = {NULL, 0, 0};
    char *line = input->data, *end = input->data + input->size;
    int code = 0;
    (void)o;
    for (size_t number = 1; line < end && !code; number++) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) stop = end;
        code = parse_ids(line, stop, number, &ids);
        if (!code) code = detokenize(model, (int32_t *)(void *)ids.data, ids.size / sizeof(int32_t), &text);
        if (!code) code = append(&text, "", 1);
        if (!code) show(stdout, text.data, text.size);
        line = stop + 1;
    }
    free(ids.data);
    free(text.data);
    return code;
}

static int render(const options *o, const mote_model *model, bytes *request) {
    bytes text = {NULL, 0, 0};
    mote_error error = {0, ""};
    (void)o;
    for (size_t need = 2 * request->size + 4096;; need = text.size) {
        if (grow(&text, need)) break;
        text.size = 0;
        if (!mote_render(model, request->data, request->size, text.data, need, &text.size, &error)) {
            show(stdout, text.data, text.size);
            free(text.data);
            return 0;
        }
        if (error.code != MOTE_EINVAL || text.size <= need) {
            report(&error);
            break;
        }
    }
    free(text.data);
    return EXIT_FAILURE;
}

static int with_input(options *o, int (*function)(const options *, const mote_model *, bytes *)) {
    bytes input = {NULL, 0, 0};
    mote_model *model = NULL;
    int code = open_model(o, MOTE_TEXT_ONLY, &model);
    if (!code) code = read_text(stdin, "standard input", &input);
    if (!code) code = function(o, model, &input);
    free(input.data);
    mote_close(model);
    return code;
}

static int command_tokenize(options *o) { return with_input(o, tokenize_all); }
static int command_detokenize(options *o) { return with_input(o, detokenize_all); }
static int command_render(options *o) { return with_input(o, render); }

// ---- 6. run -------------------------------------------------------------------------------------------------------
// The screen is what run and chat show an answer on: thinking and tool calls are dimmed on a terminal and left out
// elsewhere, so that a pipe gets the answer alone.

typedef struct screen {
    int styled;                            // a terminal: show all channels
    int channel;
    char last;                             // what was printed last: a line feed or, as ' ', anything else; 0 = nothing
    int ids;                               // print token ids instead
    int answer_bytes;                      // 0: no answer so far (it stops counting at 1)
} screen;

static void set_channel(screen *s, int channel) {
    if (s->channel == channel) return;
    if (s->channel != MOTE_ANSWER) fputs("\033[0m", stdout);
    if (s->last && s->last != '\n') putchar('\n');
    if (s->last) putchar('\n');
    if (channel != MOTE_ANSWER) fputs("\033[2m", stdout);
    s->channel = channel;
    s->last = 0;
}

static int on_text(void *user, int channel, const char *text, size_t size) {
    screen *s = user;
    if (s->ids || size == 0 || (channel != MOTE_ANSWER && !s->styled)) return 0;
    clear_progress();
    set_channel(s, channel);
    if (channel == MOTE_ANSWER) s->answer_bytes = 1;
    show(stdout, text, size);
    fflush(stdout);
    s->last = text[size - 1] == '\n' ? '\n' : ' ';
    return ferror(stdout) != 0;
}

static int on_token(void *user, int32_t id) {
    screen *s = user;
    if (!s->ids) return 0;
    printf("%s%" PRId32, s->last ? " " : "", id);
    fflush(stdout);
    s->last = ' ';
    return ferror(stdout) != 0;
}

static void end_screen(screen *s) {
    clear_progress();
    if (s->channel != MOTE_ANSWER) fputs("\033[0m", stdout);
    if (s->last != '\n') putchar('\n');
    fflush(stdout);
}

static mote_generation generation_for(const options *o, const mote_sampling *sampling, screen *s) {
    mote_generation g;
    memset(&g, 0, sizeof g);
    g.sampling = sampling;
    g.max_tokens = o->max_tokens;
    g.stop = o->stop.text;
    g.stop_count = o->stop.count;
    g.system = o->system;
    g.think = o->think;
    g.raw = o->raw;
    g.verify = o->verify;
    g.on_text = on_text;
    g.on_token = on_token;
    g.user = s;
    return g;
}

static int run_usage(const options *o) {
    if (o->tokens && o->prompt) return complain(EXIT_USAGE, "run: --tokens and -p exclude each other");
    if (o->greedy && o->temperature > 0) return complain(EXIT_USAGE, "run: --greedy and --temp exclude each other");
    if ((o->tokens || o->raw) && (o->system || o->think))
        return complain(EXIT_USAGE, "run: --system and --think belong to a chat: not with --tokens or --raw");
    if (!o->tokens && !o->prompt && isatty(STDIN_FILENO))
        return complain(EXIT_USAGE, "run: no prompt: give -p TEXT, or pipe it in");
    return 0;
}

// The prompt from -p or from the pipe; there, the line feed that ends a chat message is not part of it.
static int read_prompt(const options *o, bytes *prompt) {
    if (o->prompt) return append(prompt, o->prompt, strlen(o->prompt));
    int code = read_text(stdin, "standard input", prompt);
    if (!code && !o->raw && prompt->size && prompt->data[prompt->size - 1] == '\n') prompt->data[--prompt->size] = 0;
    if (!code && prompt->size == 0) code = complain(EXIT_FAILURE, "standard input: the prompt is empty");
    if (!code && !o->raw && strlen(prompt->data) != prompt->size)
        code = complain(EXIT_FAILURE, "standard input: the prompt holds a zero byte");
    return code;
}

// Brings the prompt into the timeline and generates: from ids, from raw text, or as a chat message.
static int answer(const mote_model *model, mote_session *session, const options *o, const bytes *prompt,
                  const mote_generation *g, mote_result *result) {
    bytes ids = {NULL, 0, 0};
    const int32_t *feed = (const int32_t *)(const void *)prompt->data;
    size_t count = prompt->size / sizeof *feed;
    mote_error error = {0, ""};
    int code = 0;
    if (!o->tokens && !o->raw) return mote_ask(session, prompt->data, g, result, &error) ? report(&error) : 0;
    if (o->raw) {
        code = tokenize(model, prompt->data, prompt->size, &ids, &count);
        feed = (const int32_t *)(const void *)ids.data;
    }
    if (!code && mote_feed(session, feed, count, &error)) code = report(&error);
    if (!code && mote_generate(session, g, result, &error)) code = report(&error);
    free(ids.data);
    return code;
}

static int run_prompt(const mote_model *model, const options *o, const bytes *prompt) {
    mote_session *session = NULL;
    mote_sampling sampling = sampling_for(model, o);
    screen s = {0, MOTE_ANSWER, 0, o->ids || o->tokens, 0};
    mote_generation g = generation_for(o, &sampling, &s);
    mote_result result;
    memset(&result, 0, sizeof result);
    if (sampling.temperature > 0 && !o->seed.given) fprintf(stderr, "mote: seed %" PRIu64 "\n", sampling.seed);
    int code = open_session(model, o, &session);
    if (!code) code = answer(model, session, o, prompt, &g, &result);
    if (!code) {
        end_screen(&s);
        if (interrupted) code = EXIT_INTERRUPTED;
        else if (result.stop == MOTE_STOP_CONTEXT) on_log(NULL, "the context is full; --context N makes it larger");
        else if (result.stop == MOTE_STOP_LENGTH && !s.answer_bytes && !s.ids)
            on_log(NULL, "still thinking after -n tokens: give more, or --think off");
    }
    mote_session_close(session);
    return code;
}

static int command_run(options *o) {
    bytes prompt = {NULL, 0, 0};
    mote_model *model = NULL;
    size_t count;
    int code = run_usage(o);
    if (!code && !o->tokens) code = read_prompt(o, &prompt);
    catch_interrupt(1);
    if (!code) code = open_model(o, o->tokens ? MOTE_WEIGHTS_ONLY : MOTE_EVERYTHING, &model);
    if (!code && o->tokens) code = read_tokens(o->tokens, mote_model_info(model), o->context, &prompt, &count);
    if (!code) code = run_prompt(model, o, &prompt);
    free(prompt.data);
    mote_close(model);
    return code;
}

// ---- 7. chat ------------------------------------------------------------------------------------------------------
// A read-eval-print loop. Before each turn a checkpoint is taken: /undo goes back to it, and so does a turn that
// failed, so that the timeline only ever holds whole turns (or an answer the user cut short).

enum { UNDO_MAX = 16 };

typedef struct chat {
    options *o;
    mote_session *session;
    mote_sampling sampling;
    bytes message, line, system;           // the last one is used when its size is not 0
    mote_checkpoint *undo[UNDO_MAX];
    int undo_count;
    int context, speculates, show_stats, leave, failed;
    int holds_zero;                        // a line of the message does
    int typed, styled;                     // standard input, standard output is a terminal
} chat;

typedef struct chat_command {
    const char *name, *argument, *help;
    void (*function)(chat *c, const char *argument);   // argument: "" when there is none
} chat_command;

// Where remarks of the chat itself go: never into a pipe that wants answers.
static FILE *remarks(const chat *c) {
    return c->styled ? stdout : stderr;
}

__attribute__((format(printf, 2, 3)))
static void say(const chat *c, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    show_arguments(remarks(c), format, arguments);
    va_end(arguments);
}

static void forget_undo(chat *c) {
    while (c->undo_count > 0) mote_checkpoint_free(c->undo[--c->undo_count]);
}

static int take_undo(chat *c, mote_error *error) {
    mote_checkpoint *checkpoint = NULL;
    int code = mote_checkpoint_take(c->session, &checkpoint, error);
    if (code) return code;
    if (c->undo_count == UNDO_MAX) {
        mote_checkpoint_free(c->undo[0]);
        memmove(c->undo, c->undo + 1, (UNDO_MAX - 1) * sizeof c->undo[0]);
        c->undo_count--;
    }
    c->undo[c->undo_count++] = checkpoint;
    return 0;
}

static int rewind_undo(chat *c, mote_error *error) {
    int code = mote_rewind(c->session, c->undo[c->undo_count - 1], error);
    mote_checkpoint_free(c->undo[--c->undo_count]);
    return code;
}

static void chat_fail(chat *c, const mote_error *error) {
    c->failed = 1;
    complain(0, "%s", error->message);
    if (error->code == MOTE_ECONTEXT)
        complain(0, "the context holds %d tokens: /reset starts anew, /undo takes a turn back", c->context);
}

// What speculation did since `before`.
static mote_speculation speculation_since(const mote_session *session, const mote_speculation *before) {
    mote_speculation s = {0};
    mote_speculation_of(session, &s, NULL);
    for (int k = 0; k <= DRAFTS_MAX; k++) s.passes[k] -= before->passes[k];
    for (int k = 0; k < DRAFTS_MAX; k++) {
        s.drafted[k] -= before->drafted[k];
        s.accepted[k] -= before->accepted[k];
    }
    s.tokens -= before->tokens;
    return s;
}

static double tokens_per_pass(const mote_speculation *s) {
    return (double)s->tokens / (double)(s->passes[0] + s->passes[1] + s->passes[2] + s->passes[3]);
}

// At most three lines.
static void print_speculation(FILE *out, const mote_speculation *s) {
    static const char *const names[] = {"first", "second", "third"};
    int priced = 0;
    fprintf(out, " %.2f tokens per pass; drafts accepted:%s", tokens_per_pass(s), s->drafted[0] ? "" : " none");
    for (int k = 0; k < DRAFTS_MAX; k++)
        if (s->drafted[k])
            fprintf(out, "%s %s %.0f %%", k ? "," : "", names[k],
                    100.0 * (double)s->accepted[k] / (double)s->drafted[k]);
    fprintf(out, "; passes with 0, 1, 2, 3: %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 "; now %d\n", s->passes[0],
            s->passes[1], s->passes[2], s->passes[3], s->depth);
    for (int k = 1; k <= DRAFTS_MAX; k++)
        if (s->cost[0] > 0 && s->cost[k] > 0)
            fprintf(out, "%s %.2f with %d (%.0f %% drafting)", priced++ ? "," : " cost of a pass, plain = 1:",
                    s->cost[k] / s->cost[0], k, 100 * s->draft[k] / s->cost[k]);
    fprintf(out, "%s depths of the last passes: %s\n", priced ? "\n" : "", s->recent);
}

static void chat_stats(const chat *c, const mote_result *r, const mote_speculation *before) {
    mote_speculation speculation = speculation_since(c->session, before);
    size_t used;
    mote_tokens(c->session, &used);
    say(c, "[read %d tokens, %.1f tok/s; wrote %d, %.1f tok/s; context %zu of %d]\n", r->prompt_tokens,
        r->prompt_seconds > 0 ? r->prompt_tokens / r->prompt_seconds : 0, r->generated_tokens,
        r->generate_seconds > 0 ? r->generated_tokens / r->generate_seconds : 0, used, c->context);
    if (c->speculates && speculation.tokens) print_speculation(remarks(c), &speculation);
}

static void chat_turn(chat *c) {
    screen s = {c->styled, MOTE_ANSWER, 0, 0, 0};
    mote_generation g = generation_for(c->o, &c->sampling, &s);
    mote_result result;
    mote_speculation before = {0};
    mote_error error = {0, ""}, ignored;
    g.system = c->system.size ? c->system.data : NULL;
    interrupted = 0;
    if (take_undo(c, &error)) {
        chat_fail(c, &error);
        return;
    }
    mote_speculation_of(c->session, &before, NULL);
    int code = mote_ask(c->session, c->message.data, &g, &result, &error);
    if (!code || s.last) end_screen(&s);
    if (code) {
        if (code != MOTE_ECANCELLED) chat_fail(c, &error);
        if (rewind_undo(c, &ignored)) chat_fail(c, &ignored);
        return;
    }
    if (interrupted) say(c, "[stopped]\n");
    if (result.stop == MOTE_STOP_CONTEXT) say(c, "[context of %d tokens full: /reset starts anew]\n", c->context);
    if (c->show_stats) chat_stats(c, &result, &before);
}

// Commands of the chat.

static void chat_reset(chat *c, const char *argument) {
    mote_error error = {0, ""};
    (void)argument;
    if (mote_reset(c->session, &error)) {
        chat_fail(c, &error);
        return;
    }
    forget_undo(c);
    say(c, "a new conversation\n");
}

static void chat_system(chat *c, const char *argument) {
    size_t used;
    c->system.size = 0;
    if (append(&c->system, argument, strlen(argument))) return;
    mote_tokens(c->session, &used);
    say(c, "system message %s%s\n", *argument ? "set" : "removed", used ? "; it counts from the next /reset on" : "");
}

static void chat_think(chat *c, const char *argument) {
    static const char *const names[] = {"as the model's template", "on", "off"};
    if (*argument && !parse_switch(argument, &c->o->think)) say(c, "/think on or /think off, not '%s'\n", argument);
    else say(c, "thinking: %s\n", names[c->o->think]);
}

static void chat_temperature(chat *c, const char *argument) {
    double t = c->sampling.temperature;
    if (*argument && !parse_real(argument, 0, 100, &t)) say(c, "/temp needs 0 to 100, not '%s'\n", argument);
    else say(c, "temperature %g%s\n", t, t > 0 ? "" : " (greedy)");
    c->sampling.temperature = (float)t;
}

static void chat_seed(chat *c, const char *argument) {
    if (*argument && !parse_seed(argument, &c->sampling.seed)) say(c, "/seed needs a number, not '%s'\n", argument);
    else say(c, "seed %" PRIu64 "\n", c->sampling.seed);
}

static void chat_save(chat *c, const char *argument) {
    mote_error error = {0, ""};
    if (!*argument) say(c, "/save needs a file name\n");
    else if (mote_save_file(c->session, argument, &error)) chat_fail(c, &error);
    else say(c, "saved to %s\n", argument);
}

static void chat_load(chat *c, const char *argument) {
    mote_error error = {0, ""};
    size_t used;
    if (!*argument) {
        say(c, "/load needs a file name\n");
    } else if (mote_load_file(c->session, argument, &error)) {
        chat_fail(c, &error);
    } else {
        forget_undo(c);
        mote_tokens(c->session, &used);
        say(c, "loaded %s: %zu tokens\n", argument, used);
    }
}

static void chat_undo(chat *c, const char *argument) {
    mote_error error = {0, ""};
    (void)argument;
    if (!c->undo_count) say(c, "nothing to take back\n");
    else if (rewind_undo(c, &error)) chat_fail(c, &error);
    else say(c, "took the last turn back\n");
}

static void chat_toggle_stats(chat *c, const char *argument) {
    (void)argument;
    c->show_stats = !c->show_stats;
    say(c, "statistics %s\n", c->show_stats ? "on" : "off");
}

static void chat_quit(chat *c, const char *argument) {
    (void)argument;
    c->leave = 1;
}

static void chat_help(chat *c, const char *argument);

static const chat_command chat_commands[] = {
    {"/help", "", "this list", chat_help},
    {"/reset", "", "start a new conversation", chat_reset},
    {"/system", "TEXT", "system message of the next conversation (no TEXT: none)", chat_system},
    {"/think", "on|off", "think before answering", chat_think},
    {"/temp", "T", "temperature; 0 is greedy", chat_temperature},
    {"/seed", "N", "same seed, same text", chat_seed},
    {"/save", "FILE", "save the conversation", chat_save},
    {"/load", "FILE", "go on with a saved one", chat_load},
    {"/undo", "", "take the last turn back", chat_undo},
    {"/stats", "", "speed and speculation after each answer, on or off", chat_toggle_stats},
    {"/quit", "", "leave (also Ctrl-D)", chat_quit},
};
enum { CHAT_COMMAND_COUNT = sizeof chat_commands / sizeof chat_commands[0] };

static void chat_help(chat *c, const char *argument) {
    (void)argument;
    for (int i = 0; i < CHAT_COMMAND_COUNT; i++)
        say(c, "  %-8s%-8s%s\n", chat_commands[i].name, chat_commands[i].argument, chat_commands[i].help);
    say(c, "  A line that ends with \\ goes on in the next one; lines between \"\"\" and \"\"\" are one message.\n"
           "  Ctrl-C stops an answer.\n");
}

static void chat_execute(chat *c, char *line) {
    const char *near = NULL;
    size_t length = strcspn(line, " \t");
    char *argument = line + length + strspn(line + length, " \t"), *end = line + strlen(line);
    while (end > argument && (end[-1] == ' ' || end[-1] == '\t')) *--end = 0;
    line[length] = 0;
    for (int i = 0; i < CHAT_COMMAND_COUNT; i++) {
        if (strcmp(line, chat_commands[i].name) == 0) {
            chat_commands[i].function(c, argument);
            return;
        }
        consider(line, chat_commands[i].name, &near);
    }
    if (near) say(c, "unknown command %s; did you mean %s?\n", line, near);
    else say(c, "unknown command %s; /help lists them\n", line);
}

// Reading lines. Ctrl-C at the prompt clears the line; the end of the input leaves the chat.

#ifdef MOTE_LIBEDIT
// One byte of the terminal; -1: its end, -2: Ctrl-C. SIGINT is blocked but while ppoll waits, so that none is missed
// between looking at the flag and waiting.
static int read_byte(int file, unsigned char *byte) {
    struct pollfd input = {file, POLLIN, 0};
    sigset_t interrupt, before;
    int result;
    sigemptyset(&interrupt);
    sigaddset(&interrupt, SIGINT);
    sigprocmask(SIG_BLOCK, &interrupt, &before);
    while (!interrupted && ppoll(&input, 1, NULL, &before) < 0 && errno == EINTR) continue;
    result = interrupted ? -2 : read(file, byte, 1) == 1 ? 0 : -1;
    interrupted = 0;
    sigprocmask(SIG_SETMASK, &before, NULL);
    return result;
}

// One character for libedit. Ctrl-C reaches it as Ctrl-U, its key for "delete the line".
static int read_key(FILE *in) {
    mbstate_t state;
    memset(&state, 0, sizeof state);
    for (;;) {
        unsigned char byte;
        wchar_t wide;
        int end = read_byte(fileno(in), &byte);
        if (end) return end == -2 ? 'U' & 31 : -1;
        size_t used = mbrtowc(&wide, (const char *)&byte, 1, &state);
        if (used == (size_t)-1) return '?';
        if (used != (size_t)-2) return (int)wide;
    }
}
#endif

// Adds to a line or a message. One that gets too long ends the chat: its end may be far away, or nowhere.
static int chat_append(chat *c, bytes *b, const char *data, size_t size) {
    int code = size <= TEXT_MAX - b->size ? append(b, data, size)
                                          : complain(EXIT_FAILURE, "standard input: a message longer than %d MiB, %s",
                                                     TEXT_MAX >> 20, "the most that mote reads of a text");
    if (code) c->failed = c->leave = 1;
    return code;
}

// A line from a pipe, or from a terminal without libedit. Like read_line.
static int read_plain_line(chat *c, const char *prompt) {
    int byte;
    do {
        interrupted = 0;
        c->line.size = 0;
        if (c->typed) say(c, "%s", prompt);
        fflush(stdout);
        while ((byte = getc(stdin)) != EOF && byte != '\n') {
            char one = (char)byte;
            if (chat_append(c, &c->line, &one, 1)) return 0;
        }
        if (byte == EOF && interrupted) {
            clearerr(stdin);
            say(c, "\n");
        }
    } while (byte == EOF && interrupted && c->typed);
    return byte != EOF || (c->line.size > 0 && !interrupted);
}

// The next line without its line feed into c->line; 0 at the end of the input.
static int read_line(chat *c, const char *prompt) {
    interrupted = 0;
    c->line.size = 0;
    if (append(&c->line, "", 0)) return 0;
#ifdef MOTE_LIBEDIT
    if (c->typed && c->styled) {
        char *text = readline(prompt);
        if (!text) return 0;
        if (*text) add_history(text);
        int stored = chat_append(c, &c->line, text, strlen(text)) == 0;
        free(text);
        return stored;
    }
#endif
    if (!read_plain_line(c, prompt)) return 0;
    while (c->line.size && c->line.data[c->line.size - 1] == '\r') c->line.size--;
    c->line.data[c->line.size] = 0;
    if (memchr(c->line.data, 0, c->line.size)) c->holds_zero = 1;
    return 1;
}

// The rest of a message whose first line, behind """, is in c->line.
static int read_quoted(chat *c) {
    const char *line = c->line.data + 3;
    for (;; line = c->line.data) {
        size_t size = c->line.size - (size_t)(line - c->line.data);
        int last = size >= 3 && memcmp(line + size - 3, "\"\"\"", 3) == 0;
        if (chat_append(c, &c->message, line, last ? size - 3 : size)) return 0;
        if (last || !read_line(c, ". ")) return !c->leave;
        if (c->message.size && chat_append(c, &c->message, "\n", 1)) return 0;
    }
}

// The next message, or command, into c->message. *quoted: it stood between """ lines, so it is no command.
static int read_message(chat *c, int *quoted) {
    c->message.size = 0;
    c->holds_zero = 0;
    if (!read_line(c, "> ")) return 0;
    *quoted = strncmp(c->line.data, "\"\"\"", 3) == 0;
    if (*quoted) return read_quoted(c);
    for (;;) {
        size_t size = c->line.size;
        int more = size > 0 && c->line.data[size - 1] == '\\';
        if (chat_append(c, &c->message, c->line.data, more ? size - 1 : size)) return 0;
        if (!more || !read_line(c, ". ")) return !c->leave;
        if (chat_append(c, &c->message, "\n", 1)) return 0;
    }
}

// Messages are zero-terminated texts to the library: what came behind a zero byte would be lost.
static void chat_refuse_zero(chat *c) {
    c->failed = 1;
    complain(0, "standard input: the message holds a zero byte and is not asked");
}

static void chat_loop(chat *c) {
    int quoted;
    while (!c->leave && read_message(c, &quoted)) {
        if (c->holds_zero) chat_refuse_zero(c);
        else if (c->message.data[strspn(c->message.data, " \t\n")] == 0) continue;
        else if (c->message.data[0] == '/' && !quoted) chat_execute(c, c->message.data);
        else chat_turn(c);
        if (ferror(stdout) || (interrupted && !c->typed)) break;
    }
    if (c->typed && !c->leave) say(c, "\n");
}

static void human(double value, const char *unit, char out[32]);

static void chat_banner(const chat *c, const mote_info *info) {
    char parameters[32], active[32], size[32];
    human((double)info->parameters, "", parameters);
    human((double)info->active_parameters, "", active);
    human((double)info->weight_bytes, "B", size);
    say(c, "mote %s: %s, %s parameters (%s active), %s on %s, context %d, seed %" PRIu64
           "\n/help lists the commands.\n",
        mote_version(), c->o->model, parameters, active, size, info->device, c->context, c->sampling.seed);
}

static int chat_with(const mote_model *model, chat *c) {
    const mote_info *info = mote_model_info(model);
    if (!info->chat_template)
        return complain(EXIT_FAILURE, "%s: no chat template mote knows; mote run --raw -p TEXT continues plain text",
                        c->o->model);
    c->sampling = sampling_for(model, c->o);
    if (c->o->system && append(&c->system, c->o->system, strlen(c->o->system))) return EXIT_FAILURE;
    int code = open_session(model, c->o, &c->session);
    if (code) return code;
    c->context = mote_context(c->session);
    c->speculates = info->mtp_layers && c->o->mtp != MOTE_MTP_OFF;
#ifdef MOTE_LIBEDIT
    rl_getc_function = read_key;
#endif
    if (c->typed && c->styled) chat_banner(c, info);
    chat_loop(c);
    if (c->typed) return 0;
    return interrupted ? EXIT_INTERRUPTED : c->failed;
}

static int command_chat(options *o) {
    mote_model *model = NULL;
    chat c;
    memset(&c, 0, sizeof c);
    c.o = o;
    c.typed = isatty(STDIN_FILENO);
    c.styled = isatty(STDOUT_FILENO);
    if (o->greedy && o->temperature > 0) return complain(EXIT_USAGE, "chat: --greedy and --temp exclude each other");
    catch_interrupt(0);
    int code = open_model(o, MOTE_EVERYTHING, &model);
    if (!code) code = chat_with(model, &c);
    forget_undo(&c);
    free(c.message.data);
    free(c.line.data);
    free(c.system.data);
    mote_session_close(c.session);
    mote_close(model);
    return code;
}

// ---- 8. logits ----------------------------------------------------------------------------------------------------
// Rows are fed in pieces of whole chunks, so that memory stays bounded whatever the number of tokens (a row of a large
// vocabulary takes a megabyte). The MTP row of a position comes with the token after it: the first piece has one less.

static int write_logits(mote_session *session, const int32_t *ids, size_t count, size_t piece, size_t vocab, FILE *out,
                        FILE *mtp) {
    float *rows = malloc(piece * vocab * sizeof *rows), *mtp_rows = NULL;
    mote_error error = {0, ""};
    int code = 0;
    if (mtp) mtp_rows = malloc(piece * vocab * sizeof *mtp_rows);
    if (!rows || (mtp && !mtp_rows)) code = complain(EXIT_FAILURE, "out of memory for %zu rows of logits", piece);
    for (size_t at = 0, n; at < count && !code; at += n) {
        n = count - at < piece ? count - at : piece;
        if (mote_feed_logits(session, ids + at, n, rows, mtp_rows, &error)) {
            code = report(&error);
        } else {
            fwrite(rows, vocab * sizeof *rows, n, out);
            if (mtp && n - !at) fwrite(mtp_rows, vocab * sizeof *rows, n - !at, mtp);
            if (ferror(out) || (mtp && ferror(mtp))) break;      // close_outputs says so
        }
    }
    free(rows);
    free(mtp_rows);
    return code;
}

static int logits_to_files(mote_session *session, const options *o, const bytes *tokens, size_t vocab,
                           output outputs[2]) {
    const size_t chunk = o->chunk ? (size_t)o->chunk : 64, budget = (size_t)16 << 20;    // floats in one piece
    size_t count = tokens->size / sizeof(int32_t), piece = chunk;
    if (budget / vocab > chunk) piece = budget / vocab / chunk * chunk;
    if (piece > count) piece = count;
    int code = begin_outputs(outputs, 2);
    if (code) return code;
    return write_logits(session, (const int32_t *)(const void *)tokens->data, count, piece, vocab, outputs[0].file,
                        outputs[1].file);
}

static int open_logits(const options *o, output outputs[2]) {
    int code = open_output(&outputs[0], o->output);
    if (!code && o->mtp_output) code = open_output(&outputs[1], o->mtp_output);
    if (!code && o->mtp_output && same_file(&outputs[0].status, &outputs[1].status))
        code = complain(EXIT_USAGE, "logits: -o %s and --mtp %s are the same file", o->output, o->mtp_output);
    return code;
}

static int command_logits(options *o) {
    bytes tokens = {NULL, 0, 0};
    mote_model *model = NULL;
    mote_session *session = NULL;
    output outputs[2];
    size_t count = 0;
    memset(outputs, 0, sizeof outputs);
    if (!o->tokens || !o->output) return complain(EXIT_USAGE, "logits: --tokens FILE.i32 and -o OUT.f32 are needed");
    catch_interrupt(1);
    signal(SIGPIPE, SIG_IGN);              // a reader that goes away is a failed write, after which files are discarded
    int code = open_logits(o, outputs);
    if (!code) code = open_model(o, MOTE_WEIGHTS_ONLY, &model);
    const mote_info *info = code ? NULL : mote_model_info(model);
    if (!code && o->mtp_output && !info->mtp_layers)
        code = complain(EXIT_FAILURE, "%s: the model has no MTP layer", o->model);
    if (!code) code = read_tokens(o->tokens, info, 0, &tokens, &count);
    if (!code) {
        o->context = (int)count;
        code = open_session(model, o, &session);
    }
    if (!code) code = logits_to_files(session, o, &tokens, (size_t)info->vocab_size, outputs);
    code = close_outputs(outputs, 2, code);
    free(tokens.data);
    mote_session_close(session);
    mote_close(model);
    return code;
}

// ---- 9. info ------------------------------------------------------------------------------------------------------

// Three significant digits: 1234567 "B" -> "1.23 MB". Decimal units, as bandwidths have them.
static void human(double value, const char *unit, char out[32]) {
    static const char *const prefix[] = {"", "k", "M", "G", "T", "P"};
    int k = 0;
    while (value >= 999.5 && k < 5) value /= 1000, k++;
    snprintf(out, 32, "%.*f %s%s", k == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value, prefix[k], unit);
}

static void print_amount(const char *label, double value, const char *unit) {
    char text[32];
    human(value, unit, text);
    printf("  %-22s%10s\n", label, text);
}

static void print_sizes(const mote_info *i) {
    char all[32], active[32];
    human((double)i->parameters, "", all);
    human((double)i->active_parameters, "", active);
    printf("architecture    %s; chat template: %s\n", i->architecture,
           i->chat_template ? i->chat_template : "none known");
    printf("parameters      %s in all, %s active for one token\n", all, active);
    printf("layers          %d: %d DeltaNet, %d attention; %d MTP\n", i->layers, i->deltanet_layers,
           i->attention_layers, i->mtp_layers);
    printf("hidden size     %d; vocabulary %d%s; context up to %d\n", i->hidden_size, i->vocab_size,
           i->tied_embeddings ? ", tied" : "", i->context_max);
    printf("attention       %d heads, %d KV heads of size %d, %d rotated\n", i->attention_heads, i->kv_heads,
           i->head_dim, i->rotary_dim);
    printf("DeltaNet        %d key heads of size %d, %d value heads of size %d\n", i->deltanet_key_heads,
           i->deltanet_key_dim, i->deltanet_value_heads, i->deltanet_value_dim);
    printf("experts         %d of size %d, %d for each token; shared expert of size %d\n", i->experts, i->expert_size,
           i->experts_per_token, i->shared_expert_size);
}

static void print_modules(const mote_info *i) {
    char parameters[32], size[32], per_token[32];
    printf("\nweights by module\n  %-16s%-24s%12s%12s%18s\n", "", "dtype", "parameters", "bytes", "read per token");
    for (int m = 0; m < i->module_count; m++) {
        human((double)i->modules[m].parameters, "", parameters);
        human((double)i->modules[m].bytes, "B", size);
        human((double)i->modules[m].bytes_per_token, "B", per_token);
        printf("  %-16s%-24s%12s%12s%18s\n", i->modules[m].name, i->modules[m].dtype, parameters, size, per_token);
    }
    human((double)i->parameters, "", parameters);
    human((double)i->weight_bytes, "B", size);
    human((double)i->weight_bytes_per_token, "B", per_token);
    printf("  %-16s%-24s%12s%12s%18s\n", "total", "", parameters, size, per_token);
}

static void print_plan(const mote_info *info, const mote_memory *plan) {
    printf("\nmemory for a session of %d tokens\n", plan->context);
    print_amount("weights", (double)plan->weights, "B");
    print_amount("KV cache", (double)plan->kv, "B");
    print_amount("DeltaNet state", (double)plan->state, "B");
    print_amount("scratch", (double)plan->scratch, "B");
    print_amount("total", (double)plan->total, "B");
    if (!plan->available) return;
    print_amount(on_gpu(info) ? "free on the GPU" : "free on this machine", (double)plan->available, "B");
    if (plan->total <= plan->available) return;
    if (plan->context_fits > 0) printf("  does not fit; --context %d does\n", plan->context_fits);
    else printf("  does not fit%s\n", plan->context_fits ? "" : ", whatever the context");
}

static int command_info(options *o) {
    mote_model *model = NULL;
    mote_memory plan;
    mote_error error = {0, ""};
    int code = open_model(o, MOTE_DESCRIPTION, &model);
    mote_options where = {MOTE_DESCRIPTION, {NULL, NULL, NULL, NULL}, o->device, 0};
    mote_session_options how = session_options(o);
    how.callbacks.log = NULL;              // what there is to note, mote_open has noted
    if (!code && mote_plan(o->model, &where, &how, &plan, &error)) code = report(&error);
    if (!code) {
        const mote_info *info = mote_model_info(model);
        show_format(stdout, "model           %s\n", o->model);
        show_format(stdout, "device          %s\n", info->device);
        print_sizes(info);
        print_modules(info);
        print_plan(info, &plan);
    }
    mote_close(model);
    return code;
}

// ---- 10. bench ----------------------------------------------------------------------------------------------------
// Random tokens, so that the experts are as spread as they can be. On the CPU decoding starts again from one checkpoint
// each time, and bytes are reckoned: the weights one token uses, the DeltaNet state read and written, the KV rows at
// half of the way. On a GPU the library times the steps by the GPU's clock and counts the bytes of the experts really
// chosen; they are set against the read ceiling: what a kernel that only streams these weights reaches, measured first.

typedef struct question { char *text; int line; bytes first; } question;       // first: token ids of its first answer
typedef struct side { mote_session *session; double tokens, seconds; } side;   // of a comparison: what it generated

typedef struct bench {
    const options *o;
    const mote_info *info;
    mote_session *session;
    int32_t *ids;                          // enough for the longest prompt and depth
    bytes file;                            // of --ask, and the questions in it
    question *questions;
    int question_count;
    FILE *table, *json;                    // json: NULL when not wanted
    int json_rows;
    double ceiling;                        // bytes per second; NAN on the CPU
} bench;

typedef struct timing { double median, low, high; } timing;    // tokens per second, or ratios of them

static double seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

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

// Output: a table for people, and the same rows as JSON. A row begins with its name, then put() adds its numbers.

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

// One number: as it is (SI units) in the JSON, times `scale` in the table, if it has a width there. Unknown: NAN, INF.
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

// The bytes of a step and what they mean; step: its seconds.
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
    if (o->sms) fprintf(b->table, ", blocks for %d multiprocessors", o->sms);
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

// Reading prompts, and decoding on the CPU.

static int time_prefill(const bench *b, int length, timing *result) {
    double rates[99];
    mote_error error = {0, ""};
    for (int r = 0; r < b->o->repeat; r++) {
        mote_reset(b->session, NULL);
        double start = seconds();
        if (mote_feed(b->session, b->ids, (size_t)length, &error)) return report(&error);
        rates[r] = length / (seconds() - start);
    }
    *result = summarise(rates, b->o->repeat);
    return 0;
}

static int time_steps(const bench *b, const mote_checkpoint *from, timing *result) {
    double rates[99];
    mote_sampling sampling = {1.0f, 20, 0, 0, 0, 0, 0, 1};
    mote_error error = {0, ""};
    int32_t id;
    for (int r = 0; r < b->o->repeat; r++) {
        if (mote_rewind(b->session, from, &error)) return report(&error);
        double start = seconds();
        for (int i = 0; i < b->o->steps; i++) {
            if (interrupted) return EXIT_INTERRUPTED;
            if (mote_step(b->session, &sampling, &id, &error)) return report(&error);
        }
        rates[r] = b->o->steps / (seconds() - start);
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

static int bench_prefill(bench *b) {
    timing t = {0, 0, 0};
    int code = 0;
    fprintf(b->table, "%-8s%8s%12s%12s%12s", "", "tokens", "tok/s", "lowest", "highest");
    fprintf(b->table, on_gpu(b->info) ? "\n" : "%12s%9s\n", "MB/token", "GB/s");
    for (int i = 0; i < b->o->prompts.count && !code; i++) {
        code = time_prefill(b, b->o->prompts.value[i], &t);
        if (code) break;
        begin_row(b, "prefill", "prefill", 8);
        put_timing(b, b->o->prompts.value[i], t);
        end_row(b);
    }
    return code;
}

static int bench_decode_cpu(bench *b) {
    static const double kv_size[] = {1, 1, 0.5, 0.25};         // by MOTE_KV_..., relative to the default
    timing t = {0, 0, 0};
    int code = 0;
    for (int i = 0; i < b->o->depths.count && !code; i++) {
        double depth = b->o->depths.value[i] + b->o->steps / 2.0;
        double read = (double)b->info->weight_bytes_per_token + 2.0 * (double)b->info->state_bytes +
                      (double)b->info->kv_bytes_per_token * kv_size[b->o->kv] * depth;
        code = time_decode(b, b->o->depths.value[i], &t);
        if (code) break;
        begin_row(b, "decode", "decode", 8);
        put_timing(b, b->o->depths.value[i], t);
        put_bytes(b, read, 1 / t.median, 12);
        end_row(b);
    }
    return code;
}

// Decoding on a GPU.

static int measure(const bench *b, int depth, int rows, int drafts, unsigned stages, mote_measurement *m) {
    mote_error error = {0, ""};
    memset(m, 0, sizeof *m);
    m->rows = rows;
    m->depth = depth;
    m->steps = b->o->steps;
    m->stages = stages;
    m->drafts = drafts;
    for (int k = 0; k < drafts; k++) m->accept[k] = b->o->accept.value[k];
    if (drafts && b->o->overlap > 0) m->overlap = b->o->overlap;
    if (mote_measure(b->session, m, &error)) return report(&error);
    return interrupted ? EXIT_INTERRUPTED : 0;
}

// SM clock and power while the same steps run again, as nvidia-smi tells them; NAN where it does not.
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

// one: seconds of a step of one row at this depth; NAN: not measured.
static void print_step(bench *b, const mote_measurement *m, double one) {
    double clock, power;
    sample_gpu(b, *m, &clock, &power);
    begin_row(b, "decode", "decode", 8);
    put(b, "depth", m->depth, 1, 7, 0);
    put(b, "rows", m->rows, 1, 5, 0);
    put(b, "tokens_per_second", m->rows == 1 ? 1 / m->median : NAN, 1, 9, 1);
    put(b, "tokens_per_second_wall", m->rows == 1 ? 1 / m->wall : NAN, 1, 9, 1);
    put(b, "seconds_wall", m->wall, 1, 0, 0);
    put(b, "seconds", m->median, 1e3, 9, 3);
    put(b, "fastest", m->fastest, 1e3, 9, 3);
    put(b, "slowest", m->slowest, 1e3, 9, 3);
    put(b, "relative_to_one_row", m->median / one, 1, 7, 2);
    put_bytes(b, (double)m->bytes, m->median, 10);
    put(b, "idle", m->rows == 1 ? (m->wall - m->median) / m->wall : NAN, 100, 7, 1);
    put(b, "sm_clock", clock, 1e-6, 6, 0);
    put(b, "power", power, 1, 6, 0);
    put(b, "launches", m->launches, 1, 0, 0);
    end_row(b);
}

static int bench_decode_gpu(bench *b) {
    const options *o = b->o;
    int code = 0;
    fprintf(b->table, "\n%-8s%7s%5s%9s%9s%9s%9s%9s%7s%10s%9s%9s%7s%6s%6s\n", "", "depth", "rows", "tok/s", "by wall",
            "ms/step", "fastest", "slowest", "x one", "MB/step", "GB/s", "ceiling%", "idle%", "MHz", "W");
    for (int i = 0; i < o->depths.count && !code; i++) {
        double one = NAN;
        for (int k = 0; k < o->rows.count && !code; k++) {
            mote_measurement m;
            code = measure(b, o->depths.value[i], o->rows.value[k], 0, 0, &m);
            if (!code && m.rows == 1) one = m.median;
            if (!code) print_step(b, &m, one);
        }
    }
    return code;
}

// plain: seconds of a step without drafts at this depth.
static void print_cycle(bench *b, const mote_measurement *m, double plain) {
    begin_row(b, "speculation_simulated", "simulated", 9);
    put(b, "depth", m->depth, 1, 7, 0);
    put(b, "drafts", m->drafts, 1, 7, 0);
    put(b, "accept_1", m->accept[0], 1, 6, 2);
    put(b, "accept_2", m->drafts > 1 ? m->accept[1] : NAN, 1, 6, 2);
    put(b, "accept_3", m->drafts > 2 ? m->accept[2] : NAN, 1, 6, 2);
    put(b, "overlap", m->overlap, 1, 8, 2);
    put(b, "tokens_per_cycle", m->tokens, 1, 7, 2);
    put(b, "seconds", m->median, 1e3, 9, 3);
    put(b, "fastest", m->fastest, 1, 0, 0);
    put(b, "slowest", m->slowest, 1, 0, 0);
    put(b, "seconds_wall", m->wall, 1, 0, 0);
    put(b, "relative_to_plain", m->median / plain, 1, 8, 2);
    put(b, "verify", m->verify, 1e3, 8, 3);
    put(b, "choose", m->choose, 1e3, 8, 3);
    put(b, "draft", m->draft, 1e3, 8, 3);
    put(b, "tokens_per_second", m->tokens / m->median, 1, 9, 1);
    put(b, "tokens_per_second_wall", m->tokens / m->wall, 1, 9, 1);
    put(b, "speedup", m->tokens / m->median * plain, 1, 9, 2);
    put(b, "idle", (m->wall - m->median) / m->wall, 100, 7, 1);
    put(b, "bytes", (double)m->bytes, 1e-6, 10, 1);
    end_row(b);
}

// Cycles of verifying drafts, accepting them at the rates asked for, and drafting again, on random tokens.
static int bench_speculation(bench *b) {
    const options *o = b->o;
    int least = o->mtp ? o->mtp : 1, most = o->mtp ? o->mtp : DRAFTS_MAX, code = 0;
    fprintf(b->table, "\nspeculation (simulated)\n%-9s%7s%7s%18s%8s%7s%9s%8s%8s%8s%8s%9s%9s%9s%7s%10s\n", "", "depth",
            "drafts", "accepted", "overlap", "tokens", "ms/cycle", "x plain", "verify", "choose", "draft", "tok/s",
            "by wall", "speed-up", "idle%", "MB/cycle");
    for (int i = 0; i < o->depths.count && !code; i++) {
        mote_measurement plain, m;
        code = measure(b, o->depths.value[i], 1, 0, 0, &plain);
        for (int drafts = least; drafts <= most && !code; drafts++) {
            code = measure(b, o->depths.value[i], drafts + 1, drafts, 0, &m);
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

// Steps cut down to one stage each, to those of the experts, and whole ones. The parts need not add up to the whole:
// alone, a stage overlaps with no other.
static int bench_stages(bench *b) {
    static const struct { unsigned stages; const char *name; } parts[] = {
        {MOTE_STAGE_EMBED, "embed"}, {MOTE_STAGE_IN_PROJ, "norm_in_proj"}, {MOTE_STAGE_DELTA, "conv_delta"},
        {MOTE_STAGE_OUT_PROJ, "gated_norm_out"}, {MOTE_STAGE_QKV, "norm_qkv"}, {MOTE_STAGE_ATTEND, "rope_attend"},
        {MOTE_STAGE_O_PROJ, "out"}, {MOTE_STAGE_ROUTER, "norm_router"}, {MOTE_STAGE_UP, "experts_up"},
        {MOTE_STAGE_DOWN, "experts_down"}, {MOTE_STAGE_HEAD, "head"}, {MOTE_STAGE_MTP, "mtp"},
        {MOTE_STAGE_ROUTER | MOTE_STAGE_UP | MOTE_STAGE_DOWN, "moe"}};
    const mote_info *info = b->info;
    unsigned lacking = (info->deltanet_layers ? 0 : MOTE_STAGE_IN_PROJ | MOTE_STAGE_DELTA | MOTE_STAGE_OUT_PROJ) |
                       (info->attention_layers ? 0 : MOTE_STAGE_QKV | MOTE_STAGE_ATTEND | MOTE_STAGE_O_PROJ) |
                       (info->mtp_layers ? 0 : MOTE_STAGE_MTP);
    int depth = b->o->depths.value[0], rows = b->o->rows.value[0];
    mote_measurement all, m;
    int code = measure(b, depth, rows, 0, 0, &all);
    if (code) return code;
    fprintf(b->table, "\n%-16s%9s%10s%10s%10s%9s%10s%9s%9s\n", "", "launches", "us/step", "fastest", "slowest",
            "of all%", "MB/step", "GB/s", "ceiling%");
    for (size_t i = 0; i < sizeof parts / sizeof parts[0] && !code; i++) {
        if (parts[i].stages & lacking) continue;
        code = measure(b, depth, rows, 0, parts[i].stages, &m);
        if (!code) print_stage(b, parts[i].name, &m, all.median);
    }
    if (!code) print_stage(b, "all", &all, all.median);
    return code;
}

// Real text: the questions of a file, answered by a session that does not speculate and by one that does.

static int read_questions(bench *b, const char *path) {
    size_t lines = 1;
    FILE *in = fopen(path, "r");
    if (!in) return file_failure(path);
    int code = read_text(in, path, &b->file);
    fclose(in);
    if (code) return code;
    if (strlen(b->file.data) != b->file.size) return complain(EXIT_FAILURE, "%s: holds a zero byte", path);
    for (size_t i = 0; i < b->file.size; i++) lines += b->file.data[i] == '\n';
    b->questions = calloc(lines, sizeof *b->questions);
    if (!b->questions) return complain(EXIT_FAILURE, "out of memory for %zu questions", lines);
    char *rest = b->file.data, *line;
    for (int number = 1; (line = strsep(&rest, "\n")); number++) {
        question q = {line, number, {NULL, 0, 0}};
        line[strcspn(line, "\r")] = 0;
        if (line[strspn(line, " \t")]) b->questions[b->question_count++] = q;
    }
    return b->question_count ? 0 : complain(EXIT_FAILURE, "%s: holds no questions", path);
}

static int on_asked(void *user, int32_t id) {
    return append(user, (const char *)&id, sizeof id);
}

// Asks a synthetic model, which has no tokenizer: the question's bytes are its tokens.
static int ask_synthetic(const bench *b, mote_session *session, const char *text, const mote_generation *g, mote_result *r,
                         mote_error *error) {
    int code = 0;
    for (; *text && !code; text++) {
        int32_t id = (unsigned char)*text % b->info->vocab_size;
        code = mote_feed(session, &id, 1, error);
    }
    return code ? code : mote_generate(session, g, r, error);
}

// The answer to one question into `ids`; adds to the tokens and seconds of the side.
static int ask(const bench *b, const question *q, side *of, bytes *ids) {
    mote_sampling greedy;
    mote_generation g;
    mote_result result;
    mote_error error = {0, ""};
    memset(&greedy, 0, sizeof greedy);
    memset(&g, 0, sizeof g);
    g.sampling = &greedy;
    g.max_tokens = b->o->steps;
    g.on_token = on_asked;
    g.user = ids;
    ids->size = 0;
    if (append(ids, "", 0)) return EXIT_FAILURE;
    mote_reset(of->session, NULL);
    int code = b->o->synthetic ? ask_synthetic(b, of->session, q->text, &g, &result, &error)
                               : mote_ask(of->session, q->text, &g, &result, &error);
    if (code == MOTE_ECANCELLED) return report(&error);
    if (code) return complain(EXIT_FAILURE, "%s: line %d: %s", b->o->ask, q->line, error.message);
    if (result.stop == MOTE_STOP_CALLBACK) return interrupted ? EXIT_INTERRUPTED : EXIT_FAILURE;
    of->tokens += result.generated_tokens;
    of->seconds += result.generate_seconds;
    return 0;
}

// All questions once; *rate: tokens per second. An answer that is not the first one to its question differs.
static int ask_all(bench *b, side *of, double *rate, int *differing) {
    side before = *of;
    bytes ids = {NULL, 0, 0};
    int code = 0;
    for (int i = 0; i < b->question_count && !code; i++) {
        question *q = &b->questions[i];
        int first = !q->first.data;
        code = ask(b, q, of, first ? &q->first : &ids);
        if (!code && !first && (ids.size != q->first.size || memcmp(ids.data, q->first.data, ids.size))) ++*differing;
    }
    *rate = (of->tokens - before.tokens) / (of->seconds - before.seconds);
    free(ids.data);
    return code;
}

static void put_speculation(const bench *b, const mote_speculation *s) {
    char name[32];
    put(b, "tokens_per_pass", tokens_per_pass(s), 1, 0, 0);
    for (int k = 0; k <= DRAFTS_MAX; k++) {
        snprintf(name, sizeof name, "passes_%d", k);
        put(b, name, (double)s->passes[k], 1, 0, 0);
        snprintf(name, sizeof name, "seconds_%d", k);
        put(b, name, s->cost[k] > 0 ? s->cost[k] : NAN, 1, 0, 0);
        snprintf(name, sizeof name, "drafting_%d", k);
        put(b, name, s->cost[k] > 0 ? s->draft[k] : NAN, 1, 0, 0);
        if (k == 0) continue;
        snprintf(name, sizeof name, "accept_%d", k);
        put(b, name, (double)s->accepted[k - 1] / (double)s->drafted[k - 1], 1, 0, 0);
    }
    if (b->json) fputs(", ", b->json);
    if (b->json) json_text(b->json, "recent", s->recent);
}

static void print_asked(bench *b, const side *off, const side *on, timing ratio, int differing) {
    mote_speculation s = {0};
    mote_speculation_of(on->session, &s, NULL);
    fprintf(b->table, "%d questions, at most %d tokens an answer, %d rounds without speculation and with it\n",
            b->question_count, b->o->steps, b->o->repeat);
    fprintf(b->table, "%-8s%10s%10s%10s%9s%9s%9s%11s\n", "", "tokens", "tok/s off", "tok/s on", "ratio", "lowest",
            "highest", "differing");
    begin_row(b, "ask", "ask", 8);
    put(b, "questions", b->question_count, 1, 0, 0);
    put(b, "rounds", b->o->repeat, 1, 0, 0);
    put(b, "tokens", on->tokens, 1, 10, 0);
    put(b, "tokens_per_second_off", off->tokens / off->seconds, 1, 10, 1);
    put(b, "tokens_per_second_on", on->tokens / on->seconds, 1, 10, 1);
    put(b, "ratio", ratio.median, 1, 9, 2);
    put(b, "ratio_lowest", ratio.low, 1, 9, 2);
    put(b, "ratio_highest", ratio.high, 1, 9, 2);
    put(b, "differing", differing, 1, 11, 0);
    put_speculation(b, &s);
    end_row(b);
    if (s.tokens) print_speculation(b->table, &s);
}

static int bench_ask(bench *b, options *o, const char *name, const mote_model *model) {
    options plain = *o;
    side off = {NULL, 0, 0}, on = {NULL, 0, 0};
    double ratios[99], slow, fast;
    int differing = 0;
    if (!b->info->chat_template && !o->synthetic)
        return complain(EXIT_FAILURE, "%s: no chat template mote knows, which --ask needs", name);
    if (!o->steps) plain.steps = o->steps = 128;
    plain.mtp = MOTE_MTP_OFF;
    plain.verbose = 0;
    int code = open_session(model, &plain, &b->session);
    off.session = b->session;
    if (!code) code = open_session(model, o, &on.session);
    if (!code) print_head(b, name);
    if (!code) json_head(b, name);
    for (int r = 0; r < o->repeat && !code; r++) {
        code = ask_all(b, &off, &slow, &differing);
        if (!code) code = ask_all(b, &on, &fast, &differing);
        ratios[r] = fast / slow;
    }
    if (!code) print_asked(b, &off, &on, summarise(ratios, o->repeat), differing);
    if (!code && b->json) fputs("\n]}\n", b->json);
    if (!code && differing)
        code = complain(EXIT_FAILURE, "bench: %d answers differ: mote run --verify-spec tells where", differing);
    mote_session_close(on.session);
    return code;
}

// Planning and running it.

static void add_defaults(list *l, const int *values, int count, int limit) {
    if (l->count) return;
    for (int i = 0; i < count && values[i] <= limit; i++) l->value[l->count++] = values[i];
}

// What was not asked for gets its default: of lengths those that fit, and the context the lengths need. Returns that.
static int plan_bench(options *o, const mote_info *info) {
    static const int prompts[] = {128, 512}, depths[] = {0, 1024}, gpu_depths[] = {0, 4096, 32768, 131072},
                     rows[] = {1, 2, 3, 4};
    int gpu = on_gpu(info), most = o->accept.count ? DRAFTS_MAX + 1 : 1, need = 0;
    int limit = o->context && o->context < info->context_max ? o->context : info->context_max;
    if (gpu) add_defaults(&o->rows, rows, 4, 4);
    for (int i = 0; i < o->rows.count; i++)
        if (o->rows.value[i] > most) most = o->rows.value[i];
    if (!o->steps) o->steps = gpu ? 200 : 32;
    int room = o->steps * most + 1;        // behind a depth
    add_defaults(&o->prompts, prompts, 2, limit);
    add_defaults(&o->depths, gpu ? gpu_depths : depths, gpu ? 4 : 2, limit - room);
    for (int i = 0; i < o->prompts.count; i++)
        if (o->prompts.value[i] > need) need = o->prompts.value[i];
    for (int i = 0; i < o->depths.count; i++)
        if (o->depths.value[i] + room > need) need = o->depths.value[i] + room;
    if (!o->context) o->context = need;
    return need;
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

static int bench_model(bench *b, options *o, const mote_model *model) {
    const char *name = o->synthetic ? o->synthetic : o->model;
    mote_error error = {0, ""};
    b->info = mote_model_info(model);
    if (!on_gpu(b->info) && (o->rows.count || o->stages || o->sms || o->accept.count))
        return complain(EXIT_FAILURE,
                        "bench: --rows, --stages, --sms and --accept are for a GPU, but the model is on the CPU");
    if (o->accept.count && !b->info->mtp_layers) return complain(EXIT_FAILURE, "%s: the model has no MTP layer", name);
    if (o->ask) return bench_ask(b, o, name, model);
    if (on_gpu(b->info) && o->steps > 1000)
        return complain(EXIT_USAGE, "bench: --tokens on a GPU needs a whole number from 1 to 1000, not '%d'", o->steps);
    b->ids = random_ids(plan_bench(o, b->info), b->info->vocab_size);
    int code = b->ids ? open_session(model, o, &b->session) : complain(EXIT_FAILURE, "out of memory");
    if (!code && on_gpu(b->info) && mote_read_speed(model, &b->ceiling, &error)) code = report(&error);
    if (code) return code;
    if (on_gpu(b->info) || o->synthetic) print_head(b, name);
    json_head(b, name);
    code = bench_prefill(b);
    if (!code) code = on_gpu(b->info) ? bench_decode_gpu(b) : bench_decode_cpu(b);
    if (!code && o->accept.count) code = bench_speculation(b);
    if (!code && o->stages && o->depths.count) code = bench_stages(b);
    if (b->json) fputs("\n]}\n", b->json);
    return code;
}

static int bench_usage(const options *o) {
    if (o->model && o->synthetic) return complain(EXIT_USAGE, "bench: -m and --synthetic exclude each other");
    if (o->ask && (o->prompts.count || o->depths.count || o->rows.count || o->stages || o->accept.count))
        return complain(EXIT_USAGE, "bench: not with --ask: --prompt, --depth, --rows, --stages, --accept");
    if (o->overlap >= 0 && !o->accept.count)
        return complain(EXIT_USAGE, "bench: --overlap belongs to simulated speculation: it needs --accept");
    if (o->accept.count && o->mtp == MOTE_MTP_OFF)
        return complain(EXIT_USAGE, "bench: --accept needs drafts: not with --mtp 0");
    return 0;
}

static int command_bench(options *o) {
    mote_model *model = NULL;
    output json = {0};
    bench b;
    int code = bench_usage(o), json_to_screen = o->json && strcmp(o->json, "-") == 0;
    if (code) return code;
    memset(&b, 0, sizeof b);
    b.o = o;
    b.table = json_to_screen ? stderr : stdout;
    b.ceiling = NAN;
    catch_interrupt(1);
    if (o->json && !json_to_screen) code = open_output(&json, o->json);
    b.json = json_to_screen ? stdout : json.file;
    if (!code && o->ask) code = read_questions(&b, o->ask);
    if (!code) code = open_model(o, o->ask ? MOTE_EVERYTHING : MOTE_WEIGHTS_ONLY, &model);
    if (!code) code = begin_outputs(&json, 1);
    if (!code) code = bench_model(&b, o, model);
    code = close_outputs(&json, 1, code);
    for (int i = 0; i < b.question_count; i++) free(b.questions[i].first.data);
    free(b.questions);
    free(b.file.data);
    free(b.ids);
    mote_session_close(b.session);
    mote_close(model);
    return code;
}

// ---- 11. selftest -------------------------------------------------------------------------------------------------

typedef struct verdict { int passed, failed; } verdict;

static void on_selftest(void *user, const char *what, double difference, double allowed, int ok) {
    verdict *v = user;
    char limit[32] = "equal";
    if (v->passed + v->failed == 0) printf("%-56s%12s%12s\n", "", "difference", "allowed");
    if (allowed > 0) snprintf(limit, sizeof limit, "%.2g", allowed);
    printf("%-56s%12.2g%12s  %s\n", what, difference, limit, ok ? "ok" : "FAILED");
    fflush(stdout);
    if (ok) v->passed++;
    else v->failed++;
}

static int command_selftest(options *o) {
    verdict v = {0, 0};
    mote_error error = {0, ""};
    int failed = 0;
    if (mote_selftest(o->device, o->sms, on_selftest, &v, &failed, &error)) return report(&error);
    printf("%d passed, %d failed\n", v.passed, v.failed);
    return v.failed || failed || !v.passed ? EXIT_FAILURE : 0;
}

// ---- 12. Commands, help and main ----------------------------------------------------------------------------------

typedef struct command {
    const char *name, *summary, *usage;
    int bit;                               // its bit in option.commands
    int (*function)(options *o);
} command;

static int command_help(options *o);

static int command_version(options *o) {
    (void)o;
    printf("mote %s\n", mote_version());
    return 0;
}

static const command command_table[] = {
    {"chat", "talk with a model (the default)", "[OPTIONS]", CHAT, command_chat},
    {"run", "print one answer", "-p TEXT [OPTIONS]", RUN, command_run},
    {"info", "what a model is made of, and the memory it takes", "[OPTIONS]", INFO, command_info},
    {"tokenize", "text from standard input to token ids", "[-m DIR] [-0] < TEXT", TOKENIZE, command_tokenize},
    {"detokenize", "lines of token ids from standard input to texts, each ended by a zero byte", "[-m DIR] < IDS",
     DETOKENIZE, command_detokenize},
    {"render", "a chat request (JSON) from standard input to the prompt text", "[-m DIR] < REQUEST", RENDER,
     command_render},
    {"logits", "write the logits of every token of a file", "[-m DIR] --tokens FILE.i32 -o OUT.f32 [OPTIONS]", LOGITS,
     command_logits},
    {"bench", "measure the speed of reading and of decoding", "[OPTIONS]", BENCH, command_bench},
    {"selftest", "test a GPU: every stage against its plain C twin; needs no model", "[OPTIONS]", SELFTEST,
     command_selftest},
    {"help", "explain a command", "[COMMAND]", HELP, command_help},
    {"version", "print the version", "", HELP, command_version},
};
enum { COMMAND_COUNT = sizeof command_table / sizeof command_table[0] };

static const command *find_command(const char *name) {
    const char *near = NULL;
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(name, command_table[i].name) == 0) return &command_table[i];
        consider(name, command_table[i].name, &near);
    }
    if (near) complain(0, "unknown command '%s'; did you mean %s?", name, near);
    else complain(0, "unknown command '%s'; mote help lists them", name);
    return NULL;
}

static void print_usage(const command *c) {
    printf("mote %s: %s\n\nusage: mote %s %s\n", c->name, c->summary, c->name, c->usage);
    for (int i = 0; i < OPTION_COUNT; i++) {
        const option *d = &option_table[i];
        if (!(d->commands & c->bit)) continue;
        printf("  %-14s%-15s%s\n", d->name, d->value ? d->value : "", d->help);
    }
}

static int command_help(options *o) {
    if (o->topic) {
        const command *c = find_command(o->topic);
        if (!c) return EXIT_USAGE;
        print_usage(c);
        return 0;
    }
    printf("mote %s: chat with a Mixture-of-Experts model, from its checkpoint folder\n\n"
           "usage: mote [COMMAND] [OPTIONS]\n", mote_version());
    for (int i = 0; i < COMMAND_COUNT; i++) printf("  %-11s%s\n", command_table[i].name, command_table[i].summary);
    printf("\nmote COMMAND --help lists a command's options. Without -m DIR, commands use the bundled model.\n"
           "A text from a file or a pipe may have up to %d MiB.\n", TEXT_MAX >> 20);
    return 0;
}

int main(int argc, char **argv) {
    const command *c = &command_table[0];
    int first = 1;
    options o = defaults();
    if (!setlocale(LC_CTYPE, "")) setlocale(LC_CTYPE, "C.UTF-8");
    if (argc > 1) {
        const char *word = argv[1];
        if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0) word = "help";
        if (strcmp(word, "--version") == 0) word = "version";
        if (word[0] != '-') {
            if (!(c = find_command(word))) return EXIT_USAGE;
            first = 2;
        }
    }
    int code = parse_options(c->name, c->bit, argc - first, argv + first, &o);
    if (!code && o.help) print_usage(c);
    else if (!code) code = c->function(&o);
    if ((fflush(stdout) || ferror(stdout)) && !code)
        code = complain(EXIT_FAILURE, "standard output: %s", strerror(errno));
    return code;
}
