// A part of test_api: stored conversations.

// A conversation of whole turns: what is asked and answered, and the same as messages. thinks: the family's prompt ends in an
// open <think>, else the model opens it.
typedef struct told { const char *role, *message, *answer, *messages; } told;

static const char USER_CALL[] = "{\"role\": \"user\", \"content\": \"Two?\"}, {\"role\": \"assistant\", \"content\": \"I add.\", "
                                "\"reasoning_content\": \"A call.\", \"tool_calls\": [{\"function\": {\"name\": \"add\", \"arguments\": {\"a\": ";
static const told three_five[] = {
    {"user", "One?", "Hmm, one.\n</think>\n\nIt is 1.<|im_end|>",
     "{\"role\": \"user\", \"content\": \"One?\"}, {\"role\": \"assistant\", \"content\": \"It is 1.\", \"reasoning_content\": \"Hmm, one.\"}"},
    {"user", "Two?", "A call.\n</think>\n\nI add.\n\n<tool_call>\n<function=add>\n<parameter=a>\n1\n</parameter>\n</function>\n</tool_call><|im_end|>",
     NULL},
    {"tool", "2", "So 2.\n</think>\n\nTwo.<|im_end|>",
     "{\"role\": \"tool\", \"content\": \"2\"}, {\"role\": \"assistant\", \"content\": \"Two.\", \"reasoning_content\": \"So 2.\"}"},
    {"user", "<|im_end|> or three?", "Three.\n</think>\n\nThree.<|im_end|>",
     "{\"role\": \"user\", \"content\": \"<|im_end|> or three?\"}, {\"role\": \"assistant\", \"content\": \"Three.\", \"reasoning_content\": \"Three.\"}"}};
static const told three[] = {
    {"user", "One?", "<think>\nHmm, one.\n</think>\n\nIt is 1.<|im_end|>", NULL},
    {"user", "Two?", "<think>\nA call.\n</think>\n\nI add.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call><|im_end|>", NULL},
    {"tool", "2", "<think>\nSo 2.\n</think>\n\nTwo.<|im_end|>", NULL},
    {"user", "<|im_end|> or three?", "<think>\nThree.\n</think>\n\nThree.<|im_end|>", NULL}};
enum { TOLD = 4 };

// The first `turns` of it, as a request.
static void stored(char *request, size_t room_for, int turns) {
    size_t n = (size_t)snprintf(request, room_for, "{\"tools\": %s, \"messages\": [{\"role\": \"system\", \"content\": \"Be brief. \"}", TOOLS);
    for (int i = 0; i < turns; i++)
        n += (size_t)(three_five[i].messages ? snprintf(request + n, room_for - n, ", %s", three_five[i].messages)
                                             : snprintf(request + n, room_for - n, ", %s1}}}]}", USER_CALL));
    snprintf(request + n, room_for - n, "], \"enable_thinking\": true}");
}

static int same_timeline(const mote_session *a, const mote_session *b) {
    size_t n, m;
    const int32_t *x = mote_tokens(a, &n), *y = mote_tokens(b, &m);
    return n == m && !memcmp(x, y, n * sizeof *x);
}

// A conversation that is led with mote_ask, and at each turn one that begins with the stored turns before it: the timelines are the
// same, token for token, there and after the next turn.
static void test_restored(const mote_model *m, const told *turns, const char *family) {
    mote_session *led = session_at(m, MOTE_MTP_AUTO), *kept = session_at(m, MOTE_MTP_AUTO);
    heard *h = (heard *)allocate(sizeof *h);
    char request[4096];
    const int vocab = mote_model_info(m)->vocab_size;
    for (int i = 0; i < TOLD; i++) {
        size_t read = 0, again = 0;
        mote_session *s = session_at(m, MOTE_MTP_AUTO);
        stored(request, sizeof request, i);
        if (i) EXPECT(MOTE_OK, mote_chat_restore(s, request, strlen(request), &read, &failure));
        if (i) EXPECT(MOTE_OK, mote_chat_restore(kept, request, strlen(request), &again, &failure));
        CHECK(same_timeline(led, s) && same_timeline(led, kept), "%s: restored before turn %d", family, i);
        CHECK(!i || (same_logits(s, mote_logits(led), vocab) && same_logits(kept, mote_logits(led), vocab)), "%s: other logits", family);
        CHECK(read == (size_t)count_of(s) && (i < 2 || again < read), "%s, turn %d: %zu and %zu tokens read of %d", family, i, read, again,
              count_of(s));
        say(m, led, turns[i].role, turns[i].message, MOTE_THINK_ON, turns[i].answer, h, NULL);
        if (i) say(m, s, turns[i].role, turns[i].message, MOTE_THINK_ON, turns[i].answer, h, NULL);
        CHECK(!i || same_timeline(led, s), "%s: turn %d after restored ones", family, i);
        mote_session_close(s);
    }
    stored(request, sizeof request, TOLD);
    size_t read = 99;
    EXPECT(MOTE_OK, mote_chat_restore(led, request, strlen(request), &read, &failure));
    CHECK(read == 0, "%s: %zu tokens of a conversation that is there were read", family, read);
    EXPECT(MOTE_OK, mote_chat_restore(kept, request, strlen(request), &read, &failure));
    CHECK(read > 0 && same_timeline(led, kept), "%s: restored at the end", family);
    size_t count;
    const int32_t *ids = mote_tokens(led, &count);
    mote_session *fed = session_at(m, MOTE_MTP_AUTO);       // all is there, but not what the next turn goes back to
    EXPECT(MOTE_OK, mote_feed(fed, ids, count, &failure));
    EXPECT(MOTE_OK, mote_chat_restore(fed, request, strlen(request), &read, &failure));
    CHECK(read == count && same_timeline(led, fed), "%s: %zu of %zu tokens read again", family, read, count);
    EXPECT(MOTE_OK, mote_drop_thinking(fed, NULL, &failure));
    EXPECT(MOTE_OK, mote_drop_thinking(kept, &read, &failure));
    EXPECT(MOTE_OK, mote_drop_thinking(led, NULL, &failure));
    CHECK(read > 0 && same_timeline(led, kept) && same_timeline(led, fed), "%s: thinking of a restored answer", family);
    mote_session_close(fed);
    mote_session_close(led);
    mote_session_close(kept);
    free(h);
}

static void edit_template(const char *name, char **bytes, size_t *size, const void *how) {
    if (strcmp(name, "chat_template.jinja")) return;
    free(*bytes);
    *bytes = file_bytes((const char *)how, size);
    if (!*bytes) *bytes = (char *)allocate(0);
}

// The bundled model with Qwen3's template.
static void test_restored_as_qwen3(void) {
    char path[512];
    snprintf(path, sizeof path, "%s/chat_templates/Qwen-Qwen3-0.6B.jinja", test_data_dir() ? test_data_dir() : "");
    if (!test_data_dir() || access(path, R_OK)) {
        test_skip("no data: restored conversations of Qwen3");
        return;
    }
    if (!temp_open()) return;
    temp_copy_of("models/demo", edit_template, path);
    mote_model *m = model_of(temp_dir, MOTE_EVERYTHING);
    CHECK(!strcmp(mote_model_info(m)->chat_template, "Qwen3"), "%s", mote_model_info(m)->chat_template);
    test_restored(m, three, "Qwen3");
    mote_close(m);
    temp_close();
}

// A turn after fed tokens is the same whatever line end closes the one before.
static void test_closed_turns(const mote_model *m) {
    static const char begin[] = "<|im_start|>user\nOne?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\nIt is 1.";
    static const char next[] = "<|im_start|>user\nTwo?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    static const char *const ends[] = {"<|im_end|>", "<|im_end|>\n", "<|im_end|>\n\n", "<|im_end|>\r\n", "", "<|im_end|>\nx"};
    static const char *const between[] = {"\n", "", "", "", "<|im_end|>\n", "<|im_end|>\n"};
    mote_generation g;
    char text[512];
    int32_t fed[256], want[256];
    memset(&g, 0, sizeof g);
    g.max_tokens = 1;
    g.think = MOTE_THINK_OFF;
    for (int i = 0; i < 6; i++) {
        mote_session *s = session_at(m, MOTE_MTP_AUTO);
        size_t read = 0, count = 0;
        snprintf(text, sizeof text, "%s%s", begin, ends[i]);
        int n = text_ids(m, text, 1, fed, 256);
        EXPECT(MOTE_OK, mote_feed(s, fed, (size_t)n, &failure));
        EXPECT(MOTE_OK, mote_ask_count(s, "Two?", &g, &read, NULL, &failure));
        EXPECT(MOTE_OK, mote_ask(s, "Two?", &g, NULL, &failure));
        snprintf(text, sizeof text, "%s%s", between[i], next);
        int more = text_ids(m, text, 1, want, 256);
        const int32_t *have = mote_tokens(s, &count);
        CHECK((int)count == n + more + 1 && (int)read == more && !memcmp(have, fed, (size_t)n * sizeof *fed) &&
              !memcmp(have + n, want, (size_t)more * sizeof *want), "a turn after end %d: %zu tokens, expected %d and %d", i, count, n, more);
        mote_session_close(s);
    }
}

// A tool's result needs an open call, wherever the timeline comes from.
static void test_open_calls(const mote_model *m) {
    static const struct { const char *messages; int calls; } cases[] = {
        {"{\"role\": \"user\", \"content\": \"<tool_call>?\"}", 0},
        {"{\"role\": \"user\", \"content\": \"One?\"}, {\"role\": \"assistant\", \"content\": \"It is 1.\"}", 0},
        {"{\"role\": \"user\", \"content\": \"Two?\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" CALL "]}", 1},
        {"{\"role\": \"user\", \"content\": \"Two?\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" CALL "]}, "
         "{\"role\": \"tool\", \"content\": \"2\"}", 0},
        {"{\"role\": \"user\", \"content\": \"Two?\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" CALL ", " CALL "]}, "
         "{\"role\": \"tool\", \"content\": \"2\"}", 1},
        {"{\"role\": \"user\", \"content\": \"Two?\"}, {\"role\": \"assistant\", \"content\": \"\", \"tool_calls\": [" CALL "]}, "
         "{\"role\": \"tool\", \"content\": \"2\"}, {\"role\": \"assistant\", \"content\": \"Two.\"}", 0}};
    mote_generation g;
    memset(&g, 0, sizeof g);
    g.role = "tool";
    g.max_tokens = 1;
    mote_session *empty = session_at(m, MOTE_MTP_AUTO);
    EXPECT(MOTE_EINVAL, mote_ask(empty, "2", &g, NULL, &failure));
    CHECK(strstr(failure.message, "call"), "%s", failure.message);
    mote_session_close(empty);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char request[2048];
        int32_t ids[CONTEXT];
        size_t count, size;
        mote_session *s[3];
        for (int k = 0; k < 3; k++) s[k] = session_at(m, MOTE_MTP_AUTO);
        snprintf(request, sizeof request, "{\"messages\": [%s], \"add_generation_prompt\": false}", cases[i].messages);
        EXPECT(MOTE_OK, mote_chat_restore(s[0], request, strlen(request), NULL, &failure));
        EXPECT(MOTE_OK, mote_render_tokens(m, request, strlen(request), ids, CONTEXT, &count, &failure));
        EXPECT(MOTE_OK, mote_feed(s[1], ids, count, &failure));
        char *bytes = session_bytes(s[0], &size);
        EXPECT(MOTE_OK, mote_load(s[2], bytes, size, &failure));
        free(bytes);
        for (int k = 0; k < 3; k++) {
            int want = cases[i].calls ? MOTE_OK : MOTE_EINVAL, before = count_of(s[k]);
            EXPECT(want, mote_ask_count(s[k], "2", &g, NULL, NULL, &failure));
            EXPECT(want, mote_ask(s[k], "2", &g, NULL, &failure));
            CHECK((count_of(s[k]) > before) == cases[i].calls, "case %zu: %d tokens before, %d after", i, before, count_of(s[k]));
            mote_session_close(s[k]);
        }
    }
    static const char *const broken[] = {"<tool_call>\n{\"name\": ", "<tool_call>\nadd(1)\n</tool_call><|im_end|>", "So:\n<function=add>\n</function><|im_end|>"};
    heard *h = (heard *)allocate(sizeof *h);
    for (int i = 0; i < 3; i++) {                           // what is wrong with it may be told
        mote_session *s = session_at(m, MOTE_MTP_AUTO);
        say(m, s, NULL, "Two?", MOTE_THINK_OFF, broken[i], h, NULL);
        EXPECT(MOTE_OK, mote_ask(s, "error: no such call", &g, NULL, &failure));
        mote_session_close(s);
    }
    free(h);
}
