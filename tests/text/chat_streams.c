// A part of test_chat: the answer as a stream of channels.

// A transcript: [A], [T] or [C] where the channel changes, the text, and [.] for the end of a call.

typedef struct transcript {
    char text[512];
    size_t n;
    int channel, calls;
} transcript;

static void transcript_add(void *user, int channel, const char *text, size_t len) {
    static const char *const names[] = {"[A]", "[T]", "[C]"};
    transcript *t = (transcript *)user;
    const char *name = channel == t->channel ? "" : names[channel];
    if (t->n + len + 8 > sizeof t->text) return;
    t->n += (size_t)snprintf(t->text + t->n, sizeof t->text - t->n, "%s%.*s%s", name, (int)len, text, len ? "" : "[.]");
    t->channel = len ? channel : -1;
}

static void transcript_call(void *user, const char *call, size_t size) {
    (void)call, (void)size;
    ((transcript *)user)->calls++;
}

enum { NO_CALLS, CALLS, MISTRAL_CALLS, LLAMA_CALLS };

// One push for each piece: up to `a`, up to `b`, the rest; or byte by byte when a < 0.
static void check_stream(int thinking, int calls, const char *text, int a, int b, const char *want) {
    transcript t;
    chat_stream s;
    int n = (int)strlen(text), step = a < 0;
    memset(&t, 0, sizeof t);
    memset(&s, 0, sizeof s);
    t.channel = -1;
    s.emit = transcript_add;
    s.on_call = calls ? transcript_call : NULL;
    s.call_mark = calls == MISTRAL_CALLS ? "[TOOL_CALLS]" : NULL;
    s.bare_calls = calls == LLAMA_CALLS;
    s.user = &t;
    chat_stream_begin(&s, thinking);
    for (int i = 0; i < n;) {
        int end = step ? i + 1 : i < a ? a : i < b ? b : n;
        chat_stream_push(&s, text + i, (size_t)(end - i));
        i = end;
    }
    chat_stream_end(&s, TEXT_IS_CUT);
    int ends = 0;
    for (const char *p = want; (p = strstr(p, "[.]")) != NULL; p++) ends++;
    CHECK(!strcmp(t.text, want) && t.calls == ends, "stream of %s, split at %d and %d: got %s and %d calls, want %s", text, a, b, t.text,
          t.calls, want);
    chat_stream_free(&s);
}

static void test_stream(void) {
    static const struct {
        int thinking, calls;
        const char *text, *want;
    } cases[] = {
        {0, 0, "", ""},
        {1, 0, "", ""},
        {0, 0, "Hello\n\nworld\n", "[A]Hello\n\nworld\n"},
        {0, 0, "\n\nHi", "[A]\n\nHi"},
        {1, 0, "why\nnot\n</think>\n\nHello\nworld", "[T]why\nnot[A]Hello\nworld"},
        {1, 0, "\n</think>\n\nHi", "[A]Hi"},
        {1, 0, "</think>\n<think>", "[A]<think>"},
        {1, 0, "cut short\n", "[T]cut short\n"},
        {0, 0, "<think>\nwhy\n</think>\n\nbecause", "[T]why[A]because"},
        {0, 0, "\n<think>\n\n</think>\n\nbecause", "[A]because"},
        {1, 0, "<think>\nwhy\n</think>\na", "[T]why[A]a"},
        {0, 0, "the <think> tag and </think>", "[A]the <think> tag and </think>"},
        {1, 0, "a</think>b <think>c</think>", "[T]a[A]b <think>c</think>"},
        {0, 1, "I look.\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n"
            "<tool_call>\n{\"name\": \"<b\"}\n</tool_call>",
         "[A]I look.[C]<function=f>\n</function>[.][C]{\"name\": \"<b\"}[.]"},
        {0, 1, "<tool_call></tool_call>\nDone", "[A]<tool_call></tool_call>\nDone"},
        {1, 1, "so\n<tool_call>\nf\n</tool_call>\n", "[T]so\n<tool_call>\nf\n</tool_call>\n"},
        {0, 1, "<tool_call>a<think>b</think><tool_call></tool_call>", "[A]<tool_call>a<think>b</think><tool_call></tool_call>"},
        {0, 0, "I look.\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n",
         "[A]I look.\n\n<tool_call>\n<function=f>\n</function>\n</tool_call>\n"},
        {1, 1, "so\n<tool_call>\n{\"name\": \"f\"}\n</tool_call>\n</think>\nb", "[T]so[C]{\"name\": \"f\"}[.][A]b"},
        {0, 0, "a</tool_call> <tool_call", "[A]a</tool_call> <tool_call"},
        {1, 1, "</thinks < </<</think></think>", "[T]</thinks < </<[A]</think>"},
        {0, 1, "x<tool_call>f", "[A]x<tool_call>f"},
        {0, 1, "a\n\n<\n<tool\n", "[A]a\n\n<\n<tool\n"},
        {0, 0, "\xC3\xA9<\xE4\xBD\xA0", "[A]\xC3\xA9<\xE4\xBD\xA0"},
        // Calls without tags.
        {0, LLAMA_CALLS, "{\"name\": \"f\", \"parameters\": {\"x\": \"<\"}}", "[C]{\"name\": \"f\", \"parameters\": {\"x\": \"<\"}}[.]"},
        {0, LLAMA_CALLS, "{\"name\": 1}", "[A]{\"name\": 1}"},
        {0, LLAMA_CALLS, "{\"name\": \"f\"", "[A]{\"name\": \"f\""},
        {0, LLAMA_CALLS, "So {\"name\": \"f\"}", "[A]So {\"name\": \"f\"}"},
        {0, CALLS, "{\"name\": \"f\"}", "[A]{\"name\": \"f\"}"},
        {0, CALLS, "[TOOL_CALLS][{\"name\": \"f\"}]", "[A][TOOL_CALLS][{\"name\": \"f\"}]"},
        {0, MISTRAL_CALLS, "[TOOL_CALLS][{\"name\": \"f\"}, {\"name\": \"g\"}]", "[C][{\"name\": \"f\"}, [.][C]{\"name\": \"g\"}][.]"},
        {0, MISTRAL_CALLS, "Ok [1] [TOOL_CALLS]f[CALL_ID]123456789[ARGS]{\"x\": 1}[TOOL_CALLS]g[ARGS]{}",
         "[A]Ok [1] [C]f[CALL_ID]123456789[ARGS]{\"x\": 1}[.][C]g[ARGS]{}[.]"},
        {0, MISTRAL_CALLS, "[TOOL_CALLS]f[ARGS]1", "[A][TOOL_CALLS]f[ARGS]1"},
        {0, MISTRAL_CALLS, "[TOOL_CALLS]f", "[A][TOOL_CALLS]f"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        int n = (int)strlen(cases[i].text);
        check_stream(cases[i].thinking, cases[i].calls, cases[i].text, -1, 0, cases[i].want);
        for (int a = 0; a <= n; a++) {
            for (int b = a; b <= n; b++) check_stream(cases[i].thinking, cases[i].calls, cases[i].text, a, b, cases[i].want);
        }
    }
}
