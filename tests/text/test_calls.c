// Tests of tool calls: from what models write to JSON (text/tool_calls.c), and what of an answer is a call (text/chat_stream.c).
//
// Contents   1. Helpers   2. As JSON   3. As tags   4. Types of arguments   5. What is no call   6. Any text
//
// Usage: test_calls [--brief] [DATA]

#include "../../tokenizer.c"

#include "test.h"

#include <time.h>

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

// What a stream tells: the calls; all of it, with a mark, [A], [T] or [C], where the channel changes and [.] at a call's end; all
// text without these.
typedef struct told { buf calls, marked, text; int count, wrong, channel; } told;

// Calls are objects with a name and an object of arguments, and nothing else.
static void hear_call(void *user, const char *call, size_t size) {
    told *t = (told *)user;
    json j;
    if (strlen(call) != size || json_parse(&j, call, size, "call", NULL)) {
        t->wrong++;
    } else {
        uint32_t name = json_get(&j, 0, "name"), arguments = json_get(&j, 0, "arguments");
        t->wrong += !name || j.nodes[name].type != JSON_STRING || !j.nodes[name].size || !arguments ||
                    j.nodes[arguments].type != JSON_OBJECT || j.nodes[0].size != 2;
        json_free(&j);
    }
    if (t->count++) buf_text(&t->calls, "; ");
    buf_add(&t->calls, call, size);
}

static void hear_text(void *user, int channel, const char *text, size_t size) {
    static const char *const marks[] = {"[A]", "[T]", "[C]"};
    told *t = (told *)user;
    if (channel != t->channel) buf_text(&t->marked, marks[channel]);
    if (size) buf_add(&t->marked, text, size);
    else buf_text(&t->marked, "[.]");
    if (size) buf_add(&t->text, text, size);
    t->channel = size ? channel : -1;
    t->wrong += !size && channel != MOTE_TOOL_CALL;
}

static void told_free(told *t) {
    buf_free(&t->calls);
    buf_free(&t->marked);
    buf_free(&t->text);
}

enum { TAGGED, BARE, MARKED, KEYED, LISTED, PAIRS, FORMS };   // calls between tags alone; Llama's, without a mark; Mistral's; GLM's; DeepSeek's; Gemma's

typedef struct answer { const json *tools; int calls, thinking, end, form; } answer;

// An answer in pieces of `step` bytes; 0: of 1 to 9. Returns the calls that could not be read.
static int hear(told *t, const answer *a, const char *text, size_t n, size_t step) {
    chat_stream s;
    memset(t, 0, sizeof *t);
    memset(&s, 0, sizeof s);
    t->channel = -1;
    s.emit = hear_text;
    s.on_call = a->calls ? hear_call : NULL;
    s.tools = a->tools;
    s.marks = a->form == PAIRS ? chat_marks_of(CHAT_GEMMA) : NULL;
    s.call_mark = a->form == MARKED ? "[TOOL_CALLS]" : a->form == LISTED ? DEEPSEEK_CALLS : a->form == PAIRS ? s.marks->call : NULL;
    s.marked_calls = a->form == LISTED;
    s.bare_calls = a->form == BARE;
    s.keyed_calls = a->form == KEYED;
    s.user = t;
    chat_stream_begin(&s, a->thinking);
    for (size_t i = 0, k; i < n; i += k) {
        k = step ? step : (size_t)random_int(1, 9);
        if (k > n - i) k = n - i;
        chat_stream_push(&s, text + i, k);
    }
    chat_stream_end(&s, a->end);
    int broken = s.broken_calls + 1000 * chat_stream_failed(&s);
    buf_add(&t->calls, "", 1);
    buf_add(&t->marked, "", 1);
    chat_stream_free(&s);
    return broken;
}

// As a whole and in pieces it gives these calls and this broken count (-1: any, -2: some) and, unless NULL, this transcript.
static void check_answer(const answer *a, const char *text, const char *calls, int broken, const char *marked) {
    for (size_t step = 0; step < 9; step++) {
        told t;
        int got = hear(&t, a, text, strlen(text), step == 8 ? strlen(text) : step);
        CHECK(!t.wrong && !strcmp(t.calls.data, calls) && (broken < 0 ? broken == -1 || got > 0 : got == broken), "%s\ngave %s, %d broken\nnot  %s", text,
              t.calls.data, got, calls);
        CHECK(!marked || !strcmp(t.marked.data, marked), "%s\ntold %s\nnot  %s", text, t.marked.data, marked ? marked : "");
        told_free(&t);
    }
}

typedef struct sample { const char *text, *calls; } sample;         // calls: joined by "; ", "" for a broken one

// The text between the tags of a call; closed: the second one is there. What gives no call is told as it was written.
static void check_calls(const char *text, int closed, const json *tools, const char *want) {
    answer a = {.tools = tools, .calls = 1, .thinking = 0, .end = TEXT_IS_CUT, .form = TAGGED};
    char all[2048], marked[2052];
    snprintf(all, sizeof all, "<tool_call>%s%s", text, closed ? "</tool_call>" : "");
    snprintf(marked, sizeof marked, "[A]%s", all);
    check_answer(&a, all, want, *want ? -1 : -2, *want ? NULL : marked);
}

#define F1 "{\"name\": \"f\", \"arguments\": {\"x\": 1}}"
#define EMPTY "{\"name\": \"f\", \"arguments\": {}}"

// ---- 2. As JSON -----------------------------------------------------------------------------------------------------

static const sample json_samples[] = {
    {"{\"name\": \"f\", \"arguments\": {\"x\": 1}}", F1},
    {" \n{\"name\":\"f\",\"arguments\":{\"x\":1}}\n", F1},
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
    {"[\n  {\"name\": \"f\"},\n  {\"name\": \"f\"}\n]", EMPTY "; " EMPTY},
    {"{\"name\": \"f\"}\n<tool_call>\n{\"name\": \"f\"}", EMPTY "; " EMPTY},
    {"\r\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\r\n", F1},
    {"{\"name\": \"f\", \"arguments\": {\"x\": 0, \"y\": 2, \"x\": 1}}", "{\"name\": \"f\", \"arguments\": {\"y\": 2, \"x\": 1}}"},  // twice
    {"{\"name\": \"f\", \"arguments\": {\"x\": 0, \"\\u0078\": {\"a\": 1, \"b\": [{\"c\": 1, \"c\": 2}], \"a\": 3}}}",
     "{\"name\": \"f\", \"arguments\": {\"x\": {\"b\": [{\"c\": 2}], \"a\": 3}}}"},
    {"{\"name\": \"f\", \"arguments\": {\"x\": {\"x\": 1, \"x\": 1}, \"x\": 1}}", F1},
    {"{\"name\": \"f\", \"arguments\": {\"x\": \"</tool_call>\"}}", "{\"name\": \"f\", \"arguments\": {\"x\": \"</tool_call>\"}}"},
    {"{\"name\": \"f\", \"arguments\": {\"x\": \"\\\"</tool_call>\n<tool_call>{\"}}",
     "{\"name\": \"f\", \"arguments\": {\"x\": \"\\\"</tool_call>\\n<tool_call>{\"}}"},
    {"{\"name\": \"f\", \"arguments\": {\"x\": \"\\ud83d\\ude42\"}}", "{\"name\": \"f\", \"arguments\": {\"x\": \"\xF0\x9F\x99\x82\"}}"},
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
    {"I call it: {\"name\": \"f\"}", EMPTY}, {"{\"name\": \"f\"} now.", EMPTY}, {"{\"name\": \"f\", <b>}", ""},   // text around
    {"So:\n```json\n[{\"name\": \"f\"};{\"name\": \"f\"}]\n```\nIt is.", EMPTY "; " EMPTY}, {"I call {\"name\": \"f\"}", ""},
    {"{\"name\": \"f\"}; {\"name\": \"f\", \"arguments\": {\"x\": 1}};", EMPTY "; " F1},
    {"{\"name\": \"f\", \"arguments\": {\"x\": \"cut sho", ""}, {"{\"name\": \"f\", \"arguments\": {\"x\":", ""}};

// ---- 3. As tags -----------------------------------------------------------------------------------------------------

static const sample tag_samples[] = {
    {"<function=f>\n<parameter=x>\n1\n</parameter>\n</function>", F1},
    {"<function=f>\n</function>", EMPTY},
    {"<function=f></function>", EMPTY},
    {"<function=\"f\">\n<parameter='x'>\n1\n</parameter>\n</function>", F1},
    {"<function= f >\n<parameter=x>\n1\n</parameter>\n</function>", F1},
    {"\r\n<function=f>\r\n<parameter=x>\r\n1\r\n</parameter>\r\n</function>\r\n", F1},             // other line ends
    {"<function=f>\n<parameter=x>\n1\n</function>", F1},                                        // end tags missing
    {"<function=f>\n<parameter=x>\n1\n</parameter>", F1},
    {"<function=f>", EMPTY},
    {"<function=f>\n<parameter=x>\n0\n</parameter>\n<parameter=x>\n1\n</parameter>\n</function>", F1},    // given twice
    {"<function=f>\n<parameter=x>\n1\n<parameter=y>\n2\n</parameter>\n</function>",
     "{\"name\": \"f\", \"arguments\": {\"x\": 1, \"y\": 2}}"},
    {"<function=f>\n</function>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>", EMPTY "; " F1},
    {"<function=f>\n</function>\n<tool_call>\n<function=f>\n</function>", EMPTY "; " EMPTY},
    {"<function=f>\n</function></tool_call><function=f>\n<parameter=x>\n1\n</parameter>\n</function>", EMPTY "; " F1},
    {"<function=f>\n<parameter=x>\nBlocks end with </tool_call> here.\n</parameter>\n</function>",
     "{\"name\": \"f\", \"arguments\": {\"x\": \"Blocks end with </tool_call> here.\"}}"},
    {"<function=f>\n<parameter=x>\n</parameter>\n</function>\n and\n</function>\nso on\n</parameter>\n</function>",
     "{\"name\": \"f\", \"arguments\": {\"x\": \"</parameter>\\n</function>\\n and\\n</function>\\nso on\"}}"},
    {"<function=f>\n<parameter=x>\nSo:\n<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>\nDone.\n"
     "</parameter>\n</function>",                                                              // a whole call in a value
     "{\"name\": \"f\", \"arguments\": {\"x\": \"So:\\n<tool_call>\\n<function=f>\\n<parameter=x>\\n1\\n</parameter>\\n</function>\\n"
     "</tool_call>\\nDone.\"}}"},
    {"<function=f>\n<parameter=x>\n<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n<parameter=x>\n2\n</parameter>\n</function>\n"
     "</tool_call>\n</parameter>\n</function>",
     "{\"name\": \"f\", \"arguments\": {\"x\": \"<tool_call>\\n<function=f>\\n<parameter=x>\\n1\\n</parameter>\\n<parameter=x>\\n2\\n"
     "</parameter>\\n</function>\\n</tool_call>\"}}"},
    {"<function=f>\n<parameter=x>\n<parameter=x>\n opens one\n</parameter>\n</function>",     // a tag on a line of its own
     "{\"name\": \"f\", \"arguments\": {\"x\": \"<parameter=x>\\n opens one\"}}"},
    {"<function=f>\n<parameter=x>\na <parameter=x> b <function=f> c <\n</parameter>\n</function>",
     "{\"name\": \"f\", \"arguments\": {\"x\": \"a <parameter=x> b <function=f> c <\"}}"},
    {"<function=f>\n<parameter=x>\n<b>a</b>\n\n</parameter>\n</function>", "{\"name\": \"f\", \"arguments\": {\"x\": \"<b>a</b>\\n\"}}"},
    {"<function=f>\n<parameter=x>\nif (a <b) { \"c\\n\" }\n</parameter>\n</function>",
     "{\"name\": \"f\", \"arguments\": {\"x\": \"if (a <b) { \\\"c\\\\n\\\" }\"}}"},
    {"<function=f>\n<parameter=x>\n a </parameter> b\n</parameter>\n</function>",               // a value with the tag's text
     "{\"name\": \"f\", \"arguments\": {\"x\": \" a </parameter> b\"}}"},
    {"<function=f>\n<parameter=x>\n{\"a\": [1,],}\n</parameter>\n</function>", "{\"name\": \"f\", \"arguments\": {\"x\": {\"a\": [1]}}}"},
    {"<function=f>\n<parameter=x>\n\n</parameter>\n</function>", "{\"name\": \"f\", \"arguments\": {\"x\": \"\"}}"},
    {"<function=f>\n<parameter=x>\nwörter \xF0\x9F\x99\x82\n</parameter>\n</function>",
     "{\"name\": \"f\", \"arguments\": {\"x\": \"wörter \xF0\x9F\x99\x82\"}}"},
    {"<function=>\n</function>", ""}, {"<function=f", ""}, {"<function=f\n>\n</function>x", EMPTY}, {"<function=a\nb></function>", ""},
    {"I think:\n<function=f> and so on</function>", ""}, {"<function=f>\n</function>\nDone.", EMPTY},           // text around
    {"I think:\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>", F1},
    {"<function=f>\n<parameter=x>\n1", ""}, {"<function=f>\n<parameter=x>\n</tool_call>\n1", ""}};              // no end

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
    "{\"type\": \"integer\"}]}, \"one\": {\"enum\": [\"1\", \"2\"]}, \"any\": {},"
    "\"whole\": {\"type\": \"integer\"}, \"object\": {\"type\": \"object\"}, \"nothing\": {\"type\": \"null\"},"
    "\"number or null\": {\"type\": [\"number\", \"null\"]}, \"nullable\": {\"type\": \"integer\", \"nullable\": true},"
    "\"nullable text\": {\"type\": \"string\", \"nullable\": true}, \"const\": {\"const\": \"7\"}, \"const 7\": {\"const\": 7},"
    "\"mixed\": {\"enum\": [1, \"2\", \"auto\", null]}, \"choice\": {\"anyOf\": [{\"enum\": [\"a\", \"7\"]}, {\"type\": \"integer\"}]},"
    "\"all choices\": {\"allOf\": [{\"type\": [\"string\", \"integer\"]}, {\"anyOf\": [{\"enum\": [\"a\"]}, {\"type\": \"integer\"}]}]},"
    "\"ref\": {\"$ref\": \"#/$defs/s\"}, \"ref number\": {\"$ref\": \"#/definitions/n\"}, \"ref ref\": {\"$ref\": \"#/$defs/rr\"},"
    "\"escaped\": {\"$ref\": \"#/$defs/a~1b~0c%20d%25\"}, \"element\": {\"$ref\": \"#/$defs/list/anyOf/1\"},"
    "\"lost\": {\"$ref\": \"#/$defs/none\"}, \"outside\": {\"$ref\": \"other.json\"}, \"cycle\": {\"$ref\": \"#/$defs/cycle\"},"
    "\"all\": {\"allOf\": [{\"description\": \"d\"}, {\"$ref\": \"#/$defs/s\"}]}, \"all number\": {\"allOf\": [{\"type\": [\"string\", \"number\"]},"
    "{\"type\": \"number\"}]}, \"any ref\": {\"anyOf\": [{\"$ref\": \"#/$defs/s\"}, {\"type\": \"null\"}]},"
    "\"one of\": {\"oneOf\": [{\"type\": \"integer\"}, {\"type\": \"boolean\"}]}, \"named\": {\"$ref\": \"#/$defs/kind\"},"
    "\"many\": {\"$ref\": \"#/$defs/many\"}}, \"$defs\": {\"s\": {\"type\": \"string\"}, \"rr\": {\"$ref\": \"#/$defs/s\"},"
    "\"a/b~c d%\": {\"type\": \"string\"}, \"list\": {\"anyOf\": [{}, {\"type\": \"string\"}]}, \"cycle\": {\"$ref\": \"#/$defs/cycle\"},"
    "\"kind\": {\"enum\": [\"1\", \"true\"], \"title\": \"Kind\"}, \"many\": {\"anyOf\": [{\"$ref\": \"#/$defs/many\"},"
    "{\"$ref\": \"#/$defs/many\"}, {\"$ref\": \"#/$defs/many\"}]}}, \"definitions\": {\"n\": {\"type\": \"number\"}}}}},"
    "{\"name\": \"g\", \"parameters\": {\"properties\": {\"x\": {\"type\": \"string\"}}}}, 5,"
    "{\"name\": \"h\", \"parameters\": {\"$ref\": \"#/$defs/H\", \"$defs\": {\"H\": {\"properties\": {\"x\": {\"type\": \"string\"}}}},"
    "\"additionalProperties\": {\"type\": \"string\"}}}, {\"name\": \"bare\"}]";

static const struct { const char *function, *name, *text, *value; } typed[] = {                   // value "": left out
    {"f", "text", "5", "\"5\""}, {"f", "text", "true", "\"true\""}, {"f", "text", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
    {"f", "text", "null", "\"null\""}, {"f", "number", "5", "5"}, {"f", "number", " 5.5 ", "5.5"}, {"f", "number", "five", "\"five\""},
    {"f", "flag", "True", "true"}, {"f", "flag", "false", "false"}, {"f", "list", "[1, None, \"a\",]", "[1, null, \"a\"]"},
    {"f", "list", "[1", "\"[1\""}, {"f", "maybe", "null", "null"}, {"f", "maybe", "None", "null"}, {"f", "maybe", "5", "\"5\""},
    {"f", "either", "5", "\"5\""}, {"f", "one", "1", "\"1\""}, {"f", "any", "5", "5"}, {"f", "any", "True", "true"},
    {"f", "any", "\"a\"", "\"a\""}, {"f", "new", "5", "5"}, {"f", "new", "True", "\"True\""}, {"f", "new", "\"a\"", "\"\\\"a\\\"\""},
    {"f", "new", "007", "\"007\""}, {"f", "new", "[1, 2]", "[1, 2]"}, {"f", "any", "007", "\"007\""}, {"f", "any", "", "\"\""},
    {"g", "x", "5", "\"5\""}, {"bare", "x", "5", "5"},
    {"f", "text", "", "\"\""}, {"f", "text", "007", "\"007\""}, {"f", "text", "+5", "\"+5\""}, {"f", "text", " a ", "\" a \""},
    {"f", "number", "", ""}, {"f", "whole", "", ""}, {"f", "list", "", ""}, {"f", "object", "", ""}, {"f", "flag", "", ""},
    {"f", "nothing", " ", ""}, {"f", "number or null", "", ""}, {"f", "maybe", "", "\"\""}, {"f", "ref number", "", ""},
    {"f", "whole", "007", "7"}, {"f", "whole", "+5", "5"}, {"f", "whole", "-007", "-7"}, {"f", "whole", "000", "0"},
    {"f", "whole", "+", "\"+\""}, {"f", "whole", "1e999", "\"1e999\""}, {"f", "number", "+01.50", "1.5"}, {"f", "number", "0.5", "0.5"},
    {"f", "number", "12345678901234567890", "12345678901234567890"}, {"f", "number", "5 6", "\"5 6\""},
    {"f", "flag", "TRUE", "true"}, {"f", "flag", "FALSE", "false"}, {"f", "flag", "yes", "\"yes\""}, {"f", "nothing", "None", "null"},
    {"f", "nothing", "NULL", "null"}, {"f", "number or null", "null", "null"}, {"f", "number or null", "07", "7"},
    {"f", "nullable", "None", "null"}, {"f", "nullable", "5", "5"}, {"f", "nullable text", "null", "null"}, {"f", "nullable text", "5", "\"5\""},
    {"f", "const", "7", "\"7\""}, {"f", "const 7", "7", "7"}, {"f", "mixed", "1", "1"}, {"f", "mixed", "2", "\"2\""},
    {"f", "mixed", "auto", "\"auto\""}, {"f", "mixed", "null", "null"}, {"f", "choice", "a", "\"a\""}, {"f", "choice", "12", "12"},
    {"f", "choice", "7", "\"7\""}, {"f", "choice", "b", "\"b\""}, {"f", "all choices", "a", "\"a\""}, {"f", "all choices", "12", "12"},
    {"f", "object", "{'a': True, 'b': None, 'c': ['it\\'s', \"it's\", 'a \"b\"', '\\x41', '\\n']}",
     "{\"a\": true, \"b\": null, \"c\": [\"it's\", \"it's\", \"a \\\"b\\\"\", \"A\", \"\\n\"]}"},
    {"f", "list", "['a', 'b',]", "[\"a\", \"b\"]"}, {"f", "list", "('a', 'b')", "\"('a', 'b')\""}, {"f", "new", "{'a': 1}", "{\"a\": 1}"},
    {"f", "object", "{\"a\": 1, \"a\": 2}", "{\"a\": 2}"}, {"f", "object", "{'a': 'b", "\"{'a': 'b\""}, {"f", "object", "{'a'}", "\"{'a'}\""},
    {"f", "ref", "12345", "\"12345\""}, {"f", "ref", "true", "\"true\""}, {"f", "ref", "{\"a\": 1}", "\"{\\\"a\\\": 1}\""},
    {"f", "ref number", "5", "5"}, {"f", "ref ref", "5", "\"5\""}, {"f", "escaped", "5", "\"5\""}, {"f", "element", "5", "\"5\""},
    {"f", "lost", "5", "5"}, {"f", "outside", "5", "5"}, {"f", "cycle", "5", "5"}, {"f", "many", "5", "5"}, {"f", "all", "5", "\"5\""},
    {"f", "all number", "05", "5"}, {"f", "any ref", "5", "\"5\""}, {"f", "any ref", "null", "null"}, {"f", "one of", "05", "5"},
    {"f", "one of", "TRUE", "true"}, {"f", "named", "1", "\"1\""}, {"f", "named", "true", "\"true\""},
    {"h", "x", "5", "\"5\""}, {"h", "y", "5", "\"5\""}};

static void test_types(const json *j) {
    char text[512], want[512];
    for (size_t i = 0; i < sizeof typed / sizeof *typed; i++)
        for (int ends = 0; ends < 2; ends++) {
            snprintf(text, sizeof text, ends ? "<function=%s>\r\n<parameter=%s>\r\n%s\r\n</parameter>\r\n</function>"
                                             : "<function=%s>\n<parameter=%s>\n%s\n</parameter>\n</function>",
                     typed[i].function, typed[i].name, typed[i].text);
            snprintf(want, sizeof want, *typed[i].value ? "{\"name\": \"%s\", \"arguments\": {\"%s\": %s}}"
                                                        : "{\"name\": \"%s\", \"arguments\": {}}",
                     typed[i].function, typed[i].name, typed[i].value);
            check_calls(text, 1, j, want);
        }
}

// ---- 5. What is no call ---------------------------------------------------------------------------------------------

#define G(v) "<tool_call>\n<function=g>\n<parameter=x>\n" v "\n</parameter>\n</function>\n</tool_call>"
#define G_TOLD(v) "<function=g>\n<parameter=x>\n" v "\n</parameter>\n</function>"
#define P(name, v) "{\"name\": \"" name "\", \"parameters\": {\"x\": \"" v "\"}}"
#define BARE_CALL "{\"name\": \"bare\", \"arguments\": {}}"
#define G_CALL(v) "{\"name\": \"g\", \"arguments\": {\"x\": \"" v "\"}}"

static const struct { int thinking, calls; const char *text, *want, *marked; int broken; } answers[] = {
    // without tools, and of none that there are
    {0, 0, "The tag <tool_call> opens one.\n" G("1") "\n", "", "[A]The tag <tool_call> opens one.\n" G("1") "\n", 0},
    {1, 0, "so\n<tool_call>\nf\n</tool_call>\n", "", "[T]so\n<tool_call>\nf\n</tool_call>\n", 0},
    {0, 1, "A call looks so: <tool_call>\n<function=NAME>\n</function>\n</tool_call> and then it waits.", "",
     "[A]A call looks so: <tool_call>\n<function=NAME>\n</function>\n</tool_call> and then it waits.", 1},
    {0, 1, "<function=NAME>\n</function>", "", "[A]<function=NAME>\n</function>", 0},
    {0, 1, "<tool_call>\n{\"name\": \"NAME\", \"arguments\": {}}\n</tool_call>", "",
     "[A]<tool_call>\n{\"name\": \"NAME\", \"arguments\": {}}\n</tool_call>", 1},
    // no call
    {0, 1, "The tag <tool_call> opens one, that is all.", "", "[A]The tag <tool_call> opens one, that is all.", 1},
    {0, 1, "The tag <tool_call>\n opens one.\n</tool_call>\n", "", "[A]The tag <tool_call>\n opens one.\n</tool_call>\n", 1},
    {0, 1, "a\n\n<tool_call>\n\n<tool_call>\n<tool_cal", "", "[A]a\n\n<tool_call>\n\n<tool_call>\n<tool_cal", 1},
    {0, 1, "<tool_call>\n<tool_call>\n{\"name\": \"bare\"}\n</tool_call>\n</tool_call>\nDone.", "{\"name\": \"bare\", \"arguments\": {}}",
     "[C]{\"name\": \"bare\"}[.][A]Done.", 0},
    {0, 1, "I use <function=g> for that, </function> and no more.", "", "[A]I use <function=g> for that, </function> and no more.", 0},
    // calls and what is around them
    {0, 1, "I look.\n\n" G("1") "\n" G("2"), G_CALL("1") "; " G_CALL("2"), "[A]I look.[C]" G_TOLD("1") "[.][C]" G_TOLD("2") "[.]", 0},
    {0, 1, "Use <tool_call> so: <tool_call>\n" G("1") "\nDone.", G_CALL("1"),
     "[A]Use <tool_call> so: <tool_call>[C]" G_TOLD("1") "[.][A]Done.", 2},
    {0, 1, "I look.\n\n<function=g>\n<parameter=x>\nR.md\n</parameter>\n</function>\n</tool_call>", G_CALL("R.md"),
     "[A]I look.[C]" G_TOLD("R.md") "[.]", 0},
    {0, 1, G("1") "\n<tool_call>\n<function=g>\n<parameter=x>\n2", G_CALL("1"),
     "[C]" G_TOLD("1") "[.][A]<tool_call>\n<function=g>\n<parameter=x>\n2", 1},
    {0, 1, "<tool_call>\n" G_TOLD("1") "\n" G_TOLD("2") "\n<function=g>\n<parameter=x>\n3", G_CALL("1") "; " G_CALL("2"),
     "[C]" G_TOLD("1") "[.][C]" G_TOLD("2") "[.][A]<function=g>\n<parameter=x>\n3", 1},
    {0, 1, "<tool_call>\n[{\"name\": \"bare\"}, {\"name\": \"bare\"}, {\"name\": ", "{\"name\": \"bare\", \"arguments\": {}}; {\"name\": \"bare\", \"arguments\": {}}",
     "[C][{\"name\": \"bare\"}, [.][C]{\"name\": \"bare\"}, [.][A]{\"name\": ", 1},
    {0, 1, G("a </tool_call> b\n<function=none> c"), G_CALL("a </tool_call> b\\n<function=none> c"),
     "[C]" G_TOLD("a </tool_call> b\n<function=none> c") "[.]", 0},
    {0, 1, "<tool_call>\n<function=g>\n<parameter=x>\nq.json\n</function>\n</tool_call>", G_CALL("q.json"),
     "[C]<function=g>\n<parameter=x>\nq.json\n</function>[.]", 0},
    {0, 1, "<tool_call>\n<function=g>\n</function>\n</tool_cal", "{\"name\": \"g\", \"arguments\": {}}", "[C]<function=g>\n</function>[.][A]</tool_cal", 0},
    // names of parameters
    {0, 1, "<tool_call>\n<function=g>\n<parameter=x>\n1\n<parameter=y>\n2\n</parameter>\n</function>\n</tool_call>",
     G_CALL("1\\n<parameter=y>\\n2"), NULL, 0},
    {0, 1, "<tool_call>\n<function=g>\n<parameter=x>\n1\n</parameter>\n<parameter=y>\n2\n</parameter>\n</function>\n</tool_call>",
     "{\"name\": \"g\", \"arguments\": {\"x\": \"1\", \"y\": 2}}", NULL, 0},
    {0, 1, "<tool_call>\n<function=f>\n<parameter=text>\n1\n<parameter=number>\n2\n</parameter>\n</function>\n</tool_call>",
     "{\"name\": \"f\", \"arguments\": {\"text\": \"1\", \"number\": 2}}", NULL, 0},
    // in the thinking
    {1, 1, "I open it.\n" G("1") "\n</think>\n", G_CALL("1"), "[T]I open it.[C]" G_TOLD("1") "[.]", 0},
    {1, 1, "I open it.\n" G("1") "\n" G("2") "\n</think>\n\nDone soon.", G_CALL("1") "; " G_CALL("2"),
     "[T]I open it.[C]" G_TOLD("1") "[.][C]" G_TOLD("2") "[.][A]Done soon.", 0},
    {1, 1, G("1") "\nMore.\n</think>\n\nDone </think>.", G_CALL("1"), "[C]" G_TOLD("1") "[.][A]More.\nDone </think>.", 0},
    {1, 1, "I open it.\n<tool_call>\n" G_TOLD("1") "\n</think>\n\nDone.", G_CALL("1"), "[T]I open it.[C]" G_TOLD("1") "[.][A]Done.", 0},
    {1, 1, "As <tool_call>\n<function=g>\n<parameter=x>\n1\n</think>\n\nDone.", "",
     "[T]As <tool_call>\n<function=g>\n<parameter=x>\n1[A]Done.", 1},
    {1, 1, "As <tool_call>\n{\"name\": \"</thin\n</think>\n\n" G("1"), G_CALL("1"),
     "[T]As <tool_call>\n{\"name\": \"</thin[C]" G_TOLD("1") "[.]", 1},
    {1, 1, "Tags: <tool_call> and\n<function=g>\n</function>\n</think>\nIt.", "",
     "[T]Tags: <tool_call> and\n<function=g>\n</function>[A]It.", 1},
    {0, 1, "a </think> b", "", "[A]a </think> b", 0},
    // text around and between
    {0, 1, "<tool_call>\nSo:\n{\"name\": \"bare\"}\nand so on.\n</tool_call>\nDone.", BARE_CALL, "[A]So:[C]{\"name\": \"bare\"}[.][A]and so on.\nDone.", 0},
    {0, 1, "<tool_call>\n<function=bare>\n</function>\nI look.\n</tool_call>\n" G("1"), BARE_CALL "; " G_CALL("1"),
     "[C]<function=bare>\n</function>[.][A]I look.[C]" G_TOLD("1") "[.]", 0},
    {0, 1, "<tool_call>{\"name\": \"bare\"}; {\"name\": \"bare\"}</tool_call>", BARE_CALL "; " BARE_CALL,
     "[C]{\"name\": \"bare\"}; [.][C]{\"name\": \"bare\"}[.]", 0},
    {0, 1, "A {\"name\": \"bare\", \"arguments\": {}} without tags.", "", "[A]A {\"name\": \"bare\", \"arguments\": {}} without tags.", 0}};

// Calls of the forms that have no end tags.
static const struct { const char *text, *want, *marked; int broken, form; } bare_answers[] = {
    // Llama's
    {P("g", "1") "; " P("g", "2"), G_CALL("1") "; " G_CALL("2"), "[C]" P("g", "1") "; [.][C]" P("g", "2") "[.]", 0, BARE},
    {"I look: " P("g", "1") "\n\nThen, " P("g", "2") ", and that is it.", G_CALL("1") "; " G_CALL("2"),
     "[A]I look: [C]" P("g", "1") "[.][A]Then, [C]" P("g", "2") "[.][A], and that is it.", 0, BARE},
    {" [" P("g", "1") ", " P("g", "2") "]\nSo.", G_CALL("1") "; " G_CALL("2"), "[A] [C][" P("g", "1") ", [.][C]" P("g", "2") "][.][A]So.", 0, BARE},
    {"```json\n" P("g", "1") "\n```\nSo.", G_CALL("1"), "[C]```json\n" P("g", "1") "\n```[.][A]So.", 0, BARE},
    {P("g", "}; {\\\"name\\\": \\u0041"), G_CALL("}; {\\\"name\\\": A"), NULL, 0, BARE},
    {P("none", "1") " " P("g", "2"), G_CALL("2"), "[A]" P("none", "1") " [C]" P("g", "2") "[.]", 1, BARE},
    {"{\"type\": \"function\", \"name\": \"g\", \"parameters\": \"{\\\"x\\\": \\\"1\\\"}\"}", G_CALL("1"), NULL, 0, BARE},
    {"{\"name\": \"g\", \"age\": 7}", "", "[A]{\"name\": \"g\", \"age\": 7}", 1, BARE},
    {"{\"name\": \"g\"} {\"name\": \"g\", \"description\": \"d\", \"parameters\": {}}", "",
     "[A]{\"name\": \"g\"} {\"name\": \"g\", \"description\": \"d\", \"parameters\": {}}", 2, BARE},
    {"{\"calls\": [" P("g", "1") "], \"}\": {}} f(){} " P("g", "2"), G_CALL("2"),
     "[A]{\"calls\": [" P("g", "1") "], \"}\": {}} f(){} [C]" P("g", "2") "[.]", 0, BARE},
    {"[{\"name\": \"A\"}, " P("g", "1") "] " P("g", "2"), G_CALL("2"), "[A][{\"name\": \"A\"}, " P("g", "1") "] [C]" P("g", "2") "[.]", 1, BARE},
    {"{\"name\": \"A\", \"parameters\": {\"x\": " P("g", "1") "]}} " P("g", "2"), G_CALL("2"), NULL, -1, BARE},
    {"[" P("g", "1") "] " P("none", "1") " " P("g", "2"), G_CALL("1") "; " G_CALL("2"), NULL, 1, BARE},
    {P("g", "1") "; {\"name\": \"g\", \"parameters\": {\"x\": \"", G_CALL("1"),
     "[C]" P("g", "1") "; [.][A]{\"name\": \"g\", \"parameters\": {\"x\": \"", 1, BARE},
    // Mistral's
    {"[TOOL_CALLS] [" P("g", "1") "]\n\nI look it up.", G_CALL("1"), "[C] [" P("g", "1") "][.][A]I look it up.", 0, MARKED},
    {"So. [TOOL_CALLS]I look:\n[" P("g", "1") "][TOOL_CALLS]" P("g", "2") " So.", G_CALL("1") "; " G_CALL("2"),
     "[A]So. I look:[C][" P("g", "1") "][.][C]" P("g", "2") "[.][A] So.", 0, MARKED},
    {"[TOOL_CALLS] g [ARGS] {\"x\": \"1\"}", G_CALL("1"), "[C] g [ARGS] {\"x\": \"1\"}[.]", 0, MARKED},
    {"[TOOL_CALLS]g{\"x\": \"1\"}", G_CALL("1"), "[C]g{\"x\": \"1\"}[.]", 0, MARKED},
    {"[TOOL_CALLS]g [CALL_ID]123456789 {\"x\": \"[ARGS]\"}, g[ARGS]{\"x\": \"2\"}g{\"x\": \"3\"} g is done.",
     G_CALL("[ARGS]") "; " G_CALL("2") "; " G_CALL("3"),
     "[C]g [CALL_ID]123456789 {\"x\": \"[ARGS]\"}[.][C], g[ARGS]{\"x\": \"2\"}[.][C]g{\"x\": \"3\"}[.][A] g is done.", 0, MARKED},
    {"[TOOL_CALLS]none{\"name\": \"g\", \"arguments\": {}}", "", "[A][TOOL_CALLS]none{\"name\": \"g\", \"arguments\": {}}", 1, MARKED},
    {"[TOOL_CALLS]So far.", "", "[A][TOOL_CALLS]So far.", 1, MARKED},
    {P("g", "1"), "", "[A]" P("g", "1"), 0, MARKED},
    {"[TOOL_CALLS]g[ARGS]{\"x\": \"1", "", "[A][TOOL_CALLS]g[ARGS]{\"x\": \"1", 1, MARKED}};

#define Q "<|\"|>"
#define CALLED(arguments) "<|tool_call>call:g{" arguments "}<tool_call|>"
#define THOUGHT(text) "<|channel>thought\n" text "<channel|>"
#define F_CALL(arguments) "{\"name\": \"f\", \"arguments\": {" arguments "}}"

// Gemma's: values of its own syntax, a channel of thinking.
static const struct { const char *text, *want, *marked; int thinking, broken; } pair_answers[] = {
    {CALLED("x:" Q "1" Q), G_CALL("1"), "[C]call:g{x:" Q "1" Q "}[.]", 0, 0},
    {"So.\n\n" CALLED("x:" Q "1" Q) CALLED("x:" Q " 2\n" Q) "\nDone.", G_CALL("1") "; " G_CALL(" 2\\n"),
     "[A]So.[C]call:g{x:" Q "1" Q "}[.][C]call:g{x:" Q " 2\n" Q "}[.][A]Done.", 0, 0},
    {"<|tool_call>call:bare{}<tool_call|>", BARE_CALL, "[C]call:bare{}[.]", 0, 0},
    {"<|tool_call>call:f{text:" Q Q ",number:-2.5e1,list:[1," Q "a]" Q ",[],{}],flag:true,object:{b:null,a:[false]},any:3}<tool_call|>",
     F_CALL("\"text\": \"\", \"number\": -25.0, \"list\": [1, \"a]\", [], {}], \"flag\": true, \"object\": {\"b\": null, \"a\": [false]}, \"any\": 3"), NULL, 0, 0},
    // what a text holds: quotes, brackets, backslashes, marks of the syntax, a part of its own
    {CALLED("x:" Q "say \"hi\" {a:1}, \\n<|\"| <tool_call|> <|tool_call>call:g{}<tool_call|>" Q),
     G_CALL("say \\\"hi\\\" {a:1}, \\\\n<|\\\"| <tool_call|> <|tool_call>call:g{}<tool_call|>"), NULL, 0, 0},
    // blanks, JSON's quotes, keys between marks, Python's words, a comma too many, a key twice
    {"<|tool_call> call: g { x : " Q "1" Q " } <tool_call|>", G_CALL("1"), NULL, 0, 0},
    {"<|tool_call>g{\"x\":\"1\\\"\\u0041\"}<tool_call|>", G_CALL("1\\\"A"), NULL, 0, 0},
    {"<|tool_call>call:f{" Q "object" Q ":{" Q "a b" Q ":None},list:[True,False,],}<tool_call|>",
     F_CALL("\"object\": {\"a b\": null}, \"list\": [true, false]"), NULL, 0, 0},
    {CALLED("x:" Q "0" Q ",x:" Q "1" Q), G_CALL("1"), NULL, 0, 0},
    // a bare value is what the schema says
    {"<|tool_call>call:f{text:12,either:12,maybe:12,choice:7,named:1,new:x}<tool_call|>",
     F_CALL("\"text\": \"12\", \"either\": 12, \"maybe\": \"12\", \"choice\": 7, \"named\": \"1\", \"new\": \"x\""), NULL, 0, 0},
    {"<|tool_call>call:f{text:007,number:007,maybe:null,flag:TRUE,new:two words}<tool_call|>",
     F_CALL("\"text\": \"007\", \"number\": 7, \"maybe\": null, \"flag\": true, \"new\": \"two words\""), NULL, 0, 0},
    // end marks forgotten
    {"<|tool_call>call:g{x:" Q "1" Q "<tool_call|>So.", G_CALL("1"), "[C]call:g{x:" Q "1" Q "[.][A]So.", 0, 0},
    {"<|tool_call>call:g{x:" Q "1" Q "}", G_CALL("1"), NULL, 0, 0},
    {"<|tool_call>call:f{list:[1,2<tool_call|>", F_CALL("\"list\": [1, 2]"), NULL, 0, 0},
    // JSON, another mark, a text between the mark and a call
    {"<|tool_call>{\"name\": \"g\", \"arguments\": {\"x\": \"1\"}}<tool_call|>", G_CALL("1"), NULL, 0, 0},
    {"<tool_call>\n{\"name\": \"g\", \"arguments\": {\"x\": \"1\"}}\n</tool_call>", G_CALL("1"), NULL, 0, -1},
    // what is no call
    {"The <|tool_call> mark, g.", "", "[A]The <|tool_call> mark, g.", 0, 1},
    {"<|tool_call>call:none{x:1}<tool_call|>", "", "[A]<|tool_call>call:none{x:1}<tool_call|>", 0, 1},
    {CALLED("x:"), "", "[A]" CALLED("x:"), 0, 1}, {CALLED("x"), "", "[A]" CALLED("x"), 0, 1}, {CALLED(":1"), "", "[A]" CALLED(":1"), 0, 1},
    {CALLED("x:[1"), "", "[A]" CALLED("x:[1"), 0, 1}, {CALLED("x:{a:b c}"), "", "[A]" CALLED("x:{a:b c}"), 0, 1},
    {CALLED("x:1 " Q "2" Q), "", "[A]" CALLED("x:1 " Q "2" Q), 0, 1}, {CALLED("x:Paris, France"), "", "[A]" CALLED("x:Paris, France"), 0, 1},
    {"<|tool_call>call:g{x:" Q "1", "", "[A]<|tool_call>call:g{x:" Q "1", 0, 1},
    {"<|tool_call>call:g{x:" Q "1<|\"|", "", "[A]<|tool_call>call:g{x:" Q "1<|\"|", 0, 1},
    {"<|tool_call>call:g{x:" Q "1" Q, "", "[A]<|tool_call>call:g{x:" Q "1" Q, 0, 1},
    {"call:g{x:" Q "1" Q "}", "", "[A]call:g{x:" Q "1" Q "}", 0, 0},
    // channels
    {THOUGHT("why\nnot\n") "Yes.", "", "[T]why\nnot[A]Yes.", 0, 0}, {THOUGHT("") "Yes.", "", "[A]Yes.", 0, 0},
    {"why\n<channel|>Yes.", "", "[T]why[A]Yes.", 1, 0}, {"\n" THOUGHT("a") "\nYes.\n" THOUGHT("b") "No.", "", "[T]a[A]Yes.[T]b[A]No.", 0, 0},
    {THOUGHT("a") CALLED("x:" Q "1" Q), G_CALL("1"), "[T]a[C]call:g{x:" Q "1" Q "}[.]", 0, 0},
    {"a\n" CALLED("x:" Q "1" Q) "\n<channel|>b", G_CALL("1"), "[T]a[C]call:g{x:" Q "1" Q "}[.][A]b", 1, 0},
    {"a <|tool_call>call:g{x:" Q "<channel|>b", "", "[T]a <|tool_call>call:g{x:" Q "[A]b", 1, 1},
    {"The <|channel>x and <channel|>.", "", "[A]The <|channel>x and <channel|>.", 0, 0}, {"<think>a</think>", "", "[A]<think>a</think>", 0, 0},
    {"<|channel>thou", "", "[A]<|channel>thou", 0, 0}};

static void test_pairs(const json *j) {
    for (size_t i = 0; i < sizeof pair_answers / sizeof *pair_answers; i++)
        for (int end = TEXT_IS_CUT; end <= TEXT_ENDS; end++) {
            answer a = {.tools = j, .calls = 1, .thinking = pair_answers[i].thinking, .end = end, .form = PAIRS};
            check_answer(&a, pair_answers[i].text, pair_answers[i].want, pair_answers[i].broken, pair_answers[i].marked);
        }
    // Of another family it is text; cut short anywhere it is no call.
    answer a = {.tools = j, .calls = 1, .thinking = 0, .end = TEXT_ENDS, .form = TAGGED};
    check_answer(&a, CALLED("x:" Q "1" Q), "", 0, "[A]" CALLED("x:" Q "1" Q));
    a.form = PAIRS;
    const char whole[] = "<|tool_call>call:g{x:" Q "1" Q ",y:{a:[1,2]}";
    for (size_t n = strlen("<|tool_call>"); n < strlen(whole); n++) {
        char part[128];
        snprintf(part, sizeof part, "%.*s", (int)n, whole);
        check_answer(&a, part, "", 1, NULL);
    }
}

#define K(name, v) "<arg_key>" name "</arg_key><arg_value>" v "</arg_value>"
#define K_G(v) "<tool_call>g" K("x", v) "</tool_call>"

// GLM's: a name, keys and values between tags.
static const struct { const char *text, *want, *marked; int thinking, broken; } keyed_answers[] = {
    {K_G("1"), G_CALL("1"), "[C]g" K("x", "1") "[.]", 0, 0},
    {"So.\n" K_G("1") K_G(" 2\n") "\nDone.", G_CALL("1") "; " G_CALL(" 2\\n"), "[A]So.[C]g" K("x", "1") "[.][C]g" K("x", " 2\n") "[.][A]Done.", 0, 0},
    {"<tool_call>bare</tool_call>", BARE_CALL, "[C]bare[.]", 0, 0},
    {"<tool_call>\nbare\n</tool_call>", BARE_CALL, "[C]bare[.]", 0, 0},
    {"<tool_call>g\n<arg_key>x</arg_key>\n<arg_value>1</arg_value>\n</tool_call>", G_CALL("1"), NULL, 0, 0},         // GLM-4.6's, Laguna's
    {"<tool_call>f" K("text", "") K("number", "2") K("list", "[1, {\"a\": null}]") K("flag", "true") "</tool_call>",
     "{\"name\": \"f\", \"arguments\": {\"text\": \"\", \"number\": 2, \"list\": [1, {\"a\": null}], \"flag\": true}}", NULL, 0, 0},
    {"<tool_call>f" K("text", "{\"a\": 1}") K("new", "{\"a\": 1}") K("new", "2") "</tool_call>",
     "{\"name\": \"f\", \"arguments\": {\"text\": \"{\\\"a\\\": 1}\", \"new\": 2}}", NULL, 0, 0},
    // what a value holds: tags alone, a whole call, the end of one
    {K_G("a <b> </arg_key> <arg_key> </tool_call> </arg_value"), G_CALL("a <b> </arg_key> <arg_key> </tool_call> </arg_value"), NULL, 0, 0},
    {K_G("it is " K_G("1") "."), G_CALL("it is " K_G("1") "."), NULL, 0, 0},
    {K_G("a</arg_value> b"), G_CALL("a</arg_value> b"), NULL, 0, 0},
    {K_G("a</arg_value><arg_key>b"), G_CALL("a</arg_value><arg_key>b"), NULL, 0, 0},
    {K_G("opens <arg_value> and no more"), "", "[A]" K_G("opens <arg_value> and no more"), 0, 1},
    // an end tag forgotten
    {"<tool_call>g" K("x", "1") "\n" K_G("2"), G_CALL("1") "; " G_CALL("2"), NULL, 0, 0},
    // JSON between the tags, a name of no tool, text
    {"<tool_call>{\"name\": \"g\", \"arguments\": {\"x\": \"1\"}}</tool_call>", G_CALL("1"), NULL, 0, 0},
    {"<tool_call>none" K("x", "1") "</tool_call>", "", "[A]<tool_call>none" K("x", "1") "</tool_call>", 0, 1},
    {"<tool_call>g<arg_value>1</arg_value></tool_call>", "", "[A]<tool_call>g<arg_value>1</arg_value></tool_call>", 0, 1},
    {"<tool_call>g<arg_key>x</arg_key>1</tool_call>", "", NULL, 0, 1},
    {"<tool_call>g<arg_key></arg_key><arg_value>1</arg_value></tool_call>", "", NULL, 0, 1},
    {"The <tool_call> tag, g.", "", "[A]The <tool_call> tag, g.", 0, 1},
    {"<tool_call>g", "", "[A]<tool_call>g", 0, 1},
    {"<tool_call>g" K("x", "1") "<arg_key>y", "", "[A]<tool_call>g" K("x", "1") "<arg_key>y", 0, 1},
    // in the thinking
    {"so\n" K_G("1") "\n</think>\nb", G_CALL("1"), "[T]so[C]g" K("x", "1") "[.][A]b", 1, 0},
    {"so\n<tool_call>g" K("x", "1") "</think>b", "", "[T]so\n<tool_call>g" K("x", "1") "[A]b", 1, 1}};

#define D_BEGIN DEEPSEEK("tool" UNDER "call" UNDER "begin")
#define D_END DEEPSEEK("tool" UNDER "call" UNDER "end")
#define D31(name, arguments) D_BEGIN name DEEPSEEK_SEP arguments
#define D3(name, arguments) D_BEGIN "function" DEEPSEEK_SEP name "\n```json\n" arguments "\n```"
#define D_ONE "{\"x\": \"1\"}"

// DeepSeek's: V3.1's, V3's and R1's, and what is missing or too much in them.
static const struct { const char *text, *want, *marked; int thinking, broken; } listed_answers[] = {
    {DEEPSEEK_CALLS D31("g", D_ONE) D_END DEEPSEEK_CALLS_END, G_CALL("1"), "[C]" D31("g", D_ONE) "[.]", 0, 0},
    {"So." DEEPSEEK_CALLS D31("g", D_ONE) D_END D31("bare", "{}") D_END DEEPSEEK_CALLS_END, G_CALL("1") "; " BARE_CALL,
     "[A]So.[C]" D31("g", D_ONE) "[.][C]" D31("bare", "{}") "[.]", 0, 0},
    {DEEPSEEK_CALLS D3("g", D_ONE) D_END "\n" D3("bare", "{}") D_END DEEPSEEK_CALLS_END "So.", G_CALL("1") "; " BARE_CALL,
     "[C]" D3("g", D_ONE) "[.][C]" D3("bare", "{}") "[.][A]So.", 0, 0},
    {DEEPSEEK_CALLS "\n" D31("g", "\n" D_ONE "\n") D_END "\n" DEEPSEEK_CALLS_END "\n", G_CALL("1"), NULL, 0, 0},
    {DEEPSEEK_CALLS D31("g", "```json\n" D_ONE "\n```") D_END DEEPSEEK_CALLS_END, G_CALL("1"), NULL, 0, 0},
    {DEEPSEEK_CALLS D31("g", D_ONE), G_CALL("1"), NULL, 0, 0},                                 // it is over after its last bracket
    {DEEPSEEK_CALLS D31("g", D_ONE) D31("g", D_ONE) DEEPSEEK_CALLS_END, G_CALL("1") "; " G_CALL("1"), NULL, 0, 0},
    {DEEPSEEK_CALLS D31("g", D_ONE) " so", G_CALL("1"), "[C]" D31("g", D_ONE) "[.][A] so", 0, 0},
    {DEEPSEEK_CALLS D31("g", "{\"x\": \"" D_END DEEPSEEK_CALLS_END "\"}") D_END DEEPSEEK_CALLS_END, G_CALL(D_END DEEPSEEK_CALLS_END), NULL, 0, 0},
    {DEEPSEEK_CALLS "{\"name\": \"g\", \"arguments\": " D_ONE "}", "", NULL, 0, 1},
    {DEEPSEEK_CALLS "\n{\"name\": \"g\", \"arguments\": " D_ONE "}", G_CALL("1"), NULL, 0, 0},
    // no calls
    {DEEPSEEK_CALLS D31("none", D_ONE) D_END DEEPSEEK_CALLS_END, "", "[A]" DEEPSEEK_CALLS D31("none", D_ONE) D_END DEEPSEEK_CALLS_END, 0, 1},
    {DEEPSEEK_CALLS D31("g", D_ONE) D_END D31("none", D_ONE) D_END DEEPSEEK_CALLS_END, G_CALL("1"),
     "[C]" D31("g", D_ONE) "[.][A]" D31("none", D_ONE) D_END DEEPSEEK_CALLS_END, 0, 1},
    {DEEPSEEK_CALLS D31("g", "{\"x\": \"1"), "", "[A]" DEEPSEEK_CALLS D31("g", "{\"x\": \"1"), 0, 1},
    {DEEPSEEK_CALLS D31("g", "{\"x\": " D_END), "", NULL, 0, 1},
    {DEEPSEEK_CALLS D_BEGIN "g", "", "[A]" DEEPSEEK_CALLS D_BEGIN "g", 0, 1},
    {DEEPSEEK_CALLS, "", "[A]" DEEPSEEK_CALLS, 0, 1},
    {D31("g", D_ONE) D_END, "", "[A]" D31("g", D_ONE) D_END, 0, 0},
    {"The mark " DEEPSEEK_CALLS " opens them.", "", "[A]The mark " DEEPSEEK_CALLS " opens them.", 0, 1},
    // in the thinking
    {"so" DEEPSEEK_CALLS D31("g", D_ONE) D_END DEEPSEEK_CALLS_END "</think>b", G_CALL("1"), "[T]so[C]" D31("g", D_ONE) "[.][A]b", 1, 0}};

static void test_listed(const json *j) {
    for (size_t i = 0; i < sizeof listed_answers / sizeof *listed_answers; i++)
        for (int end = TEXT_IS_CUT; end <= TEXT_ENDS; end++) {
            answer a = {.tools = j, .calls = 1, .thinking = listed_answers[i].thinking, .end = end, .form = LISTED};
            check_answer(&a, listed_answers[i].text, listed_answers[i].want, listed_answers[i].broken, listed_answers[i].marked);
        }
    answer a = {.tools = j, .calls = 1, .thinking = 0, .end = TEXT_IS_CUT, .form = LISTED};
    const char whole[] = DEEPSEEK_CALLS D3("g", D_ONE);
    for (size_t n = strlen(DEEPSEEK_CALLS); n + strlen("\n```") < strlen(whole); n++) {
        char part[256];
        snprintf(part, sizeof part, "%.*s", (int)n, whole);
        buf clean = {NULL, 0, 0, 0};                            // characters whole, as they come
        utf8_stream stream;
        memset(&stream, 0, sizeof stream);
        utf8_stream_push(&stream, part, n, &clean);
        utf8_stream_end(&stream, &clean);
        buf_add(&clean, "", 1);
        check_answer(&a, clean.data, "", 1, NULL);
        buf_free(&clean);
    }
}

static void test_keyed(const json *j) {
    for (size_t i = 0; i < sizeof keyed_answers / sizeof *keyed_answers; i++)
        for (int end = TEXT_IS_CUT; end <= TEXT_ENDS; end++) {
            answer a = {.tools = j, .calls = 1, .thinking = keyed_answers[i].thinking, .end = end, .form = KEYED};
            check_answer(&a, keyed_answers[i].text, keyed_answers[i].want, keyed_answers[i].broken, keyed_answers[i].marked);
        }
    // Whoever does not write so has not called; what cuts the answer short has cut the call, what ends it has not.
    answer a = {.tools = j, .calls = 1, .thinking = 0, .end = TEXT_ENDS, .form = TAGGED};
    check_answer(&a, K_G("1"), "", 1, "[A]" K_G("1"));
    a.form = KEYED;
    check_answer(&a, "<tool_call>g" K("x", "1"), G_CALL("1"), 0, "[C]g" K("x", "1") "[.]");
    check_answer(&a, "<tool_call>g<arg_key>x</arg_key><arg_value>1", "", 1, NULL);
    a.end = TEXT_IS_CUT;
    const char whole[] = K_G("1");
    for (size_t n = strlen("<tool_call>"); n < strlen(whole); n++) {
        char part[128];
        snprintf(part, sizeof part, "%.*s", (int)n, whole);
        check_answer(&a, part, "", 1, NULL);
    }
}

// Long answers take linear time.
static void test_long_pairs(const json *j) {
    static const char *const units[] = {"<", "<|", "<|tool_call>", Q, "<|tool_call>so ", CALLED("x:" Q "1" Q), "x:", "x:1,", "{a:", "[", "a", " ", "\\", "\"", "1,",
                                        "<|channel>thought", THOUGHT("a"), "<|channel>", "<channel|>", "<tool_call|>", "<tool_", "x:" Q "<|" Q ","};
    static const char *const begins[] = {"", "<|tool_call>call:g{", "<|tool_call>call:g{x:", "<|tool_call>call:g{x:" Q, "<|tool_call>call:g{x:\"", "<|tool_call>call:f{list:["};
    enum { BEGINS = sizeof begins / sizeof *begins };
    const size_t size = test_brief ? 30000 : 300000;
    for (size_t i = 0; i < sizeof units / sizeof *units * BEGINS * 2; i++) {
        answer a = {.tools = j, .calls = 1, .thinking = i % 2, .end = TEXT_IS_CUT, .form = PAIRS};
        const char *unit = units[i / 2 / BEGINS], *begin = begins[i / 2 % BEGINS];
        buf text;
        told t;
        memset(&text, 0, sizeof text);
        buf_text(&text, begin);
        while (text.size < size) buf_text(&text, unit);
        clock_t began = clock();
        hear(&t, &a, text.data, text.size, 3);
        double took = (double)(clock() - began) / CLOCKS_PER_SEC;
        CHECK(took < 2, "%zu bytes of \"%s\" after \"%s\" took %.1f s", text.size, unit, begin, took);
        told_free(&t);
        buf_free(&text);
    }
}

// An end tag alone, and not its parameter's and its function's: with the answer over, it was forgotten, else cut off.
static void test_ends(const json *j) {
    static const char text[] = "<tool_call>\n<function=g>\n<parameter=x>\n1\n</tool_call>\n";
    answer a = {.tools = j, .calls = 1, .thinking = 0, .end = TEXT_ENDS, .form = TAGGED};
    check_answer(&a, text, G_CALL("1"), 0, "[C]<function=g>\n<parameter=x>\n1[.]");
    a.end = TEXT_IS_CUT;
    check_answer(&a, text, "", 1, "[A]<tool_call>\n<function=g>\n<parameter=x>\n1\n</tool_call>\n");
}

// After </function> a value may go on: only the answer's end shows that it did not.
static void test_text_after(const json *j) {
    static const char text[] = "<tool_call>\n" G_TOLD("1") "\nDone, says </function>.\n</tool_call>\nSo.";
    answer a = {.tools = j, .calls = 1, .thinking = 0, .end = TEXT_ENDS, .form = TAGGED};
    check_answer(&a, text, G_CALL("1"), 0, "[C]" G_TOLD("1") "[.][A]Done, says </function>.\nSo.");
    check_answer(&a, "<tool_call>\n" G_TOLD("1\n</parameter>\n</function>\n2") "\nSo.", G_CALL("1\\n</parameter>\\n</function>\\n2"), 0, NULL);
    check_answer(&a, "<tool_call>\n<function=f>\n<parameter=text>\n1\n</parameter>\n</function>\n2\n</parameter>\n<parameter=number>\n3", "", 1, NULL);
    a.end = TEXT_IS_CUT;
    check_answer(&a, text, "", 1, NULL);
}

static void test_answers(const json *j) {
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        answer a = {.tools = j, .calls = answers[i].calls, .thinking = answers[i].thinking, .end = TEXT_IS_CUT, .form = TAGGED};
        check_answer(&a, answers[i].text, answers[i].want, answers[i].broken, answers[i].marked);
        a.end = TEXT_ENDS;
        check_answer(&a, answers[i].text, answers[i].want, answers[i].broken, answers[i].marked);
    }
    for (size_t i = 0; i < sizeof bare_answers / sizeof *bare_answers; i++)
        for (int end = TEXT_IS_CUT; end <= TEXT_ENDS; end++) {
            answer a = {.tools = j, .calls = 1, .thinking = 0, .end = end, .form = bare_answers[i].form};
            check_answer(&a, bare_answers[i].text, bare_answers[i].want, bare_answers[i].broken, bare_answers[i].marked);
        }
}

// ---- 6. Any text ----------------------------------------------------------------------------------------------------

// Without tags that switch channels, their ends and line feeds.
static void put_bare(const char *text, size_t n, buf *out) {
    static const char *const tags[] = {"<tool_call>", "</tool_call>", "<think>", "</think>", "\n", "[TOOL_CALLS]",
                                       "<|channel>thought", "<channel|>", "<|tool_call>", "<tool_call|>",
                                       DEEPSEEK_CALLS, D_END, DEEPSEEK_CALLS_END};
    for (size_t i = 0, size = 1; i < n; i += size) {
        size = 0;
        for (size_t k = 0; k < sizeof tags / sizeof *tags && !size; k++)
            if (slice_starts(slice_of(text + i, n - i), tags[k])) size = strlen(tags[k]);
        if (!size) buf_add(out, text + i, size = 1);
    }
}

// Whatever was written is told, in order, but for tags and the line feeds next to them; where no call is told and nothing is
// thought, to the byte. What is told as a call is one. Pieces change nothing.
static void check_any(const answer *a, const buf *text) {
    told whole, pieces;
    buf want = {NULL, 0, 0, 0}, got = {NULL, 0, 0, 0};
    int broken = hear(&whole, a, text->data, text->size, text->size + 1), again = hear(&pieces, a, text->data, text->size, 0);
    put_bare(text->data, text->size, &want);
    put_bare(whole.text.data, whole.text.size, &got);
    CHECK(!whole.wrong && broken < 1000 && broken == again && !strcmp(whole.marked.data, pieces.marked.data) &&
          !strcmp(whole.calls.data, pieces.calls.data), "in pieces it is something else: %.*s", (int)text->size, text->data);
    CHECK(want.size == got.size && (!got.size || !memcmp(want.data, got.data, got.size)), "lost or invented: %.*s\ntold %s", (int)text->size, text->data,
          whole.marked.data);
    int same = whole.text.size == text->size && (!text->size || !memcmp(whole.text.data, text->data, text->size));
    int tags = a->thinking || slice_before(slice_of(text->data, text->size), a->form == PAIRS ? "<|channel>thought" : "<think>").n < text->size;
    CHECK(same || tags || (a->calls && whole.count), "not to the byte: %.*s\ntold %s", (int)text->size, text->data, whole.marked.data);
    CHECK(a->calls || !whole.count, "a call where none is expected");
    told_free(&whole);
    told_free(&pieces);
    buf_free(&want);
    buf_free(&got);
}

// Pieces of calls in any order.
static void test_any_text(const json *j, int rounds) {
    static const char *const pieces[] = {
        "<function=", "g>", "f>", "\n", "<parameter=", "x>", "text>", "</parameter>", "</function>", "{", "}", "[", "]", "\"", "name",
        "\"name\": \"g\"", ",", "\"arguments\": ", "\\", "\\u00", "1", "True", " ", "<", "\xC3\xA9", "\xE2\x82\xAC", "=", ">", "'", ":",
        "<tool_call>", "\x01", "</tool_call>", "<think>", "</think>", "</tool_call>", "</function>\n</tool_call>",
        "</parameter>\n</function>\n</tool_call>", "<tool_call>\n<function=g>\n<parameter=x>\n", "\r\n", "`", "\n<function=g>\n", "</",
        "<|tool_call>", "call:g{", "x:", Q, "1" Q, "}<tool_call|>", "<|channel>thought\n", "<channel|>", "call:f{list:[", "<|",
        "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>", "g<arg_key>x</arg_key><arg_value>", "</arg_value></tool_call>", "<tool_call>g",
        DEEPSEEK_CALLS, D_BEGIN, DEEPSEEK_SEP, D_END, DEEPSEEK_CALLS_END, D_BEGIN "g" DEEPSEEK_SEP "{", "function" DEEPSEEK_SEP "g\n```json\n{",
        "[TOOL_CALLS]", "[ARGS]", "[CALL_ID]", "{\"name\": \"g\", \"arguments\": {", "g{", "; ", "So: ", "\"parameters\": {}}", "```json\n", "}}"};
    enum { PIECES = sizeof pieces / sizeof *pieces };
    static const char *const begins[] = {"", "<tool_call>\n<function=g>\n<parameter=x>\n", "<tool_call>{\"name\": \"g\", \"arguments\": {", "<tool_call>g<arg_key>x"};
    int calls = 0;
    for (int i = 0; i < rounds; i++) {
        buf text;
        answer a = {.tools = i % 5 ? j : NULL, .calls = i % 7 > 0, .thinking = i / 2 % 2, .end = i % 2 ? TEXT_IS_CUT : TEXT_ENDS, .form = i / 3 % FORMS};
        memset(&text, 0, sizeof text);
        buf_text(&text, begins[i % 4]);
        for (int n = random_int(0, 30); n > 0; n--) buf_text(&text, pieces[random_int(0, PIECES - 1)]);
        check_any(&a, &text);
        told t;
        hear(&t, &a, text.data, text.size, 1);
        calls += t.count;
        told_free(&t);
        buf_free(&text);
    }
    CHECK(calls > rounds / 50, "%d calls in %d texts", calls, rounds);
}

// Long answers that begin calls again and again take a time that grows with their length.
static void test_long(const json *j) {
    static const char *const units[] = {
        "<", "</", "\n", "<tool_call>", "<tool_call>\n", "<tool_call>{", "<tool_call>{\"", "<tool_call>\n<function=g>\n<parameter=x>\n",
        "\n<function=g>", "</parameter>", "</parameter>\n<parameter=x>\n", "</parameter> ", "\n<parameter=x>\n", "\n<parameter=text>\n",
        "</function>\n", "\\", "[", "{", "</thin", "<tool_call>\n<function=", "<tool_call>\n<function=g>\n</function>\n", "```json",
        "[TOOL_CALLS]", "[TOOL_CALLS]so ", "g[", "; ", "]", "{\"name\": ", "{\"", "[{", "<tool_call>so ", "{\"name\": \"g\", \"parameters\": {}} ",
        "<tool_call>\n" G_TOLD("1") "\nso ", K_G("1"), "<tool_call>g<arg_key>x", "</arg_key> ", " ", K("x", "1"), "</arg_value>", "<arg_value>", "</arg_value> <arg_key>",
        "<arg_key>x</arg_key> <arg_value>1", DEEPSEEK_CALLS, D_BEGIN, DEEPSEEK_CALLS D_BEGIN, D31("g", "{}"), D31("g", "{}") " ", D_END, DEEPSEEK_CALLS D31("g", "{}")};
    static const char *const begins[] = {"", "<tool_call>\n<function=g>\n<parameter=x>\n", "<tool_call>{\"name\": \"", "<tool_call>{",
                                         "<tool_call>g<arg_key>x", "<tool_call>g<arg_key>x</arg_key><arg_value>"};
    enum { BEGINS = sizeof begins / sizeof *begins };
    const size_t size = test_brief ? 30000 : 300000;
    for (size_t i = 0; i < sizeof units / sizeof *units * BEGINS; i++)
        for (int thinking = 0; thinking < 2; thinking++) {
            answer a = {.tools = j, .calls = 1, .thinking = thinking, .end = TEXT_IS_CUT, .form = i % BEGINS > 3 ? KEYED : i / BEGINS + 7 >= sizeof units / sizeof *units ? LISTED : (int)(i / BEGINS % FORMS)};
            buf text;
            told t;
            memset(&text, 0, sizeof text);
            buf_text(&text, begins[i % BEGINS]);
            while (text.size < size) buf_text(&text, units[i / BEGINS]);
            clock_t began = clock();
            hear(&t, &a, text.data, text.size, 3);
            double took = (double)(clock() - began) / CLOCKS_PER_SEC;
            CHECK(took < 2, "%zu bytes of \"%s\" after \"%s\" took %.1f s", text.size, units[i / BEGINS], begins[i % BEGINS], took);
            told_free(&t);
            buf_free(&text);
        }
}

int main(int argc, char **argv) {
    json j;
    test_main_begin("test_calls", argc, argv);
    test_samples(json_samples, sizeof json_samples / sizeof *json_samples);
    test_samples(tag_samples, sizeof tag_samples / sizeof *tag_samples);
    check_calls("{\"name\": \"f\", \"arguments\": {\"x\": 1}", 1, NULL, F1);           // a bracket too few
    check_calls("{\"name\": \"f\", \"arguments\": {\"x\": [1, 2", 1, NULL, "{\"name\": \"f\", \"arguments\": {\"x\": [1, 2]}}");
    test_cut("", F1, "", F1);
    test_cut("{\"name\": \"f\"}\n", F1, EMPTY, F1);
    test_cut("", "<function=f>\n<parameter=x>\n1\n</parameter>\n</function>", "", F1);
    test_cut("<function=f></function>", "<function=f>\n<parameter=x>\n1\n</parameter>\n</function>", EMPTY, F1);
    if (CHECK(!json_parse(&j, tools, strlen(tools), "tools", NULL), "tools")) {
        test_types(&j);
        test_answers(&j);
        test_pairs(&j);
        test_long_pairs(&j);
        test_keyed(&j);
        test_listed(&j);
        test_ends(&j);
        test_text_after(&j);
        test_any_text(&j, test_brief ? 3000 : 200000);
        test_long(&j);
        json_free(&j);
    }
    return test_main_end();
}
