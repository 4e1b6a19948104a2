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

// The same of messages with headers. Their marks are never cut, and stand between pieces of text: see check_stream.
static void hear_channels(transcript *t, int place, int calls, int end_of_all, const char *text, int a, int b) {
    chat_stream s;
    const int n = (int)strlen(text);
    memset(t, 0, sizeof *t);
    memset(&s, 0, sizeof s);
    t->channel = -1;
    s.emit = transcript_add;
    s.on_call = calls ? transcript_call : NULL;
    s.user = t;
    channels_begin(&s, place);
    for (int i = 0, end; i < n; i = end) {
        const int mark = header_mark(slice_of(text + i, (size_t)(n - i)));
        end = i + (mark < 0 ? 1 : (int)strlen(header_marks[mark]));
        while (mark < 0 && a >= 0 && end < n && end != a && end != b && header_mark(slice_of(text + end, (size_t)(n - end))) < 0) end++;
        if (mark >= 0) channels_mark(&s, mark);
        else chat_stream_push(&s, text + i, (size_t)(end - i));
    }
    chat_stream_end(&s, end_of_all);
    chat_stream_free(&s);
}

static void check_channels(int place, int calls, int end, const char *text, int a, int b, const char *want) {
    transcript t;
    int ends = 0;
    hear_channels(&t, place, calls, end, text, a, b);
    for (const char *p = want; (p = strstr(p, "[.]")) != NULL; p++) ends++;
    CHECK(!strcmp(t.text, want) && t.calls == ends, "channels of %s, split at %d and %d: got %s and %d calls, want %s", text, a, b, t.text,
          t.calls, want);
}

// What openai-harmony reads of answers: tests/fixtures/chats/gpt-oss.answers.json, by tools/make_harmony_goldens.py.
static void test_harmony_goldens(void) {
    buf text = {0}, answer = {0}, content = {0}, name = {0};
    json j;
    mote_error err;
    int read = 0;
    if (!CHECK(!read_file("tests/fixtures/chats", "gpt-oss.answers.json", &text, &err) && !json_parse(&j, text.data, text.size, "answers", &err), "%s", err.message))
        return;
    for (uint32_t k = 1; k < j.nodes[0].next; k = j.nodes[k].next, read++) {
        const uint32_t messages = json_get(&j, k, "messages");
        transcript want = {.channel = -1}, got;
        int told = 0;
        answer.size = 0;
        put_string(&j, json_get(&j, k, "answer"), &answer);
        buf_add(&answer, "", 1);
        for (uint32_t m = messages + 1; messages && m < j.nodes[messages].next; m = j.nodes[m].next) {
            const uint32_t recipient = json_get(&j, m, "recipient");
            const int calls = j.nodes[recipient].type == JSON_STRING;
            const int channel = calls ? MOTE_TOOL_CALL : json_equals(&j, json_get(&j, m, "channel"), "analysis") ? MOTE_THINKING : MOTE_ANSWER;
            name.size = content.size = 0;
            if (calls) put_string(&j, recipient, &name);
            put_string(&j, json_get(&j, m, "content"), &content);
            if (calls) transcript_add(&want, channel, name.data + strlen("functions."), name.size - strlen("functions."));
            if (calls) transcript_add(&want, channel, " ", 1);
            else if (told >> channel & 1) transcript_add(&want, channel, "\n\n", 2);
            transcript_add(&want, channel, content.data, content.size);
            if (calls) transcript_add(&want, channel, "", 0);
            told |= 1 << channel;
        }
        hear_channels(&got, IN_HEADER, CALLS, TEXT_ENDS, answer.data, 20, 40);
        CHECK(messages && !strcmp(got.text, want.text), "%s: got %s, openai-harmony reads %s", answer.data, got.text, want.text);
    }
    CHECK(read > 10, "%d answers", read);
    json_free(&j);
    buf_free(&text);
    buf_free(&answer);
    buf_free(&content);
    buf_free(&name);
}

static void test_channels(void) {
    enum { CUT_CALLS = CALLS + 1 };
#define ANALYSIS "<|channel|>analysis<|message|>"
#define FINAL "<|channel|>final<|message|>"
#define START "<|end|><|start|>assistant"
    static const struct { int place, calls; const char *text, *want; } cases[] = {
        {IN_HEADER, NO_CALLS, "", ""},
        {IN_HEADER, NO_CALLS, ANALYSIS "why" START FINAL "Hi\n", "[T]why[A]Hi\n"},
        {IN_HEADER, NO_CALLS, FINAL "Hi <b> {1}<|return|>", "[A]Hi <b> {1}"},
        {IN_HEADER, NO_CALLS, ANALYSIS "a" START ANALYSIS "b" START "<|channel|>commentary<|message|>c" START FINAL "d" START FINAL "<|return|>",
         "[T]a\n\nb[A]c\n\nd"},
        {IN_HEADER, NO_CALLS, ANALYSIS "a<|end|>\n<|start|>assistant<|message|>b", "[T]a[A]b"},
        {IN_HEADER, NO_CALLS, ANALYSIS "a" FINAL "b", "[T]a[A]b"},                           // without an end, without a start
        {IN_HEADER, NO_CALLS, ANALYSIS "a<|end|>" FINAL "b", "[T]a[A]b"},
        {IN_HEADER, NO_CALLS, ANALYSIS "a<|end|>b", "[T]a[A]b"},
        {IN_HEADER, NO_CALLS, " " FINAL "b", "[A]b"},
        {IN_BODY, NO_CALLS, "Hi" START FINAL "b", "[A]Hi\n\nb"},
        {BETWEEN_MESSAGES, NO_CALLS, "\n<|start|>assistant" FINAL "b", "[A]b"},
        // Calls.
        {IN_HEADER, CALLS, ANALYSIS "a" START "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{\"x\": 1}<|call|>",
         "[T]a[C]f {\"x\": 1}[.]"},
        {IN_HEADER, CALLS, " to=functions.f<|channel|>commentary json<|message|>{\"x\": \"<|e\"}<|call|>", "[C]f {\"x\": \"<|e\"}[.]"},
        {IN_HEADER, CALLS, " to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}", "[C]f {}[.]"},
        {IN_HEADER, CALLS, "<|channel|>commentary to=functions.f<|message|>\n{}\n<|end|>", "[C]f {}[.]"},
        {IN_HEADER, CALLS, "<|channel|>analysis to=f<|constrain|>json<|message|>{}<|call|>", "[C]f {}[.]"},
        {IN_HEADER, CALLS, "<|channel|>commentary to=functions.f<|message|><|call|>", "[C]f [.]"},
        {IN_HEADER, CALLS, "<|channel|>commentary to=functions.f<|message|>{\"x\": [1<|call|>", "[C]f {\"x\": [1[.]"},
        {IN_HEADER, CALLS, "<|channel|>commentary<|message|>So:" START " to=functions.f<|channel|>commentary json<|message|>{}" START
         "<|channel|>commentary to=functions.g json<|message|>{\"y\": {}}<|call|>" "<|start|>assistant" FINAL "Well",
         "[A]So:[C]f {}[.][C]g {\"y\": {}}[.][A]\n\nWell"},
        {IN_HEADER, CALLS, "<|channel|>commentary to=functions.f<|message|>{} then<|end|>", "[C]f {}[.][A]then"},
        {IN_HEADER, CALLS, "<|channel|>commentary to=user<|message|>Hi<|end|>", "[A]Hi"},
        // What is no call is text, header and all.
        {IN_HEADER, NO_CALLS, "<|channel|>commentary to=functions.f json<|message|>{}<|call|>", "[A]<|channel|>commentary to=functions.f json<|message|>{}"},
        {IN_HEADER, CALLS, "<|channel|>commentary to=functions.f json<|message|>{\"x\": \"<|call|>",
         "[A]<|channel|>commentary to=functions.f json<|message|>{\"x\": \""},
        {IN_HEADER, CALLS, "<|channel|>analysis to=python code<|message|>print(1)<|call|>", "[T]<|channel|>analysis to=python code<|message|>print(1)"},
        {IN_HEADER, CUT_CALLS, ANALYSIS "a" START " to=functions.f<|channel|>commentary json<|message|>{\"x\": 1",
         "[T]a[A]<|start|>assistant to=functions.f<|channel|>commentary json<|message|>{\"x\": 1"},
        {IN_HEADER, CUT_CALLS, " to=functions.f<|channel|>commentary json<|message|>", "[A] to=functions.f<|channel|>commentary json<|message|>"},
        // Broken headers.
        {IN_HEADER, NO_CALLS, "Hello", "[A]Hello"},
        {IN_HEADER, NO_CALLS, " to", "[A] to"},
        {IN_HEADER, NO_CALLS, "<|channel|>ana", "[A]<|channel|>ana"},
        {IN_HEADER, NO_CALLS, "<|channel|>analysis<|end|>" FINAL "b", "[A]<|channel|>analysis\n\nb"},
        {IN_HEADER, NO_CALLS, "<|channel|>thoughts<|message|>a" START FINAL "b", "[A]<|channel|>thoughts<|message|>a\n\nb"},
        {IN_HEADER, NO_CALLS, FINAL "a<|end|><|start|>user<|message|>b", "[A]a\n\n<|start|>user<|message|>b"},
        {IN_HEADER, NO_CALLS, FINAL "a<|end|><|start|>assistant", "[A]a"},
        {IN_HEADER, NO_CALLS, "<|start|>assistant<|start|>assistant" FINAL "a<|message|>b<|constrain|>", "[A]a<|message|>b<|constrain|>"},
        {IN_HEADER, NO_CALLS, "<|message|>a<|end|><|message|>b<|return|><|call|>", "[A]a\n\nb"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const int n = (int)strlen(cases[i].text);
        const int end = cases[i].calls == CUT_CALLS ? TEXT_IS_CUT : TEXT_ENDS;
        check_channels(cases[i].place, cases[i].calls, end, cases[i].text, -1, 0, cases[i].want);
        for (int a = 0; a <= n; a++)
            for (int b = a; b <= n; b++) check_channels(cases[i].place, cases[i].calls, end, cases[i].text, a, b, cases[i].want);
    }
    // A header that never ends is text as soon as it cannot be one.
    char text[700], want[704] = "[A]";
    memset(text, 'x', sizeof text - 1);
    memcpy(text, "<|channel|>", 11);
    text[440 + 11] = 0;
    strcat(want, text);
    check_channels(IN_HEADER, NO_CALLS, TEXT_IS_CUT, text, -1, 0, want);
    check_channels(IN_HEADER, NO_CALLS, TEXT_IS_CUT, text, 300, 301, want);
#undef ANALYSIS
#undef FINAL
#undef START
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
