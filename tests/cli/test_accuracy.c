// Tests of mote accuracy: its numbers against KL divergences computed here from what mote logits writes, what is compared with what, and
// what it refuses.

#include "engine.h"
#include "shell.h"
#include "json_end.h"

#include <math.h>

enum { VOCAB = 4096, CONTEXT = 256, SCORED = CONTEXT / 2 };

static float reference[CONTEXT * VOCAB], other[CONTEXT * VOCAB];
static int32_t ids[1 << 16];
static char json[1 << 16];

#define TEXT "docs/experts-in-host-memory.md"
#define SHORT " --device cpu --contexts 1 --context 256 --text " TEXT

// The row of a KV type in what was last written to @/j, and in it a number; NAN: there is none.
static double number_of(const char *kv, const char *name) {
    char key[64];
    snprintf(key, sizeof key, "\"kv\": \"%s\"", kv);
    const char *row = strstr(json, key);
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *at = row ? strstr(row, key) : NULL;
    return at ? atof(at + strlen(key)) : NAN;
}

static void measure(const char *arguments) {
    char line[512];
    snprintf(line, sizeof line, "mote accuracy%s --json @/j", arguments);
    shell(line);
    json[read_temp("j", json, sizeof json - 1)] = 0;
    const char *end = json_end(json);
    CHECK(code == 0 && end && !strcmp(end, "\n"), "%s: %d %s, its JSON is %s", line, code, err.data, json);
}

// The logarithm of the sum of e^logit.
static double log_sum(const float *logits) {
    double sum = 0;
    for (int i = 0; i < VOCAB; i++) sum += exp(logits[i]);
    return log(sum);
}

static int first_choice(const float *logits) {
    int best = 0;
    for (int i = 1; i < VOCAB; i++)
        if (logits[i] > logits[best]) best = i;
    return best;
}

typedef struct summary { double kl, largest, same, surprise, expected; } summary;

// Of `other` beside `reference`, over the second half.
static summary compare(void) {
    summary s = {0};
    for (int t = SCORED - 1; t < CONTEXT - 1; t++) {
        const float *p = reference + (size_t)t * VOCAB, *q = other + (size_t)t * VOCAB;
        const double p_sum = log_sum(p), q_sum = log_sum(q);
        double kl = 0;
        for (int i = 0; i < VOCAB; i++) kl += exp(p[i] - p_sum) * (p[i] - p_sum - (q[i] - q_sum));
        s.kl += kl / SCORED;
        s.largest = fmax(s.largest, kl);
        s.same += (double)(first_choice(p) == first_choice(q)) / SCORED;
        s.surprise += (q_sum - q[ids[t + 1]]) / SCORED;
        s.expected += (p_sum - p[ids[t + 1]]) / SCORED;
    }
    return s;
}

static char text_file[1 << 16];
static size_t text_size;

static int read_ids(void) {
    int n = 0, used;
    text_size = read_named(TEXT, text_file, sizeof text_file);
    shell_with(text_file, text_size, "mote tokenize");
    for (const char *at = out.data; n < (1 << 16) && sscanf(at, "%d%n", &ids[n], &used) == 1; at += used) n++;
    return n;
}

static int read_logits(const char *kv, float *to) {
    char line[128];
    snprintf(line, sizeof line, "mote logits --device cpu --tokens @/ids --kv %s -o @/logits", kv);
    shell(line);
    return code == 0 && read_temp("logits", to, sizeof reference) == sizeof reference;
}

static int near(double got, double want) { return fabs(got - want) <= 1e-9 + 1e-6 * fabs(want); }

static void test_numbers(void) {
    static const char *const kv[] = {"bf16", "fp8"};
    const int count = read_ids();
    CHECK(count > CONTEXT, "%d tokens", count);
    temp_write("ids", ids, CONTEXT * sizeof *ids);
    CHECK(read_logits("f32", reference), "mote logits: %d %s", code, err.data);
    measure(SHORT);
    for (int i = 0; i < 2; i++) {
        CHECK(read_logits(kv[i], other), "mote logits: %d %s", code, err.data);
        const summary s = compare();
        const char *of_reference = strstr(json, "\"reference_perplexity\": ");
        CHECK(near(number_of(kv[i], "kl_mean"), s.kl) && near(number_of(kv[i], "kl_largest"), s.largest), "%s: %.12g %.12g, not %s", kv[i], s.kl, s.largest, json);
        CHECK(number_of(kv[i], "kl_99") > s.kl && number_of(kv[i], "kl_99") <= number_of(kv[i], "kl_largest"), "%s: %s", kv[i], json);
        CHECK(near(number_of(kv[i], "same_first"), s.same) && near(log(number_of(kv[i], "perplexity")), s.surprise), "%s: %g %g, not %s", kv[i], s.same,
              exp(s.surprise), json);
        CHECK(of_reference && near(log(atof(of_reference + 24)), s.expected), "%g, not %s", exp(s.expected), json);
    }
    CHECK(number_of("fp8", "kl_mean") > 10 * number_of("bf16", "kl_mean") && isnan(number_of("f32", "kl_mean")), "%s", json);
    measure(SHORT " --kv fp8");
    CHECK(isnan(number_of("bf16", "kl_mean")) && number_of("fp8", "kl_mean") > 0, "--kv fp8: %s", json);
}

static void test_references(void) {
    measure(SHORT " --against definition");
    CHECK(number_of("f32", "kl_mean") < 1e-9 && number_of("f32", "same_first") == 1 && number_of("fp8", "kl_mean") > 1e-6, "the definition: %s", json);
    CHECK(strstr(out.data, "reference  the definition, in double precision"), "%s", out.data);
    measure(SHORT " --against models/demo");
    CHECK(number_of("f32", "kl_largest") == 0 && strstr(out.data, "decode, f32 KV cache: 0 nats a token, less than 0.01; all first choices are the reference's\n"),
          "itself: %s %s", json, out.data);
    measure(SHORT " --quantize fp8");
    CHECK(number_of("f32", "kl_largest") == 0 && strstr(json, "\"quantize\": \"fp8\"") && strstr(out.data, "the checkpoint's own weights"), "FP8 of FP8: %s", json);
    measure(SHORT " --against cpu");
    CHECK(isnan(number_of("f32", "kl_mean")) && number_of("bf16", "kl_mean") > 0, "the CPU against itself: %s", json);
    measure(" --device cpu --synthetic tiny:bf16:2 --contexts 2 --context 256 --threads 2");
    CHECK(strstr(out.data, "random weights, which say little") && strstr(json, "\"scored\": 256,"), "%s %s", out.data, json);
}

static void test_contexts(void) {
    measure(" --device cpu --text " TEXT " --contexts 2 --context 256 --kv bf16");
    CHECK(strstr(json, "\"contexts\": 2, \"context\": 256, \"scored\": 256,"), "%s", json);
    temp_write("short", text_file, 1500);
    measure(" --device cpu --text @/short --kv bf16");
    CHECK(strstr(json, "\"contexts\": 1, \"context\": "), "all of a short text: %s", json);
}

static void test_refusals(void) {
    check_refused("mote accuracy", 2, "--text FILE is needed");
    check_refused("mote accuracy --text nosuch.txt", 1, "nosuch.txt");
    check_refused("mote accuracy" SHORT " --context 100", 2, "--context");
    check_refused("mote accuracy --text " TEXT " --context 300", 2, "a multiple of 256, not '300'");
    check_refused("mote accuracy --text " TEXT " --against definition --context 2048", 2, "up to 1024");
    check_refused("mote accuracy --text " TEXT " --synthetic tiny", 2, "not with --synthetic");
    check_refused("mote accuracy --synthetic tiny --against models/demo", 2, "not with --synthetic");
    check_refused("mote accuracy" SHORT " --kv f32", 2, "the reference itself");
    check_refused("mote accuracy" SHORT " --against nosuch", 1, "nosuch");
    check_refused("mote accuracy" SHORT " --against tests/fixtures/bf16-as-3.6", 1, "its vocabulary has");
    check_refused("mote accuracy" SHORT " --json @/no/j", 1, "no/j");
    temp_write("few", "a few words", 11);
    check_refused("mote accuracy --device cpu --text @/few --json @/part", 1, "and 256 are needed at least");
    CHECK(!temp_exists("part"), "the JSON of what was refused is there");
}

// Of a text only what the contexts need is read, of one without an end, too.
static void test_endless_text(void) {
    shell("sh -c \"yes 'of the same words' | " MOTE_PROGRAM " accuracy --device cpu --contexts 2 --context 256 --text /dev/stdin\"");
    CHECK(code == 0 && strstr(out.data, "2 contexts of 256 tokens"), "an endless text: %d %s", code, err.data);
    shell("sh -c \"yes '<|im_start|>' | tr -d '\\n' | head -c 300000 | " MOTE_PROGRAM
          " accuracy --device cpu --contexts 2 --context 256 --text /dev/stdin\"");
    CHECK(code == 0 && strstr(out.data, "2 contexts of 256 tokens"), "few tokens of many bytes: %d %s %s", code, err.data, out.data);
}

static void test_terminated(void) {
    if (system("timeout 1 true 2>/dev/null")) {
        test_skip("no timeout command");
        return;
    }
    shell("sh -c \"yes 'of the same words' | timeout --preserve-status -s TERM 2 " MOTE_PROGRAM
          " accuracy --device cpu --contexts 900 --context 1024 --threads 1 --text /dev/stdin --json @/term\"");
    CHECK(code == 143 && err.size == 0 && out.size == 0 && !temp_exists("term"), "ended by SIGTERM: exit code %d: %s", code, err.data);
}

int main(int argc, char **argv) {
    test_main_begin("test_accuracy", argc, argv);
    if (!temp_open()) return test_main_end();
    test_numbers();
    test_references();
    test_contexts();
    test_refusals();
    test_endless_text();
    test_terminated();
    temp_close();
    return test_main_end();
}
