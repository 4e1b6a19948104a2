// A part of test_chat: rendering, in literal cases; malformed requests; turns.

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
    {QWEN35, "{'messages':[" USER ",{'role':'system','content':'S'}]}",
     IN "<|im_start|>user\nSystem message:\nS<|im_end|>\n" OUT35},
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
    // Arguments as a text: the object in it; what was cut off stands as it was written.
    {QWEN35, CALL("function", ",'arguments':'{}'"),
     IN OUT35 "\n</think>\n\n<tool_call>\n<function=f>\n</function>\n</tool_call><|im_end|>\n"},
    {QWEN35, CALL("function", ",'arguments':'{\\'s\\':[1]}'"),
     IN OUT35 "\n</think>\n\n<tool_call>\n<function=f>\n<parameter=s>\n[1]\n</parameter>\n</function>\n</tool_call><|im_end|>\n"},
    {QWEN35, CALL("function", ",'arguments':'{\\'s\\':[1'"),
     IN OUT35 "\n</think>\n\n<tool_call>\n<function=f>\n{'s':[1\n</function>\n</tool_call><|im_end|>\n"},
    {QWEN35, CALL("function", ",'arguments':5"), NULL},
    {QWEN3, CALL("function", ",'arguments':'{\\'s\\':[1'"),
     IN OUT3 "<think>\n\n</think>\n\n<tool_call>\n{'name': 'f', 'arguments': {'s':[1}\n</tool_call><|im_end|>\n"},
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
    {QWEN3, "{'messages':[{'role':'user','content':null}]}", "<|im_start|>user\n<|im_end|>\n" OUT3},
    {QWEN3, "{'messages':[{'role':'user','content':[{'type':'text','text':'a'}]}]}", "<|im_start|>user\na<|im_end|>\n" OUT3},
    {QWEN3, "{'messages':[{'role':'user','content':[{'type':'image'}]}]}", NULL},
    {QWEN3 | CHAT_LENIENT, "{'messages':[{'role':'user','content':null}]}", "<|im_start|>user\n<|im_end|>\n" OUT3},
    // Other roles.
    {QWEN35, "{'messages':[" USER ",{'role':'critic','content':'x'}]}", NULL},
    {QWEN3, "{'messages':[" USER ",{'role':'critic','content':'x'}]}", IN OUT3},
    {QWEN35, "{'messages':[]}", NULL},
    {QWEN3, "{'messages':[]}", NULL},
};

static void check_render(int family, const char *request, size_t len, const char *want, size_t want_len,
                         const char *name) {
    marked_text out;
    mote_error err;
    memset(&out, 0, sizeof out);
    memset(&err, 0, sizeof err);
    put_words(&out, "before");
    int code = chat_render((chat_family)family, request, len, &out, &err);
    const char *got = out.text.data + 6;
    size_t n = out.text.size - 6;
    if (want) {
        CHECK(!code, "%s: %s", name, err.message);
        CHECK(n == want_len && !memcmp(got, want, n), "%s: got\n%.*s\nwant\n%.*s", name, (int)n, got,
              (int)want_len, want);
    } else {
        CHECK(code == MOTE_EINVAL && err.code == code && err.message[0], "%s: an error expected, code %d", name, code);
        CHECK(n == 0 && !out.outside.size, "%s: output after an error", name);
    }
    marked_free(&out);
}

static size_t put_quotes(char *out, const char *text) {
    size_t n = strlen(text);
    for (size_t i = 0; i <= n; i++) out[i] = text[i] == '\'' ? '"' : text[i];
    return n;
}

static void test_render(void) {
    for (size_t i = 0; i < COUNT(render_cases); i++) {
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
    for (size_t i = 0; i < COUNT(requests); i++) {
        size_t n = put_quotes(text, requests[i]);
        check_render(QWEN3, text, n, NULL, 0, text);
        check_render(QWEN35, text, n, NULL, 0, text);
    }
    size_t whole = put_quotes(text, "{'messages':[" USER "],'tools':[{'a':1.5}]}");
    for (size_t n = 0; n < whole; n++) check_render(QWEN35, text, n, NULL, 0, "a request cut short");
    // Damaged bytes: any verdict, no crash.
    uint32_t seed = 1;
    for (int round = 0; round < 20000; round++) {
        const char *from = render_cases[(uint32_t)round % (COUNT(render_cases))].request;
        marked_text out;
        memset(&out, 0, sizeof out);
        size_t n = put_quotes(text, from);
        for (int k = 0; k < 3; k++) {
            seed = seed * 1664525u + 1013904223u;
            text[(seed >> 8) % n] = "\"{}[]:,0\\nt\xC3\xE2 a"[seed >> 28];
        }
        int code = chat_render((chat_family)(1 + round % 2), text, n, &out, NULL);
        CHECK(!code || !out.text.size, "output after an error");
        marked_free(&out);
    }
    marked_text none;
    memset(&none, 0, sizeof none);
    CHECK(chat_render(CHAT_UNKNOWN, text, whole, &none, NULL) == MOTE_EUNSUPPORTED, "an unknown template");
    CHECK(chat_turn(CHAT_UNKNOWN, &(turn){.role = "user", .message = "x"}, &none, NULL) == MOTE_EUNSUPPORTED, "an unknown template");
    CHECK(chat_turn(CHAT_QWEN3, &(turn){.role = "system", .message = "x"}, &none, NULL) == MOTE_EINVAL, "a turn of another role");
    CHECK(!none.text.size, "output after an error");
}

// ---- Turns ----------------------------------------------------------------------------------------------------------

static void check_turn(int family, const char *system, const char *role, const char *content, int think,
                       const char *want) {
    marked_text out;
    memset(&out, 0, sizeof out);
    turn t = {.system = system, .role = role, .message = content, .think = think};
    int code = chat_turn((chat_family)family, &t, &out, NULL);
    const buf *got = &out.text;
    CHECK(!code && got->size == strlen(want) && !memcmp(got->data, want, got->size), "turn %s: got\n%.*s\nwant\n%s",
          content, (int)got->size, got->data, want);
    marked_free(&out);
}

static const int families[] = {QWEN3,     QWEN3 | CHAT_LENIENT, QWEN35,
                               LENIENT35, QWEN35 | CHAT_QUIET,  QWEN35 | CHAT_PRESERVE};

static void test_turn(void) {
    static const char *const flags[] = {"null", "true", "false"};
    check_turn(QWEN3, "", "user", "Hi", MOTE_THINK_DEFAULT, IN OUT3);
    check_turn(QWEN3, NULL, "user", "Hi", MOTE_THINK_OFF, IN OUT3 "<think>\n\n</think>\n\n");
    check_turn(QWEN35, " S ", "user", " Hi\n", MOTE_THINK_ON, "<|im_start|>system\nS<|im_end|>\n" IN OUT35);
    check_turn(QWEN35, NULL, "tool", " {} ", MOTE_THINK_DEFAULT,
               "<|im_start|>user\n<tool_response>\n{}\n</tool_response><|im_end|>\n" OUT35);
    for (size_t f = 0; f < COUNT(families); f++) { // the same as rendering the first turn
        for (int i = 0; i < 6; i++) {
            char text[256], request[256];
            marked_text out;
            memset(&out, 0, sizeof out);
            snprintf(text, sizeof text, "{'messages':[%s{'role':'user','content':' a\\n'}],'enable_thinking':%s}",
                     i < 3 ? "{'role':'system','content':'S '}," : "", flags[i % 3]);
            size_t n = put_quotes(request, text);
            turn t = {.system = i < 3 ? "S " : NULL, .role = "user", .message = " a\n", .think = i % 3};
            CHECK(!chat_turn((chat_family)families[f], &t, &out, NULL), "turn");
            check_render(families[f], request, n, out.text.data, out.text.size, "turn and render");
            marked_free(&out);
        }
    }
}
