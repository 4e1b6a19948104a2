// Tests of tool calls: from what models write between the tags of a call to JSON (text/tool_calls.c).
//
// Contents   1. Helpers   2. As JSON   3. As tags   4. Types of arguments   5. Any text
//
// Usage: test_calls [--brief] [DATA]

#include "../tokenizer.c"

#include "test.h"

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

typedef struct given { buf calls; int count, wrong; } given;

// Calls are objects with a name and an object of arguments, and nothing else.
static void hear_call(void *user, const char *call, size_t size) {
    given *g = (given *)user;
    json j;
    if (strlen(call) != size || json_parse(&j, call, size, "call", NULL)) {
        g->wrong++;
    } else {
        uint32_t name = json_get(&j, 0, "name"), arguments = json_get(&j, 0, "arguments");
        g->wrong += !name || j.nodes[name].type != JSON_STRING || !j.nodes[name].size || !arguments ||
                    j.nodes[arguments].type != JSON_OBJECT || j.nodes[0].size != 2;
        json_free(&j);
    }
    if (g->count++) buf_text(&g->calls, "; ");
    buf_add(&g->calls, call, size);
}

typedef struct sample { const char *text, *calls; } sample;         // calls: joined by "; ", "" for a broken one

static void check_calls(const char *text, int closed, const json *tools, const char *want) {
    given g;
    int broken = -1;
    memset(&g, 0, sizeof g);
    CHECK(!tool_calls_read(text, strlen(text), closed, tools, hear_call, &g, &broken, NULL), "%s", text);
    buf_add(&g.calls, "", 1);
    CHECK(!g.wrong && broken == !*want && !strcmp(g.calls.data, want), "%s\ngave %s\nnot  %s", text, g.calls.data, want);
    buf_free(&g.calls);
}

#define F1 "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"
#define EMPTY "{\"name\": \"f\", \"arguments\": {}}"

// ---- 2. As JSON -----------------------------------------------------------------------------------------------------

static const sample json_samples[] = {
    {"{\"name\": \"f\", \"arguments\": {\"x\": 1}}", F1},
    {" \n{\"name\":\"f\",\"arguments\":{\"x\":1}}\n", F1},
    {"I call it: {\"name\": \"f\", \"arguments\": {\"x\": 1}} now.", F1},                       // text around
    {"```json\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n```", F1},
    {"{\"name\": \"f\", \"arguments\": {\"x\": 1}}}", F1},                                      // a bracket too many
    {"{\"name\": \"f\", \"arguments\": {\"x\": 1,},}", F1},                                     // commas too many
    {"{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1}\"}", F1},                               // arguments as text
    {"{\"name\": \"f\", \"arguments\": \"{\\\"x\\\": 1,}\"}", F1},
    {"{\"name\": \"f\", \"parameters\": {\"x\": 1}}", F1},                                      // other names for the parts
    {"{\"type\": \"function\", \"function\": {\"name\": \"f\", \"arguments\": {\"x\": 1}}}", F1},
    {"{\"function\": \"f\", \"arguments\": {\"x\": 1}}", F1},
    {"{\"name\": \"f\"}", EMPTY},
    {"{\"name\": \"f\", \"arguments\": null}", EMPTY},
    {"{\"name\": \"f\", \"arguments\": {}} {\"name\": \"f\", \"arguments\": {\"x\": 1}}", EMPTY "; " F1},   // several
    {"[{\"name\": \"f\"}, {\"name\": \"f\", \"arguments\": {\"x\": 1}}]", EMPTY "; " F1},
    {"{\"name\": \"f\"}\n<tool_call>\n{\"name\": \"f\"}", EMPTY "; " EMPTY},
    {"{\"name\": \"f\", \"arguments\": {\"x\": True, \"y\": None, \"z\": [False]}}",            // Python's words
     "{\"name\": \"f\", \"arguments\": {\"x\": true, \"y\": null, \"z\": [false]}}"},
    {"{\"name\": \"f\", \"arguments\": {\"x\": \"None, True\"}}", "{\"name\": \"f\", \"arguments\": {\"x\": \"None, True\"}}"},
    {"{\"name\": \"f\", \"arguments\": {\"x\": \"a\nb\tc\"}}", "{\"name\": \"f\", \"arguments\": {\"x\": \"a\\nb\\tc\"}}"},
    {"{\"name\": \"f\", \"arguments\": {\"x\": \"C:\\dir\\new \\d+\"}}",                        // backslashes that escape nothing
     "{\"name\": \"f\", \"arguments\": {\"x\": \"C:\\\\dir\\new \\\\d+\"}}"},
    {"{\"name\": \"f\", \"arguments\": {\"x\": \"{\\\"name\\\": [\"}}", "{\"name\": \"f\", \"arguments\": {\"x\": \"{\\\"name\\\": [\"}}"},
    {"{\"name\": \"f\", \"arguments\": {\"x\": {\"y\": [1, {\"z\": {}}]}}}",                    // nested
     "{\"name\": \"f\", \"arguments\": {\"x\": {\"y\": [1, {\"z\": {}}]}}}"},
    {"{\"name\": \"f\", \"arguments\": {\"x\": [1, 2}}", "{\"name\": \"f\", \"arguments\": {\"x\": [1, 2]}}"},
    {"", ""}, {"nothing", ""}, {"{", ""}, {"{}", ""}, {"[]", ""}, {"{\"name\": \"\"}", ""}, {"{\"name\": 5}", ""},
    {"{\"name\": \"f\", \"arguments\": 5}", ""}, {"{\"name\": \"f\", \"arguments\": \"x\"}", ""},
    {"{\"name\": \"f\", \"arguments\": [1]}", ""}, {"{\"arguments\": {}}", ""}, {"{'name': 'f'}", ""},
    {"{\"name\": \"f\", \"arguments\": {\"x\": \"cut sho", ""}, {"{\"name\": \"f\", \"arguments\": {\"x\":", ""}};

// ---- 3. As tags -----------------------------------------------------------------------------------------------------

static const sample tag_samples[] = {
    {"<function=f>\n<parameter=x>\n1\n</parameter>\n</function>", F1},
    {"<function=f>\n</function>", EMPTY},
    {"<function=f></function>", EMPTY},
    {"I think:\n<function=f>\n<parameter=x>1</parameter></function>\nDone.", F1},
    {"<function=\"f\">\n<parameter='x'>\n1\n</parameter>\n</function>", F1},
    {"<function= f >\n<parameter=x>\n1\n</parameter>\n</function>", F1},
    {"<function=f>\n<parameter=x>\n1\n</function>", F1},                                        // end tags missing
    {"<function=f>\n<parameter=x>\n1", F1},
    {"<function=f>", EMPTY},
    {"<function=f>\n<parameter=x>\n1\n<parameter=y>\n2\n</parameter>\n</function>",
     "{\"name\": \"f\", \"arguments\": {\"x\": 1, \"y\": 2}}"},
    {"<function=f>\n</function>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>", EMPTY "; " F1},
    {"<function=f>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>", EMPTY "; " F1},
    {"<function=f>\n</function>\n<tool_call>\n<function=f>\n</function>", EMPTY "; " EMPTY},
    {"<function=f>\n<parameter=x>\n<b>a</b>\n\n</parameter>\n</function>", "{\"name\": \"f\", \"arguments\": {\"x\": \"<b>a</b>\\n\"}}"},
    {"<function=f>\n<parameter=x>\nif (a <b) { \"c\\n\" }\n</parameter>\n</function>",
     "{\"name\": \"f\", \"arguments\": {\"x\": \"if (a <b) { \\\"c\\\\n\\\" }\"}}"},
    {"<function=f>\n<parameter=x>\n a </parameter> b\n</parameter>\n</function>",               // a value with the tag's text
     "{\"name\": \"f\", \"arguments\": {\"x\": \" a </parameter> b\"}}"},
    {"<function=f>\n<parameter=x>\n{\"a\": [1,],}\n</parameter>\n</function>", "{\"name\": \"f\", \"arguments\": {\"x\": {\"a\": [1]}}}"},
    {"<function=f>\n<parameter=x>\n\n</parameter>\n</function>", "{\"name\": \"f\", \"arguments\": {\"x\": \"\"}}"},
    {"<function=f>\n<parameter=x>\nwörter \xF0\x9F\x99\x82\n</parameter>\n</function>",
     "{\"name\": \"f\", \"arguments\": {\"x\": \"wörter \xF0\x9F\x99\x82\"}}"},
    {"<function=>\n</function>", ""}, {"<function=f", ""}, {"<function=f\n>\n</function>x", EMPTY}, {"<function=a\nb></function>", ""}};

static void test_samples(const sample *samples, size_t count) {
    for (size_t i = 0; i < count; i++) check_calls(samples[i].text, 1, NULL, samples[i].calls);
}

// What the end of the answer cuts short is no call, wherever that is; whole calls before it are.
static void test_cut(const char *before, const char *call, const char *read_before, const char *read) {
    char part[512], want[512];
    for (size_t i = 0; i <= strlen(call); i++) {
        snprintf(part, sizeof part, "%s%.*s", before, (int)i, call);
        snprintf(want, sizeof want, "%s%s%s", read_before, i == strlen(call) && *read_before ? "; " : "", i == strlen(call) ? read : "");
        check_calls(part, 0, NULL, want);
    }
}

// ---- 4. Types of arguments ------------------------------------------------------------------------------------------

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"other\", \"parameters\": {\"properties\": {\"x\": {\"type\": \"string\"}}}}},"
    "{\"type\": \"function\", \"function\": {\"name\": \"f\", \"parameters\": {\"type\": \"object\", \"properties\": {"
    "\"text\": {\"type\": \"string\"}, \"number\": {\"type\": \"number\"}, \"flag\": {\"type\": \"boolean\"},"
    "\"list\": {\"type\": \"array\"}, \"maybe\": {\"type\": [\"string\", \"null\"]}, \"either\": {\"anyOf\": [{\"type\": \"string\"},"
    "{\"type\": \"integer\"}]}, \"one\": {\"enum\": [\"1\", \"2\"]}, \"any\": {}}}}}, {\"name\": \"g\", \"parameters\": {\"properties\":"
    "{\"x\": {\"type\": \"string\"}}}}, 5]";

static const struct { const char *function, *name, *text, *value; } typed[] = {
    {"f", "text", "5", "\"5\""}, {"f", "text", "true", "\"true\""}, {"f", "text", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
    {"f", "text", "null", "\"null\""}, {"f", "number", "5", "5"}, {"f", "number", " 5.5 ", "5.5"}, {"f", "number", "five", "\"five\""},
    {"f", "flag", "True", "true"}, {"f", "flag", "false", "false"}, {"f", "list", "[1, None, \"a\",]", "[1, null, \"a\"]"},
    {"f", "list", "[1", "\"[1\""}, {"f", "maybe", "null", "null"}, {"f", "maybe", "None", "null"}, {"f", "maybe", "5", "\"5\""},
    {"f", "either", "5", "\"5\""}, {"f", "one", "1", "\"1\""}, {"f", "any", "5", "5"}, {"f", "any", "True", "true"},
    {"f", "any", "\"a\"", "\"a\""}, {"f", "new", "5", "5"}, {"f", "new", "True", "\"True\""}, {"f", "new", "\"a\"", "\"\\\"a\\\"\""},
    {"g", "x", "5", "\"5\""}, {"h", "x", "5", "5"}, {"h", "x", "007", "\"007\""}, {"h", "x", "[1, 2]", "[1, 2]"}};

static void test_types(void) {
    json j;
    char text[512], want[512];
    if (!CHECK(!json_parse(&j, tools, strlen(tools), "tools", NULL), "tools")) return;
    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++) {
        snprintf(text, sizeof text, "<function=%s>\n<parameter=%s>\n%s\n</parameter>\n</function>", typed[i].function, typed[i].name,
                 typed[i].text);
        snprintf(want, sizeof want, "{\"name\": \"%s\", \"arguments\": {\"%s\": %s}}", typed[i].function, typed[i].name, typed[i].value);
        check_calls(text, 1, &j, want);
    }
    json_free(&j);
}

// ---- 5. Any text ----------------------------------------------------------------------------------------------------

// Pieces of calls in any order: whatever is given to the sink is a call.
static void test_any_text(int rounds) {
    static const char *const pieces[] = {"<function=", "f>", "\n", "<parameter=", "x>", "</parameter>", "</function>", "{", "}", "[", "]",
                                         "\"", "name", "\"name\": \"f\"", ",", "\"arguments\": ", "\\", "\\u00", "1", "True", " ", "<",
                                         "\xC3\xA9", "\xE2\x82\xAC", "=", ">", "'", ":", "<tool_call>", "\x01"};
    json j;
    if (!CHECK(!json_parse(&j, tools, strlen(tools), "tools", NULL), "tools")) return;
    for (int i = 0; i < rounds; i++) {
        given g;
        buf text;
        int broken = 0;
        memset(&g, 0, sizeof g);
        memset(&text, 0, sizeof text);
        if (i % 3 == 0) buf_text(&text, "<function=f>\n<parameter=x>\n");
        if (i % 3 == 1) buf_text(&text, "{\"name\": \"f\", \"arguments\": {");
        for (int n = random_int(0, 30); n > 0; n--) buf_text(&text, pieces[random_int(0, 29)]);
        int code = tool_calls_read(text.data, text.size, i % 2, i % 5 ? &j : NULL, hear_call, &g, &broken, NULL);
        CHECK(!code && !g.wrong && broken == !g.count, "%.*s", (int)text.size, text.data);
        buf_free(&g.calls);
        buf_free(&text);
    }
    json_free(&j);
}

int main(int argc, char **argv) {
    test_main_begin("test_calls", argc, argv);
    test_samples(json_samples, sizeof json_samples / sizeof *json_samples);
    test_samples(tag_samples, sizeof tag_samples / sizeof *tag_samples);
    check_calls("{\"name\": \"f\", \"arguments\": {\"x\": 1}", 1, NULL, F1);           // a bracket too few
    check_calls("{\"name\": \"f\", \"arguments\": {\"x\": [1, 2", 1, NULL, "{\"name\": \"f\", \"arguments\": {\"x\": [1, 2]}}");
    test_cut("", F1, "", F1);
    test_cut("{\"name\": \"f\"}\n", F1, EMPTY, F1);
    test_cut("", "<function=f>\n<parameter=x>\n1\n</parameter>\n</function>", "", F1);
    test_cut("<function=f></function>", "<function=f>\n<parameter=x>\n1\n</parameter>\n</function>", EMPTY, F1);
    test_types();
    test_any_text(test_brief ? 3000 : 200000);
    return test_main_end();
}
