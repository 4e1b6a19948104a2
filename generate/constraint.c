/* generate/constraint.c: what an answer must be, token by token: of a JSON schema. It masks logits and follows the tokens that
   are chosen. It knows tokens and masks, and nothing of sessions or sampling.

   Thinking comes before the answer and is free, but it cannot end the answer. It is open when the prompt ends in it, or the
   answer may begin with it. */

typedef struct constraint {
    const mote_model *m;
    const vocabulary *words;
    shape *schema;               /* NULL: the answer is free */
    int thinking;                /* the answer has not begun */
    int begins;                  /* no token yet */
    int32_t think, end_think;    /* -1: no such token */
} constraint;

static void constraint_close(constraint *c) {
    shape_free(c->schema);
    c->schema = NULL;
}

/* Gets all memory. To be closed in any case. */
static int constraint_open(constraint *c, const mote_model *m, const mote_generation *g, mote_error *err) {
    c->m = m;
    if (!g->schema) return MOTE_OK;
    if (g->verify) return fail(err, MOTE_EINVAL, "verify cannot be asked for with a schema");
    int code = need_text(m, err);
    if (!code) code = shape_open(&c->schema, g->schema, m->c.vocab, err);
    if (code) return code;
    c->words = model_vocabulary(m);
    c->think = tokenizer_find(m->text, "<think>");
    c->end_think = tokenizer_find(m->text, "</think>");
    return c->words ? MOTE_OK : fail_memory(err);
}

static int constraint_is_active(const constraint *c) {
    return c->schema != NULL;
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
    if (c->schema) c->schema->first_lines = thinks ? 2 : 0;            /* as templates have them after </think> */
}

/* Masks what must not come next in logits [n]. */
static void constraint_mask(const constraint *c, float *logits, int n) {
    unsigned char *allowed = c->schema->allowed;
    int complete = !c->thinking && shape_is_complete(c->schema);
    if (c->thinking) memset(allowed, 1, (size_t)n);
    else shape_mask(c->schema, c->words, n);
    const int32_t *ends = (const int32_t *)(const void *)c->m->eos.data;
    for (size_t i = 0; i < c->m->eos.size / sizeof *ends; i++)
        if (ends[i] < n) allowed[ends[i]] = (unsigned char)complete;
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
    else if (!c->thinking && !is_eos(c->m, id) && bytes) shape_follow(c->schema, bytes, n);
    c->begins = 0;
}
