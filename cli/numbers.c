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
    for (int of = 0; of < MOTE_DRAFT_SOURCES; of++)
        for (int k = 0; k < MOTE_ROWS_MAX - 1; k++) {
            s.drafted[of][k] -= before->drafted[of][k];
            s.accepted[of][k] -= before->accepted[of][k];
        }
    s.tokens -= before->tokens;
    s.draft_seconds -= before->draft_seconds;
    s.pass_seconds -= before->pass_seconds;
    return s;
}

/* The same of a block drafter's. */
static mote_drafter_use drafter_since(const mote_session *session, const mote_drafter_use *before) {
    mote_drafter_use use = {0};
    mote_drafter_of(session, &use, NULL);
    use.passes -= before->passes;
    for (int k = 0; k < MOTE_ROWS_MAX - 1; k++) {
        use.drafted[k] -= before->drafted[k];
        use.accepted[k] -= before->accepted[k];
    }
    return use;
}

static double tokens_per_pass(const mote_speculation *s) {
    uint64_t passes = 0;
    for (int k = 0; k < MOTE_ROWS_MAX; k++) passes += s->passes[k];
    return (double)s->tokens / (double)passes;
}

/* "; of the MTP layer 80, 62 of 40 %": by place; nothing where there were none. */
static void print_accepted(FILE *out, const char *of, const uint64_t *drafted, const uint64_t *accepted) {
    for (int k = 0; k < MOTE_ROWS_MAX - 1 && drafted[k]; k++)
        fprintf(out, "%s %.0f %%", k ? "," : of, 100.0 * (double)accepted[k] / (double)drafted[k]);
}

/* At most three lines. seconds: of the answers; 0: unknown. */
static void print_speculation(FILE *out, const mote_speculation *s, const mote_drafter_use *blocks, double seconds) {
    const int models = s->drafted[MOTE_DRAFT_MTP][0] || blocks->drafted[0], none = !models && !s->drafted[MOTE_DRAFT_COPY][0];
    int priced = 0;
    fprintf(out, " %.2f tokens per pass; drafts accepted, by place:%s", tokens_per_pass(s), none ? " none" : "");
    print_accepted(out, " MTP", s->drafted[MOTE_DRAFT_MTP], s->accepted[MOTE_DRAFT_MTP]);
    print_accepted(out, s->drafted[MOTE_DRAFT_MTP][0] ? "; drafter" : " drafter", blocks->drafted, blocks->accepted);
    print_accepted(out, models ? "; copies" : " copies", s->drafted[MOTE_DRAFT_COPY], s->accepted[MOTE_DRAFT_COPY]);
    fprintf(out, "; passes with 0 to %d:", MOTE_ROWS_MAX - 1);
    for (int k = 0; k < MOTE_ROWS_MAX; k++) fprintf(out, "%s %" PRIu64, k ? "," : "", s->passes[k]);
    if (seconds > 0)
        fprintf(out, "; time: %.0f %% drafting, %.0f %% passes", 100 * s->draft_seconds / seconds, 100 * s->pass_seconds / seconds);
    fputc('\n', out);
    for (int k = 1; k < MOTE_ROWS_MAX; k++)
        if (s->cost[0] > 0 && s->cost[k] > 0)
            fprintf(out, "%s %.2f with %d", priced++ ? "," : " cost of a pass, plain = 1:", s->cost[k] / s->cost[0], k);
    if (s->cost[0] > 0 && s->draft > 0)
        fprintf(out, "%s %.2f a draft", priced++ ? "," : " cost of a pass, plain = 1:", s->draft / s->cost[0]);
    if (s->cost[0] > 0 && blocks->cost > 0)
        fprintf(out, "%s %.2f a block of drafts", priced++ ? "," : " cost of a pass, plain = 1:", blocks->cost / s->cost[0]);
    fprintf(out, "%s drafts of the last passes: %s\n", priced ? "\n" : "", s->recent);
}
