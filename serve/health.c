/* serve/health.c: GET /health: whether answers get on. It asks nothing that waits for what is computed. */

enum { STUCK_SECONDS = 120 };              /* a pass or a block of a prompt that takes so long will not end */

/* What is told, and its status. */
static int put_health(buf *out, const mote_seen *seen) {
    const int is_stuck = seen->busy && seen->since > STUCK_SECONDS;
    putf(out, "{\"status\": \"%s\", \"step_age_seconds\": %.3f}", is_stuck ? "stuck" : "ok", seen->since);
    return is_stuck ? 503 : 200;
}

static void serve_health(server *s, connection *c, const json *j) {
    mote_seen seen = {0};
    buf out = {NULL, 0, 0, 0};
    (void)j;
    (void)mote_runner_seen(s->runner, &seen, NULL);
    const int status = put_health(&out, &seen);
    c->reported.status = status != 200 ? status : 0;
    if (c->reported.status) snprintf(c->reported.message, sizeof c->reported.message, "nothing has been computed for %.0f seconds", seen.since);
    connection_reply(c, status, "application/json", out.data, out.failed ? 0 : out.size);
    buf_free(&out);
}
