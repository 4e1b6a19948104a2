/* text/chat_header.c: the header of a message that names its channel, as gpt-oss's (OpenAI's harmony). It knows words and marks, and
   nothing of who writes or reads them.

     <|start|>assistant<|channel|>analysis<|message|>...<|end|>
     <|start|>assistant to=functions.f<|channel|>commentary json<|message|>{"x": 1}<|call|>
     <|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x": 1}<|call|>
     <|start|>functions.f to=assistant<|channel|>commentary<|message|>"..."<|end|> */

enum { MARK_START, MARK_CHANNEL, MARK_CONSTRAIN, MARK_MESSAGE, MARK_END, MARK_CALL, MARK_RETURN, HEADER_MARKS };

/* Each is a token. */
static const char *const header_marks[HEADER_MARKS] = {
    "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"};

typedef struct chat_header { slice role, recipient, channel; } chat_header;  /* empty: not there */

/* The mark that s begins with; -1: none. */
static int header_mark(slice s) {
    for (int i = 0; i < HEADER_MARKS && s.n && *s.p == '<'; i++)
        if (slice_starts(s, header_marks[i])) return i;
    return -1;
}

/* Takes the next word from *s, or its next mark: *mark, -1 for a word. */
static slice header_word(slice *s, int *mark) {
    size_t n = 0;
    while (s->n && is_blank(*s->p)) *s = slice_from(*s, 1);
    *mark = header_mark(*s);
    if (*mark >= 0) n = strlen(header_marks[*mark]);
    else while (n < s->n && !is_blank(s->p[n]) && header_mark(slice_from(*s, n)) < 0) n++;
    const slice word = slice_of(s->p, n);
    *s = slice_from(*s, n);
    return word;
}

/* What a header says, up to <|message|>. The recipient stands before the channel or after it. */
static chat_header chat_header_of(slice s) {
    chat_header h;
    int mark, named = 0;
    memset(&h, 0, sizeof h);
    for (slice word = header_word(&s, &mark); word.n && mark != MARK_MESSAGE; word = header_word(&s, &mark)) {
        if (mark == MARK_CHANNEL) named = 1, h.channel = slice_of(NULL, 0);
        else if (mark >= 0) continue;
        else if (slice_starts(word, "to=")) h.recipient = slice_from(word, 3);
        else if (named && !h.channel.n) h.channel = word;
        else if (!named && !h.role.n) h.role = word;
    }
    return h;
}

/* What a recipient is a tool's, the name that it has among the application's; empty: nobody is called. */
static slice header_callee(const chat_header *h) {
    static const char functions[] = "functions.", *const others[] = {"assistant", "user", "all"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (slice_is(h->recipient, others[i])) return slice_of(NULL, 0);
    return slice_starts(h->recipient, functions) ? slice_from(h->recipient, sizeof functions - 1) : h->recipient;
}

/* 1: a header says no more than whose turn it is. */
static int header_is_bare(slice s) {
    int mark, words = 0;
    for (slice word = header_word(&s, &mark); word.n; word = header_word(&s, &mark))
        if (mark != MARK_START && (words++ || !slice_is(word, "assistant"))) return 0;
    return 1;
}

/* 1: a text cannot become a header: it is too long, or a word stands where a role, a recipient or a mark has to. */
static int header_is_broken(slice s) {
    enum { MOST = 448 };
    const int role = slice_starts(s, header_marks[MARK_START]);
    int mark, words = 0;
    if (s.n > MOST) return 1;
    for (slice word = header_word(&s, &mark); word.n && mark != MARK_CHANNEL; word = header_word(&s, &mark))
        if (mark < 0 && (words++ || !role) && memcmp(word.p, "to=", word.n < 3 ? word.n : 3)) return 1;
    return 0;
}
