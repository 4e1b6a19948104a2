/* generate/grammar/headers.c: what stands around a constrained answer of messages with headers (gpt-oss), token by token: thinking, which
   is a message of its own that may come before it, and the header of a message that follows a schema. The header of a call is part of
   the calls' grammar.

     <|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>{"x": 1}<|return|>
     opening                          resumes                  answer */

/* A text that comes token by token, and how many of them have come. */
typedef struct token_text {
    int32_t *ids;
    size_t count, at;
} token_text;

typedef struct message_headers {
    token_text opening, answer, resumes;
    int may_open;                /* thinking may be opened here, or is being opened */
    int32_t marks[HEADER_MARKS]; /* tokens */
} message_headers;

static int token_text_open(token_text *t, const mote_model *m, const char *text, mote_error *err) {
    const size_t size = strlen(text);
    t->ids = (int32_t *)malloc((size + 1) * sizeof *t->ids);            /* a token has a byte at least */
    return t->ids ? mote_tokenize(m, text, size, 1, t->ids, size, &t->count, err) : fail_memory(err);
}

/* The token that is to come next; -1: none, all have come. */
static int32_t token_text_next(const token_text *t) {
    return t->at < t->count ? t->ids[t->at] : -1;
}

static void headers_close(message_headers *h) {
    free(h->opening.ids);
    free(h->answer.ids);
    free(h->resumes.ids);
}

/* is_schema: the answer is a message of the channel final; else it is free, or a call. To be closed in any case. */
static int headers_open(message_headers *h, const mote_model *m, int is_schema, mote_error *err) {
    for (int i = 0; i < HEADER_MARKS; i++) {
        h->marks[i] = tokenizer_find(m->text, header_marks[i]);
        if (h->marks[i] < 0 && i != MARK_CONSTRAIN)
            return fail(err, MOTE_EUNSUPPORTED, "a constrained answer: the vocabulary has no %s", header_marks[i]);
    }
    int code = token_text_open(&h->opening, m, "<|channel|>analysis<|message|>", err);
    if (!code && is_schema) code = token_text_open(&h->answer, m, "<|channel|>final<|message|>", err);
    return code ? code : token_text_open(&h->resumes, m, "<|start|>assistant", err);
}

/* An answer begins, at the header of its first message, or inside of that. */
static void headers_begin(message_headers *h, int inside) {
    h->opening.at = 0;
    h->may_open = !inside;
    h->answer.at = inside ? h->answer.count : 0;
    h->resumes.at = h->resumes.count;
}

/* Marks what of headers may come next, of n tokens. 1: nothing else may. */
static int headers_allow(const message_headers *h, unsigned char *allowed, int n) {
    const int32_t opens = h->may_open ? token_text_next(&h->opening) : -1, answers = token_text_next(&h->answer);
    const int thinks = h->may_open && h->opening.at > 1;                /* "<|channel|>" may begin the answer as well */
    if (opens >= 0 && opens < n) allowed[opens] = 1;
    if (answers >= 0 && answers < n && !thinks) allowed[answers] = 1;
    return thinks || answers >= 0;
}

/* A token has come outside of thinking. bound: headers are where the constraint has them, else anywhere. 1: it has opened thinking. */
static int headers_follow(message_headers *h, int32_t id, int bound) {
    const int opens = (h->may_open || !bound) && id == token_text_next(&h->opening);
    if (id == token_text_next(&h->answer)) h->answer.at++;
    if (!opens) h->may_open = 0;
    h->opening.at = opens ? h->opening.at + 1 : !bound && id == *h->opening.ids;
    return h->opening.at == h->opening.count;
}
