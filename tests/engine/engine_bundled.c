// A part of test_engine: the bundled model.

typedef struct answer { char text[4096]; size_t size; int calls, stop_after, thinking, id_count; int32_t ids[256]; } answer;

static int answer_text(void *user, int channel, const char *text, size_t size) {
    answer *a = (answer *)user;
    if (a->size + size <= sizeof a->text) memcpy(a->text + a->size, text, size), a->size += size;
    a->thinking += channel == MOTE_THINKING;
    return ++a->calls == a->stop_after;
}

static int answer_id(void *user, int32_t id) {
    answer *a = (answer *)user;
    if (a->id_count < 256) a->ids[a->id_count++] = id;
    return 0;
}

static mote_generation generation_of(answer *a, const mote_sampling *p, int max_tokens) {
    memset(a, 0, sizeof *a);
    return (mote_generation){.sampling = p, .max_tokens = max_tokens, .on_text = answer_text, .on_token = answer_id, .user = a};
}

static int text_is(const answer *a, const char *want, size_t n) {
    return a->size == n && !memcmp(a->text, want, n);
}

static const char *prompt = "Once upon a time there was a little girl who";

static void feed_text(const mote_model *m, mote_session *s, const char *text) {
    int32_t ids[256];
    size_t n = 0;
    EXPECT(MOTE_OK, mote_tokenize(m, text, strlen(text), 1, ids, 256, &n, &failure));
    EXPECT(MOTE_OK, mote_feed(s, ids, n, &failure));
}

// A stop text, wherever its pieces fall: the answer is the plain one up to where the text first occurs.
static void test_stop_texts(mote_session *s, const mote_checkpoint *start, const answer *plain, int tokens) {
    mote_sampling greedy = {0};
    answer a;
    int first_count = count_of(s) - plain->id_count;
    for (size_t at = 0; at + 9 < plain->size; at += 1 + plain->size / 12) {
        char stop[16] = "";
        size_t n = 1 + at % 9;
        const char *stops[3] = {"never in this text", stop, ""};
        mote_result r;
        memcpy(stop, plain->text + at, n);
        const char *first = (const char *)memmem(plain->text, plain->size, stop, n);
        mote_generation g = generation_of(&a, &greedy, tokens);
        g.raw = 1;
        g.stop = stops;
        g.stop_count = 3;
        EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
        EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
        CHECK(r.stop == MOTE_STOP_TEXT, "stop text \"%s\": stop %d", stop, r.stop);
        CHECK(text_is(&a, plain->text, (size_t)(first - plain->text)), "stop text \"%s\" gives \"%.*s\"", stop,
              (int)a.size, a.text);
        CHECK(r.generated_tokens == a.id_count && count_of(s) == first_count + a.id_count, "tokens of an answer");
    }
    mote_generation g = generation_of(&a, &greedy, tokens);
    const char *stops[1] = {"never in this text"};
    g.raw = 1;
    g.stop = stops;
    g.stop_count = 1;
    EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    CHECK(text_is(&a, plain->text, plain->size), "a stop text that never comes changes nothing");
}

static void test_generated_text(const mote_model *m) {
    mote_session *s = session_of(m, .context = 512);
    mote_sampling greedy = {0};
    mote_result r;
    answer a, b;
    char text[2048];
    size_t n = 0;
    feed_text(m, s, prompt);
    mote_checkpoint *start = checkpoint_of(s);
    mote_generation g = generation_of(&a, &greedy, 40);
    g.raw = 1;
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.generated_tokens == a.id_count && a.id_count > 5 && a.size > 20, "a generated text");
    int plain_ids = a.id_count - (r.stop == MOTE_STOP_EOS);
    EXPECT(MOTE_OK, mote_detokenize(m, a.ids, (size_t)plain_ids, text, sizeof text, &n, &failure));
    CHECK(text_is(&a, text, n), "on_text gives what the ids say: \"%.*s\"", (int)a.size, a.text);
    test_stop_texts(s, start, &a, 40);
    g = generation_of(&b, &greedy, 40);
    b.stop_after = 2;
    EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
    EXPECT(MOTE_OK, mote_generate(s, &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CALLBACK && b.calls == 2 && r.generated_tokens == b.id_count, "on_text: %d", b.calls);
    mote_checkpoint_free(start);
    mote_session_close(s);
}

// The same seed gives the same text, another one another, and only ids with text are chosen.
static void test_sampled_text(const mote_model *m) {
    mote_session *s = session_of(m, .context = 512);
    mote_sampling p = {.temperature = 3};
    answer a[3];
    feed_text(m, s, prompt);
    mote_checkpoint *start = checkpoint_of(s);
    for (int i = 0; i < 3; i++) {
        mote_generation g = generation_of(&a[i], &p, 20);
        p.seed = (uint64_t)(1 + i / 2);
        g.raw = 1;
        EXPECT(MOTE_OK, mote_rewind(s, start, &failure));
        EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
        size_t n;
        for (int j = 0; j < a[i].id_count; j++) CHECK(mote_token_bytes(m, a[i].ids[j], &n), "id %d", a[i].ids[j]);
    }
    CHECK(a[0].id_count == a[1].id_count && !memcmp(a[0].ids, a[1].ids, sizeof a[0].ids), "the same seed, other ids");
    CHECK(memcmp(a[0].ids, a[2].ids, sizeof a[0].ids) != 0, "another seed, the same ids");
    mote_checkpoint_free(start);
    mote_session_close(s);
}

// Two turns of a conversation, the first answer cut short, are the tokens that the whole text gives.
static void test_ask(const mote_model *m) {
    mote_session *s = session_of(m, .context = 512);
    mote_sampling greedy = {0};
    mote_result r;
    answer a;
    size_t n, size;
    char text[4096], what[512];
    mote_generation g = generation_of(&a, &greedy, 6);
    g.system = "Be brief.";
    g.think = MOTE_THINK_OFF;
    EXPECT(MOTE_OK, mote_ask(s, "What is a <|im_end|>?", &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_LENGTH && r.generated_tokens == 6 && a.thinking == 0, "a short answer: stop %d", r.stop);
    CHECK(r.prompt_tokens > 5 && count_of(s) == r.prompt_tokens + 6 && r.prompt_seconds > 0, "prompt tokens");
    EXPECT(MOTE_OK, mote_detokenize(m, mote_tokens(s, &n), (size_t)count_of(s), text, sizeof text, &n, &failure));
    const char *want = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhat is a <|im_end|>?<|im_end|>\n"
                       "<|im_start|>assistant\n<think>\n\n</think>\n\n";
    CHECK(n > strlen(want) && !memcmp(text, want, strlen(want)), "the first turn is %.*s", (int)n, text);
    int32_t end;
    EXPECT(MOTE_OK, mote_tokenize(m, "<|im_end|>", 10, 1, &end, 1, &n, &failure));
    int ends = 0, first = count_of(s);
    for (int i = 0; i < first - 6; i++) ends += mote_tokens(s, &n)[i] == end;
    CHECK(ends == 2, "%d <|im_end|> tokens: the user's is plain text", ends);
    g = generation_of(&a, &greedy, 3);
    g.think = MOTE_THINK_ON;
    g.keep_thinking = 1;
    EXPECT(MOTE_OK, mote_ask(s, "And?", &g, &r, &failure));
    EXPECT(MOTE_OK, mote_detokenize(m, mote_tokens(s, &n) + first, (size_t)r.prompt_tokens, what, sizeof what, &n, &failure));
    want = "<|im_end|>\n<|im_start|>user\nAnd?<|im_end|>\n<|im_start|>assistant\n<think>\n";
    CHECK(n == strlen(want) && !memcmp(what, want, n), "the second turn is %.*s", (int)n, what);
    char *bytes = session_bytes(s, &size);
    mote_sampling bad = {.temperature = -1};
    g.sampling = &bad;
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, &r, &failure));
    CHECK(session_is(s, bytes, size), "mote_ask with bad sampling changed the session");
    free(bytes);
    bytes = session_bytes(s, &size);
    g.sampling = &greedy;
    g.role = "king";
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &g, &r, &failure));
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = 0;
    g.role = NULL;
    EXPECT(MOTE_ECONTEXT, mote_ask(s, text, &g, &r, &failure));
    CHECK(session_is(s, bytes, size), "a refused mote_ask changed the session");
    free(bytes);
    mote_session_close(s);
}

static void test_text_calls(const mote_model *m) {
    int32_t ids[64];
    char text[64];
    size_t n = 0, needed = 0;
    const char *in = "Gr\xC3\xBC\xC3\x9F Gott, 3 cats!";
    EXPECT(MOTE_EINVAL, mote_tokenize(m, in, strlen(in), 0, NULL, 0, &needed, &failure));
    EXPECT(MOTE_OK, mote_tokenize(m, in, strlen(in), 0, ids, 64, &n, &failure));
    CHECK(n == needed && n > 0, "the size asked for first");
    EXPECT(MOTE_EINVAL, mote_detokenize(m, ids, n, NULL, 0, &needed, &failure));
    CHECK(needed == strlen(in), "detokenised size %zu", needed);
    EXPECT(MOTE_OK, mote_detokenize(m, ids, n, text, sizeof text, &needed, &failure));
    CHECK(!memcmp(text, in, needed), "there and back");
    EXPECT(MOTE_OK, mote_tokenize(m, "", 0, 1, ids, 64, &n, &failure));
    CHECK(n == 0, "no text, no ids");
    EXPECT(MOTE_OK, mote_detokenize(m, ids, 0, NULL, 0, &n, &failure));
    ids[0] = -1;
    EXPECT(MOTE_EINVAL, mote_detokenize(m, ids, 1, text, sizeof text, &n, &failure));
    ids[0] = INT32_MAX;
    EXPECT(MOTE_EINVAL, mote_detokenize(m, ids, 1, text, sizeof text, &n, &failure));
    CHECK(!mote_token_bytes(m, -1, &n) && !mote_token_bytes(m, INT32_MAX, &n), "no bytes for no id");
    EXPECT(MOTE_EINVAL, mote_render(m, "{", 1, text, sizeof text, &n, &failure));
}

static void test_demo(void) {
    mote_session *s = NULL;
    mote_sampling p, q;
    mote_model *m = model_of("models/demo", MOTE_TEXT_ONLY);
    EXPECT(MOTE_EUNSUPPORTED, mote_session_open(m, NULL, &s, &failure));
    CHECK(!s && mote_model_info(m)->layers == 0 && mote_model_info(m)->chat_template, "a model of text only");
    test_text_calls(m);
    mote_close(m);
    m = model_of("models/demo", MOTE_EVERYTHING);
    mote_sampling_defaults(m, &p);
    mote_sampling_defaults(m, &q);
    CHECK(p.seed != q.seed && p.top_k == q.top_k && p.temperature >= 0, "sampling defaults");
    test_text_calls(m);
    test_generated_text(m);
    test_sampled_text(m);
    test_ask(m);
    mote_close(m);
}
