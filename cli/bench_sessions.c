/* cli/bench_sessions.c: bench --sessions: the speed of several conversations at once. All are sessions of one runner, each has read
   random tokens of its own, and each draws its next tokens as a client would; a step of all of them is one pass. Tokens per second are
   those of all together, by the wall clock. What each of them said is compared with what it says when it is asked alone.

   With replicas each has a runner, the sessions are dealt out over them, and a thread for each replica steps those that it has.

   With --beside one more session reads a long prompt meanwhile, in a thread of its own.
   With --accept each is a thread that generates with as many drafts as there are rates, of which as many are accepted as these say.
   With --text each has read another piece of a file; all say what is most probable, first by steps, then as threads that speculate. */

enum { SESSIONS_MOST = 64 };

typedef struct group {
    bench *b;
    const replicas *r;
    mote_runner *runner[REPLICAS_MOST];    /* session i is of number i % count */
    mote_session *session[SESSIONS_MOST];
    mote_checkpoint *read[SESSIONS_MOST];  /* after its prompt */
    mote_sampling sampling[SESSIONS_MOST];
    int32_t *alone;                        /* [sessions][steps] what each says alone */
    int32_t *ids;                          /* [prompt] */
    bytes text;                            /* token ids of --text; empty: prompts are random */
    int count, most, prompt, drafts;       /* drafts: simulated ones; 0: none are */
    int speaks;                            /* each is a thread, which generates */
    int tokens[SESSIONS_MOST];             /* that each has generated */
    int other[SESSIONS_MOST];              /* of these, those that are not what it says alone */
    int failed;
} group;

/* The prompt of session i. */
static void group_prompt(group *g, int i) {
    uint64_t random = (uint64_t)i + 1;
    if (g->text.size) take_piece(g->b->info, &g->text, i, g->most, g->prompt, g->ids);
    for (int k = 0; k < g->prompt && !g->text.size; k++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        g->ids[k] = (int32_t)((random >> 33) % (uint64_t)g->b->info->vocab_size);
    }
}

/* Opens a session and has it read its prompt. */
static int group_join(group *g) {
    const int i = g->count, replica = i % g->r->count;
    mote_session_options how = session_options(g->b->o);
    mote_error error = {0, ""};
    how.runner = g->runner[replica];
    if (!g->speaks) how.mtp = MOTE_MTP_OFF;
    if (g->drafts) how.mtp = g->drafts;
    group_prompt(g, i);
    if (mote_session_open(g->r->model[replica], &how, &g->session[i], &error)) return report(&error);
    g->count++;
    if (mote_feed(g->session[i], g->ids, (size_t)g->prompt, &error) || mote_checkpoint_take(g->session[i], &g->read[i], &error))
        return report(&error);
    if (!g->text.size) g->sampling[i] = (mote_sampling){.temperature = 1.0f, .top_k = 20, .seed = (uint64_t)i + 1};
    return 0;
}

/* What session i says alone. */
static int group_alone(group *g, int i) {
    mote_error error = {0, ""};
    int32_t *to = g->alone + (size_t)i * (size_t)g->b->o->steps;
    if (mote_rewind(g->session[i], g->read[i], &error)) return report(&error);
    for (int k = 0; k < g->b->o->steps; k++)
        if (mote_step(g->session[i], &g->sampling[i], &to[k], &error)) return report(&error);
    return 0;
}

/* Sets all of the first n sessions back to after their prompts. */
static int group_rewind(group *g, int n) {
    mote_error error = {0, ""};
    for (int i = 0; i < n; i++)
        if (mote_rewind(g->session[i], g->read[i], &error)) return report(&error);
    return 0;
}

/* What one replica does of a run. */
typedef struct stepper {
    group *g;
    int number[SESSIONS_MOST], count;      /* its sessions */
    mote_turn turn[SESSIONS_MOST];
    int steps, differing, code;            /* differing: tokens that are not those the sessions say alone */
} stepper;

/* Its share of the first n sessions. */
static stepper stepper_of(group *g, int replica, int n) {
    stepper p = {.g = g, .steps = g->b->o->steps};
    for (int i = replica; i < n; i += g->r->count) {
        p.turn[p.count] = (mote_turn){.session = g->session[i], .sampling = &g->sampling[i]};
        p.number[p.count++] = i;
    }
    return p;
}

static void *step_all(void *user) {
    stepper *p = user;
    mote_error error = {0, ""};
    for (int k = 0; k < p->steps && p->count && !p->code; k++) {
        p->code = interrupted ? EXIT_INTERRUPTED : mote_step_many(p->turn, p->count, &error) ? report(&error) : 0;
        for (int i = 0; i < p->count && !p->code; i++)
            p->differing += p->turn[i].id != p->g->alone[(size_t)p->number[i] * (size_t)p->g->b->o->steps + (size_t)k];
    }
    if (p->count) (void)mote_logits(p->turn[0].session);    /* the last step has been computed */
    return NULL;
}

/* All replicas at the same time, the first one in this thread. */
static int step_replicas(stepper *of, int count) {
    pthread_t threads[REPLICAS_MOST];
    int started = 1, code;
    while (started < count && !pthread_create(&threads[started], NULL, step_all, &of[started])) started++;
    code = started < count ? complain(EXIT_FAILURE, "no more threads") : 0;
    step_all(of);
    for (int i = 1; i < started; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < count && !code; i++) code = of[i].code;
    return code;
}

/* The first n sessions say it together: *seconds; *differing: tokens that are not those they say alone. */
static int group_run(group *g, int n, double *seconds, int *differing) {
    stepper of[REPLICAS_MOST];
    *differing = 0;
    for (int warm = 0; warm < 2; warm++) {                  /* what is captured once is, by the first step */
        int code = group_rewind(g, n);
        for (int i = 0; i < g->r->count; i++) {
            of[i] = stepper_of(g, i, n);
            if (!warm) of[i].steps = 1;
        }
        const double start = clock_seconds();
        if (!code) code = step_replicas(of, g->r->count);
        *seconds = clock_seconds() - start;
        if (code) return code;
    }
    for (int i = 0; i < g->r->count; i++) *differing += of[i].differing;
    return 0;
}

/* Replicas that have some of the first n sessions. */
static int group_replicas(const group *g, int n) {
    return n < g->r->count ? n : g->r->count;
}

/* Different experts of a layer that the last pass of such a replica has read. */
static double group_experts(const group *g, int n) {
    const int replicas = group_replicas(g, n);
    double sum = 0, experts = NAN;
    for (int i = 0; i < replicas; i++) {
        if (mote_distinct_experts(g->runner[i], &experts, NULL)) return NAN;
        sum += experts;
    }
    return sum / replicas;
}

/* The same on average over steps of the first n sessions, which are not timed. */
static int group_experts_mean(group *g, int n, double *mean) {
    double sum = 0;
    int code = group_rewind(g, n);
    for (int k = 0; k < g->b->o->steps && !code; k++) {
        mote_error error = {0, ""};
        for (int i = 0; i < g->r->count && !code; i++) {
            stepper p = stepper_of(g, i, n);
            if (p.count && mote_step_many(p.turn, p.count, &error)) code = report(&error);
        }
        sum += group_experts(g, n);
        if (interrupted) code = EXIT_INTERRUPTED;
    }
    *mean = sum / g->b->o->steps;
    return code;
}

typedef struct speaker { group *g; int number; } speaker;

static int on_spoken(void *user, int32_t id) {
    const speaker *me = user;
    group *g = me->g;
    const int at = g->tokens[me->number]++;
    if (!g->drafts) g->other[me->number] += id != g->alone[(size_t)me->number * (size_t)g->b->o->steps + (size_t)at];
    return interrupted;
}

static void *speak(void *user) {
    speaker *me = user;
    group *g = me->g;
    mote_generation how = {.size = sizeof how, .sampling = &g->sampling[me->number], .max_tokens = g->b->o->steps, .raw = 1,
                           .on_token = on_spoken, .user = me};
    mote_result result;
    mote_error error = {0, ""};
    g->tokens[me->number] = g->other[me->number] = 0;
    if (mote_generate(g->session[me->number], &how, &result, &error)) __atomic_store_n(&g->failed, report(&error), __ATOMIC_RELAXED);
    return NULL;
}

/* The first n sessions generate at the same time: *rate, tokens per second of all. */
static int group_speak(group *g, int n, double *rate) {
    pthread_t threads[SESSIONS_MOST];
    speaker speakers[SESSIONS_MOST];
    int started = 0, tokens = 0, code = group_rewind(g, n);
    if (code) return code;
    double start = clock_seconds();
    for (; started < n && !g->failed; started++) {
        speakers[started] = (speaker){g, started};
        if (pthread_create(&threads[started], NULL, speak, &speakers[started])) g->failed = complain(EXIT_FAILURE, "no more threads");
    }
    for (int i = 0; i < started; i++) pthread_join(threads[i], NULL);
    double seconds = clock_seconds() - start;
    for (int i = 0; i < n; i++) tokens += g->tokens[i];
    *rate = tokens / seconds;
    return g->failed ? g->failed : interrupted ? EXIT_INTERRUPTED : 0;
}

static int group_same(int differing) {
    return differing ? complain(EXIT_FAILURE, "bench: %d tokens differ from those of a session that is alone", differing) : 0;
}

static int bench_speaking(group *g, int n) {
    double rates[99], none;
    char label[16];
    drafting before, after;
    int differing = 0, code = group_speak(g, n, &none);     /* what is captured once */
    if (!code) code = sum_drafting(g->session, n, &before);
    for (int r = 0; r < g->b->o->repeat && !code; r++) {
        code = group_speak(g, n, &rates[r]);
        for (int i = 0; i < n; i++) differing += g->other[i];
    }
    if (!code) code = sum_drafting(g->session, n, &after);
    if (code) return code;
    const timing t = summarise(rates, g->b->o->repeat);
    snprintf(label, sizeof label, "%d", n);
    begin_row(g->b, "sessions_speculating", label, 8);
    put(g->b, "sessions", n, 1, 0, 0);
    put(g->b, "drafts", g->drafts, 1, 0, 0);
    put(g->b, "tokens_per_second", t.median, 1, 12, 1);
    put(g->b, "lowest", t.low, 1, 12, 1);
    put(g->b, "highest", t.high, 1, 12, 1);
    put(g->b, "tokens_per_second_each", t.median / n, 1, 12, 1);
    put(g->b, "distinct_experts", group_experts(g, n), 1, g->drafts ? 20 : 10, 1);
    if (!g->drafts) put_drafting(g->b, &before, &after);
    put(g->b, "replicas", g->r->count, 1, 0, 0);
    if (!g->drafts) put(g->b, "differing", differing, 1, 11, 0);
    end_row(g->b);
    return group_same(differing);
}

/* The session that reads a prompt beside the others. */
typedef struct reader {
    mote_session *session;
    int32_t *ids;
    int count, done, code;                 /* done: it has read it (atomic) */
    double seconds;
} reader;

static void *read_beside(void *user) {
    reader *r = user;
    mote_error error = {0, ""};
    double start = clock_seconds();
    r->code = mote_reset(r->session, &error);
    if (!r->code) r->code = mote_feed(r->session, r->ids, (size_t)r->count, &error);
    if (r->code) report(&error);
    r->seconds = clock_seconds() - start;
    __atomic_store_n(&r->done, 1, __ATOMIC_RELEASE);
    return NULL;
}

/* Steps of n sessions while the prompt is read: *longest, seconds of one; *steps, how many. */
static int group_beside(group *g, int n, reader *r, double *longest, int *steps) {
    mote_error error = {0, ""};
    pthread_t thread;
    stepper all = stepper_of(g, 0, n);
    int code = group_rewind(g, n);
    *longest = *steps = 0;
    r->done = 0;
    if (code) return code;
    if (mote_step_many(all.turn, n, &error)) return report(&error);
    if (pthread_create(&thread, NULL, read_beside, r)) return complain(EXIT_FAILURE, "no more threads");
    for (; !code && !__atomic_load_n(&r->done, __ATOMIC_ACQUIRE) && *steps < r->count - g->prompt - 2; ++*steps) {
        double start = clock_seconds();
        if (mote_step_many(all.turn, n, &error)) code = report(&error);
        if (clock_seconds() - start > *longest) *longest = clock_seconds() - start;
    }
    pthread_join(thread, NULL);
    return code ? code : r->code ? EXIT_FAILURE : 0;
}

static int bench_beside(group *g, int n) {
    mote_session_options how = session_options(g->b->o);
    mote_error error = {0, ""};
    reader r = {.count = g->b->o->beside, .ids = random_ids(g->b->o->beside, g->b->info->vocab_size)};
    double longest = 0, alone = 0;
    int steps = 0, code = r.ids ? 0 : complain(EXIT_FAILURE, "out of memory");
    char label[16];
    how.runner = g->runner[0];
    how.mtp = MOTE_MTP_OFF;
    if (!code && mote_session_open(g->r->model[0], &how, &r.session, &error)) code = report(&error);
    for (int i = 0; i < 2 && !code; i++) {                  /* the first one warms up */
        read_beside(&r);
        alone = r.seconds;
        code = r.code;
    }
    if (!code) code = group_beside(g, n, &r, &longest, &steps);
    mote_session_close(r.session);
    free(r.ids);
    if (code) return code;
    snprintf(label, sizeof label, "%d", n);
    begin_row(g->b, "sessions_beside", label, 8);
    put(g->b, "sessions", n, 1, 0, 0);
    put(g->b, "prompt", g->b->o->beside, 1, 10, 0);
    put(g->b, "longest_wait", longest, 1e3, 14, 1);
    put(g->b, "steps", steps, 1, 8, 0);
    put(g->b, "prompt_alone", alone, 1e3, 14, 1);
    put(g->b, "prompt_beside", r.seconds, 1e3, 14, 1);
    put(g->b, "slower", r.seconds / alone, 1, 8, 2);
    end_row(g->b);
    return 0;
}

static int bench_group(group *g, int n) {
    double rates[99], seconds = 0, experts = NAN;
    int differing = 0, more = 0;
    char label[16];
    for (int r = 0; r < g->b->o->repeat; r++) {
        int code = group_run(g, n, &seconds, &more);
        if (code) return code;
        rates[r] = (double)n * g->b->o->steps / seconds;
        differing += more;
    }
    if (g->text.size) {
        const int code = group_experts_mean(g, n, &experts);
        if (code) return code;
    }
    const timing t = summarise(rates, g->b->o->repeat);
    snprintf(label, sizeof label, "%d", n);
    begin_row(g->b, "sessions", label, 8);
    put(g->b, "sessions", n, 1, 0, 0);
    put(g->b, "tokens_per_second", t.median, 1, 12, 1);
    put(g->b, "lowest", t.low, 1, 12, 1);
    put(g->b, "highest", t.high, 1, 12, 1);
    put(g->b, "tokens_per_second_each", t.median / n, 1, 12, 1);
    put(g->b, "seconds", n / t.median, 1e3, 10, 3);
    put(g->b, "distinct_experts", g->text.size ? experts : group_experts(g, n), 1, 10, 1);
    if (g->text.size) put(g->b, "independent_experts", independent_experts(g->b->info, (double)n / group_replicas(g, n)), 1, 12, 1);
    put(g->b, "replicas", g->r->count, 1, 0, 0);
    put(g->b, "differing", differing, 1, 11, 0);
    end_row(g->b);
    return group_same(differing);
}

static int group_open(group *g) {
    const int most = g->most;
    mote_session_options how = session_options(g->b->o);
    mote_error error = {0, ""};
    how.context = g->b->o->context ? g->b->o->context : g->prompt + g->b->o->steps + MOTE_ROWS_MAX;
    if (how.context < g->b->o->beside) how.context = g->b->o->beside;
    how.sessions = (size_t)most + 2;       /* one that is alone, one beside */
    g->ids = malloc((size_t)g->prompt * sizeof *g->ids);
    g->alone = malloc((size_t)most * (size_t)g->b->o->steps * sizeof *g->alone);
    if (!g->ids || !g->alone) return complain(EXIT_FAILURE, "out of memory");
    int code = g->b->o->text ? read_pieces(g->b, g->r->model[0], most, g->prompt, &g->text) : 0;
    for (int i = 0; i < g->r->count && !code; i++)
        if (mote_runner_open(g->r->model[i], &how, &g->runner[i], &error)) code = report(&error);
    for (int i = 0; i < most && !code; i++) code = group_join(g);
    for (int i = 0; i < most && !code && !g->drafts && !g->b->o->beside; i++) code = group_alone(g, i);
    for (int i = 0; i < g->r->count && !code && g->drafts; i++)
        if (mote_simulate(g->runner[i], g->b->o->accept.value, &error)) code = report(&error);
    return code;
}

static void group_close(group *g) {
    for (int i = 0; i < g->count; i++) {
        mote_checkpoint_free(g->read[i]);
        mote_session_close(g->session[i]);
    }
    for (int i = 0; i < g->r->count; i++) mote_runner_close(g->runner[i]);
    free(g->text.data);
    free(g->alone);
    free(g->ids);
}

static void print_group_head(const group *g) {
    FILE *to = g->b->table;
    if (g->b->o->beside) {
        fprintf(to, "\n%-8s%10s%14s%8s%14s%14s%8s\n", "beside", "prompt", "longest wait", "steps", "ms alone", "ms beside", "slower");
        return;
    }
    if (g->speaks && !g->drafts) fputs("\nspeculation\n", to);
    fprintf(to, "%-8s%12s%12s%12s%12s", "sessions", "tok/s", "lowest", "highest", "each");
    if (g->drafts) fprintf(to, "%20s\n", "experts");
    else if (g->speaks) fprintf(to, "%10s%10s%10s%10s%11s\n", "experts", "drafts", "accept%", "tok/pass", "differing");
    else fprintf(to, "%10s%10s%*s%11s\n", "ms/step", "experts", g->text.size ? 12 : 0, g->text.size ? "independent" : "", "differing");
}

/* All numbers of sessions: by steps, or as threads that generate. */
static int bench_round(group *g, const char *name, int first) {
    bench *b = g->b;
    int code = group_open(g);
    b->session = g->session[0];
    if (!code && first && g->r->count > 1) fprintf(b->table, "replicas %d, on %s\n", g->r->count, b->o->devices);
    if (!code && first) print_head(b, name);
    if (!code && first) json_head(b, name);
    if (!code) print_group_head(g);
    for (int i = 0; i < b->o->sessions.count && !code; i++)
        code = b->o->beside ? bench_beside(g, b->o->sessions.value[i])
             : g->speaks    ? bench_speaking(g, b->o->sessions.value[i])
                            : bench_group(g, b->o->sessions.value[i]);
    b->session = NULL;
    group_close(g);
    return code;
}

static int bench_sessions(bench *b, const char *name, const replicas *r) {
    const options *o = b->o;
    const int drafts = o->accept.count, prompt = o->prompts.count ? o->prompts.value[0] : 128;
    int most = 0;
    for (int i = 0; i < o->sessions.count; i++)
        if (o->sessions.value[i] > most) most = o->sessions.value[i];
    group plain = {.b = b, .r = r, .most = most, .prompt = prompt, .drafts = drafts, .speaks = drafts > 0};
    group speaking = {.b = b, .r = r, .most = most, .prompt = prompt, .speaks = 1};
    int code = bench_round(&plain, name, 1);
    if (!code && o->text && o->mtp != MOTE_MTP_OFF) code = bench_round(&speaking, name, 0);
    if (!code && b->json) fputs("\n]}\n", b->json);
    return code;
}
