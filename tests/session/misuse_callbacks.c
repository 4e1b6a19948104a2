// A part of test_misuse: callbacks that call back, cancel and stop.

typedef struct intruder {
    mote_session *s;
    const mote_session *reference;     // a session like it, which may be used
    int calls, logged;
    int attack;                        // 0: does nothing
    heard heard;
} intruder;

static void try_everything(intruder *me) {
    static char bytes[64];
    mote_session *s = me->s, *clone = NULL;
    mote_checkpoint *checkpoint = NULL;
    mote_measurement measurement = {0};
    mote_speculation speculation;
    const mote_launch *launches;
    const int32_t ids[] = {1, 2, 3};
    mote_logprob told;
    float logprob;
    int32_t id = -1;
    size_t count = 0;
    if (!me->attack || !s) return;
    me->calls++;
    EXPECT(MOTE_EINVAL, mote_feed(s, ids, 3, &failure));
    CHECK(strstr(failure.message, "busy"), "%s", failure.message);
    EXPECT(MOTE_EINVAL, mote_feed_logits(s, ids, 1, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_feed_logprobs(s, ids, 1, 0, &told, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_drop_thinking(s, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_ask_count(s, "Hello", NULL, &count, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_step(s, NULL, &id, &failure));
    EXPECT(MOTE_EINVAL, mote_sample(s, NULL, &id, &failure));
    EXPECT(MOTE_EINVAL, mote_top_logprobs(s, 1, &id, &logprob, &failure));
    EXPECT(MOTE_EINVAL, mote_generate(s, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_chat_restore(s, "{}", 2, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_reset(s, &failure));
    EXPECT(MOTE_EINVAL, mote_speculation_of(s, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_checkpoint_take(s, &checkpoint, &failure));
    EXPECT(MOTE_EINVAL, mote_clone(s, &clone, &failure));
    EXPECT(MOTE_EINVAL, mote_save(s, bytes, sizeof bytes, &count, &failure));
    CHECK(count == 0, "a refused mote_save wrote a count");
    EXPECT(MOTE_EINVAL, mote_load(s, bytes, sizeof bytes, &failure));
    EXPECT(MOTE_EINVAL, mote_save_file(s, temp_path("busy"), &failure));
    EXPECT(MOTE_EINVAL, mote_load_file(s, temp_path("busy"), &failure));
    EXPECT(MOTE_EINVAL, mote_measure(s, &measurement, &failure));
    EXPECT(MOTE_EINVAL, mote_launches(s, 1, &launches, &count, &failure));
    CHECK(!mote_logits(s), "mote_logits of a busy session");
    CHECK(mote_tokens(s, &count) && count < 128 && mote_context(s) == 128, "mote_tokens and mote_context of a busy session");
    EXPECT(MOTE_OK, mote_speculation_of(s, &speculation, &failure));
    int logged = me->logged;
    mote_session_close(s);
    CHECK(me->logged == logged + 1, "closing a busy session is logged");
    CHECK(!clone && !checkpoint && access(temp_path("busy"), F_OK), "a refused call did something");
}

static void intruder_log(void *user, const char *line) {
    ((intruder *)user)->logged += strstr(line, "mote_session_close") != NULL;
}

static void intruder_progress(void *user, const char *what, double fraction) {
    (void)what;
    (void)fraction;
    try_everything((intruder *)user);
}

static void intruder_prompt(void *user, int done, int count) {
    (void)done, (void)count;
    try_everything((intruder *)user);
}

static int intruder_logits(void *user, float *logits, int vocab_size) {
    (void)logits, (void)vocab_size;
    try_everything((intruder *)user);
    return 0;
}

static void intruder_logprobs(void *user, const mote_logprob *token, const mote_logprob *alternatives, int count) {
    (void)token, (void)alternatives, (void)count;
    try_everything((intruder *)user);
}

static int intruder_cancel(void *user) {
    try_everything((intruder *)user);
    return 0;
}

static int intruder_text(void *user, int channel, const char *text, size_t size) {
    try_everything((intruder *)user);
    return hear_text(&((intruder *)user)->heard, channel, text, size);
}

static int intruder_token(void *user, int32_t id) {
    try_everything((intruder *)user);
    return hear_token(&((intruder *)user)->heard, id);
}

// A prompt, an answer and a turn, with callbacks that do nothing and with callbacks that try every call.
static void test_callbacks(const mote_model *demo) {
    intruder who[2];
    char *bytes[2];
    size_t size[2];
    memset(who, 0, sizeof who);
    for (int i = 0; i < 2; i++) {
        mote_callbacks callbacks = {.log = intruder_log, .progress = intruder_progress, .cancel = intruder_cancel, .prompt = intruder_prompt, .user = &who[i]};
        mote_generation g = generation_to(NULL, 9);
        g.on_text = intruder_text;
        g.on_token = intruder_token;
        g.user = &who[i];
        who[i].attack = i;
        who[i].s = session_on(demo, 128, &callbacks);
        feed_some(who[i].s, 0, 20);
        EXPECT(MOTE_OK, mote_generate(who[i].s, &g, NULL, &failure));
        g.on_logits = intruder_logits;
        g.on_logprobs = intruder_logprobs;
        EXPECT(MOTE_OK, mote_ask(who[i].s, "What is FP8?", &g, NULL, &failure));
        g.on_logits = NULL;
        g.verify = 1;
        EXPECT(MOTE_OK, mote_ask(who[i].s, "What is FP8?", &g, NULL, &failure));
        bytes[i] = session_bytes(who[i].s, &size[i]);
        mote_session_close(who[i].s);
    }
    CHECK(who[1].calls > 30 && who[1].logged == who[1].calls, "%d callbacks, %d notices", who[1].calls, who[1].logged);
    CHECK(size[0] == size[1] && !memcmp(bytes[0], bytes[1], size[0]), "callbacks that call back changed the session");
    CHECK(same_answer(&who[0].heard, &who[1].heard), "callbacks that call back changed the answer");
    for (int i = 0; i < 2; i++) free(bytes[i]);
}

// A turn that is cancelled while it is read leaves the timeline as before, also the first one.
typedef struct canceller { int polls, at; } canceller;

static int cancel_later(void *user) {
    canceller *c = (canceller *)user;
    return c->polls++ == c->at;
}

static void test_cancelled_turn(const mote_model *demo) {
    canceller c = {0, 0};
    mote_callbacks callbacks = {.cancel = cancel_later, .user = &c};
    mote_generation g = {0};
    g.max_tokens = 5;
    g.system = "Be brief, and use only words that everybody knows.";
    static const char question[] =                          // either of the parts it is read in is more than a GPU decodes in one pass
        "What is a mixture of experts, and how are they chosen? What is a router, and what does it see? What is a shared expert, and who "
        "uses it? What is a checkpoint, and which folders are one? What is speculation, who drafts, who verifies, and why is the text the same? "
        "What is a token, how is a text cut into them, and why are there so many? What is a cache of keys and values, and how large is it? "
        "What is a prompt, how is it read, and what does it cost? What is a session, and may two threads use it? What is a graph of kernels?";
    mote_session *s = session_on(demo, 1024, &callbacks);
    for (int turn = 0; turn < 3; turn++) {
        size_t size;
        EXPECT(MOTE_OK, mote_drop_thinking(s, NULL, &failure));         // what a turn does first, and stays done
        char *before = session_bytes(s, &size);
        for (int at = 0; at < 3; at++) {                    // of at least three chunks
            c.polls = 0;
            c.at = at;
            mote_result r;
            memset(&r, 1, sizeof r);
            EXPECT(MOTE_ECANCELLED, mote_ask(s, question, &g, &r, &failure));
            CHECK(r.stop == MOTE_STOP_CALLBACK && !r.prompt_tokens && !r.generated_tokens, "cancelled while reading: %d, %d", r.stop,
                  r.prompt_tokens);
            CHECK(session_is(s, before, size), "turn %d, cancelled before chunk %d: the session changed", turn, at);
        }
        c.at = -1;
        EXPECT(MOTE_OK, mote_ask(s, question, &g, NULL, &failure));
        free(before);
    }
    mote_session_close(s);
}

// A stored conversation that is not read to its end leaves all as it was: what is there, and what mote_ask remembers of it.
static void test_cancelled_restore(const mote_model *demo) {
    static const char broken[] = "{\"messages\": [{\"role\": \"user\"}, 5]}", *const starts[] = {NULL, "What is a router?", "What is FP8?"};
    canceller c = {0, -1};
    mote_callbacks callbacks = {.cancel = cancel_later, .user = &c};
    mote_generation g = {.max_tokens = 12, .think = MOTE_THINK_ON};
    for (int i = 0; i < 3; i++) {                           // nothing, the same first question, another one
        mote_session *s = session_on(demo, 256, &callbacks), *plain = session_on(demo, 256, &callbacks), *little = session_on(demo, 20, NULL);
        size_t size, read = 77, dropped[2] = {0, 0};
        c.at = -1;
        if (starts[i]) EXPECT(MOTE_OK, mote_ask(s, starts[i], &g, NULL, &failure));
        if (starts[i]) EXPECT(MOTE_OK, mote_ask(plain, starts[i], &g, NULL, &failure));
        char *before = session_bytes(s, &size);
        EXPECT(MOTE_EINVAL, mote_chat_restore(s, broken, strlen(broken), &read, &failure));
        EXPECT(MOTE_ECONTEXT, mote_chat_restore(little, STORED, strlen(STORED), &read, &failure));
        CHECK(count_of(little) == 0, "a conversation that does not fit left tokens");
        for (int at = 0; at < (strcmp(test_device, "cpu") ? 2 : 6); at++) {     // so often is asked: a GPU reads so few tokens in one pass
            c.polls = 0;
            c.at = at;
            EXPECT(MOTE_ECANCELLED, mote_chat_restore(s, STORED, strlen(STORED), &read, &failure));
            CHECK(session_is(s, before, size) && read == 77, "restoring over %s, cancelled at %d: the session changed", starts[i], at);
        }
        c.at = -1;
        EXPECT(MOTE_OK, mote_drop_thinking(s, &dropped[0], &failure));
        EXPECT(MOTE_OK, mote_drop_thinking(plain, &dropped[1], &failure));
        CHECK(dropped[0] == dropped[1] && !dropped[0] == !starts[i], "%zu tokens read without thinking, expected %zu", dropped[0], dropped[1]);
        EXPECT(MOTE_OK, mote_chat_restore(s, STORED, strlen(STORED), &read, &failure));
        CHECK(read > 0 && read <= (size_t)count_of(s), "%zu of %d tokens read", read, count_of(s));
        free(before);
        mote_session_close(s);
        mote_session_close(plain);
        mote_session_close(little);
    }
}

// One meaning for a cancelled call; the result on every return.
static int stop_text(void *user, int channel, const char *text, size_t size) {
    (void)user, (void)channel, (void)text, (void)size;
    return 1;
}

static int stop_logits(void *user, float *logits, int vocab) {
    (void)user;
    for (int i = 0; i < vocab; i++) logits[i] = -INFINITY;
    return 0;
}

static void test_results(const mote_model *demo) {
    canceller c = {0, -1};
    mote_callbacks callbacks = {.cancel = cancel_later, .user = &c};
    static mote_sampling greedy;
    mote_generation g = {.max_tokens = 20, .sampling = &greedy}, stops = g, broken = g, refused = {.max_tokens = -1};
    mote_session *s = session_on(demo, 200, &callbacks);
    mote_result r;
    stops.on_text = stop_text;
    broken.on_logits = stop_logits;
    feed_some(s, 0, 5);
    for (int at = 0; at < 3; at++) {
        int before = count_of(s);
        c.polls = 0;
        c.at = at;
        memset(&r, 1, sizeof r);
        EXPECT(MOTE_ECANCELLED, mote_generate(s, &g, &r, &failure));
        CHECK(r.stop == MOTE_STOP_CALLBACK && count_of(s) == before + r.generated_tokens && (r.generated_tokens > 0) == (at > 0),
              "cancelled at %d: stop %d, %d tokens", at, r.stop, r.generated_tokens);
    }
    c.polls = 0;
    c.at = 4;                                               // of the answer: the turn is four chunks at most
    EXPECT(MOTE_ECANCELLED, mote_ask(s, "Hello", &g, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CALLBACK && r.prompt_tokens > 0 && r.generated_tokens > 0, "cancelled answer: %d, %d", r.stop, r.prompt_tokens);
    c.at = -1;
    EXPECT(MOTE_OK, mote_ask(s, "Hello", &stops, &r, &failure));
    CHECK(r.stop == MOTE_STOP_CALLBACK && r.generated_tokens > 0, "on_text stops: %d", r.stop);
    memset(&r, 1, sizeof r);
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &broken, &r, &failure));
    CHECK(r.stop == -1 && r.prompt_tokens > 0 && r.generated_tokens == 0 && r.calls == 0, "a mask of nothing: %d", r.prompt_tokens);
    memset(&r, 1, sizeof r);
    EXPECT(MOTE_EINVAL, mote_ask(s, "Hello", &refused, &r, &failure));
    CHECK(r.stop == -1 && r.prompt_tokens == 0 && r.generated_tokens == 0, "a refused turn: %d", r.stop);
    memset(&r, 1, sizeof r);
    EXPECT(MOTE_EINVAL, mote_generate(NULL, &g, &r, &failure));
    CHECK(r.stop == -1 && r.generated_tokens == 0, "no session: %d", r.stop);
    mote_session_close(s);
}
