// Tests of the chat part of tokenizer.c: rendering, recognition of templates, and the answer as a stream of channels.
// Usage: test_chat [DATA]: the folder that holds chat_templates and chat_goldens; without it those tests are skipped.

#include "../tokenizer.c"
#include "test.h"

#include <dirent.h>

enum { QWEN3 = CHAT_QWEN3, QWEN35 = CHAT_QWEN3_5, LENIENT35 = CHAT_QWEN3_5 | CHAT_LENIENT };

// ---- Rendering, literal cases ---------------------------------------------------------------------------------------
// What Jinja gave for the published templates. NULL: the template raises an error. ' stands for " throughout.

typedef struct render_case {
    int family;
    const char *request, *want;
} render_case;

#define USER "{'role':'user','content':'Hi'}"
#define IN "<|im_start|>user\nHi<|im_end|>\n"
#define OUT3 "<|im_start|>assistant\n"
#define OUT35 "<|im_start|>assistant\n<think>\n"
#define CALL(f, args)                                                                                                  \
    "{'messages':[" USER ",{'role':'assistant','content':'','tool_calls':[{'" f "':{'name':'f'" args "}}]}]," \
    "'add_generation_prompt':false}"

static const render_case render_cases[] = {
    {QWEN3, "{'messages':[" USER "]}", IN OUT3},
    {QWEN3, "{'messages':[" USER "],'enable_thinking':false}", IN OUT3 "<think>\n\n</think>\n\n"},
    {QWEN3, "{'messages':[" USER "],'add_generation_prompt':false}", IN},
    {QWEN35, "{'messages':[" USER "]}", IN OUT35},
    {QWEN35, "{'messages':[" USER "],'enable_thinking':true}", IN OUT35},
    {QWEN35, "{'messages':[" USER "],'enable_thinking':null}", IN OUT35},
    {QWEN35, "{'messages':[" USER "],'enable_thinking':false}", IN OUT3 "<think>\n\n</think>\n\n"},
    {QWEN35 | CHAT_QUIET, "{'messages':[" USER "]}", IN OUT3 "<think>\n\n</think>\n\n"},
    {QWEN35 | CHAT_QUIET, "{'messages':[" USER "],'enable_thinking':true}", IN OUT35},
    // White space: Qwen3.5 trims as Python does, Qwen3 leaves it.
    {QWEN35, "{'messages':[{'role':'user','content':'\\u3000\\n a b \\u00a0\\u2003\\u001f'}]}",
     "<|im_start|>user\na b<|im_end|>\n" OUT35},
    {QWEN35, "{'messages':[{'role':'user','content':'\\t\\u000b\\r\\u001c\\u0085\\u1680\\u2000\\u200a\\u2028\\u2029"
             "\\u202f\\u205fa\\u205f\\u202f\\u2029\\u2028\\u200a\\u2000\\u1680\\u0085\\u001c\\r\\u000b\\t'}]}",
     "<|im_start|>user\na<|im_end|>\n" OUT35},
    {QWEN35, "{'messages':[{'role':'user','content':'\\u200b a\\ufeff'}]}",
     "<|im_start|>user\n\xE2\x80\x8B a\xEF\xBB\xBF<|im_end|>\n" OUT35},
    {QWEN3, "{'messages':[{'role':'user','content':' a \\n'}]}", "<|im_start|>user\n a \n<|im_end|>\n" OUT3},
    // System messages.
    {QWEN35, "{'messages':[{'role':'system','content':' S\\n'}," USER "]}",
     "<|im_start|>system\nS<|im_end|>\n" IN OUT35},
    {QWEN35, "{'messages':[" USER ",{'role':'system','content':'S'}]}", NULL},
    {QWEN3, "{'messages':[" USER ",{'role':'system','content':'S'}]}",
     IN "<|im_start|>system\nS<|im_end|>\n" OUT3},
    // Thoughts: those of the last round stay.
    {QWEN35, "{'messages':[" USER ",{'role':'assistant','content':'<think>\\nt\\n</think>\\n\\na'}," USER "]}",
     IN OUT3 "a<|im_end|>\n" IN OUT35},
    {QWEN35, "{'messages':[" USER ",{'role':'assistant','content':'a','reasoning_content':' r '}],"
             "'add_generation_prompt':false}", IN OUT35 "r\n</think>\n\na<|im_end|>\n"},
    {QWEN3, "{'messages':[" USER ",{'role':'assistant','content':'<think>\\nt\\n</think>\\n\\na'}],"
            "'add_generation_prompt':false}", IN OUT3 "<think>\nt\n</think>\n\na<|im_end|>\n"},
    {QWEN3, "{'messages':[" USER ",{'role':'assistant','content':'\\na ','reasoning_content':'\\n r\\n\\n'}],"
            "'add_generation_prompt':false}", IN OUT3 "<think>\n r\n</think>\n\na <|im_end|>\n"},
    {QWEN35 | CHAT_PRESERVE, "{'messages':[" USER ",{'role':'assistant','content':'a','reasoning_content':'r'},"
             USER "],'preserve_thinking':true}", IN OUT35 "r\n</think>\n\na<|im_end|>\n" IN OUT35},
    // Tools: values as json.dumps and str write them.
    {QWEN3, "{'tools':[{'b':[1.0,1e5,-0,1E16,1e-5,0.1,12345678901234567890123,true,null,{}],"
            "'a':'\\u00e9\\/\\u007f\\n\\u0001'}],"
            "'messages':[" USER "],'add_generation_prompt':false}",
     "<|im_start|>system\n# Tools\n\nYou may call one or more functions to assist with the user query.\n\nYou are "
     "provided with function signatures within <tools></tools> XML tags:\n<tools>\n{'b': [1.0, 100000.0, 0, 1e+16, "
     "1e-05, 0.1, 12345678901234567890123, true, null, {}], 'a': '\xC3\xA9/\x7F\\n\\u0001'}\n</tools>\n\n"
     "For each function call, return a json object with function name and arguments within "
     "<tool_call></tool_call> XML tags:\n<tool_call>\n{'name': <function-name>, 'arguments': <args-json-object>}\n"
     "</tool_call><|im_end|>\n" IN},
    {QWEN35, "{'tools':[{'name':'f'},{}],'messages':[{'role':'system','content':' S '}," USER "],"
             "'add_generation_prompt':false}",
     "<|im_start|>system\n# Tools\n\nYou have access to the following functions:\n\n<tools>\n{'name': 'f'}\n{}\n"
     "</tools>\n\nIf you choose to call a function ONLY reply in the following format with NO suffix:\n\n<tool_call>\n"
     "<function=example_function_name>\n<parameter=example_parameter_1>\nvalue_1\n</parameter>\n"
     "<parameter=example_parameter_2>\nThis is the value for the second parameter\nthat can span\nmultiple lines\n"
     "</parameter>\n</function>\n</tool_call>\n\n<IMPORTANT>\nReminder:\n- Function calls MUST follow the specified "
     "format: an inner <function=...></function> block must be nested within <tool_call></tool_call> XML tags\n"
     "- Required parameters MUST be specified\n- You may provide optional reasoning for your function call in natural "
     "language BEFORE the function call, but NOT after\n- If there is no function call available, answer the question "
     "like normal with your current knowledge and do not tell the user about function calls\n</IMPORTANT>\n\nS"
     "<|im_end|>\n" IN},
    {QWEN35, CALL("function", ",'arguments':{'s':'x','n':2.50,'t':true,'z':null,'l':[1,'a']}"),
     IN OUT35 "\n</think>\n\n<tool_call>\n<function=f>\n<parameter=s>\nx\n</parameter>\n<parameter=n>\n2.5\n"
     "</parameter>\n<parameter=t>\nTrue\n</parameter>\n<parameter=z>\nNone\n</parameter>\n<parameter=l>\n[1, 'a']\n"
     "</parameter>\n</function>\n</tool_call><|im_end|>\n"},
    {QWEN35, CALL("function", ""),
     IN OUT35 "\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call><|im_end|>\n"},
    {QWEN35, CALL("function", ",'arguments':'{}'"), NULL},
    {LENIENT35, CALL("function", ",'arguments':'{}'"),
     IN OUT35 "\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call><|im_end|>\n"},
    {QWEN35, CALL("other", ""), NULL},
    {QWEN3, CALL("function", ",'arguments':'{}'"),
     IN OUT3 "<think>\n\n</think>\n\n<tool_call>\n{'name': 'f', 'arguments': {}}\n</tool_call><|im_end|>\n"},
    {QWEN3, CALL("function", ""), NULL},
    // A tool's answers share one user turn.
    {QWEN35, "{'messages':[" USER ",{'role':'tool','content':' 1 '},{'role':'tool','content':'2'}]}",
     IN "<|im_start|>user\n<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response><|im_end|>\n"
     OUT35},
    {QWEN3, "{'messages':[{'role':'tool','content':' 1 '}]}",
     "<|im_start|>user\n<tool_response>\n 1 \n</tool_response><|im_end|>\n" OUT3},
    // Parts.
    {QWEN35, "{'messages':[{'role':'user','content':[{'type':'text','text':'a '},{'type':'image'},{'video':1}]}]}",
     "<|im_start|>user\na <|vision_start|><|image_pad|><|vision_end|><|vision_start|><|video_pad|><|vision_end|>"
     "<|im_end|>\n" OUT35},
    {QWEN35, "{'messages':[{'role':'user','content':[{'image':0},{'type':'video'},{'image_url':''}]}],"
             "'add_vision_id':true,'add_generation_prompt':false}",
     "<|im_start|>user\nPicture 1: <|vision_start|><|image_pad|><|vision_end|>Video 1: <|vision_start|><|video_pad|>"
     "<|vision_end|>Picture 2: <|vision_start|><|image_pad|><|vision_end|><|im_end|>\n"},
    {QWEN35, "{'messages':[{'role':'user','content':[{'type':'audio'}]}]}", NULL},
    {QWEN35, "{'messages':[{'role':'system','content':[{'type':'image'}]}," USER "]}", NULL},
    {QWEN35, "{'messages':[{'role':'user','content':null}]}", "<|im_start|>user\n<|im_end|>\n" OUT35},
    {QWEN3, "{'messages':[{'role':'user','content':null}]}", NULL},
    {QWEN3, "{'messages':[{'role':'user','content':[{'type':'text','text':'a'}]}]}", NULL},
    {QWEN3 | CHAT_LENIENT, "{'messages':[{'role':'user','content':null}]}", "<|im_start|>user\n<|im_end|>\n" OUT3},
    // No question, other roles.
    {QWEN35, "{'messages':[{'role':'user','content':'<tool_response>x</tool_response>'}]}", NULL},
    {QWEN35, "{'messages':[" USER ",{'role':'developer','content':'x'}]}", NULL},
    {QWEN3, "{'messages':[" USER ",{'role':'developer','content':'x'}]}", IN OUT3},
    {QWEN35, "{'messages':[]}", NULL},
    {QWEN3, "{'messages':[]}", NULL},
};

static void check_render(int family, const char *request, size_t len, const char *want, size_t want_len,
                         const char *name) {
    buf out;
    mote_error err;
    memset(&out, 0, sizeof out);
    memset(&err, 0, sizeof err);
    buf_text(&out, "before");
    int code = chat_render((chat_family)family, request, len, &out, &err);
    const char *got = out.data + 6;
    size_t n = out.size - 6;
    if (want) {
        CHECK(!code, "%s: %s", name, err.message);
        CHECK(n == want_len && !memcmp(got, want, n), "%s: got\n%.*s\nwant\n%.*s", name, (int)n, got,
              (int)want_len, want);
    } else {
        CHECK(code == MOTE_EINVAL && err.code == code && err.message[0], "%s: an error expected, code %d", name, code);
        CHECK(n == 0, "%s: output after an error", name);
    }
    buf_free(&out);
}

static size_t put_quotes(char *out, const char *text) {
    size_t n = strlen(text);
    for (size_t i = 0; i <= n; i++) out[i] = text[i] == '\'' ? '"' : text[i];
    return n;
}

static void test_render(void) {
    for (size_t i = 0; i < sizeof render_cases / sizeof *render_cases; i++) {
        const render_case *c = render_cases + i;
        char request[1024], want[2048];
        size_t n = put_quotes(request, c->request), want_n = c->want ? put_quotes(want, c->want) : 0;
        check_render(c->family, request, n, c->want ? want : NULL, want_n, request);
    }
}

// ---- Malformed requests ---------------------------------------------------------------------------------------------

static void test_malformed(void) {
    static const char *const requests[] = {
        "", "{", "null", "[]", "'x'", "{}", "{'messages':5}", "{'messages':{}}", "{'messages':null}",
        "{'messages':[1]}", "{'messages':[[]]}", "{'messages':[" USER "],'tools':{}}",
        "{'messages':[" USER "],'tools':'x'}", "{'messages':[" USER "],'enable_thinking':'no'}",
        "{'messages':[" USER "],'add_generation_prompt':1}", "{'messages':[" USER "]} x",
        "{'messages':[" USER "],'tools':[1e999]}", "{'messages':[{'role':'user','content':5}]}",
        "{'messages':[{'role':'user','content':{}}]}", "{'messages':[{'role':'user','content':'\\ud800'}]}",
        "{'messages':[" USER ",{'role':'assistant','content':'','tool_calls':'x'}]}",
        "{'messages':[" USER ",{'role':'assistant','content':'','tool_calls':[null]}]}",
        "{'messages':[" USER ",{'role':'assistant','content':'','tool_calls':[{'function':7}]}]}",
    };
    char text[1024];
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        size_t n = put_quotes(text, requests[i]);
        check_render(QWEN3, text, n, NULL, 0, text);
        check_render(QWEN35, text, n, NULL, 0, text);
    }
    size_t whole = put_quotes(text, "{'messages':[" USER "],'tools':[{'a':1.5}]}");
    for (size_t n = 0; n < whole; n++) check_render(QWEN35, text, n, NULL, 0, "a request cut short");
    // Damaged bytes: any verdict, no crash.
    uint32_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        const char *from = render_cases[(uint32_t)round % (sizeof render_cases / sizeof *render_cases)].request;
        buf out;
        memset(&out, 0, sizeof out);
        size_t n = put_quotes(text, from);
        for (int k = 0; k < 3; k++) {
            seed = seed * 1664525u + 1013904223u;
            text[(seed >> 8) % n] = "\"{}[]:,0\\nt\xC3\xE2 a"[seed >> 28];
        }
        CHECK(!chat_render((chat_family)(1 + round % 2), text, n, &out, NULL) || !out.size, "output after an error");
        buf_free(&out);
    }
    buf none;
    size_t where[2];
    memset(&none, 0, sizeof none);
    CHECK(chat_render(CHAT_UNKNOWN, text, whole, &none, NULL) == MOTE_EUNSUPPORTED, "an unknown template");
    CHECK(chat_turn(CHAT_UNKNOWN, NULL, "user", "x", 0, &none, where, NULL) == MOTE_EUNSUPPORTED, "an unknown template");
    CHECK(chat_turn(CHAT_QWEN3, NULL, "system", "x", 0, &none, where, NULL) == MOTE_EINVAL, "a turn of another role");
    CHECK(!none.size, "output after an error");
}

// ---- Turns ----------------------------------------------------------------------------------------------------------

static void check_turn(int family, const char *system, const char *role, const char *content, int think,
                       const char *want) {
    buf out;
    size_t where[2];
    memset(&out, 0, sizeof out);
    int code = chat_turn((chat_family)family, system, role, content, think, &out, where, NULL);
    CHECK(!code && out.size == strlen(want) && !memcmp(out.data, want, out.size), "turn %s: got\n%.*s\nwant\n%s",
          content, (int)out.size, out.data, want);
    CHECK(chat_opens_thinking(out.data, out.size) == (strstr(want, "<think>") && !strstr(want, "</think>")),
          "turn %s: inside thinking?", content);
    buf_free(&out);
}

static void test_turn(void) {
    static const int families[] = {QWEN3,     QWEN3 | CHAT_LENIENT, QWEN35,
                                   LENIENT35, QWEN35 | CHAT_QUIET,  QWEN35 | CHAT_PRESERVE};
    static const char *const flags[] = {"null", "true", "false"};
    check_turn(QWEN3, "", "user", "Hi", MOTE_THINK_DEFAULT, IN OUT3);
    check_turn(QWEN3, NULL, "user", "Hi", MOTE_THINK_OFF, IN OUT3 "<think>\n\n</think>\n\n");
    check_turn(QWEN35, " S ", "user", " Hi\n", MOTE_THINK_ON, "<|im_start|>system\nS<|im_end|>\n" IN OUT35);
    check_turn(QWEN35, NULL, "tool", " {} ", MOTE_THINK_DEFAULT,
               "<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n" OUT35);
    for (size_t f = 0; f < sizeof families / sizeof *families; f++) { // the same as rendering the first turn
        for (int i = 0; i < 6; i++) {
            char text[256], request[256];
            buf out;
            size_t where[2];
            memset(&out, 0, sizeof out);
            snprintf(text, sizeof text, "{'messages':[%s{'role':'user','content':' a\\n'}],'enable_thinking':%s}",
                     i < 3 ? "{'role':'system','content':'S '}," : "", flags[i % 3]);
            size_t n = put_quotes(request, text);
            CHECK(!chat_turn((chat_family)families[f], i < 3 ? "S " : NULL, "user", " a\n", i % 3, &out, where, NULL), "turn");
            check_render(families[f], request, n, out.data, out.size, "turn and render");
            buf_free(&out);
        }
    }
}

// ---- Streams --------------------------------------------------------------------------------------------------------
// A transcript: [A], [T] or [C] where the channel changes, the text, and [.] for the end of a call.

typedef struct transcript {
    char text[512];
    size_t n;
    int channel;
} transcript;

static void transcript_add(void *user, int channel, const char *text, size_t len) {
    static const char *const names[] = {"[A]", "[T]", "[C]"};
    transcript *t = (transcript *)user;
    const char *name = channel == t->channel ? "" : names[channel];
    if (t->n + len + 8 > sizeof t->text) return;
    t->n += (size_t)snprintf(t->text + t->n, sizeof t->text - t->n, "%s%.*s%s", name, (int)len, text, len ? "" : "[.]");
    t->channel = len ? channel : -1;
}

// One push for each piece: up to `a`, up to `b`, the rest; or byte by byte when a < 0.
static void check_stream(int thinking, const char *text, int a, int b, const char *want) {
    transcript t;
    chat_stream s;
    int n = (int)strlen(text), step = a < 0;
    memset(&t, 0, sizeof t);
    t.channel = -1;
    chat_stream_begin(&s, thinking);
    for (int i = 0; i < n;) {
        int end = step ? i + 1 : i < a ? a : i < b ? b : n;
        chat_stream_push(&s, text + i, (size_t)(end - i), transcript_add, &t);
        i = end;
    }
    chat_stream_end(&s, transcript_add, &t);
    CHECK(!strcmp(t.text, want), "stream of %s, split at %d and %d: got %s, want %s", text, a, b, t.text, want);
}

static void test_stream(void) {
    static const struct {
        int thinking;
        const char *text, *want;
    } cases[] = {
        {0, "", ""},
        {1, "", ""},
        {0, "Hello\n\nworld\n", "[A]Hello\n\nworld\n"},
        {0, "\n\nHi", "[A]\n\nHi"},
        {1, "why\nnot\n</think>\n\nHello\nworld", "[T]why\nnot[A]Hello\nworld"},
        {1, "\n</think>\n\nHi", "[A]Hi"},
        {1, "</think>\n<think>", "[A]<think>"},
        {1, "cut short\n", "[T]cut short\n"},
        {0, "<think>\nwhy\n</think>\n\nbecause", "[T]why[A]because"},
        {0, "\n<think>\n\n</think>\n\nbecause", "[A]because"},
        {1, "<think>\nwhy\n</think>\na", "[T]why[A]a"},
        {0, "the <think> tag and </think>", "[A]the <think> tag and </think>"},
        {1, "a</think>b <think>c</think>", "[T]a[A]b <think>c</think>"},
        {0, "I look.\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n"
            "<tool_call>\n{\"a\": \"<b\"}\n</tool_call>",
         "[A]I look.[C]<function=f>\n</function>[.][C]{\"a\": \"<b\"}[.]"},
        {0, "<tool_call></tool_call>\nDone", "[C][.][A]Done"},
        {1, "so\n<tool_call>\nf\n</tool_call>\n", "[T]so[C]f[.]"},
        {0, "<tool_call>a<think>b</think><tool_call></tool_call>", "[C]a<think>b</think><tool_call>[.]"},
        {0, "a</tool_call> <tool_call", "[A]a</tool_call> <tool_call"},
        {1, "</thinks < </<</think></think>", "[T]</thinks < </<[A]</think>"},
        {0, "x<tool_call>f", "[A]x[C]f"},
        {0, "a\n\n<\n<tool\n", "[A]a\n\n<\n<tool\n"},
        {0, "\xC3\xA9<\xE4\xBD\xA0", "[A]\xC3\xA9<\xE4\xBD\xA0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int n = (int)strlen(cases[i].text);
        check_stream(cases[i].thinking, cases[i].text, -1, 0, cases[i].want);
        for (int a = 0; a <= n; a++) {
            for (int b = a; b <= n; b++) check_stream(cases[i].thinking, cases[i].text, a, b, cases[i].want);
        }
    }
}

// ---- Published templates and goldens --------------------------------------------------------------------------------

static int golden_family(const char *name) { // what we say a template of this file name is
    if (!strcmp(name, "Qwen-Qwen3-0.6B") || !strcmp(name, "Qwen3.from-tokenizer_config")) return QWEN3;
    if (!strcmp(name, "Qwen3.5-4B")) return QWEN35;
    if (!strcmp(name, "Qwen3.5-35B-A3B.from-REAP")) return LENIENT35;
    return strcmp(name, "Qwen3.5.from-ComfyUI-tokenizer_config") ? CHAT_UNKNOWN : QWEN35 | CHAT_QUIET;
}

static void check_detect(const char *name, const buf *text) {
    int want = golden_family(name);
    buf other;
    memset(&other, 0, sizeof other);
    int got = (int)chat_detect(text->data, text->size);
    CHECK(got == want, "%s: family %d", name, got);
    for (size_t i = 0; i < text->size; i++) { // other line ends and a longer tail: the same
        if (text->data[i] == '\n') buf_text(&other, " \r");
        buf_add(&other, text->data + i, 1);
    }
    buf_text(&other, " \r\n\r\n");
    CHECK((int)chat_detect(other.data, other.size) == want, "%s: not seen with other line ends", name);
    CHECK(chat_detect(text->data, text->size / 2) == CHAT_UNKNOWN, "%s: seen in its first half", name);
    other.data[other.size / 2] ^= 2;
    CHECK(chat_detect(other.data, other.size) == CHAT_UNKNOWN, "%s: seen though changed", name);
    buf_free(&other);
}

static void check_goldens(const char *dir, const char *name, int family) {
    char file[300];
    buf text, args, want;
    json j;
    mote_error err;
    memset(&text, 0, sizeof text);
    memset(&args, 0, sizeof args);
    memset(&want, 0, sizeof want);
    snprintf(file, sizeof file, "%s.json", name);
    if (read_file(dir, file, &text, &err) || json_parse(&j, text.data, text.size, file, &err)) {
        CHECK(0, "%s", err.message);
        buf_free(&text);
        return;
    }
    for (uint32_t k = 1; k < j.nodes[0].next; k = j.nodes[k].next) {
        uint32_t rendered = json_get(&j, k, "rendered");
        char label[400];
        args.size = want.size = 0;
        put_json(&j, json_get(&j, k, "args"), &args, NULL);
        if (rendered) put_string(&j, rendered, &want);
        buf_text(&want, ""); // not NULL even when empty
        snprintf(label, sizeof label, "%s case %u", name, k);
        check_render(family, args.data, args.size, rendered ? want.data : NULL, want.size, label);
    }
    json_free(&j);
    buf_free(&text);
    buf_free(&args);
    buf_free(&want);
}

static void test_published(const char *data) {
    char templates[1024], goldens[1024], name[256];
    int seen = 0, known = 0;
    snprintf(templates, sizeof templates, "%s/chat_templates", data);
    snprintf(goldens, sizeof goldens, "%s/chat_goldens", data);
    DIR *dir = opendir(templates);
    if (!dir) {
        test_skip("no chat templates and goldens in the data folder");
        return;
    }
    for (struct dirent *e; (e = readdir(dir)) != NULL;) {
        const char *dot = strstr(e->d_name, ".jinja");
        buf text;
        mote_error err;
        memset(&text, 0, sizeof text);
        if (!dot) continue;
        snprintf(name, sizeof name, "%.*s", (int)(dot - e->d_name), e->d_name);
        if (read_file(templates, e->d_name, &text, &err)) {
            CHECK(0, "%s", err.message);
            continue;
        }
        check_detect(name, &text);
        buf_free(&text);
        seen++;
        if (!golden_family(name)) continue;
        known++;
        check_goldens(goldens, name, golden_family(name));
    }
    closedir(dir);
    CHECK(seen > 20 && known == 5, "%d templates, %d of them known", seen, known);
}

int main(int argc, char **argv) {
    test_main_begin("test_chat", argc, argv);
    test_render();
    test_malformed();
    test_turn();
    test_stream();
    if (test_data_dir()) test_published(test_data_dir());
    else test_skip("no data folder: published chat templates and goldens");
    return test_main_end();
}
