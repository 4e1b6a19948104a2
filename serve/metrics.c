/* serve/metrics.c: GET /metrics, in Prometheus' text format. */

static void put_metric(buf *out, const char *name, const char *type, const char *help, double value) {
    putf(out, "# HELP mote_%s %s\n# TYPE mote_%s %s\nmote_%s %.17g\n", name, help, name, type, name, value);
}

static void put_drafts(buf *out, const char *name, const char *help, const uint64_t of[MOTE_DRAFT_SOURCES][MOTE_ROWS_MAX - 1]) {
    static const char *const sources[MOTE_DRAFT_SOURCES] = {"mtp", "copy"};
    putf(out, "# HELP mote_%s %s\n# TYPE mote_%s counter\n", name, help, name);
    for (int i = 0; i < MOTE_DRAFT_SOURCES; i++)
        for (int k = 0; k < MOTE_ROWS_MAX - 1; k++)
            putf(out, "mote_%s{source=\"%s\",place=\"%d\"} %.17g\n", name, sources[i], k + 1, (double)of[i][k]);
}

/* The passes of answers, and what was drafted for them: by who drafted, and the place of a draft in its pass. */
static void put_speculation_metrics(buf *out, const mote_speculation *s) {
    double passes = 0;
    for (int k = 0; k < MOTE_ROWS_MAX; k++) passes += (double)s->passes[k];
    put_metric(out, "passes_total", "counter", "Forward passes that generated tokens.", passes);
    put_drafts(out, "drafted_tokens_total", "Drafts that were judged.", s->drafted);
    put_drafts(out, "accepted_tokens_total", "Drafts that were accepted.", s->accepted);
    put_metric(out, "drafting_seconds_total", "counter", "Seconds in which answers waited for the MTP layer's drafts.", s->draft_seconds);
    put_metric(out, "passes_seconds_total", "counter", "Seconds in which answers waited for their passes.", s->pass_seconds);
}

/* What all answers together compute. A pass is one of several answers: passes_total counts it once for each. */
static void put_runner_metrics(buf *out, server *s) {
    mote_seen seen = {0};
    double experts;
    if (mote_runner_seen(s->runner, &seen, NULL)) return;
    put_metric(out, "batches_total", "counter", "Forward passes, of one answer or of several together.", (double)seen.passes);
    put_metric(out, "batch_answers_total", "counter", "Answers in these passes: by batches_total, the average batch.", (double)seen.sessions);
    put_metric(out, "batch_rows_total", "counter", "Token rows of these passes, drafts included.", (double)seen.rows);
    put_metric(out, "batch_seconds_total", "counter", "Seconds that these passes took.", seen.pass_seconds);
    put_metric(out, "read_tokens_total", "counter", "Tokens of prompts that were read in blocks.", (double)seen.prompt_tokens);
    put_metric(out, "read_seconds_total", "counter", "Seconds that this took, without what came between.", seen.prompt_seconds);
    put_metric(out, "step_age_seconds", "gauge", "Seconds since something was computed last.", seen.since);
    /* It waits for its turn, so it is not asked for while that may not come. */
    if ((!seen.busy || seen.since < 1) && !mote_distinct_experts(s->runner, &experts, NULL))
        put_metric(out, "distinct_experts", "gauge", "Experts of a layer that the last pass has read, on average.", experts);
}

static void serve_metrics(server *s, connection *c, const json *j) {
    buf out = {NULL, 0, 0, 0};
    (void)j;
    pthread_mutex_lock(&s->lock);
    counters n = s->counted;
    int busy = 0, waiting = s->waiting_count;
    size_t cache = s->cache_used, swapped_out = 0;
    for (const server_slot *t = s->slots; t < s->slots + s->slot_count; t++) busy += t->busy;
    for (const swapped *e = s->swapped_out; e; e = e->next) swapped_out++;
    pthread_mutex_unlock(&s->lock);
    put_metric(&out, "requests_total", "counter", "Requests answered or refused.", (double)n.requests);
    put_metric(&out, "requests_refused_total", "counter", "Requests refused before they reached an API.", (double)n.refused);
    put_metric(&out, "requests_cancelled_total", "counter", "Answers whose client went away.", (double)n.cancelled);
    put_metric(&out, "connections", "gauge", "Open connections.", listener_connections(&s->listener));
    put_metric(&out, "sessions", "gauge", "Sessions.", s->slot_count);
    put_metric(&out, "sessions_busy", "gauge", "Sessions that answer.", busy);
    put_metric(&out, "requests_waiting", "gauge", "Requests that wait for a session.", waiting);
    put_metric(&out, "prompt_tokens_total", "counter", "Tokens of prompts that were read.", (double)n.prompt_tokens);
    put_metric(&out, "cached_tokens_total", "counter", "Tokens of prompts that were there already.", (double)n.cached_tokens);
    put_metric(&out, "generated_tokens_total", "counter", "Tokens generated.", (double)n.generated_tokens);
    put_metric(&out, "prompt_seconds_total", "counter", "Seconds in which prompts were read.", n.prompt_seconds);
    put_metric(&out, "generate_seconds_total", "counter", "Seconds in which tokens were generated.", n.generate_seconds);
    put_speculation_metrics(&out, &n.speculation);
    put_runner_metrics(&out, s);
    put_metric(&out, "cache_bytes", "gauge", "Memory of snapshots and swapped-out timelines.", (double)cache);
    put_metric(&out, "cache_bytes_limit", "gauge", "What it may grow to.", (double)s->cache_most);
    put_metric(&out, "request_bytes", "gauge", "Memory that requests under way may need.", (double)s->budget.used);
    put_metric(&out, "request_bytes_limit", "gauge", "What it may grow to.", (double)s->budget.most);
    put_metric(&out, "shelved_timelines", "gauge", "Timelines without a session.", (double)swapped_out);
    put_metric(&out, "weight_bytes", "gauge", "Memory of the weights.", (double)mote_model_info(s->model)->weight_bytes);
    connection_reply(c, 200, "text/plain; version=0.0.4", out.data, out.failed ? 0 : out.size);
    buf_free(&out);
}
