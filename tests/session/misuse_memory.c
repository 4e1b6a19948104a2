// A part of test_misuse: allocations that fail, each of them once.

// Each operation is tried with its n-th allocation failing, alone and with all after it, for every n until it needs no
// more. It must end in MOTE_ENOMEM with all as it was, or in MOTE_OK with the whole result.

typedef struct trial {
    const char *name;
    int (*run)(struct trial *t, mote_error *err);
    int (*whole)(struct trial *t);     // the result is the whole one; frees it
    const char *dir;
    const mote_model *m;
    mote_session *s, *other, *back;    // what the trial is about; one with other keys and values, and one like that
    const mote_session *talked;        // not NULL: s is a copy of this one, with the thinking that it can drop
    char *before, *saved;              // s, and what is loaded
    size_t before_size, saved_size;
    heard want, got;
    int verify;
    mote_model *new_model;
    mote_session *new_session;
    mote_checkpoint *checkpoint;
    char *bytes;
    mote_memory plan;
} trial;

static void trial_reset(trial *t) {
    if (t->talked) {
        mote_session_close(t->s);
        t->s = NULL;
        EXPECT(MOTE_OK, mote_clone(t->talked, &t->s, &failure));
    }
    if (t->s && !t->talked) EXPECT(MOTE_OK, mote_load(t->s, t->before, t->before_size, &failure));
    t->got.size = t->got.count = 0;
}

static void run_trial(trial *t) {
    int step = test_brief ? 7 : 1, failed = 0;
    for (int rest = 0; rest < 2; rest++) {
        for (long n = 0;; n += step) {
            mote_error err = {0, ""};
            trial_reset(t);
            allocations = 0;
            refuse_at = n;
            refuse_rest = rest;
            int code = t->run(t, &err);
            long used = allocations;
            refuse_at = -1;
            CHECK(code == MOTE_OK || (code == MOTE_ENOMEM && err.code == MOTE_ENOMEM && err.message[0]),
                  "%s: allocation %ld fails%s: code %d, %s", t->name, n, rest ? " and all after it" : "", code, err.message);
            if (!code) CHECK(t->whole(t), "%s: allocation %ld fails%s: not the whole result", t->name, n, rest ? "..." : "");
            if (code && t->s)
                CHECK(session_is(t->s, t->before, t->before_size), "%s: allocation %ld fails%s: the session changed",
                      t->name, n, rest ? " and all after it" : "");
            failed += code != 0;
            if (used <= n) break;
        }
    }
    CHECK(failed > 0, "%s: no allocation failed", t->name);
}

static int run_open(trial *t, mote_error *err) {
    mote_options o = {.device = "cpu"};
    t->new_model = NULL;
    return mote_open(t->dir, &o, &t->new_model, err);
}

// An answer of a model until its end of text, as sampled by default; without text, or in brief, some tokens.
static void answer_of(const mote_model *m, heard *h) {
    mote_session *s = session_on(m, 200, NULL);
    mote_sampling p;
    mote_generation g = generation_to(h, mote_model_info(m)->chat_template && !test_brief ? 0 : 8);
    const int32_t ids[] = {1, 2, 3};
    mote_sampling_defaults(m, &p);
    p.seed = 5;
    g.sampling = &p;
    if (mote_model_info(m)->chat_template) EXPECT(MOTE_OK, mote_ask(s, "What is FP8?", &g, NULL, &failure));
    else {
        EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
        EXPECT(MOTE_OK, mote_generate(s, &g, NULL, &failure));
    }
    mote_session_close(s);
}

static int whole_open(trial *t) {
    t->got.size = t->got.count = 0;
    if (!t->want.count) answer_of(t->m, &t->want);
    if (t->new_model) answer_of(t->new_model, &t->got);
    mote_close(t->new_model);
    return t->got.count > 5 && same_answer(&t->got, &t->want);
}

static int run_plan(trial *t, mote_error *err) {
    memset(&t->plan, 0, sizeof t->plan);
    return mote_plan(t->dir, &(mote_options){.device = "cpu"}, NULL, &t->plan, err);
}

static int whole_plan(trial *t) { return t->plan.weights > 0 && t->plan.total > t->plan.weights; }

static int run_session(trial *t, mote_error *err) {
    mote_session_options o = {0};
    o.context = 64;
    o.threads = 2;
    t->new_session = NULL;
    return mote_session_open(t->m, &o, &t->new_session, err);
}

static int whole_session(trial *t) {
    int there = t->new_session != NULL;
    mote_session_close(t->new_session);
    return there;
}

static int run_ask(trial *t, mote_error *err) {
    mote_generation g = generation_to(&t->got, 24);
    static const char *const stop[] = {"a text that does not come"};
    g.stop = stop;
    g.stop_count = 1;
    g.think = MOTE_THINK_ON;
    g.verify = t->verify;
    return mote_ask(t->s, "What is a mixture of experts?", &g, NULL, err);
}

// After an answer with thinking, and with everything that takes memory of its own.
static int ignore_call(void *user, const char *call, size_t size) {
    (void)user, (void)call, (void)size;
    return 0;
}

static void ignore_logprobs(void *user, const mote_logprob *token, const mote_logprob *alternatives, int count) {
    (void)user, (void)token, (void)alternatives, (void)count;
}

static int run_ask_again(trial *t, mote_error *err) {
    mote_generation g = generation_to(&t->got, 12);
    g.think = MOTE_THINK_ON;
    g.tools = "[{\"name\": \"f\"}]";
    g.on_call = ignore_call;
    g.on_logprobs = ignore_logprobs;
    g.top_logprobs = 3;
    return mote_ask(t->s, "And how is one of the experts chosen for a token?", &g, NULL, err);
}

static int run_drop(trial *t, mote_error *err) {
    size_t read = 0;
    int code = mote_drop_thinking(t->s, &read, err);
    t->got.count = t->got.size = read > 0;
    return code;
}

// A stored conversation that shares its first turn with the one that is there.
static const char STORED[] =
    "{\"messages\": [{\"role\": \"user\", \"content\": \"What is a router?\"}, {\"role\": \"assistant\", \"content\": \"A layer.\"}, "
    "{\"role\": \"user\", \"content\": \"And?\"}, {\"role\": \"assistant\", \"content\": \"No more.\", \"reasoning_content\": \"Hmm.\"}]}";

static int run_restore(trial *t, mote_error *err) {
    int code = mote_chat_restore(t->s, STORED, strlen(STORED), NULL, err);
    size_t count;
    const int32_t *ids = mote_tokens(t->s, &count);
    for (size_t i = 0; i < count && i < 256; i++) t->got.ids[i] = ids[i];
    t->got.count = (int)count;
    t->got.size = 1;
    return code;
}

static int run_logprobs(trial *t, mote_error *err) {
    const int32_t ids[] = {5, 6, 7};
    mote_logprob tokens[3], best[6];
    int code = mote_feed_logprobs(t->s, ids, 3, 2, tokens, best, err);
    t->got.count = t->got.size = !code && tokens[2].id == 7 && tokens[2].logprob < 0 && best[5].logprob <= best[4].logprob;
    return code;
}

static int run_embed(trial *t, mote_error *err) {
    const int32_t ids[] = {5, 6, 7};
    float embedding[256];                                   // the demo's hidden_size
    int code = mote_embed(t->s, ids, 3, &(mote_embedding){.pooling = MOTE_POOLING_MEAN}, embedding, err);
    t->got.count = t->got.size = !code && embedding[0] != 0;
    return code;
}

static int run_ask_count(trial *t, mote_error *err) {
    size_t read = 0, total = 0;
    int code = mote_ask_count(t->s, "And?", NULL, &read, &total, err);
    t->got.count = (int)read;
    t->got.size = total;
    return code;
}

static int run_generate(trial *t, mote_error *err) {
    mote_generation g = generation_to(&t->got, 12);
    g.verify = t->verify;
    return mote_generate(t->s, &g, NULL, err);
}

static int whole_answer(trial *t) {
    if (!t->want.count) {                                   // the first one, with nothing failing, is the measure
        t->want = t->got;
        return t->want.count > 0 && t->want.size > 0;
    }
    return same_answer(&t->got, &t->want);
}

static int run_clone(trial *t, mote_error *err) {
    t->new_session = NULL;
    return mote_clone(t->s, &t->new_session, err);
}

static int whole_clone(trial *t) {
    int same = t->new_session && session_is(t->new_session, t->before, t->before_size);
    mote_session_close(t->new_session);
    return same;
}

static int run_checkpoint(trial *t, mote_error *err) {
    t->checkpoint = NULL;
    return mote_checkpoint_take(t->s, &t->checkpoint, err);
}

static int whole_checkpoint(trial *t) {
    static const int32_t more[] = {5, 6, 7};
    EXPECT(MOTE_OK, mote_feed(t->s, more, 3, &failure));
    EXPECT(MOTE_OK, mote_rewind(t->s, t->checkpoint, &failure));
    mote_checkpoint_free(t->checkpoint);
    return session_is(t->s, t->before, t->before_size);
}

static int run_save(trial *t, mote_error *err) { return mote_save_file(t->s, temp_path("saved"), err); }

static int whole_save(trial *t) {
    EXPECT(MOTE_OK, mote_load_file(t->s, temp_path("saved"), &failure));
    return session_is(t->s, t->before, t->before_size) && temp_entries() == 1;
}

static int run_load(trial *t, mote_error *err) { return mote_load(t->s, t->saved, t->saved_size, err); }

static int run_load_file(trial *t, mote_error *err) { return mote_load_file(t->s, temp_path("other"), err); }

// Its keys and values were converted: saved again and loaded into a session like the other, they are the other's.
static int whole_load(trial *t) {
    size_t size;
    char *bytes = session_bytes(t->s, &size);
    EXPECT(MOTE_OK, mote_load(t->back, bytes, size, &failure));
    free(bytes);
    return same_logits(t->s, mote_logits(t->other), mote_model_info(t->m)->vocab_size) &&
           session_is(t->back, t->saved, t->saved_size);
}

static void feed_some(mote_session *s, int from, int n) {
    int32_t ids[64];
    for (int i = 0; i < n; i++) ids[i] = 40 + (from + i) % 90;
    EXPECT(MOTE_OK, mote_feed(s, ids, (size_t)n, &failure));
}

// An answer that is this call: the text of a call is all that takes memory after the first token.
typedef struct forced { int32_t ids[128]; size_t count, at; int calls; } forced;

static int force_logits(void *user, float *logits, int vocab) {
    forced *f = (forced *)user;
    for (int i = 0; i < vocab; i++)
        if (f->at < f->count && i != f->ids[f->at]) logits[i] = -INFINITY;
    return f->at++ == f->count;
}

static int count_call(void *user, const char *call, size_t size) {
    ((forced *)user)->calls += strlen(call) == size;
    return 0;
}

static void test_call_memory(const mote_model *m) {
    static const char text[] = "<tool_call>\n<function=f>\n<parameter=x>\n{'a': 1, 'a': [True]}\n</parameter>\n</function>\n</tool_call>";
    mote_session *s = session_on(m, 160, NULL);
    forced f;
    mote_generation g = {.tools = "[{\"name\": \"f\"}]", .on_logits = force_logits, .on_call = count_call, .user = &f,
                         .sampling = &(mote_sampling){0}};
    size_t size;
    int late = 0;
    EXPECT(MOTE_OK, mote_tokenize(m, text, strlen(text), 1, f.ids, 128, &f.count, &failure));
    EXPECT(MOTE_OK, mote_feed(s, f.ids, 4, &failure));
    char *before = session_bytes(s, &size);
    for (long n = 0, more = 1; more; n++) {
        mote_error err = {0, ""};
        EXPECT(MOTE_OK, mote_load(s, before, size, &failure));
        f.at = f.calls = allocations = 0;
        refuse_at = n;
        int code = mote_generate(s, &g, NULL, &err);
        more = allocations > n;
        refuse_at = -1;
        CHECK(code == (more ? MOTE_ENOMEM : MOTE_OK) && f.calls == !code, "allocation %ld fails: code %d, %d calls: %s", n, code, f.calls,
              err.message);
        CHECK(f.at ? count_of(s) == 4 + (int)f.at - !code : session_is(s, before, size), "allocation %ld fails: %d tokens after %zu", n,
              count_of(s), f.at);
        late += code && f.at;
    }
    CHECK(late > 5, "%d allocations for the call", late);
    free(before);
    mote_session_close(s);
}

static int never(void *user) {
    (void)user;
    return 0;
}

static void test_memory(const mote_model *demo) {
    mote_callbacks callbacks = {.cancel = never};   // one that may cancel: a turn takes a checkpoint
    static const struct {
        const char *name, *dir;                             // dir: of the checkpoint that it opens; NULL: it has a session
        int (*run)(trial *, mote_error *), (*whole)(trial *);
        int verify;
    } all[] = {
        {"open", FIXTURE, run_open, whole_open, 0},
        {"open, with text", DEMO, run_open, whole_open, 0},
        {"plan", FIXTURE, run_plan, whole_plan, 0},
        {"session", NULL, run_session, whole_session, 0},
        {"generate", NULL, run_generate, whole_answer, 0},
        {"generate, verified", NULL, run_generate, whole_answer, 1},
        {"ask", NULL, run_ask, whole_answer, 0},
        {"ask, verified", NULL, run_ask, whole_answer, 1},
        {"ask again", NULL, run_ask_again, whole_answer, 0},
        {"drop thinking", NULL, run_drop, whole_answer, 0},
        {"restore", NULL, run_restore, whole_answer, 0},
        {"log-probabilities", NULL, run_logprobs, whole_answer, 0},
        {"embedding", NULL, run_embed, whole_answer, 0},
        {"count", NULL, run_ask_count, whole_answer, 0},
        {"clone", NULL, run_clone, whole_clone, 0},
        {"checkpoint", NULL, run_checkpoint, whole_checkpoint, 0},
        {"save", NULL, run_save, whole_save, 0},
        {"load, other keys and values", NULL, run_load, whole_load, 0},
        {"load a file", NULL, run_load_file, whole_load, 0},
    };
    mote_model *fixture = model_of(FIXTURE, MOTE_EVERYTHING);
    mote_session *s = session_on(demo, 160, &callbacks), *others[2];
    for (int i = 0; i < 2; i++) others[i] = session_of(demo, .context = 160, .threads = 2, .kv = MOTE_KV_BF16, .mtp = 2);
    mote_generation g = {.max_tokens = 10, .think = MOTE_THINK_ON, .sampling = &(mote_sampling){0}};
    mote_session *thinks = session_on(demo, 160, &callbacks);
    EXPECT(MOTE_OK, mote_ask(thinks, "What is a router?", &g, NULL, &failure));
    feed_some(s, 0, 19);
    feed_some(others[0], 7, 30);
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        trial *t = (trial *)allocate(sizeof *t);
        temp_empty();
        t->name = all[i].name;
        t->dir = all[i].dir;
        t->run = all[i].run;
        t->whole = all[i].whole;
        t->verify = all[i].verify;
        t->m = t->dir == FIXTURE ? fixture : demo;
        if (!t->dir) {
            if (t->run == run_ask_again || t->run == run_drop || t->run == run_ask_count || t->run == run_clone ||
                t->run == run_restore) t->talked = thinks;
            else t->s = s;
            if (t->talked) trial_reset(t);
            t->other = others[0];
            t->back = others[1];
            t->before = session_bytes(t->s, &t->before_size);
            t->saved = session_bytes(others[0], &t->saved_size);
            EXPECT(MOTE_OK, mote_save_file(others[0], temp_path(t->run == run_save ? "saved" : "other"), &failure));
        }
        if (t->whole == whole_answer) {
            EXPECT(MOTE_OK, t->run(t, &failure));
            CHECK(t->whole(t), "%s: an answer", t->name);
        }
        run_trial(t);
        if (t->talked) mote_session_close(t->s);
        else if (t->s) EXPECT(MOTE_OK, mote_load(t->s, t->before, t->before_size, &failure));
        free(t->before);
        free(t->saved);
        free(t);
    }
    mote_session_close(s);
    mote_session_close(thinks);
    mote_session_close(others[0]);
    mote_session_close(others[1]);
    mote_close(fixture);
}
