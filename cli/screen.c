/* cli/screen.c: the callbacks that show an answer, and the generation that calls them with what the options ask for. It
   knows channels, pieces of text and ids, and nothing of sessions.

   The screen is what run and chat show an answer on: thinking and tool calls are dimmed on a terminal and left out
   elsewhere, so that a pipe gets the answer alone. */

typedef struct screen {
    int styled;                            /* a terminal: show all channels */
    int channel;
    char last;                             /* what was printed last: a line feed or, as ' ', anything else; 0 = nothing */
    int ids;                               /* print token ids instead */
    int answer_bytes;                      /* 0: no answer so far (it stops counting at 1) */
    double first;                          /* when the first token came, by clock_seconds */
    int tokens;                            /* so far */
    wrapper wrap;
    int thought;                           /* of these, after the last that was thinking */
    int counts;                            /* thinking is counted on standard error, as it is not shown */
} screen;

static void set_channel(screen *s, int channel) {
    if (s->channel == channel) return;
    wrap_flush(&s->wrap, stdout);
    if (s->channel != MOTE_ANSWER) fputs("\033[0m", stdout);
    if (s->last && s->last != '\n') putchar('\n');
    if (s->last) putchar('\n');
    if (channel != MOTE_ANSWER) fputs("\033[2m", stdout);
    memset(&s->wrap, 0, sizeof s->wrap);
    if (channel == MOTE_THINKING) wrap_text(&s->wrap, stdout, "thinking: ", 10);
    s->channel = channel;
    s->last = 0;
}

/* Says, once, for how long there has been thinking that is not shown. */
static void end_count(screen *s) {
    if (isatty(STDERR_FILENO)) fputs("\r\033[K", stderr);
    if (s->thought) fprintf(stderr, "mote: thought for %d tokens\n", s->thought);
    s->counts = s->thought = 0;
}

static int on_text(void *user, int channel, const char *text, size_t size) {
    screen *s = user;
    if (s->counts && channel == MOTE_THINKING && isatty(STDERR_FILENO))
        fprintf(stderr, "\r\033[Kthinking: %d tokens", s->tokens);
    else if (s->counts && s->tokens && channel == MOTE_ANSWER) end_count(s);
    if (channel == MOTE_THINKING) s->thought = s->tokens;
    if (s->ids || size == 0 || (channel != MOTE_ANSWER && !s->styled)) return 0;
    clear_progress();
    set_channel(s, channel);
    if (channel == MOTE_ANSWER) s->answer_bytes = 1;
    if (s->styled) wrap_text(&s->wrap, stdout, text, size);
    else show(stdout, text, size);
    fflush(stdout);
    s->last = text[size - 1] == '\n' ? '\n' : ' ';
    return ferror(stdout) != 0;
}

static int on_token(void *user, int32_t id) {
    screen *s = user;
    if (!s->tokens++) s->first = clock_seconds();
    if (!s->ids) return 0;
    printf("%s%" PRId32, s->last ? " " : "", id);
    fflush(stdout);
    s->last = ' ';
    return ferror(stdout) != 0;
}

static void end_screen(screen *s) {
    if (s->counts) end_count(s);
    clear_progress();
    wrap_flush(&s->wrap, stdout);
    if (s->channel != MOTE_ANSWER) fputs("\033[0m", stdout);
    if (s->last != '\n') putchar('\n');
    fflush(stdout);
}

static mote_generation generation_for(const options *o, const mote_sampling *sampling, screen *s) {
    mote_generation g;
    memset(&g, 0, sizeof g);
    g.size = sizeof g;
    g.sampling = sampling;
    g.max_tokens = o->max_tokens;
    g.stop = o->stop.text;
    g.stop_count = o->stop.count;
    g.system = o->system;
    g.think = o->think;
    g.effort = o->effort;
    g.raw = o->raw;
    g.verify = o->verify;
    g.on_text = on_text;
    g.on_token = on_token;
    g.user = s;
    return g;
}
