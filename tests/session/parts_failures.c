/* A part of test_parts: what ends a group, what its sessions refuse, and what may be missing while it is opened. */

/* A transport of threads that fails one member at one of its calls. */
static struct { group_place at; const char *what; int calls; } broken;

static int breaks(const peer *me, const char *what) {
    return me->at.range == broken.at.range && me->at.rank == broken.at.rank && !strcmp(what, broken.what) && !broken.calls--;
}

static int broken_send(peer *me, const void *from, size_t bytes) {
    return breaks(me, "send") || thread_exchange.send(me, from, bytes);
}

static int broken_receive(peer *me, void *to, size_t bytes) {
    return breaks(me, "receive") || thread_exchange.receive(me, to, bytes);
}

static int broken_gather(peer *me, const void *from, size_t bytes, void *all) {
    return breaks(me, "gather") || thread_exchange.gather(me, from, bytes, all);
}

static const exchange broken_exchange = {
    .send = broken_send, .receive = broken_receive, .gather = broken_gather, .end = threads_end};

/* One member of 2 ranges of 2 ranks cannot reach the others at call `calls`: all return, with its name, and so does every later call. */
static void test_end(const mote_model *m, const char *what, int range, int rank, int calls) {
    const mote_sampling greedy = {0};
    const mote_generation g = {.size = sizeof g, .sampling = &greedy, .max_tokens = 40};
    char who[64];
    int32_t id;
    mote_session *s = session_of(m, .context = 128, .threads = 2, .mtp = 3);
    struct runner_group *group = s->slot.runner->group;
    const int32_t ids[] = {1, 2, 3, 4, 5};
    EXPECT(MOTE_OK, mote_feed(s, ids, 5, &failure));
    broken.at.range = range;
    broken.at.rank = rank;
    broken.what = what;
    broken.calls = calls;
    for (int i = 0; i < group->count; i++) group->member[i].as.by = &broken_exchange;
    snprintf(who, sizeof who, "rank %d of range %d, on cpu: it cannot reach the others", rank, range);
    EXPECT(MOTE_EDEVICE, mote_generate(s, &g, NULL, &failure));
    CHECK(!strcmp(failure.message, who) && broken.calls == -1, "%s: %s", who, failure.message);
    EXPECT(MOTE_EDEVICE, mote_step(s, NULL, &id, &failure));
    CHECK(!strcmp(failure.message, who), "%s, later: %s", who, failure.message);
    EXPECT(MOTE_EDEVICE, mote_feed(s, ids, 5, &failure));
    mote_session_close(s);
}

/* The same while blocks of a prompt are on their way through 3 ranges: the call that reads it tells. */
static void test_end_in_a_prompt(const mote_model *m, const char *what, int range, int calls) {
    int32_t ids[90];
    mote_session *s = session_of(m, .context = 128, .threads = 1, .chunk = 9);
    struct runner_group *group = s->slot.runner->group;
    char who[64];
    for (int i = 0; i < 90; i++) ids[i] = i;
    broken.at.range = range;
    broken.at.rank = 0;
    broken.what = what;
    broken.calls = calls;
    for (int i = 0; i < group->count; i++) group->member[i].as.by = &broken_exchange;
    snprintf(who, sizeof who, "rank 0 of range %d, on cpu: it cannot reach the others", range);
    EXPECT(MOTE_EDEVICE, mote_feed(s, ids, 90, &failure));
    CHECK(!strcmp(failure.message, who), "%s, in a prompt: %s", who, failure.message);
    EXPECT(MOTE_EDEVICE, mote_feed(s, ids, 1, &failure));
    CHECK(!strcmp(failure.message, who), "%s, after a prompt: %s", who, failure.message);
    EXPECT(MOTE_EDEVICE, mote_reset(s, &failure));
    mote_session_close(s);
}

/* A member that is late holds up the others, and changes nothing. */
static int late_receive(peer *me, void *to, size_t bytes) {
    usleep(2000u * (unsigned)(me->at.range + 1));
    return thread_exchange.receive(me, to, bytes);
}

static int late_send(peer *me, const void *from, size_t bytes) {
    if (!me->at.range) usleep(3000);
    return thread_exchange.send(me, from, bytes);
}

static const exchange late_exchange = {.send = late_send, .receive = late_receive, .gather = threads_gather, .end = threads_end};

static void test_late_members(const mote_model *m) {
    int32_t ids[90];
    float *want = NULL;
    const size_t vocab = (size_t)m->c.vocab * sizeof *want;
    for (int i = 0; i < 90; i++) ids[i] = i;
    for (int late = 0; late < 2; late++) {
        mote_session *s = session_of(m, .context = 128, .threads = 1, .chunk = 9);
        struct runner_group *group = s->slot.runner->group;
        for (int i = 0; i < group->count && late; i++) group->member[i].as.by = &late_exchange;
        EXPECT(MOTE_OK, mote_feed(s, ids, 90, &failure));
        if (late) CHECK(!memcmp(mote_logits(s), want, vocab), "members that are late have other logits");
        else memcpy(want = (float *)allocate(vocab), mote_logits(s), vocab);
        mote_session_close(s);
    }
    free(want);
}

/* Blocks that the first range has sent, and the last one has begun; by how many the first was ahead then, at most. */
static struct { int sent, received, ahead; } blocks;

static int count_send(peer *me, const void *from, size_t bytes) {
    if (!me->at.range) __atomic_add_fetch(&blocks.sent, 1, __ATOMIC_RELAXED);
    return thread_exchange.send(me, from, bytes);
}

static int count_receive(peer *me, void *to, size_t bytes) {
    if (me->at.range == 2) {
        usleep(20000);
        for (int i = 0; i < 300 && blocks.received < 8 && __atomic_load_n(&blocks.sent, __ATOMIC_RELAXED) < blocks.received + 2; i++) usleep(10000);     // on a busy machine
        const int ahead = __atomic_load_n(&blocks.sent, __ATOMIC_RELAXED) - blocks.received++;
        if (ahead > blocks.ahead) blocks.ahead = ahead;
    }
    return thread_exchange.receive(me, to, bytes);
}

static const exchange counting_exchange = {.send = count_send, .receive = count_receive, .gather = threads_gather, .end = threads_end};

/* Ranges work on different blocks of a prompt: when the last one begins the first has sent later ones, as many as queues and boxes hold. */
static void test_blocks_under_way(const mote_model *m) {
    int32_t ids[90];
    mote_session *s = session_of(m, .context = 128, .threads = 1, .chunk = 9);
    for (int i = 0; i < 90; i++) ids[i] = i;
    for (int i = 0; i < 3; i++) s->slot.runner->group->member[i].as.by = &counting_exchange;
    memset(&blocks, 0, sizeof blocks);
    EXPECT(MOTE_OK, mote_feed(s, ids, 90, &failure));
    CHECK(blocks.sent == 10 && blocks.received == 10, "%d blocks sent, %d received", blocks.sent, blocks.received);
    CHECK(blocks.ahead >= 2 && blocks.ahead <= 6, "the first range is at most %d blocks before the last", blocks.ahead);
    mote_session_close(s);
}

/* A callback leaves a prompt whose blocks are under way: the session can be closed, and others of the runner go on. */
static jmp_buf left;

static void leave_prompt(void *user, int done, int count) {
    (void)user;
    if (done && done < count) longjmp(left, 1);
}

static void test_left_prompt(const mote_model *m) {
    static mote_session *s[2];
    static mote_runner *r;
    int32_t ids[90];
    for (int i = 0; i < 90; i++) ids[i] = i;
    EXPECT(MOTE_OK, mote_runner_open(m, &(mote_session_options){.context = 128, .threads = 1, .chunk = 9}, &r, &failure));
    s[0] = session_of(m, .context = 128, .runner = r, .callbacks.prompt = leave_prompt);
    s[1] = session_of(m, .context = 128, .runner = r);
    if (!setjmp(left)) (void)mote_feed(s[0], ids, 90, &failure);
    mote_session_close(s[0]);
    EXPECT(MOTE_OK, mote_feed(s[1], ids, 90, &failure));
    mote_session_close(s[1]);
    mote_runner_close(r);
}

static void test_lost_members(void) {
    mote_model *three = parts_of("models/demo", 3, 1);
    for (int calls = 0; calls < 10; calls += test_brief ? 4 : 1) {
        test_end_in_a_prompt(three, "send", calls % 2, calls);
        test_end_in_a_prompt(three, "receive", 1 + calls % 2, calls);
    }
    test_late_members(three);
    test_blocks_under_way(three);
    test_left_prompt(three);
    mote_close(three);
    mote_model *m = parts_of("models/demo", 2, 2);
    for (int calls = 0; calls < 60; calls += test_brief ? 29 : 3) {
        test_end(m, "gather", calls % 2, calls / 2 % 2, calls);
        test_end(m, "send", 0, calls % 2, calls / 12);
        test_end(m, "receive", 1, calls % 2, calls / 12);
    }
    mote_close(m);
}

static void test_refusals(void) {
    static const struct { int ranges, ranks, code; mote_options o; const char *why; } bad[] = {
        {0, 1, MOTE_EINVAL, {.device = "cpu"}, "expected 1 to 64"},
        {1, 65, MOTE_EINVAL, {.device = "cpu"}, "expected 1 to 64"},
        {2, 1, MOTE_EINVAL, {.parts = MOTE_DESCRIPTION}, "without weights"},
        {2, 1, MOTE_EUNSUPPORTED, {.device = "cuda:0"}, "on the CPU alone"},
        {9, 1, MOTE_EUNSUPPORTED, {.device = "cpu"}, "models/demo: 8 layers cannot be divided into 9 ranges"},
        {1, 4, MOTE_EUNSUPPORTED, {.device = "cpu"}, "models/demo: layer 0: key_heads = 2 cannot be divided by 4 ranks"}};
    mote_model *none = NULL;
    for (size_t i = 0; i < COUNT(bad); i++) {
        EXPECT(bad[i].code, mote_open_parts("models/demo", &bad[i].o, bad[i].ranges, bad[i].ranks, &none, &failure));
        CHECK(!none && strstr(failure.message, bad[i].why), "%d ranges of %d ranks: %s", bad[i].ranges, bad[i].ranks, failure.message);
    }
}

/* Every allocation fails once, and so do all after it. */
static void test_parts_without_memory(void) {
    const int32_t ids[] = {1, 2, 3};
    for (int rest = 0; rest < 2; rest++)
        for (long n = 0, used = 1; n < used; n += test_brief ? 97 : 3) {
            mote_model *m = NULL;
            mote_session *s = NULL;
            allocations = 0;
            refuse_at = n;
            refuse_rest = rest;
            int code = mote_open_parts("tests/fixtures/f32-tied", &(mote_options){.device = "cpu"}, 2, 2, &m, &failure);
            if (!code) code = mote_session_open(m, &(mote_session_options){.context = 8, .threads = 1}, &s, &failure);
            used = allocations;
            refuse_at = -1;
            CHECK(!code || code == MOTE_ENOMEM, "allocation %ld fails: %d, %s", n, code, failure.message);
            if (!code) EXPECT(MOTE_OK, mote_feed(s, ids, 3, &failure));
            mote_session_close(s);
            mote_close(m);
        }
    refuse_rest = 0;
}

/* An embedding in parts has the bits of the whole model's. */
static void test_embedding_in_parts(void) {
    const char *dir = "tests/fixtures/embedding/qwen3-embedding";
    const int32_t ids[] = {5, 9, 2, 30, 7};
    float whole[256] = {0}, parts[256] = {0};
    mote_model *m[2] = {model_on("cpu", dir, MOTE_EVERYTHING), NULL};
    EXPECT(MOTE_OK, mote_open_parts(dir, &(mote_options){.device = "cpu"}, 2, 1, &m[1], &failure));
    for (int i = 0; i < 2; i++) {
        mote_session *s = session_of(m[i], .context = 16, .threads = 1);
        EXPECT(MOTE_OK, mote_embed(s, ids, 5, NULL, i ? parts : whole, &failure));
        mote_session_close(s);
        mote_close(m[i]);
    }
    CHECK(whole[0] != 0 && !memcmp(whole, parts, sizeof whole), "an embedding in 2 ranges");
}

/* A forked child closes what it has of its parent's group, whose threads it does not have. */
static void test_parts_in_a_child(void) {
    mote_model *m = parts_of("tests/fixtures/f32-tied", 2, 1);
    mote_session *s = session_of(m, .context = 8, .threads = 1);
    int status = -1;
    pid_t child = fork();
    if (!child) {
        alarm(10);
        mote_session_close(s);
        mote_close(m);
        _exit(0);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && !status, "a child ended with %d", status);
    EXPECT(MOTE_OK, mote_feed(s, &(int32_t){3}, 1, &failure));
    mote_session_close(s);
    mote_close(m);
}
