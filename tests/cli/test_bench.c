// Tests of mote bench: what it prints and writes for machines, synthetic models, questions, and the report.

#include "engine.h"
#include "shell.h"
#include "json_end.h"

#include <math.h>

#define FIXTURE "tests/fixtures/bf16-as-3.6"

static int is_json(const char *s) {
    const char *end = json_end(s);
    return end && strcmp(end, "\n") == 0;
}

// What JSON has after "name": a number, or NAN.
static double number_of(const char *json, const char *name) {
    char key[64];
    snprintf(key, sizeof key, "\"%s\": ", name);
    const char *at = strstr(json, key);
    return at ? atof(at + strlen(key)) : NAN;
}

static void test_json(void) {
    static char data[1 << 16];
    shell("mote bench --device cpu -m " FIXTURE " --prompt 4,8 --depth 0,4 --tokens 2 --repeat 1 --json @/j");
    size_t size = read_temp("j", data, sizeof data - 1);
    data[size] = 0;
    CHECK(code == 0 && line_count(&out) == 9 && is_json(data), "bench --json: %d %s %s", code, err.data, data);
    CHECK(strstr(data, "\"synthetic\": false") && strstr(data, "\"device\": \"cpu\"") &&
              strstr(data, "\"read_ceiling\": ") && !strstr(data, "\"read_ceiling\": null") && strstr(data, "\"tokens_per_second\": ") &&
              strstr(data, "{\"kind\": \"decode\""),
          "bench --json lacks something: %s", data);
    shell("mote bench --device cpu -m " FIXTURE " --prompt 4 --depth 0 --tokens 2 --repeat 1 --json -");
    CHECK(code == 0 && is_json(out.data) && line_count(&err) == 7, "bench --json -: %d %s %s", code, out.data,
          err.data);
    check_refused("mote bench -m " FIXTURE " --json @/no/j", 1, "no/j");
    shell("mote bench --device cpu -m " FIXTURE " --prompt 4 --depth 9 --context 5 --json @/part");
    CHECK(code == 1 && !temp_exists("part"), "a bench that failed: %d, its JSON is %s", code,
          temp_exists("part") ? "there" : "gone");
}

static void test_synthetic(void) {
    shell("mote info --synthetic qwen3.5-397b-a17b:nvfp4 --device cpu");
    CHECK(code == 0 && strstr(out.data, "model           qwen3.5-397b-a17b:nvfp4\n") &&
          strstr(out.data, "\nlayers          60;") && strstr(out.data, "FP8 per tensor ") && !strstr(out.data, "128x128") &&
          strstr(out.data, "\nmemory for a session of 8192 tokens\n") && strstr(out.data, "does not fit"), "info --synthetic: %d %s %s", code,
          out.data, err.data);
    shell("mote info --synthetic tiny --device cpu --context 100");
    CHECK(code == 0 && strstr(out.data, "\nmemory for a session of 100 tokens\n") && strstr(out.data, "free on this machine") &&
              strstr(out.data, "longest context            32768 tokens") && !strstr(out.data, "does not fit"),
          "info --synthetic tiny: %d %s %s", code, out.data, err.data);
    shell("mote info --device cpu -m tests/fixtures/embedding/qwen3-embedding");
    CHECK(code == 0 && strstr(out.data, "\nembeddings      the row of a text's last token\n"), "%s", out.data);
    /* 2.31 GB of weights, less 0.05 of the MTP layer, and 0.13 of states, over 400 GB/s, 40 * 15 us, and 566 MB over 25 GB/s are 29.2 ms; with
       half of the experts 17.9 ms; with none 6.6 ms */
    shell("mote info --device cpu --synthetic qwen3.5-35b-a3b:nvfp4 --context 1024 --gpu-memory 16Gi --link 25:400");
    CHECK(code == 0 && strstr(out.data, " 0 %          566 MB        34\n") && strstr(out.data, " 50 %          283 MB        56\n") &&
              strstr(out.data, " 100 %             0 B       152\n") && strstr(out.data, "10.3 ms for a token, 97 tok/s") &&
              strstr(out.data, "in 17.2 GB, beside all else") && strstr(out.data, "predicted, not measured"),
          "info --link: %d %s %s", code, out.data, err.data);
    shell("mote info --device cpu --synthetic qwen3.5-27b:bf16 --drafter synthetic");
    CHECK(code == 0 && strstr(out.data, "\na block of drafts reads the drafter and 65536 rows of the head, 4.13 GB\n"), "info --drafter: %d %s %s", code, out.data, err.data);
    shell("mote info --device cpu --synthetic qwen3-8b --link 25:400");
    CHECK(code == 2 && strstr(err.data, "this one has none"), "info --link without experts: %d %s", code, err.data);
    shell("mote info --device cpu -m tests/fixtures/bf16-as-3.5 --quantize fp8");
    CHECK(code == 0 && strstr(out.data, "not the checkpoint's own") && strstr(out.data, "BF16 as FP8 128x128"),
          "info --quantize: %d %s %s", code, out.data, err.data);
    check_refused("mote bench --device cpu --synthetic nosuch", 1, "nosuch");
    if (!strstr(err.data, "tiny")) {
        test_skip("no synthetic model named tiny");
        return;
    }
    shell("mote bench --device cpu --synthetic tiny --prompt 8 --depth 0,8 --tokens 2 --repeat 1");
    CHECK(code == 0 && strstr(out.data, "tiny (synthetic: random weights)") && strstr(out.data, "\ntg2 @ d8 ") && strstr(out.data, "\npp8 "),
          "bench --synthetic: %d %s %s", code, out.data, err.data);
    shell("mote bench --device cpu --synthetic tiny --prompt 8 --depth 0 --tokens 2 --repeat 1 --json -");
    CHECK(code == 0 && is_json(out.data) && strstr(out.data, "\"synthetic\": true"),
          "bench --synthetic --json: %d %s %s", code, out.data, err.data);
}

// Pictures: tokens by their sizes, and a first token after the tower.
static void test_bench_images(void) {
    shell("mote bench --device cpu --synthetic tiny --image 64x64,320x640 --repeat 2 --json -");
    CHECK(code == 0 && is_json(out.data) && strstr(out.data, "\"name\": \"320x640\", \"tokens\": 200,") && number_of(out.data, "features_seconds") > 0 &&
              number_of(out.data, "first_token_lowest") > number_of(out.data, "features_lowest") && number_of(out.data, "open_seconds") > 0,
          "bench --image: %d %s %s", code, out.data, err.data);
    shell("mote bench --device cpu --synthetic tiny --image 320x640 --image-tokens 100 --repeat 1 --json -");
    CHECK(code == 0 && strstr(out.data, "\"tokens\": 98,"), "bench --image of 100 tokens at most: %d %s %s", code, out.data, err.data);
    check_refused("mote bench --device cpu --synthetic tiny-dense --image 64x64", 1, "this model reads no images");
    check_refused("mote bench --device cpu --synthetic tiny --image 10000x10", 1, "one side is more than 200 times the other");
    check_refused("mote bench --synthetic tiny --image 64", 2, "--image needs up to 16 sizes");
    check_refused("mote bench --synthetic tiny --image 64x0", 2, "--image needs up to 16 sizes");
    check_refused("mote bench --synthetic tiny --image 64x64 --prompt 4", 2, "not with --image");
}

// Sessions of two replicas say what they say alone; all of them are counted, whichever replica has them.
static void test_bench_replicas(void) {
    static char data[1 << 16];
    shell("mote bench --devices cpu,cpu --split replicas --threads 1 --sessions 5,1 --prompt 16 --tokens 4 --repeat 1 --json @/j");
    data[read_temp("j", data, sizeof data - 1)] = 0;
    CHECK(code == 0 && strstr(out.data, "replicas 2, on cpu,cpu\n") && is_json(data), "bench with replicas: %d %s %s", code, err.data, data);
    const char *five = strstr(data, "\"sessions\": 5"), *one = strstr(data, "\"sessions\": 1,");
    CHECK(one && number_of(one, "distinct_experts") == 2, "one session chooses two experts, whatever the other replica did before: %s", data);
    CHECK(five && number_of(five, "replicas") == 2 && number_of(five, "differing") == 0 &&
              number_of(five, "tokens_per_second") > 0,
          "bench with replicas: %s", data);
    check_refused("mote bench --devices cpu,cpu --split replicas --prompt 16", 2, "belongs to --sessions");
    check_refused("mote bench --devices cpu,cpu --split replicas --sessions 2 --beside 100", 2, "without --beside");
    check_refused("mote bench --split replicas --sessions 2", 2, "--split needs --devices");
}

// Sessions that read pieces of a text: what they say with drafts is what they say with steps, and experts are counted.
static void test_bench_text(void) {
    static char data[1 << 16];
    shell("mote bench --device cpu --threads 1 --sessions 1,3 --text docs/server.md --prompt 24 --tokens 12 --repeat 1 --mtp 2 --json @/j");
    data[read_temp("j", data, sizeof data - 1)] = 0;
    CHECK(code == 0 && is_json(data) && strstr(out.data, "independent") && strstr(out.data, "\nspeculation\n"), "bench --text: %d %s %s", code, err.data, data);
    const char *one = strstr(data, "\"name\": \"1\""), *three = strstr(data, "\"name\": \"3\""), *drafting = strstr(data, "\"sessions_speculating\"");
    if (!CHECK(one && three && drafting && three < drafting, "bench --text: %s", data)) return;
    CHECK(number_of(one, "distinct_experts") == 2 && number_of(one, "independent_experts") == 2, "one row chooses two: %s", one);
    CHECK(number_of(three, "distinct_experts") > 2 && number_of(three, "distinct_experts") <= 6, "three rows: %s", three);
    CHECK(fabs(number_of(three, "independent_experts") - 8 * (1 - pow(0.75, 3))) < 1e-9, "of 8 experts two, three times: %s", three);
    CHECK(number_of(drafting, "drafts_per_pass") > 0.5 && number_of(drafting, "accepted") >= 0 && number_of(drafting, "accepted") <= 1 &&
              number_of(drafting, "tokens_per_pass") >= 1 && number_of(drafting, "differing") == 0, "drafts: %s", drafting);
    shell("mote bench --device cpu --threads 1 --sessions 1 --text docs/server.md --prompt 8 --tokens 2 --repeat 1 --mtp 0");
    CHECK(code == 0 && !strstr(out.data, "speculation"), "bench --text --mtp 0: %d %s", code, out.data);
    temp_write("few", "a few words", 11);
    check_refused("mote bench --device cpu --sessions 2 --prompt 8 --text @/few", 1, "but 2 sessions with prompts of 8 need 16");
    check_refused("mote bench --device cpu --sessions 2 --text @/none", 1, "/none: No such file");
    check_refused("mote bench --device cpu --text docs/server.md", 2, "--text belongs to --sessions");
    check_refused("mote bench --device cpu --sessions 2 --prompt 8,16 --text docs/server.md", 2, "--sessions takes one length of --prompt");
    check_refused("mote bench --device cpu --sessions 2 --text docs/server.md --synthetic tiny", 2, "without --beside, --accept and --synthetic");
}

static void test_bench_ask(void) {
    static const char questions[] = "What is mote?\n\r\n \nWhat is a router?";
    static char data[1 << 16];
    temp_write("questions", questions, sizeof questions - 1);
    shell("mote bench --ask @/questions --tokens 6 --repeat 2 --mtp 2 --json @/j");
    size_t size = read_temp("j", data, sizeof data - 1);
    data[size] = 0;
    CHECK(code == 0 && err.size == 0 && strstr(out.data, "\n2 questions, ") && strstr(out.data, "\nask ") &&
              strstr(out.data, "\n drafts of the last passes: ") && !strstr(out.data, "prefill"),
          "bench --ask: %d '%s' %s", code, out.data, err.data);
    CHECK(is_json(data) && strstr(data, "{\"kind\": \"ask\"") && strstr(data, "\"differing\": 0,") &&
              strstr(data, "\"accept_mtp_2\": "),
          "bench --ask --json: %s", data);
    shell("mote bench --ask @/questions --tokens 6 --repeat 3 --mtp 0 --json @/j");
    data[read_temp("j", data, sizeof data - 1)] = 0;
    const double off = number_of(data, "tokens_per_second_off"), on = number_of(data, "tokens_per_second_on"), ratio = number_of(data, "ratio");
    CHECK(off > 0 && fabs(on / off / ratio - 1) < 1e-6 && ratio >= number_of(data, "ratio_lowest") * (1 - 1e-6) &&
              ratio <= number_of(data, "ratio_highest") * (1 + 1e-6),
          "%g is not %g / %g, or not of the rounds: %s", ratio, on, off, data);
    shell("mote bench --ask @/questions --tokens 4 --repeat 1");
    CHECK(code == 0 && strstr(out.data, "\nask "), "bench --ask, auto: %d '%s' %s", code, out.data, err.data);
    shell("mote bench --synthetic tiny --ask @/questions --tokens 4 --repeat 1 --mtp 3");
    CHECK(code == 0 && strstr(out.data, "\nask "), "bench --ask, synthetic: %d '%s' %s", code, out.data, err.data);
    check_refused("mote bench --ask @/nosuch", 1, "nosuch");
    check_refused("mote bench --ask @", 1, "mote: /tmp/mote-test-");
    temp_write("questions", "\n \r\n", 4);
    check_refused("mote bench --ask @/questions", 1, "holds no questions");
    temp_write("questions", "a\0b", 3);
    check_refused("mote bench --ask @/questions", 1, "holds a zero byte");
    temp_write("questions", "\nWhat is a router, and what is mote?\n", 37);
    shell("mote bench --ask @/questions --context 16");
    CHECK(code == 1 && line_count(&err) == 1 && strstr(err.data, "/questions: line 2: "),
          "a question too long: %d %s", code, err.data);
    shell("mote bench --ask @/questions -m " FIXTURE);
    CHECK(code == 1 && line_count(&err) == 1, "bench --ask without a tokenizer: %d %s", code, err.data);
}

// A block that tells of a machine: hashes of files as others count them, speeds, and answers that are equal.
static void test_bench_report(void) {
    static char data[1 << 16];
    shell("(sha256sum models/demo/tokenizer.json | cut -c 1-16)");
    static text hash;
    hash = out;
    hash.data[strcspn(hash.data, "\n")] = 0;
    shell("mote bench --report --device cpu --prompt 8 --depth 0 --tokens 2 --repeat 1 --json @/j");
    data[read_temp("j", data, sizeof data - 1)] = 0;
    CHECK(code == 0 && !err.size && !strncmp(out.data, "mote     " MOTE_VERSION ", 20", 12 + strlen(MOTE_VERSION)) && strstr(out.data, "\npp8 ") &&
              strstr(out.data, "\ntg2 ") && strstr(out.data, "\n6 questions, at most 128 tokens") && strstr(out.data, "\nask "),
          "bench --report: %d '%s' %s", code, out.data, err.data);
    const char *files = strstr(out.data, " tokenizer.json "), *weights = strstr(out.data, " weights ");
    CHECK(files && !strncmp(files + 16, hash.data, 16), "tokenizer.json is %s: %s", hash.data, out.data);
    CHECK(is_json(data) && strstr(data, "\"kind\": \"prefill\"") && strstr(data, "\"kind\": \"ask\"") && strstr(data, "\"differing\": 0,"),
          "bench --report --json: %s", data);
    static char before[40];
    snprintf(before, sizeof before, "%.30s", weights ? weights : "");
    shell("mkdir @/other && cp models/demo/*.json models/demo/*.safetensors @/other "
          "&& (printf x | dd of=@/other/model.safetensors bs=1 seek=2000000 conv=notrunc 2>@/dd)");
    shell("mote bench --report --device cpu -m @/other --prompt 8 --depth 0 --tokens 2 --repeat 1");
    weights = strstr(out.data, " weights ");
    CHECK(code == 0 && weights && *before && strncmp(weights, before, 25), "weights that differ: '%s' and '%.30s'", before, weights ? weights : out.data);
    shell("mote bench --report --device cpu --synthetic tiny --prompt 8 --depth 0 --tokens 2 --repeat 1");
    CHECK(code == 0 && strstr(out.data, "\nask ") && !strstr(out.data, "\nfiles "), "bench --report --synthetic: %d '%s' %s", code, out.data, err.data);
    check_refused("mote bench --report --ask x", 2, "not with --report");
}

int main(int argc, char **argv) {
    test_main_begin("test_bench", argc, argv);
    if (!temp_open()) return test_main_end();
    test_json();
    test_synthetic();
    test_bench_images();
    test_bench_replicas();
    if (access("models/demo/config.json", F_OK) == 0) {
        test_bench_text();
    test_bench_ask();
        test_bench_report();
    } else {
        test_skip("no models/demo: bench --ask, --report");
    }
    temp_close();
    return test_main_end();
}
