// Tests of what may go wrong around a session: memory that runs out at any point, callbacks that call back, arguments that
// are not there, files in the way of a saved session, other checkpoints, signals and forks.
// Usage: test_misuse [--device NAME] [--brief]. On a GPU: arguments that are not there, and callbacks.
//
// Contents   1. Helpers         2. Failing allocations     3. Callbacks that call back     4. NULL
//            5. Saved files     6. Another checkpoint      7. Signals, forks and jumps

#include "api.h"
#include "files.h"
#include "no_memory.h"

#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>

// ---- 1. Helpers -----------------------------------------------------------------------------------------------------

static const char DEMO[] = "models/demo", FIXTURE[] = "tests/fixtures/fp8-f32-scales";

static mote_session *session_on(const mote_model *m, int context, const mote_callbacks *callbacks) {
    mote_session_options o = {.context = context, .chunk = 8, .threads = 2, .mtp = 2};
    if (callbacks) o.callbacks = *callbacks;
    return session_with(m, &o);
}

// What an answer gave: its text, each piece with its channel, and its tokens.
typedef struct heard {
    char text[4096];
    int32_t ids[256];
    int size, count;
} heard;

static int hear_text(void *user, int channel, const char *text, size_t size) {
    heard *h = (heard *)user;
    for (size_t i = 0; i < size && h->size + 2 <= (int)sizeof h->text; i++) {      // in pieces or at once: the same
        h->text[h->size++] = (char)('0' + channel);
        h->text[h->size++] = text[i];
    }
    return 0;
}

static int hear_token(void *user, int32_t id) {
    heard *h = (heard *)user;
    if (h->count < 256) h->ids[h->count++] = id;
    return 0;
}

static int same_answer(const heard *a, const heard *b) {
    return a->size == b->size && a->count == b->count && !memcmp(a->text, b->text, (size_t)a->size) &&
           !memcmp(a->ids, b->ids, sizeof *a->ids * (size_t)a->count);
}

static mote_generation generation_to(heard *h, int max_tokens) {
    static mote_sampling greedy;
    mote_generation g = {0};
    g.sampling = &greedy;
    g.max_tokens = max_tokens;
    g.on_text = hear_text;
    g.on_token = hear_token;
    g.user = h;
    return g;
}

// ---- 2. Failing allocations -----------------------------------------------------------------------------------------
// Each operation is tried with its n-th allocation failing, alone and with all behind it, for every n until it needs no
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
                  "%s: allocation %ld fails%s: code %d, %s", t->name, n, rest ? " and all behind it" : "", code, err.message);
            if (!code) CHECK(t->whole(t), "%s: allocation %ld fails%s: not the whole result", t->name, n, rest ? "..." : "");
            if (code && t->s)
                CHECK(session_is(t->s, t->before, t->before_size), "%s: allocation %ld fails%s: the session changed",
                      t->name, n, rest ? " and all behind it" : "");
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

// Behind an answer with thinking, and with everything that takes memory of its own.
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
        trial *t = (trial *)room(sizeof *t);
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

// ---- 3. Callbacks that call back ------------------------------------------------------------------------------------

typedef struct intruder {
    mote_session *s;
    const mote_session *twin;          // a session like it, which may be used
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
    EXPECT(MOTE_EINVAL, mote_speculation_of(s, &speculation, &failure));
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
    mote_session *s = session_on(demo, 256, &callbacks);
    for (int turn = 0; turn < 3; turn++) {
        size_t size;
        EXPECT(MOTE_OK, mote_drop_thinking(s, NULL, &failure));         // what a turn does first, and stays done
        char *before = session_bytes(s, &size);
        for (int at = 0; at < 3; at++) {                    // of at least three chunks
            c.polls = 0;
            c.at = at;
            mote_result r;
            memset(&r, 1, sizeof r);
            EXPECT(MOTE_ECANCELLED, mote_ask(s, "What is a mixture of experts, and how are they chosen?", &g, &r, &failure));
            CHECK(r.stop == MOTE_STOP_CALLBACK && !r.prompt_tokens && !r.generated_tokens, "cancelled while reading: %d, %d", r.stop,
                  r.prompt_tokens);
            CHECK(session_is(s, before, size), "turn %d, cancelled before chunk %d: the session changed", turn, at);
        }
        c.at = -1;
        EXPECT(MOTE_OK, mote_ask(s, "What is a mixture of experts, and how are they chosen?", &g, NULL, &failure));
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
        for (int at = 0; at < 6; at++) {
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

// ---- 4. NULL --------------------------------------------------------------------------------------------------------

static void row_of_nothing(void *user, const char *what, double difference, double allowed, int ok) {
    (void)user, (void)what, (void)difference, (void)allowed, (void)ok;
}

static void test_null_models(const mote_model *demo) {
    mote_sampling sampling;
    mote_model *m = NULL;
    mote_session *s = NULL;
    mote_memory plan;
    size_t count;
    double speed;
    int32_t id;
    char text[8];
    EXPECT(MOTE_EINVAL, mote_open(NULL, NULL, &m, &failure));
    EXPECT(MOTE_EINVAL, mote_open(DEMO, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_open_synthetic(NULL, NULL, &m, &failure));
    EXPECT(MOTE_EINVAL, mote_open_synthetic("tiny", NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_plan(NULL, NULL, NULL, &plan, &failure));
    EXPECT(MOTE_EINVAL, mote_plan(DEMO, NULL, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_session_open(NULL, NULL, &s, &failure));
    EXPECT(MOTE_EINVAL, mote_session_open(demo, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_tokenize(NULL, "a", 1, 1, &id, 1, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_tokenize(demo, NULL, 1, 1, &id, 1, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_tokenize(demo, "a", 1, 1, NULL, 1, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_tokenize(demo, "a", 1, 1, &id, 1, NULL, &failure));
    EXPECT(MOTE_OK, mote_tokenize(demo, NULL, 0, 1, NULL, 0, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_detokenize(NULL, &id, 1, text, 8, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_detokenize(demo, NULL, 1, text, 8, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_detokenize(demo, &id, 1, text, 8, NULL, &failure));
    EXPECT(MOTE_OK, mote_detokenize(demo, NULL, 0, NULL, 0, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_render(NULL, "{}", 2, text, 8, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_render(demo, NULL, 2, text, 8, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_render(demo, "{}", 2, text, 8, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_render_tokens(NULL, "{}", 2, &id, 1, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_render_tokens(demo, NULL, 2, &id, 1, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_render_tokens(demo, "{}", 2, &id, 1, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_read_speed(NULL, 0, &speed, &failure));
    EXPECT(MOTE_EINVAL, mote_read_speed(demo, 0, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_read_speed(demo, -1, &speed, &failure));
    EXPECT(MOTE_EINVAL, mote_read_speed(demo, 257, &speed, &failure));
    EXPECT(MOTE_EINVAL, mote_selftest(NULL, 0, NULL, NULL, (int *)&id, &failure));
    EXPECT(MOTE_EINVAL, mote_selftest(NULL, 0, row_of_nothing, NULL, NULL, &failure));
    CHECK(!mote_model_info(NULL) && !mote_token_bytes(NULL, 0, &count) && !mote_token_bytes(demo, 0, NULL), "no model");
    mote_sampling_defaults(NULL, &sampling);
    CHECK(sampling.temperature == 0 && sampling.top_k == 0, "sampling of no model");
    mote_sampling_defaults(demo, NULL);
    mote_close(NULL);
    mote_session_close(NULL);
    mote_checkpoint_free(NULL);
    CHECK(!m && !s, "something was opened");
}

static void test_null_sessions(const mote_model *demo) {
    mote_session *s = session_on(demo, 64, NULL), *clone = NULL;
    mote_checkpoint *checkpoint = NULL;
    mote_measurement measurement = {0};
    mote_speculation speculation;
    const mote_launch *launches;
    mote_logprob told;
    float logprob;
    int32_t id = 1;
    size_t count = 0;
    char bytes[8];
    feed_some(s, 0, 5);
    EXPECT(MOTE_EINVAL, mote_feed(NULL, &id, 1, &failure));
    EXPECT(MOTE_EINVAL, mote_feed(s, NULL, 1, &failure));
    EXPECT(MOTE_OK, mote_feed(s, NULL, 0, &failure));
    EXPECT(MOTE_EINVAL, mote_feed_logits(NULL, &id, 1, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_feed_logprobs(NULL, &id, 1, 0, &told, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_feed_logprobs(s, NULL, 1, 0, &told, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_feed_logprobs(s, &id, 1, 0, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_feed_logprobs(s, &id, 1, 1, &told, NULL, &failure));
    EXPECT(MOTE_OK, mote_feed_logprobs(s, NULL, 0, 0, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_drop_thinking(NULL, NULL, &failure));
    EXPECT(MOTE_OK, mote_drop_thinking(s, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_ask_count(NULL, "a", NULL, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_ask_count(s, NULL, NULL, NULL, NULL, &failure));
    EXPECT(MOTE_OK, mote_ask_count(s, "a", NULL, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_sample(NULL, NULL, &id, &failure));
    EXPECT(MOTE_EINVAL, mote_sample(s, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_step(NULL, NULL, &id, &failure));
    EXPECT(MOTE_EINVAL, mote_step(s, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_top_logprobs(NULL, 1, &id, &logprob, &failure));
    EXPECT(MOTE_EINVAL, mote_top_logprobs(s, 1, NULL, &logprob, &failure));
    EXPECT(MOTE_EINVAL, mote_top_logprobs(s, 1, &id, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_generate(NULL, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_ask(NULL, "a", NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_ask(s, NULL, NULL, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_chat_restore(NULL, "{}", 2, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_chat_restore(s, NULL, 0, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_reset(NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_speculation_of(NULL, &speculation, &failure));
    EXPECT(MOTE_EINVAL, mote_speculation_of(s, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_checkpoint_take(NULL, &checkpoint, &failure));
    EXPECT(MOTE_EINVAL, mote_checkpoint_take(s, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(NULL, checkpoint, &failure));
    EXPECT(MOTE_EINVAL, mote_rewind(s, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_clone(NULL, &clone, &failure));
    EXPECT(MOTE_EINVAL, mote_clone(s, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_save(NULL, bytes, 8, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_save(s, NULL, 8, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_save(s, bytes, 8, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_load(NULL, bytes, 8, &failure));
    EXPECT(MOTE_EINVAL, mote_load(s, NULL, 8, &failure));
    EXPECT(MOTE_EINVAL, mote_save_file(NULL, "a", &failure));
    EXPECT(MOTE_EINVAL, mote_save_file(s, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_load_file(NULL, "a", &failure));
    EXPECT(MOTE_EINVAL, mote_load_file(s, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_measure(NULL, &measurement, &failure));
    EXPECT(MOTE_EINVAL, mote_measure(s, NULL, &failure));
    EXPECT(MOTE_EINVAL, mote_launches(NULL, 1, &launches, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_launches(s, 1, NULL, &count, &failure));
    EXPECT(MOTE_EINVAL, mote_launches(s, 1, &launches, NULL, &failure));
    CHECK(!mote_tokens(NULL, &count) && count == 0 && mote_tokens(s, NULL) && !mote_context(NULL) && !mote_logits(NULL),
          "calls without a code");
    CHECK(mote_feed(NULL, NULL, 1, NULL) == MOTE_EINVAL, "no place for the error");
    mote_session_close(s);
}

// ---- 5. Saved files -------------------------------------------------------------------------------------------------

static void write_text(const char *path, const char *text) {
    FILE *out = fopen(path, "wb");
    CHECK(out && fputs(text, out) >= 0 && !fclose(out), "%s", path);
}

static int text_is(const char *path, const char *want) {
    char text[64] = "";
    FILE *in = fopen(path, "rb");
    size_t n = in ? fread(text, 1, sizeof text - 1, in) : 0;
    if (in) fclose(in);
    return n == strlen(want) && !strcmp(text, want);
}

static mode_t mode_of(const char *path) {
    struct stat info;
    return lstat(path, &info) ? 0 : info.st_mode;
}

static void test_save_in_the_way(const mote_model *m) {
    mote_session *s = session_on(m, 32, NULL), *t = session_on(m, 32, NULL);
    const char *path = temp_path("session"), *link = temp_path("link"), *fifo = temp_path("fifo");
    feed_some(s, 0, 9);
    temp_empty();
    mode_t before = umask(0);
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));
    umask(before);
    CHECK((mode_of(path) & 07777) == 0600, "a new file is its owner's alone: %o", (unsigned)mode_of(path));
    CHECK(!chmod(path, 0644), "chmod");
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));
    CHECK((mode_of(path) & 07777) == 0644, "an old file keeps its permissions: %o", (unsigned)mode_of(path));
    CHECK(!symlink("session", link), "symlink");
    CHECK(!truncate(path, 0), "truncate");
    EXPECT(MOTE_OK, mote_save_file(s, link, &failure));
    CHECK(S_ISLNK(mode_of(link)), "the link is still one");
    EXPECT(MOTE_OK, mote_load_file(t, path, &failure));     // the target was written
    CHECK(temp_entries() == 2, "%d entries", temp_entries());
    CHECK(!unlink(path), "unlink");
    EXPECT(MOTE_EIO, mote_save_file(s, link, &failure));    // leads nowhere now
    CHECK(S_ISLNK(mode_of(link)) && access(path, F_OK), "a link to nothing stays one");
    CHECK(!mkfifo(fifo, 0600), "mkfifo");
    EXPECT(MOTE_EIO, mote_save_file(s, fifo, &failure));
    CHECK(S_ISFIFO(mode_of(fifo)), "a FIFO stays one");
    struct sockaddr_un address = {AF_UNIX, ""};             // in place of a device, which the test must not risk
    snprintf(address.sun_path, sizeof address.sun_path, "%s/socket", temp_dir);
    int listener = socket(AF_UNIX, SOCK_STREAM, 0);
    CHECK(listener >= 0 && !bind(listener, (struct sockaddr *)&address, sizeof address), "a socket");
    EXPECT(MOTE_EIO, mote_save_file(s, address.sun_path, &failure));
    CHECK(S_ISSOCK(mode_of(address.sun_path)), "a socket stays one");
    CHECK(!close(listener) && !unlink(address.sun_path), "the socket");
    EXPECT(MOTE_EIO, mote_save_file(s, temp_dir, &failure));
    EXPECT(MOTE_EIO, mote_save_file(s, "", &failure));
    EXPECT(MOTE_EIO, mote_save_file(s, temp_path("no folder/session"), &failure));
    CHECK(temp_entries() == 2, "failed saves left something: %d entries", temp_entries());
    mote_session_close(s);
    mote_session_close(t);
}

// The names that an earlier version wrote to, and that anybody may have put there.
static void test_save_beside(const mote_model *m) {
    mote_session *s = session_on(m, 32, NULL);
    const char *path = temp_path("session"), *part = temp_path("session.part"), *victim = temp_path("victim");
    feed_some(s, 0, 9);
    temp_empty();
    write_text(victim, "mine");
    CHECK(!symlink("victim", part), "symlink");
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));
    CHECK(text_is(victim, "mine") && S_ISLNK(mode_of(part)), "a link beside it, and its target");
    CHECK(!unlink(part), "unlink");
    write_text(part, "mine, too");
    EXPECT(MOTE_OK, mote_save_file(s, path, &failure));
    CHECK(text_is(part, "mine, too"), "a file beside it");
    CHECK(temp_entries() == 3, "%d entries", temp_entries());
    mote_session_close(s);
}

typedef struct saver { mote_session *s; const char *path; int rounds, wrong, *stop; } saver;

static void *save_again(void *argument) {
    saver *me = (saver *)argument;
    for (int i = 0; i < me->rounds; i++) me->wrong += mote_save_file(me->s, me->path, NULL) != MOTE_OK;
    __atomic_add_fetch(me->stop, 1, __ATOMIC_RELEASE);
    return NULL;
}

// Two sessions save to one path while a third one loads from it: every load sees a whole file of one of them.
static void test_concurrent_saves(const mote_model *m) {
    mote_session *a = session_on(m, 64, NULL), *b = session_on(m, 64, NULL);
    mote_session *t = session_on(m, 64, NULL);
    int stop = 0, loads = 0, damaged = 0;
    temp_empty();
    const char *path = temp_path("session");
    feed_some(a, 0, 9);
    feed_some(b, 5, 60);
    saver savers[2] = {{a, path, test_brief ? 20 : 300, 0, &stop}, {b, path, test_brief ? 20 : 300, 0, &stop}};
    pthread_t ids[2];
    EXPECT(MOTE_OK, mote_save_file(a, path, &failure));
    for (int i = 0; i < 2; i++) CHECK(!pthread_create(&ids[i], NULL, save_again, &savers[i]), "a thread");
    while (__atomic_load_n(&stop, __ATOMIC_ACQUIRE) < 2) {
        damaged += mote_load_file(t, path, &failure) != MOTE_OK || (count_of(t) != 9 && count_of(t) != 60);
        loads++;
    }
    for (int i = 0; i < 2; i++) pthread_join(ids[i], NULL);
    CHECK(loads > 0 && !damaged, "%d of %d loads saw a damaged file: %s", damaged, loads, failure.message);
    CHECK(!savers[0].wrong && !savers[1].wrong && temp_entries() == 1, "%d and %d saves failed, %d entries", savers[0].wrong,
          savers[1].wrong, temp_entries());
    mote_session *all[] = {a, b, t};
    for (int i = 0; i < 3; i++) mote_session_close(all[i]);
}

// ---- 6. Another checkpoint ------------------------------------------------------------------------------------------

static void flip_bit(const char *name, char **bytes, size_t *size, const void *at) {
    if (!strcmp(name, "model.safetensors") && at) (*bytes)[*(const size_t *)at] ^= 1;
    (void)size;
}

typedef struct number { const char *key, *value; } number;

static void edit_number(const char *name, char **bytes, size_t *size, const void *how) {
    const number *n = (const number *)how;
    if (!strcmp(name, "config.json")) set_number(bytes, size, n->key, n->value);
}

// Opens the changed copy, and loads what was saved with the fixture itself.
static void load_changed(const char *bytes, size_t size, int want, const char *what) {
    mote_model *m = model_of(temp_dir, MOTE_WEIGHTS_ONLY);
    mote_session *s = session_on(m, 32, NULL);
    int code = mote_load(s, bytes, size, &failure);
    CHECK(code == want && (!code || strstr(failure.message, "another checkpoint")), "%s changed: %d", what, code);
    mote_session_close(s);
    mote_close(m);
}

// Every tensor in turn has its first bit changed, every number of config.json that leaves the shapes alone another value.
static void test_other_checkpoints(void) {
    static const number numbers[] = {{"rope_theta", "12345.0"}, {"rms_norm_eps", "3e-6"},
                                     {"max_position_embeddings", "777"}, {"num_experts_per_tok", "1"}};
    mote_model *m = model_of(FIXTURE, MOTE_WEIGHTS_ONLY);
    mote_session *s = session_on(m, 32, NULL);
    size_t size, file_size;
    tensor_place t;
    const char *next = NULL;
    char path[128];
    feed_some(s, 0, 5);
    char *bytes = session_bytes(s, &size);
    temp_copy_of(FIXTURE, NULL, NULL);
    load_changed(bytes, size, MOTE_OK, "nothing");
    snprintf(path, sizeof path, "%s/model.safetensors", FIXTURE);
    char *file = file_bytes(path, &file_size);
    for (int i = 0; file && next_tensor(file, &next, &t); i++) {
        if (test_brief && i % 5) continue;
        temp_copy_of(FIXTURE, flip_bit, &t.begin);
        load_changed(bytes, size, MOTE_EINVAL, t.name);
    }
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        temp_copy_of(FIXTURE, edit_number, &numbers[i]);
        load_changed(bytes, size, MOTE_EINVAL, numbers[i].key);
    }
    CHECK(next != NULL, "%s: no tensors", path);
    free(file);
    free(bytes);
    mote_session_close(s);
    mote_close(m);
}

// ---- 7. Signals, forks and jumps ------------------------------------------------------------------------------------

// The status of a child process that runs `body`, for at most ten seconds.
static int in_child(int (*body)(void *), void *argument) {
    int status = -1;
    fflush(stdout);
    pid_t child = fork();
    if (child < 0) return -1;
    if (!child) {
        alarm(10);
        _exit(body(argument));
    }
    waitpid(child, &status, 0);
    return status;
}

// An application that opens a session, and then waits for SIGTERM with sigtimedwait: no other thread may be given it.
static int waits_for_signal(void *argument) {
    const mote_model *m = (const mote_model *)argument;
    struct timespec limit = {5, 0};
    mote_session_options o = {0};
    mote_session *s = NULL;
    sigset_t set;
    const int32_t ids[] = {3, 4, 5};
    o.context = 32;
    o.threads = 4;
    if (mote_session_open(m, &o, &s, NULL) || mote_feed(s, ids, 3, NULL)) return 2;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
    if (kill(getpid(), SIGTERM)) return 3;
    int got = sigtimedwait(&set, NULL, &limit);
    mote_session_close(s);
    return got == SIGTERM ? 0 : 4;
}

typedef struct family_session { mote_session *s; mote_model *m; } family_session;

// A child cannot use the session that its parent opened, but can close it, and the model, and open its own.
static int closes_inherited(void *argument) {
    family_session *f = (family_session *)argument;
    const int32_t ids[] = {3, 4, 5};
    mote_session_options o = {0};
    mote_session *own = NULL;
    size_t count;
    o.context = 32;
    o.threads = 2;
    if (mote_feed(f->s, ids, 3, NULL) != MOTE_EINVAL) return 2;
    if (!mote_tokens(f->s, &count) || count < 3) return 3;
    mote_session_close(f->s);
    if (mote_session_open(f->m, &o, &own, NULL) || mote_feed(own, ids, 3, NULL)) return 4;
    mote_session_close(own);
    mote_close(f->m);
    return 0;
}

// A callback that never returns: the session is busy for ever, and can be closed by whoever made the call, or by what that one
// calls, as a destructor would. In a child: the memory of the call is lost.
static jmp_buf out_of;

static int jump(void *user, int32_t id) {
    (void)id;
    longjmp(*(jmp_buf *)user, 1);
}

__attribute__((noinline)) static void close_below(mote_session *s) {
    volatile char wide[200];
    wide[0] = 1;
    mote_session_close(s);
    wide[199] = wide[0];
}

static int lines_logged;

static void count_line(void *user, const char *line) {
    (void)line;
    ++*(int *)user;
}

static int jumps_out(void *argument) {
    static const int32_t ids[] = {3, 4, 5};
    for (volatile int below = 0; below < 2; below++) {
        mote_callbacks callbacks = {.log = count_line, .user = &lines_logged};
        mote_session *volatile s = session_on((const mote_model *)argument, 64, &callbacks);
        mote_generation g = {.on_token = jump, .user = &out_of};
        if (mote_feed(s, ids, 3, NULL)) return 2;
        if (!setjmp(out_of)) {
            mote_generate(s, &g, NULL, NULL);
            return 3;
        }
        if (mote_reset(s, &failure) != MOTE_EINVAL || !strstr(failure.message, "busy")) return 4;
        if (below) close_below(s);
        else mote_session_close(s);
        if (lines_logged) return 5 + below;                 // it was not closed
    }
    return 0;
}

static void test_processes(void) {
    static const int32_t ids[] = {3, 4, 5};
    mote_model *m = model_of(FIXTURE, MOTE_WEIGHTS_ONLY);
    for (int i = 0; i < (test_brief ? 2 : 7); i++) {
        int status = in_child(waits_for_signal, m);
        CHECK(status == 0, "waiting for a signal beside a session: status %#x", (unsigned)status);
    }
    int jumped = in_child(jumps_out, m);
    CHECK(jumped == 0, "closing a session after a longjmp out of a callback: status %#x", (unsigned)jumped);
    family_session f = {NULL, m};
    mote_session_options o = {0};
    o.context = 32;
    o.threads = 3;
    EXPECT(MOTE_OK, mote_session_open(m, &o, &f.s, &failure));
    usleep(200000);                                         // helpers have begun: AddressSanitizer's locks, taken then, are not released in a fork
    EXPECT(MOTE_OK, mote_feed(f.s, ids, 3, &failure));
    for (int i = 0; i < 3; i++) {
        struct timespec pause = {0, i * 20000000};          // helpers that still look for work, and helpers that sleep
        nanosleep(&pause, NULL);
        int status = in_child(closes_inherited, &f);
        CHECK(status == 0, "closing a session in a forked child: status %#x", (unsigned)status);
        EXPECT(MOTE_OK, mote_feed(f.s, ids, 3, &failure));  // the parent's goes on
    }
    mote_session_close(f.s);
    mote_close(m);
}

int main(int argc, char **argv) {
    test_main_begin("test_misuse", argc, argv);
    if (!temp_open()) return test_main_end();
    mote_model *demo = model_of(DEMO, MOTE_EVERYTHING);
    int is_cpu = !strcmp(test_device, "cpu");
    if (is_cpu) test_processes();
    if (is_cpu) test_null_models(demo);
    test_null_sessions(demo);
    test_callbacks(demo);
    test_cancelled_turn(demo);
    test_cancelled_restore(demo);
    test_results(demo);
    if (is_cpu) {
        test_save_in_the_way(demo);
        test_save_beside(demo);
        test_concurrent_saves(demo);
        test_other_checkpoints();
        test_memory(demo);
        test_call_memory(demo);
    }
    mote_close(demo);
    temp_close();
    return test_main_end();
}
