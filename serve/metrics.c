/* serve/metrics.c: GET /metrics, in Prometheus' text format. */

static void put_metric(buf *out, const char *name, const char *type, const char *help, double value) {
    putf(out, "# HELP mote_%s %s\n# TYPE mote_%s %s\nmote_%s %.17g\n", name, help, name, type, name, value);
}

/* A line for each replica, or, where there is one, the metric itself. Those that are NAN are left out. */
static void put_replicas(buf *out, const server *s, const char *name, const char *type, const char *help, const double *values) {
    int known = 0;
    for (int i = 0; i < s->replica_count; i++) known += !isnan(values[i]);
    if (s->replica_count == 1 && known) put_metric(out, name, type, help, values[0]);
    if (s->replica_count == 1 || !known) return;
    putf(out, "# HELP mote_%s %s\n# TYPE mote_%s %s\n", name, help, name, type);
    for (int i = 0; i < s->replica_count; i++) {
        const char *device = replica_device(&s->replicas[i]);
        if (!isnan(values[i]))
            putf(out, "mote_%s{replica=\"%d\",device=\"%.*s\"} %.17g\n", name, i, (int)strcspn(device, " "), device, values[i]);
    }
}

/* blocks: of a block drafter; NULL: there is none. */
static void put_drafts(buf *out, const char *name, const char *help, const uint64_t of[MOTE_DRAFT_SOURCES][MOTE_ROWS_MAX - 1],
                       const uint64_t *blocks) {
    static const char *const sources[] = {"mtp", "copy", "block"};
    const uint64_t *const all[] = {of[MOTE_DRAFT_MTP], of[MOTE_DRAFT_COPY], blocks};
    putf(out, "# HELP mote_%s %s\n# TYPE mote_%s counter\n", name, help, name);
    for (int i = 0; i < 3 && all[i]; i++)
        for (int k = 0; k < MOTE_ROWS_MAX - 1; k++)
            putf(out, "mote_%s{source=\"%s\",place=\"%d\"} %.17g\n", name, sources[i], k + 1, (double)all[i][k]);
}

/* The passes of answers, and what was drafted for them: by who drafted, and the place of a draft in its pass. */
static void put_speculation_metrics(buf *out, const mote_speculation *s, const mote_drafter_use *blocks) {
    double passes = 0;
    for (int k = 0; k < MOTE_ROWS_MAX; k++) passes += (double)s->passes[k];
    put_metric(out, "passes_total", "counter", "Forward passes that generated tokens.", passes);
    put_drafts(out, "drafted_tokens_total", "Drafts that were judged.", s->drafted, blocks->rows ? blocks->drafted : NULL);
    put_drafts(out, "accepted_tokens_total", "Drafts that were accepted.", s->accepted, blocks->rows ? blocks->accepted : NULL);
    put_metric(out, "drafting_seconds_total", "counter", "Seconds in which answers waited for a model's drafts.", s->draft_seconds);
    put_metric(out, "passes_seconds_total", "counter", "Seconds in which answers waited for their passes.", s->pass_seconds);
}

enum { SEEN_PASSES, SEEN_ANSWERS, SEEN_ROWS, SEEN_PASS_SECONDS, SEEN_TOKENS, SEEN_SECONDS, SEEN_SINCE, SEEN_EXPERTS, SEEN_HITS, SEEN_MISSES, SEEN_LINK,
       SEEN_COUNT };

static const struct { const char *name, *type, *help; } seen_metrics[SEEN_COUNT] = {
    [SEEN_PASSES] = {"batches_total", "counter", "Forward passes, of one answer or of several together."},
    [SEEN_ANSWERS] = {"batch_answers_total", "counter", "Answers in these passes: by batches_total, the average batch."},
    [SEEN_ROWS] = {"batch_rows_total", "counter", "Token rows of these passes, drafts included."},
    [SEEN_PASS_SECONDS] = {"batch_seconds_total", "counter", "Seconds that these passes took."},
    [SEEN_TOKENS] = {"read_tokens_total", "counter", "Tokens of prompts that were read in blocks."},
    [SEEN_SECONDS] = {"read_seconds_total", "counter", "Seconds that this took, without what came between."},
    [SEEN_SINCE] = {"step_age_seconds", "gauge", "Seconds since something was computed last."},
    [SEEN_EXPERTS] = {"distinct_experts", "gauge", "Experts of a layer that the last pass has read, on average."},
    [SEEN_HITS] = {"expert_hits_total", "counter", "Experts in host memory that passes found in slots of the GPU's memory."},
    [SEEN_MISSES] = {"expert_misses_total", "counter", "Experts in host memory that passes did not find there."},
    [SEEN_LINK] = {"expert_link_bytes_total", "counter", "Bytes of experts that crossed the link to the GPU."}};

/* What replica i found in slots of experts; NAN: it has none in host memory. */
static void look_at_experts(const server *s, int i, mote_runner *runner, double *hits, double *misses, double *bytes) {
    mote_experts_seen of;
    *hits = *misses = *bytes = NAN;
    if (!mote_model_info(s->replicas[i].model)->expert_layers || mote_runner_experts(runner, &of, NULL)) return;
    *hits = (double)of.hits;
    *misses = (double)of.misses;
    *bytes = (double)of.bytes;
}

/* What all answers of each replica compute together. A pass is one of several answers: passes_total counts it once for each. */
static void put_runner_metrics(buf *out, server *s) {
    double values[SEEN_COUNT][REPLICAS_MOST];
    for (int i = 0; i < s->replica_count; i++) {
        mote_seen n = {0};
        mote_runner *runner = replica_watch(s, &s->replicas[i]);
        (void)mote_runner_seen(runner, &n, NULL);
        const double of[SEEN_COUNT] = {(double)n.passes, (double)n.sessions, (double)n.rows, n.pass_seconds, (double)n.prompt_tokens,
                                       n.prompt_seconds, n.since, NAN, NAN, NAN, NAN};
        for (int k = 0; k < SEEN_COUNT; k++) values[k][i] = of[k];
        look_at_experts(s, i, runner, &values[SEEN_HITS][i], &values[SEEN_MISSES][i], &values[SEEN_LINK][i]);
        /* It waits for its turn, so it is not asked for while that may not come. */
        if (!(n.busy && n.since >= 1) && mote_distinct_experts(runner, &values[SEEN_EXPERTS][i], NULL)) values[SEEN_EXPERTS][i] = NAN;
        replica_unwatch(s, &s->replicas[i]);
    }
    for (int k = 0; k < SEEN_COUNT; k++)
        put_replicas(out, s, seen_metrics[k].name, seen_metrics[k].type, seen_metrics[k].help, values[k]);
}

typedef struct replica_state { double works[REPLICAS_MOST], sessions[REPLICAS_MOST], busy[REPLICAS_MOST], weights[REPLICAS_MOST]; } replica_state;

/* Under the server's lock. */
static void look_at_replicas(const server *s, replica_state *now) {
    memset(now, 0, sizeof *now);
    for (int i = 0; i < s->replica_count; i++) {
        now->works[i] = !s->replicas[i].lost;
        now->sessions[i] = s->replicas[i].sessions;
        now->weights[i] = (double)mote_model_info(s->replicas[i].model)->weight_bytes;
    }
    for (const server_slot *t = s->slots; t < s->slots + s->slot_count; t++) now->busy[t->of - s->replicas] += t->busy;
}

static void serve_metrics(server *s, connection *c, const json *j) {
    buf out = {NULL, 0, 0, 0};
    (void)j;
    pthread_mutex_lock(&s->lock);
    counters n = s->counted;
    int waiting = s->waiting_count;
    replica_state replicas;
    size_t cache = s->cache_used, swapped_out = 0;
    look_at_replicas(s, &replicas);
    for (const swapped *e = s->swapped_out; e; e = e->next) swapped_out++;
    pthread_mutex_unlock(&s->lock);
    put_metric(&out, "requests_total", "counter", "Requests answered or refused.", (double)n.requests);
    put_metric(&out, "requests_refused_total", "counter", "Requests refused before they reached an API.", (double)n.refused);
    put_metric(&out, "requests_cancelled_total", "counter", "Answers whose client went away.", (double)n.cancelled);
    put_metric(&out, "connections", "gauge", "Open connections.", listener_connections(&s->listener));
    if (s->replica_count > 1) put_replicas(&out, s, "replica_works", "gauge", "0: the device of the replica is lost.", replicas.works);
    put_replicas(&out, s, "sessions", "gauge", "Sessions.", replicas.sessions);
    put_replicas(&out, s, "sessions_busy", "gauge", "Sessions that answer.", replicas.busy);
    put_metric(&out, "requests_waiting", "gauge", "Requests that wait for a session.", waiting);
    put_metric(&out, "prompt_tokens_total", "counter", "Tokens of prompts that were read.", (double)n.prompt_tokens);
    put_metric(&out, "cached_tokens_total", "counter", "Tokens of prompts that were there already.", (double)n.cached_tokens);
    put_metric(&out, "generated_tokens_total", "counter", "Tokens generated.", (double)n.generated_tokens);
    put_metric(&out, "prompt_seconds_total", "counter", "Seconds in which prompts were read.", n.prompt_seconds);
    put_metric(&out, "generate_seconds_total", "counter", "Seconds in which tokens were generated.", n.generate_seconds);
    put_speculation_metrics(&out, &n.speculation, &n.blocks);
    put_runner_metrics(&out, s);
    put_metric(&out, "cache_bytes", "gauge", "Memory of snapshots and swapped-out timelines.", (double)cache);
    put_metric(&out, "cache_bytes_limit", "gauge", "What it may grow to.", (double)s->cache_most);
    put_metric(&out, "request_bytes", "gauge", "Memory that requests under way may need.", (double)s->budget.used);
    put_metric(&out, "request_bytes_limit", "gauge", "What it may grow to.", (double)s->budget.most);
    put_metric(&out, "shelved_timelines", "gauge", "Timelines without a session.", (double)swapped_out);
    put_replicas(&out, s, "weight_bytes", "gauge", "Memory of the weights.", replicas.weights);
    connection_reply(c, 200, "text/plain; version=0.0.4", out.data, out.failed ? 0 : out.size);
    buf_free(&out);
}
