/* Tests of passes of several sessions, from inside: requests as the runner takes them, what is not a number beside them, threads that meet,
   prompts that give others the lead. On the CPU. */

#include "inside.h"
#include "api.h"

enum { PASS_SESSIONS = 11, PASS_CONTEXT = 200, MEETERS = 4 };

static struct {
    int passes, members, most, prompts, during;             /* passes of several; sessions in them; most in one; prompts at work; steps
                                                               while one was */
    int sleep;                   /* microseconds longer that a step takes */
} seen_passes;

static void watched_pass(mote_runner *r, pass_request *const *of, int n) {
    seen_passes.passes++;
    seen_passes.members += n;
    seen_passes.during += seen_passes.prompts > 0;
    seen_passes.most = max_int(seen_passes.most, n);
    if (seen_passes.sleep) usleep((useconds_t)seen_passes.sleep);
    for (int i = 0; i < n; i++) CHECK(of[i]->kind == of[0]->kind && of[i]->s->runner == r, "request %d of %d", i, n);
    cpu_pass(r, of, n);
}

static int seen_forward(slot *s, const block *b, mote_error *err) {
    seen_passes.during += seen_passes.prompts > 0;
    if (seen_passes.sleep && b->T <= MOTE_ROWS_MAX) usleep((useconds_t)seen_passes.sleep);
    return cpu_forward(s, b, err);
}

/* Between its layers others may compute; this one computes all of its rows at the end. */
static int watched_prompt(slot *s, const block *b, const block_watch *watch, mote_error *err) {
    CHECK(__atomic_add_fetch(&seen_passes.prompts, 1, __ATOMIC_RELAXED) == 1, "two prompts at a time");
    for (int i = 0; i < 6 || (!seen_passes.during && i < 1000); i++) {
        usleep(10000);
        (void)watch->layer(watch->user, 0);
        CHECK(runner_is_ours(s->runner) && s->runner->inside == s, "the prompt has not got the lead");
        (void)runner_yield(s->runner, s);
    }
    __atomic_sub_fetch(&seen_passes.prompts, 1, __ATOMIC_RELAXED);
    return cpu_forward(s, b, err);
}

static int seen_prompt_rows(const slot *s, int position, size_t count) {
    (void)position;
    return min_int((int)min_int((int)count, 1 << 20), s->runner->o.chunk);
}

/* A runner whose passes are seen. */
static mote_runner *seen_runner(const mote_model *m, int chunk, int threads) {
    static executor seen;
    const mote_session_options o = {.context = PASS_CONTEXT, .chunk = chunk, .threads = threads};
    mote_runner *r = NULL;
    EXPECT(MOTE_OK, mote_runner_open(m, &o, &r, &failure));
    if (!r) exit(test_main_end() ? 1 : 2);
    seen = cpu_executor;
    seen.pass = watched_pass;
    seen.forward = seen_forward;
    seen.prompt = watched_prompt;
    seen.prompt_rows = seen_prompt_rows;
    r->backend = &seen;
    memset(&seen_passes, 0, sizeof seen_passes);
    return r;
}

static mote_model *pass_model(const char *name) {
    mote_model *m = NULL;
    EXPECT(MOTE_OK, mote_open_synthetic(name, &(mote_options){.device = "cpu"}, &m, &failure));
    if (!m) exit(test_main_end() ? 1 : 2);
    return m;
}

/* Sessions in the same state, on a runner that they share and each alone. */
typedef struct pass_pair { mote_session *shared, *alone; } pass_pair;

static void pairs_open(const mote_model *m, mote_runner *r, pass_pair *to, int n, int mtp) {
    for (int i = 0; i < n; i++) {
        int32_t ids[80];
        const int count = 1 + i * 29 % 80, with = mtp && i % 4 ? MOTE_MTP_AUTO : MOTE_MTP_OFF;
        for (int t = 0; t < count; t++) ids[t] = (int32_t)(random_bits() % 1000);
        to[i].shared = session_of(m, .runner = r, .mtp = with);
        to[i].alone = session_of(m, .context = PASS_CONTEXT, .chunk = r->o.chunk, .threads = 1, .mtp = with);
        EXPECT(MOTE_OK, mote_feed(to[i].shared, ids, (size_t)count, &failure));
        EXPECT(MOTE_OK, mote_feed(to[i].alone, ids, (size_t)count, &failure));
    }
}

static void pairs_close(pass_pair *p, int n) {
    for (int i = 0; i < n; i++) {
        size_t size;
        char *bytes = session_bytes(p[i].alone, &size);
        CHECK(session_is(p[i].shared, bytes, size), "session %d: another state than alone", i);
        free(bytes);
        mote_session_close(p[i].shared);
        mote_session_close(p[i].alone);
    }
}

/* Whatever a pass left in scratch means nothing to the next. */
static void poison_scratch(mote_runner *r) {
    const size_t floats = layout_runner(r, NULL);
    memset(layout_base(r->memory), 0xff, floats * sizeof(float));
    layout_runner(r, layout_base(r->memory));
}

/* ---- Drafts, and blocks of one to four rows ------------------------------------------------------------------------------ */

/* Drafts of all that have an MTP layer, each as many as it wants; then blocks with these. */
static void draft_together(pass_pair *p, int n, int32_t ids[][MOTE_ROWS_MAX], int *rows) {
    pass_request q[PASS_SESSIONS];
    block b[PASS_SESSIONS];
    int of[PASS_SESSIONS], made[PASS_SESSIONS], count = 0;
    float confidence[PASS_SESSIONS][MOTE_ROWS_MAX];
    for (int i = 0; i < n; i++) {
        mote_session *s = p[i].shared;
        rows[i] = 1 + (int)(random_bits() % MOTE_ROWS_MAX);
        for (int t = 0; t < MOTE_ROWS_MAX; t++) ids[i][t] = (int32_t)(random_bits() % 1000);
        if (!s->slot.has_mtp || rows[i] == 1) continue;
        b[count] = timeline_block(s, ids[i], 1);
        request_is(&q[count], REQUEST_DRAFT, &s->slot, &b[count]);
        q[count].drafts = rows[i] - 1;
        q[count].ids = ids[i] + 1;
        q[count].count = &made[count];
        q[count].confidence = confidence[count];
        made[count] = rows[i] - 1;
        of[count++] = i;
    }
    if (count) meet(p[0].shared->slot.runner, q, count);
    for (int k = 0; k < count; k++) {
        const int i = of[k], drafts = rows[i] - 1;
        const block own = timeline_block(p[i].alone, ids[i], 1);
        int32_t alone[MOTE_ROWS_MAX];
        float confidence_alone[MOTE_ROWS_MAX];
        int n_alone = drafts;
        EXPECT(MOTE_OK, slot_draft(&p[i].alone->slot, REQUEST_DRAFT, &own, &n_alone, alone, confidence_alone, NULL, NULL, &failure));
        CHECK(!q[k].code && made[k] == drafts && n_alone == drafts && !memcmp(alone, ids[i] + 1, (size_t)drafts * sizeof *alone),
              "session %d: %d drafts differ", i, drafts);
        for (int t = 0; t < drafts && !strcmp(test_device, "cpu"); t++)
            CHECK(confidence_alone[t] == confidence[k][t], "session %d: draft %d of probability %g, alone %g", i, t, (double)confidence[k][t],
                  (double)confidence_alone[t]);
    }
}

/* What a block is asked for: logits of no row, of all in the slot, elsewhere, the MTP layer's beside them. */
static void verify_together(pass_pair *p, int n, int32_t ids[][MOTE_ROWS_MAX], const int *rows) {
    const size_t vocab = (size_t)p[0].shared->m->c.vocab;
    static float given[2][PASS_SESSIONS][2][MOTE_ROWS_MAX * 1024];
    pass_request q[PASS_SESSIONS];
    block b[PASS_SESSIONS];
    for (int i = 0; i < n; i++) {
        const int wanted = (int)(random_bits() % 4);
        for (int side = 0; side < 2; side++) {
            mote_session *s = side ? p[i].alone : p[i].shared;
            float *logits = wanted == 1 && s->slot.has_mtp ? s->slot.block_logits : wanted >= 2 ? given[side][i][0] : NULL;
            float *mtp = wanted == 3 && s->slot.has_mtp ? given[side][i][1] : NULL;
            if (side) {
                EXPECT(MOTE_OK, timeline_forward(s, ids[i], rows[i], 1, logits, mtp, &failure));
                continue;
            }
            b[i] = timeline_block(s, ids[i], rows[i]);
            b[i].last = 1;
            b[i].logits = logits;
            b[i].mtp_logits = mtp;
            request_is(&q[i], REQUEST_FORWARD, &s->slot, &b[i]);
        }
    }
    meet(p[0].shared->slot.runner, q, n);
    for (int i = 0; i < n; i++) {
        mote_session *s = p[i].shared, *alone = p[i].alone;
        const size_t block_size = (size_t)rows[i] * vocab * sizeof(float);
        CHECK(!q[i].code, "session %d: %s", i, q[i].error.message);
        if (b[i].logits) {
            const float *want = b[i].logits == s->slot.block_logits ? alone->slot.block_logits : given[1][i][0];
            CHECK(!memcmp(b[i].logits, want, block_size), "session %d, %d rows: logits", i, rows[i]);
        }
        if (b[i].mtp_logits) CHECK(!memcmp(given[0][i][1], given[1][i][1], block_size), "session %d, %d rows: MTP logits", i, rows[i]);
        CHECK(!memcmp(s->slot.logits, alone->slot.logits, vocab * sizeof(float)), "session %d: the last row's logits", i);
        memcpy(s->tokens + s->count, ids[i], (size_t)rows[i] * sizeof **ids);
        timeline_computed(s, rows[i]);
        const int kept = b[i].logits && b[i].logits == s->slot.block_logits ? 1 + (int)(random_bits() % (unsigned)rows[i]) : rows[i];
        timeline_keep(s, kept);
        timeline_keep(alone, kept);
    }
}

static void test_requests(const char *name, int chunk) {
    mote_model *m = pass_model(name);
    mote_runner *r = seen_runner(m, chunk, 2);
    pass_pair p[PASS_SESSIONS];
    int32_t ids[PASS_SESSIONS][MOTE_ROWS_MAX];
    int rows[PASS_SESSIONS];
    pairs_open(m, r, p, PASS_SESSIONS, 1);
    for (int round = 0; round < (test_brief ? 8 : 25); round++) {
        const int n = 2 + (int)(random_bits() % (PASS_SESSIONS - 1));
        draft_together(p, n, ids, rows);
        poison_scratch(r);
        verify_together(p, n, ids, rows);
        poison_scratch(r);
    }
    CHECK(seen_passes.most >= min_int(r->pass_rows, PASS_SESSIONS) / MOTE_ROWS_MAX && seen_passes.most <= r->pass_rows, "%d sessions in a pass",
          seen_passes.most);
    pairs_close(p, PASS_SESSIONS);
    mote_runner_close(r);
    mote_close(m);
}

/* ---- What is not a number ---------------------------------------------------------------------------------------------------- */

static void test_poison(const char *name) {
    mote_model *m = pass_model(name);
    mote_runner *r = seen_runner(m, 64, 2);
    pass_pair p[PASS_SESSIONS];
    mote_turn turns[PASS_SESSIONS + 2] = {{0}};
    const int first = PASS_SESSIONS, second = PASS_SESSIONS + 1;
    pairs_open(m, r, p, PASS_SESSIONS, 1);
    for (int i = 0; i < PASS_SESSIONS; i++) turns[i].session = p[i].shared;
    EXPECT(MOTE_OK, mote_clone(p[1].shared, &turns[first].session, &failure));
    EXPECT(MOTE_OK, mote_clone(p[2].shared, &turns[second].session, &failure));
    slot *s = &turns[first].session->slot;
    memset(s->recurrent, 0xff, (s->floats - (size_t)(s->recurrent - layout_base(s->memory))) * sizeof(float));       /* KV rows, too */
    s->logits[5] = 0;                                       /* it can be told what to begin with */
    for (int i = 0; i < m->c.vocab; i++) s->logits[i] = (float)-i;
    turns[second].session->slot.logits[9] = NAN;
    for (int k = 0; k < 4; k++) {
        EXPECT(MOTE_EFORMAT, mote_step_many(turns, PASS_SESSIONS + 2, &failure));
        CHECK(turns[first].error.code == (k ? MOTE_EFORMAT : MOTE_OK), "a state of NaN, step %d: code %d", k, turns[first].error.code);
        CHECK(turns[second].error.code == MOTE_EFORMAT, "a logit of NaN, step %d: code %d", k, turns[second].error.code);
        for (int i = 0; i < PASS_SESSIONS; i++) {
            int32_t id;
            EXPECT(MOTE_OK, mote_step(p[i].alone, NULL, &id, &failure));
            CHECK(!turns[i].error.code && turns[i].id == id, "session %d beside NaN chose %d, alone %d", i, turns[i].id, id);
        }
    }
    mote_session_close(turns[first].session);
    mote_session_close(turns[second].session);
    pairs_close(p, PASS_SESSIONS);
    mote_runner_close(r);
    mote_close(m);
}

/* ---- Threads that meet --------------------------------------------------------------------------------------------------------- */

typedef struct meeter { mote_session *s; int code; } meeter;

static void *meet_answer(void *user) {
    meeter *who = (meeter *)user;
    const mote_sampling greedy = {0};
    mote_generation g = {.size = sizeof g, .sampling = &greedy, .max_tokens = 24};
    mote_error error;
    who->code = mote_generate(who->s, &g, NULL, &error);
    return NULL;
}

/* Sessions that answer at the same time, where a step takes so long that they can be back before the next begins. */
static void test_meeting(void) {
    mote_model *m = pass_model("tiny:fp8");
    mote_runner *r = seen_runner(m, 64, 1);
    pass_pair p[MEETERS];
    meeter who[MEETERS];
    pthread_t threads[MEETERS];
    pairs_open(m, r, p, MEETERS, 0);
    seen_passes.sleep = 20000;
    for (int i = 0; i < MEETERS; i++) who[i] = (meeter){p[i].shared, -1};
    for (int i = 0; i < MEETERS; i++) pthread_create(&threads[i], NULL, meet_answer, &who[i]);
    for (int i = 0; i < MEETERS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < MEETERS; i++) {
        meeter alone = {p[i].alone, -1};
        meet_answer(&alone);
        CHECK(!who[i].code && !alone.code, "session %d: codes %d, %d", i, who[i].code, alone.code);
    }
    CHECK(seen_passes.most >= MEETERS - 1 && seen_passes.members >= 24, "%d in a pass, %d in %d passes", seen_passes.most,
          seen_passes.members, seen_passes.passes);
    CHECK(!r->first && !r->led && !r->expects, "the runner is at rest");
    pairs_close(p, MEETERS);
    mote_runner_close(r);
    mote_close(m);
}

/* ---- Prompts ------------------------------------------------------------------------------------------------------------------- */

static void *read_prompt(void *user) {
    meeter *who = (meeter *)user;
    int32_t ids[100];
    mote_error error;
    for (int i = 0; i < 100; i++) ids[i] = i * 7;
    who->code = mote_feed(who->s, ids, 100, &error);
    return NULL;
}

static void *answer_beside(void *user) {
    while (!__atomic_load_n(&seen_passes.prompts, __ATOMIC_RELAXED)) usleep(1000);
    return meet_answer(user);
}

/* Two prompts, one after the other, and steps of others between their layers. */
static void test_prompts(void) {
    mote_model *m = pass_model("tiny:fp8");
    mote_runner *r = seen_runner(m, 64, 1);
    pass_pair p[MEETERS];
    meeter who[MEETERS];
    pthread_t threads[MEETERS];
    pairs_open(m, r, p, MEETERS, 0);
    r->prompt_from = 24;
    seen_passes.sleep = 1000;
    for (int i = 0; i < MEETERS; i++) who[i] = (meeter){p[i].shared, -1};
    for (int i = 0; i < MEETERS; i++) pthread_create(&threads[i], NULL, i < 2 ? read_prompt : answer_beside, &who[i]);
    for (int i = 0; i < MEETERS; i++) pthread_join(threads[i], NULL);
    CHECK(seen_passes.during > 0, "%d steps during prompts", seen_passes.during);
    CHECK(r->prompts.came == 4 && r->prompts.over == 4 && !r->prompts.of && !r->led, "%u prompts, %u over", r->prompts.came, r->prompts.over);
    for (int i = 0; i < MEETERS; i++) {
        meeter alone = {p[i].alone, -1};
        if (i < 2) read_prompt(&alone);
        else meet_answer(&alone);
        CHECK(!who[i].code && !alone.code, "session %d: codes %d, %d", i, who[i].code, alone.code);
        int32_t id[2] = {-1, -2};
        EXPECT(MOTE_OK, mote_step(p[i].shared, NULL, &id[0], &failure));
        EXPECT(MOTE_OK, mote_step(p[i].alone, NULL, &id[1], &failure));
        CHECK(id[0] == id[1], "session %d: token %d, alone %d", i, id[0], id[1]);
    }
    pairs_close(p, MEETERS);
    mote_runner_close(r);
    mote_close(m);
}

static void *tower_beside(void *user) {
    mote_runner *r = (mote_runner *)user;
    mote_error error;
    const int code = prompt_enter(r, &r->prompts, NULL, &error);
    if (!CHECK(!code, "%s", code ? error.message : "")) return NULL;
    usleep(100000);
    prompt_leave(r, &r->prompts);
    return NULL;
}

/* A long block has taken what it has, also if a vision tower had its turn between two layers. */
static void test_began(void) {
    mote_model *m = pass_model("tiny:fp8");
    mote_runner *r = seen_runner(m, 64, 1);
    slot s = {.runner = r};
    pthread_t thread;
    int waits = 0;
    mote_seen seen;
    EXPECT(MOTE_OK, prompt_enter(r, &r->blocks, &s, &failure));
    const double began = seconds();
    pthread_create(&thread, NULL, tower_beside, r);
    usleep(40000);
    for (int i = 0; i < 10000 && !waits; i++) {
        usleep(1000);
        pthread_mutex_lock(&r->lock);
        waits = r->first != NULL;
        pthread_mutex_unlock(&r->lock);
    }
    const double own = seconds() - began;
    CHECK(runner_yield(r, &s), "the tower has had no turn");
    count_prompt(r, 1, r->blocks.began);
    prompt_leave(r, &r->blocks);
    pthread_join(thread, NULL);
    EXPECT(MOTE_OK, mote_runner_seen(r, &seen, &failure));
    CHECK(seen.prompt_seconds >= own && seen.prompt_seconds < own + 0.08, "a block of %g s, with a tower of 0.1 s in it, took %g s", own, seen.prompt_seconds);
    mote_runner_close(r);
    mote_close(m);
}

int main(int argc, char **argv) {
    test_main_begin("test_passes", argc, argv);
    test_requests("tiny:fp8", 64);
    test_requests("tiny:bf16", 6);
    test_requests("tiny:nvfp4", 64);
    test_poison("tiny:fp8");
    test_poison("tiny:nvfp4");
    test_meeting();
    test_prompts();
    test_began();
    return test_main_end();
}
