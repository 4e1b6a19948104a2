/* serve/health.c: GET /health: whether answers get on. It asks nothing that waits for what is computed. */

enum { STUCK_SECONDS = 120 };              /* a pass or a block of a prompt that takes so long will not end */

typedef struct health {
    enum { HEALTH_OK, HEALTH_LOST, HEALTH_STUCK } state;   /* the worst is the server's */
    double since;                          /* that something was computed */
    char why[sizeof ((mote_error *)0)->message];           /* of LOST */
} health;

static health health_of(server *s, const replica *r) {
    mote_seen seen = {0};
    health h = {HEALTH_OK, 0, ""};
    pthread_mutex_lock(&s->lock);          /* as long as it is held, the runner stays */
    (void)mote_runner_seen(r->runner, &seen, NULL);
    if (r->lost) snprintf(h.why, sizeof h.why, "%s", r->why);
    h.state = r->lost ? HEALTH_LOST : seen.busy && seen.since > STUCK_SECONDS ? HEALTH_STUCK : HEALTH_OK;
    pthread_mutex_unlock(&s->lock);
    h.since = seen.since;
    return h;
}

/* The server's: a replica that is lost leaves answers to the others, one that is stuck holds up those that it has. */
static health health_of_all(const health *of, int count) {
    health all = {HEALTH_OK, INFINITY, ""};
    for (int i = 0; i < count; i++) {
        if (of[i].state == HEALTH_STUCK) return of[i];
        if (of[i].state == HEALTH_LOST && all.state != HEALTH_LOST) snprintf(all.why, sizeof all.why, "%s", of[i].why);
        if (of[i].state == HEALTH_LOST) all.state = HEALTH_LOST;
        else if (of[i].since < all.since) all.since = of[i].since;
    }
    if (isinf(all.since)) all.since = of[0].since;         /* none is left */
    return all;
}

/* What is told, and its status. */
static int put_health(buf *out, const server *s, const health *of, const health *all) {
    static const char *const states[] = {"ok", "lost", "stuck"};
    putf(out, "{\"status\": \"%s\", \"step_age_seconds\": %.3f", all->state == HEALTH_LOST ? "degraded" : states[all->state], all->since);
    if (all->state == HEALTH_LOST) buf_text(out, ", \"reason\": "), put_text(out, all->why);
    for (int i = 0; i < s->replica_count && s->replica_count > 1; i++) {
        buf_text(out, i ? ", " : ", \"replicas\": [");
        const char *device = replica_device(&s->replicas[i]);
        putf(out, "{\"device\": \"%.*s\", \"status\": \"%s\", \"step_age_seconds\": %.3f}", (int)strcspn(device, " "), device, states[of[i].state],
             of[i].since);
    }
    buf_text(out, s->replica_count > 1 ? "]}" : "}");
    return all->state == HEALTH_STUCK ? 503 : 200;
}

static void serve_health(server *s, connection *c, const json *j) {
    health of[REPLICAS_MOST];
    buf out = {NULL, 0, 0, 0};
    (void)j;
    for (int i = 0; i < s->replica_count; i++) of[i] = health_of(s, &s->replicas[i]);
    const health all = health_of_all(of, s->replica_count);
    const int status = put_health(&out, s, of, &all);
    c->reported.status = status != 200 ? status : 0;
    if (c->reported.status) snprintf(c->reported.message, sizeof c->reported.message, "nothing has been computed for %.0f seconds", all.since);
    connection_reply(c, status, "application/json", out.data, out.failed ? 0 : out.size);
    buf_free(&out);
}
