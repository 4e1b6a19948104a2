/* cli/numbers.c: numbers as a person reads them, where several commands show them: amounts (chat, info, bench), and
   what speculation did (chat, bench). It reads a session's counters and changes nothing. */

/* Three significant digits: 1234567 "B" -> "1.23 MB". Decimal units, as bandwidths have them. */
static void human(double value, const char *unit, char out[32]) {
    static const char *const prefix[] = {"", "k", "M", "G", "T", "P"};
    int k = 0;
    while (value >= 999.5 && k < 5) value /= 1000, k++;
    snprintf(out, 32, "%.*f %s%s", k == 0 || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2, value, prefix[k], unit);
}

/* The counters of speculation since `before`. */
static mote_speculation speculation_since(const mote_session *session, const mote_speculation *before) {
    mote_speculation s = {0};
    mote_speculation_of(session, &s, NULL);
    for (int k = 0; k < MOTE_ROWS_MAX; k++) s.passes[k] -= before->passes[k];
    for (int k = 0; k < MOTE_ROWS_MAX - 1; k++) {
        s.drafted[k] -= before->drafted[k];
        s.accepted[k] -= before->accepted[k];
    }
    s.tokens -= before->tokens;
    return s;
}

static double tokens_per_pass(const mote_speculation *s) {
    return (double)s->tokens / (double)(s->passes[0] + s->passes[1] + s->passes[2] + s->passes[3]);
}

/* At most three lines. */
static void print_speculation(FILE *out, const mote_speculation *s) {
    static const char *const names[] = {"first", "second", "third"};
    int priced = 0;
    fprintf(out, " %.2f tokens per pass; drafts accepted:%s", tokens_per_pass(s), s->drafted[0] ? "" : " none");
    for (int k = 0; k < MOTE_ROWS_MAX - 1; k++)
        if (s->drafted[k])
            fprintf(out, "%s %s %.0f %%", k ? "," : "", names[k],
                    100.0 * (double)s->accepted[k] / (double)s->drafted[k]);
    fprintf(out, "; passes with 0, 1, 2, 3: %" PRIu64 ", %" PRIu64 ", %" PRIu64 ", %" PRIu64 "; now %d\n", s->passes[0],
            s->passes[1], s->passes[2], s->passes[3], s->depth);
    for (int k = 1; k < MOTE_ROWS_MAX; k++)
        if (s->cost[0] > 0 && s->cost[k] > 0)
            fprintf(out, "%s %.2f with %d (%.0f %% drafting)", priced++ ? "," : " cost of a pass, plain = 1:",
                    s->cost[k] / s->cost[0], k, 100 * s->draft[k] / s->cost[k]);
    fprintf(out, "%s depths of the last passes: %s\n", priced ? "\n" : "", s->recent);
}
