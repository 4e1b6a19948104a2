// Tests of mote trace: what it prints, the page that it writes, and what it refuses. What is traced: tests/model/test_trace.c; the page in a
// browser: tools/test_trace_page.py.

#include "engine.h"
#include "shell.h"
#include "json_end.h"

#define FIXTURE "tests/fixtures/bf16-as-3.6"

static text page;

// The trace in the page @/page.html: the place after it holds a zero.
static const char *traced(void) {
    page.size = read_temp("page.html", page.data, sizeof page.data - 1);
    page.data[page.size] = 0;
    char *json = strstr(page.data, "<script type=\"application/json\" id=\"trace\">");
    if (!CHECK(json && page.size < sizeof page.data - 1, "no trace in a page of %zu bytes", page.size)) return "";
    json = strchr(json, '>') + 1;
    const char *end = json_end(json);
    CHECK(end && !strncmp(end, "\n</script>", 10), "the trace is not JSON: %.200s", json);
    if (end) json[end - json] = 0;
    CHECK(!strchr(json, '<'), "HTML in the trace: %.60s", strchr(json, '<'));
    return json;
}

static int times(const char *text, const char *part) {
    int n = 0;
    for (; (text = strstr(text, part)); text += strlen(part)) n++;
    return n;
}

// Columns of the widest line; a character is one.
static int widest(const char *text) {
    int most = 0, line = 0;
    for (; *text; text++) {
        line = *text == '\n' ? 0 : line + ((*text & 0xc0) != 0x80);
        if (line > most) most = line;
    }
    return most;
}

static void test_text(void) {
    char block[64];
    shell("mote trace 'What is FP8?'");
    CHECK(code == 0 && err.size == 0, "trace: %d %s", code, err.data);
    for (int i = 0; i < 8; i++) {
        snprintf(block, sizeof block, "\nlayer %d, %s + moe\n", i, i % 4 == 3 ? "attention" : "deltanet");
        CHECK(strstr(out.data, block), "no block%s", block);
    }
    CHECK(strstr(out.data, "\nMTP layer, attention + moe\n") && times(out.data, "\n  6 \" FP\" ") == 11, "token 6 stands in %d lines, not 11",
          times(out.data, "\n  6 \" FP\" "));
    CHECK(strstr(out.data, "18 tokens, a question in the chat template\n"), "%.200s", out.data);
    CHECK(strstr(out.data, "\n 17 \"\\n\"           100 \"FP\" "), "the answer begins with FP: %s", strstr(out.data, "what comes next"));
    CHECK(strstr(out.data, "\n  1 \"FP\" + \"8\" - "), "the answer begins with FP8: %s", strstr(out.data, "how it goes on"));
    CHECK(widest(out.data) <= 100 && !strstr(out.data, " \n") && !strstr(out.data, "nan"), "%d columns", widest(out.data));
    shell("mote trace --raw 'What is FP8?'");
    CHECK(code == 0 && strstr(out.data, "\n5 tokens\n"), "--raw: %d %.200s", code, out.data);
    shell("mote trace --raw a");
    CHECK(code == 0 && strstr(out.data, "\n1 token\n") && !strstr(out.data, "\nMTP layer,"), "one token: %d %.200s", code, out.data);
    shell("mote trace --raw \"$(printf 'a\\nb\\033[1m\\177')\"");
    CHECK(code == 0 && !strchr(out.data, 27) && !strchr(out.data, 127) && strstr(out.data, "\\x1b"), "controls: %d %s", code, out.data);
    shell("mote trace --raw 'a☃'");                         // which no token has as a whole
    CHECK(code == 0 && strstr(out.data, "\"<0xE2>") && strstr(out.data, "<0x83>\"") && !strstr(out.data, "\xEF\xBF\xBD") && widest(out.data) <= 100,
          "bytes of a character: %d %s", code, out.data);
    shell("mote trace $(yes word | head -200)");
    CHECK(code == 2, "words without quotes: %d", code);
    shell("mote trace \"$(yes word | head -200)\"");
    CHECK(code == 0 && strstr(err.data, "mote: note: the first 64 of ") && strstr(out.data, "\n64 tokens, "), "long: %d %s", code, err.data);
}

// What there is to know of all comes first; of the layers after it as many as are asked for.
static void test_layers(void) {
    shell("mote trace 'What is FP8?'");
    const char *summary = strstr(out.data, "\nwhat comes next"), *passes = strstr(out.data, "\nhow it goes on"), *first = strstr(out.data, "\nlayer 0,");
    CHECK(summary && passes && first && summary < passes && passes < first && strstr(out.data, "|x|") > passes, "the order: %.300s", out.data);
    CHECK(times(out.data, "\nlayer ") == 9 && times(out.data, "\nMTP layer, ") == 1, "all layers and their title: %d", times(out.data, "\nlayer "));
    shell("mote trace 'What is FP8?' --layers 0-2,5,8");
    CHECK(code == 0 && times(out.data, "\nlayer ") == 5 && strstr(out.data, "\nlayer 2,") && strstr(out.data, "\nlayer 5,") &&
              times(out.data, "\nMTP layer, ") == 1 && strstr(out.data, "\nwhat comes next"), "--layers: %d %s", code, out.data);
    shell("mote trace a --layers 3");
    CHECK(code == 0 && times(out.data, "\nlayer ") == 2 && strstr(out.data, "\nlayer 3,"), "one layer: %d %s", code, out.data);
}

static void test_detail(void) {
    shell("mote trace 'What is FP8?' --layer 3");
    CHECK(code == 0 && times(out.data, "\nlayer ") == 1 && strstr(out.data, "\nlayer 3, attention + moe\n"), "--layer 3: %d %.300s", code, out.data);
    CHECK(times(out.data, "  head 3  gate ") == 18 && times(out.data, "looks at") == 72 && times(out.data, "\n  experts ") == 18 &&
              widest(out.data) <= 100, "--layer 3: %d columns: %s", widest(out.data), out.data);
    shell("mote trace 'What is FP8?' --layer 0");
    CHECK(code == 0 && times(out.data, "decay ") == 72, "--layer 0: %d %.300s", code, out.data);
    shell("mote trace 'What is FP8?' --layer 8");
    CHECK(code == 0 && strstr(out.data, "\nMTP layer, ") && times(out.data, "  head 3  gate ") == 17, "--layer 8: %d %.300s", code, out.data);
}

// The ids of the trace's passes, as far as they were taken, as mote run --ids prints them.
static void taken_ids(const char *json, char *to, size_t capacity) {
    size_t n = 0;
    const char *pass = strstr(json, "\"passes\":[");
    for (pass = pass ? strstr(pass, "{\"tokens\":") : NULL; pass; pass = strstr(pass + 1, "{\"tokens\":")) {
        const char *taken = strstr(pass, "],\"taken\":");
        const char *id = strstr(pass, "{\"id\":");
        for (int left = taken ? atoi(taken + 10) + 1 : 0; left && id; left--, id = strstr(id + 1, "{\"id\":"))
            n += (size_t)snprintf(to + n, capacity - n, "%s%d", n ? " " : "", atoi(id + 6));
    }
}

static void test_page(void) {
    char ids[1024] = "";
    shell("mote trace 'What is FP8?' --html @/page.html");
    CHECK(code == 0 && out.size, "--html: %d %s", code, err.data);
    const char *json = traced();
    CHECK(strstr(json, "\"model\":\"models/demo\",\"architecture\":\"qwen3_5_moe\",\"hidden\":256,\"vocabulary\":4096,\"chat\":true"), "%.200s", json);
    CHECK(times(json, "\"index\":") == 9 && times(json, "\"mtp\":true") == 1 && times(json, "\"kind\":\"deltanet\",\"heads\":4") == 6 &&
              times(json, "\"S\":{\"rows\":64,\"columns\":64,\"scale\":[") == 6 && times(json, "\"kind\":\"attention\",\"heads\":4") == 3 &&
              times(json, "\"experts\":8,\"top_k\":2,\"chosen\":[[{") == 9 && times(json, "\"router\":[[") == 9 && !strstr(json, "null"),
          "layers of the trace: %.2000s", json);
    CHECK(times(json, "{\"expert\":") == 2 * (8 * 18 + 17), "%d experts are chosen", times(json, "{\"expert\":"));
    CHECK(page.size < 400000 && !strstr(page.data, "http:") && !strstr(page.data, "https:") && strstr(page.data, "default-src 'none'"),
          "a page of %zu bytes", page.size);
    taken_ids(json, ids, sizeof ids);
    shell("mote run 'What is FP8?' --greedy --ids -n 16");
    out.data[strcspn(out.data, "\n")] = 0;
    CHECK(code == 0 && !strcmp(ids, out.data), "the answer is %s, in passes %s", out.data, ids);
    shell("mote trace --raw '</script><img src=x onerror=alert(1)> \"\\ <!-- é €' --html @/page.html");
    json = traced();
    CHECK(code == 0 && strstr(json, "\"chat\":false"), "hostile text: %d %s", code, err.data);
}

// Bytes that are no whole character, in the trace's JSON.
static void test_bytes(void) {
    shell("mote trace --raw 'a☃' --html @/page.html");
    const char *json = traced();
    CHECK(code == 0 && strstr(json, "\"text\":\"\\u003c0xE2>") && strstr(json, "\\u003c0x83>\"") && !strstr(json, "\xEF\xBF\xBD"), "bytes: %d %.300s",
          code, json);
}

// Token ids, models without a tokenizer or an MTP layer, of other families.
static void test_models(void) {
    char command[400];
    shell("mote trace -m " FIXTURE " --tokens " FIXTURE "/tokens.i32 --html @/page.html");
    CHECK(code == 0 && strstr(out.data, "  0 #"), "a fixture: %d %s", code, err.data);
    CHECK(strstr(traced(), "\"text\":\"\""), "tokens without texts");
    static const struct { const char *name, *block, *kind; int mtp; } families[] = {
        {"llama", "\nlayer 0, attention + mlp\n", "\"kind\":\"mlp\"", 0}, {"qwen3.5-dense", "\nlayer 0, deltanet + mlp\n", "\"S\":{", 1},
        {"deepseek-v3", "\nlayer 0, mla + mlp\n", "\"kind\":\"mla\",\"heads\":4", 1},
        {"mixtral", "\nlayer 0, attention + moe\n", "\"router\":[[", 0}, {"qwen3-moe", "\nlayer 0, attention + moe\n", "\"router\":[[", 0}};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++) {
        snprintf(command, sizeof command, "head -c 60 tests/fixtures/families/%s/tokens.i32 >@/ids; mote trace", families[i].name);
        shell(command);
        snprintf(command, sizeof command, "mote trace -m tests/fixtures/families/%s --tokens @/ids --html @/page.html", families[i].name);
        shell(command);
        CHECK(code == 0 && strstr(out.data, families[i].block) && widest(out.data) <= 100, "%s: %d %s %.2000s", command, code, err.data, out.data);
        const char *json = traced();
        const int drafts = strstr(out.data, "\nwhat the MTP layer drafts") != NULL, none = strstr(out.data, "\nthere is no MTP layer") != NULL;
        CHECK(drafts == families[i].mtp && none == !drafts && (strstr(json, "\"drafts\":[]") == NULL) == drafts, "%s: %.300s", families[i].name, json);
        CHECK(strstr(json, families[i].kind) && !strstr(json, "null"), "%s: %.300s", families[i].name, json);
        CHECK(strcmp(families[i].name, "mixtral") || !strstr(json, "\"shared\""), "a shared expert that is none");
    }
}

// Layers of one sublayer, a mixer or an FFN alone; those of nemotron-h, and of them attention, MLP and experts without Mamba's.
static void test_sublayers(void) {
    shell("head -c 60 tests/fixtures/families/nemotron-h/tokens.i32 >@/ids; cp -r tests/fixtures/families/nemotron-h @/plain-h; cd @/plain-h; "
          "LC_ALL=C sed -i 's/layers[.]0[.]/mtp.l.00./g; s/layers[.]3[.]/mtp.l.03./g; s/layers[.]1[.]/layers.0./g; s/layers[.]2[.]/layers.1./g; "
          "s/layers[.]4[.]/layers.2./g' model.safetensors; sed -i 's/M.-ME/*-E/; s/num_hidden_layers\": 5/num_hidden_layers\": 3/' config.json");
    shell("mote trace -m tests/fixtures/families/nemotron-h --tokens @/ids --html @/page.html");
    CHECK(code == 0 && !err.size && widest(out.data) <= 100 && !strstr(out.data, "nan") && !strstr(out.data, " \n"), "nemotron-h: %d %s %s", code, err.data, out.data);
    CHECK(strstr(out.data, "\nlayer 0, mamba\n") && strstr(out.data, "\nlayer 1, attention\n") && strstr(out.data, "\nlayer 2, mlp\n") &&
              strstr(out.data, "\nlayer 3, mamba\n") && strstr(out.data, "\nlayer 4, moe\n") && times(out.data, "|x| +mixer") == 3 &&
              times(out.data, "|x|   +FFN") == 2, "halves: %s", out.data);
    const char *json = traced();
    CHECK(times(json, "\"ffn\":null") == 3 && times(json, "\"mixer\":null") == 2 && times(json, "\"S\":{\"rows\":8,\"columns\":12,") == 2 &&
              times(json, "\"kind\":\"mamba\",\"heads\":4") == 2 && times(json, "\"write\":[[") == 2, "%.2000s", json);
    shell("mote trace -m tests/fixtures/families/nemotron-h --tokens @/ids --layer 0");
    CHECK(code == 0 && times(out.data, "the mixer adds ") == 15 && times(out.data, "decay ") == 60 && !strstr(out.data, "FFN"), "--layer 0: %d %s", code, out.data);
    shell("mote trace -m tests/fixtures/families/nemotron-h --tokens @/ids --layer 4");
    CHECK(code == 0 && times(out.data, "the FFN adds ") == 15 && times(out.data, "\n  experts ") == 15 && !strstr(out.data, "mixer"), "--layer 4: %d %s", code, out.data);
    shell("mote trace -m @/plain-h --tokens @/ids --html @/page.html");
    CHECK(code == 0 && strstr(out.data, "\nlayer 0, attention\n") && strstr(out.data, "\nlayer 2, moe\n") && !strstr(out.data, "decay"), "*-E: %d %s", code, err.data);
    json = traced();
    CHECK(times(json, "\"ffn\":null") == 1 && times(json, "\"mixer\":null") == 2 && times(json, "\"weights\":[[") == 1, "%.2000s", json);
}

static void test_refused(void) {
    check_refused("mote trace", 2, "trace: no text");
    check_refused("mote trace ''", 2, "trace: no text");
    check_refused("mote trace a b", 2, "unexpected argument 'b'");
    check_refused("mote trace a --tokens x", 2, "--tokens and TEXT exclude each other");
    check_refused("mote trace --tokens x --raw", 2, "--raw belongs to a text");
    check_refused("mote trace a --device cpu", 2, "unknown option '--device'");
    check_refused("mote trace a --layer 9", 2, "the model has layers 0 to 8");
    check_refused("mote trace a --layers 1,9", 2, "--layers 9: the model has layers 0 to 8");
    check_refused("mote trace a --layers 2-1", 2, "--layers needs up to 16 numbers or ranges, as 0-3,7, not '2-1'");
    check_refused("mote trace a --layers 1-", 2, "--layers needs");
    check_refused("mote trace a --layers ''", 2, "--layers needs");
    check_refused("mote trace a --layers=-1", 2, "--layers needs");
    check_refused("mote trace a --layers 1 --layer 1", 2, "--layer and --layers exclude each other");
    check_refused("mote trace a --layer -1", 2, "--layer needs a whole number");
    check_refused("mote trace a -m @/none", 1, "/none: no such folder");
    check_refused("mote trace a --html @/none/page.html", 1, "/none/page.html: No such file or directory");
    check_refused("mote trace --tokens @/none", 1, "/none: No such file or directory");
    check_refused("mote trace a --layer 9 --html @/new.html", 2, "the model has layers 0 to 8");
    CHECK(!temp_exists("new.html"), "a page of a trace that was refused");
    check_refused("mote trace a --html /dev/full", 1, "/dev/full: No space left on device");
    shell("mote trace a -m " FIXTURE);
    CHECK(code == 1 && strstr(err.data, "mote: the model has no tokenizer") && !strstr(err.data, "--raw"), "no tokenizer: %d %s", code, err.data);
    shell("cp -r models/demo @/plain && rm @/plain/chat_template.jinja");
    shell("mote trace a -m @/plain");
    CHECK(code == 1 && strstr(err.data, "no chat template") && strstr(err.data, "--raw takes the text as it is"), "no template: %d %s", code, err.data);
    shell("mote trace --raw a -m @/plain");
    CHECK(code == 0, "--raw without a template: %d %s", code, err.data);
    shell("mote trace --help");
    CHECK(code == 0 && strstr(out.data, "\n  --html ") && strstr(out.data, "\n  --layer ") && widest(out.data) <= 120, "--help, %d columns: %s",
          widest(out.data), out.data);
}

int main(int argc, char **argv) {
    test_main_begin("test_trace_command", argc, argv);
    if (!temp_open()) return test_main_end();
    test_text();
    test_layers();
    test_detail();
    test_page();
    test_bytes();
    test_models();
    test_sublayers();
    test_refused();
    temp_close();
    return test_main_end();
}
