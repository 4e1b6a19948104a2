/* generate/constraint.c: what an answer must be, token by token: of a JSON schema. It masks logits and follows the tokens that
   are chosen. It knows tokens and masks, and nothing of sessions or sampling.

   Thinking comes before the answer and is free, but it cannot end the answer. It is open when the prompt ends in it, or the
   answer may begin with it. */

typedef struct constraint {
    const mote_model *m;
    const vocabulary *words;
    schema *shape;               /* NULL: the answer is free */
    follower text;               /* of the answer */
    int32_t root;                /* node of the schema */
    unsigned char *allowed;      /* [vocabulary] */
    int thinking;                /* the answer has not begun */
    int begins;                  /* no token yet */
    int32_t think, end_think;    /* -1: no such token */
} constraint;

static void constraint_close(constraint *c) {
    if (c->shape) follower_close(&c->text);
    schema_free(c->shape);
    free(c->allowed);
    c->shape = NULL;
    c->allowed = NULL;
}

/* Gets all memory. To be closed in any case. */
static int constraint_open(constraint *c, const mote_model *m, const mote_generation *g, mote_error *err) {
    c->m = m;
    if (!g->schema) return MOTE_OK;
    if (g->verify) return fail(err, MOTE_EINVAL, "verify cannot be asked for with a schema");
    int code = need_text(m, err);
    if (!code) code = schema_open(&c->shape, g->schema, &c->root, err);
    if (code) return code;
    c->allowed = (unsigned char *)malloc((size_t)m->c.vocab);
    if (!follower_open(&c->text, c->shape) || !c->allowed) return fail_memory(err);
    c->words = model_vocabulary(m);
    c->think = tokenizer_find(m->text, "<think>");
    c->end_think = tokenizer_find(m->text, "</think>");
    return c->words ? MOTE_OK : fail_memory(err);
}

static int constraint_is_active(const constraint *c) {
    return c->shape != NULL;
}

/* Does the prompt of n ids end with the header of an answer, after which the model may open thinking itself? */
static int prompt_is_header(const mote_model *m, const int32_t *ids, int n) {
    const int32_t start = tokenizer_find(m->text, "<|im_start|>");
    int found = 0;
    for (int i = n > 4 ? n - 4 : 0; i < n && start >= 0; i++) found |= ids[i] == start;
    return found;
}

/* Before the first token. thinks: the prompt ends inside thinking. may_think: the model may open it. */
static void constraint_begin(constraint *c, int thinks, int may_think) {
    c->thinking = thinks;
    c->begins = may_think;
    follower_begin(&c->text, c->root, thinks ? 2 : 0);                  /* lines as templates have them after </think> */
}

/* Masks what must not come next in logits [n]. */
static void constraint_mask(constraint *c, float *logits, int n) {
    unsigned char *allowed = c->allowed;
    const int32_t *eos = (const int32_t *)(const void *)c->m->eos.data;
    int complete = !c->thinking && follower_is_complete(&c->text);
    memset(allowed, c->thinking, (size_t)n);
    if (!c->thinking) mask_words(&c->text, c->words, allowed);
    for (size_t i = 0; i < c->m->eos.size / sizeof *eos; i++)
        if (eos[i] < n) allowed[eos[i]] = (unsigned char)complete;
    if (c->begins && c->think >= 0 && c->think < n) allowed[c->think] = 1;
    for (int id = 0; id < n; id++)
        if (!allowed[id]) logits[id] = -INFINITY;
}

/* A token is part of the answer. */
static void constraint_follow(constraint *c, int32_t id) {
    size_t n = 0;
    const char *bytes = tokenizer_token(c->m->text, id, &n);
    if (c->begins && id == c->think) constraint_begin(c, 1, 0);
    else if (c->thinking && id == c->end_think) c->thinking = 0;
    else if (!c->thinking && !is_eos(c->m, id) && bytes) (void)follower_take(&c->text, bytes, n);
    c->begins = 0;
}
