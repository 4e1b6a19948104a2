/* generate/grammar/constraint.c: what an answer must be, token by token: JSON of a schema, a tool call, no more thinking than so many tokens.
   It masks logits and follows the tokens that are chosen. It knows tokens and masks, and nothing of sessions or sampling.

   Thinking comes before the answer and is free, but it cannot end the answer. It is open when the prompt ends in it, or the model may
   begin its answer with it. When it has its budget, it is closed by tokens that are forced, and the answer begins. */

typedef struct constraint {
    const mote_model *m;
    const struct vocabulary *vocabulary;
    schema *shape;               /* of the answer, or of its calls; NULL: it is free */
    follower text;
    int32_t root;                /* node of the answer; -1: the answer is calls */
    call_grammar calls;
    unsigned char *allowed;      /* [vocabulary] */
    int32_t think, end_think, call, end_call;              /* tokens, of calls the marks of call_forms; -1: there is none */
    int32_t tags[CALL_TAGS];     /* tokens of form_tags; -1: they are text, or of no use */
    int thinking;                /* the answer has not begun */
    int begins;                  /* no token yet, and it may open thinking */
    int budget, thought;         /* tokens of thinking: at most, 0: no limit; so far */
    int32_t *closing;            /* tokens that close thinking, closing_count of them; closed: so many are there */
    size_t closing_count, closed;
} constraint;

static void constraint_close(constraint *c) {
    if (c->shape) follower_close(&c->text);
    call_grammar_close(&c->calls);
    schema_free(c->shape);
    free(c->allowed);
    free(c->closing);
    memset(c, 0, sizeof *c);
}

/* The text that cuts thinking short, as Qwen's models know it. */
static int constraint_budget(constraint *c, int budget, mote_error *err) {
    static const char words[] = "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.";
    const char *const end = chat_marks_of_model(c->m->family)->think_end;
    const int lines = !(c->m->family & CHAT_ANSWER_TURNS), gemma = c->m->family & CHAT_GEMMA;       /* those that templates have there */
    char text[sizeof words + 32];
    if (budget < 0) return fail(err, MOTE_EINVAL, "thinking_budget must not be negative");
    if (!budget || c->end_think < 0) return MOTE_OK;
    c->budget = budget;
    const int size = snprintf(text, sizeof text, "%s%s%s%s", words, lines ? "\n" : "", end, lines && !gemma ? "\n\n" : "");
    c->closing = (int32_t *)malloc(sizeof text * sizeof *c->closing);  /* a token has a byte at least */
    if (!c->closing) return fail_memory(err);
    return mote_tokenize(c->m, text, (size_t)size, 1, c->closing, sizeof text, &c->closing_count, err);
}

/* How the models of a chat family write calls. */
static enum call_form call_form_of(int family) {
    if (family & CHAT_QWEN3) return FORM_JSON;
    if (family & CHAT_DEEPSEEK) return family & CHAT_QUIET ? FORM_MARKED : FORM_MARKED_BLOCK;
    if (family & (CHAT_GLM | CHAT_LAGUNA)) return family & CHAT_LINED ? FORM_KEY_LINES : FORM_KEYS;
    if (family & CHAT_LLAMA3 && family & CHAT_DATED) return FORM_BARE;
    if (family & CHAT_GEMMA) return FORM_PAIRS;
    return family & CHAT_NEMO ? FORM_LIST : family & CHAT_SMALL ? FORM_NAMED : FORM_TAGS;
}

/* The answer is one call, or several, of these tools. */
static int constraint_calls(constraint *c, const mote_generation *g, const json *tools, mote_error *err) {
    int code = need_chat(c->m, err);
    if (code) return code;
    if (!chat_has_tools(c->m->family)) return fail(err, MOTE_EUNSUPPORTED, "tool_choice: this model's template cannot call tools");
    if (g->schema) return fail(err, MOTE_EINVAL, "tool_choice: an answer that is a call cannot be of a schema, too");
    const enum call_form form = call_form_of(c->m->family);
    const char *const marks[] = {call_forms[form].opens, call_forms[form].closes};
    for (int i = 0; i < 2; i++) {
        int32_t *id = i ? &c->end_call : &c->call;
        if (!*marks[i]) continue;
        *id = tokenizer_find(c->m->text, marks[i]);
        if (*id < 0) return fail(err, MOTE_EUNSUPPORTED, "tool_choice: the vocabulary has no %s", marks[i]);
    }
    const char *const *tags = form_tags(form);
    for (int i = 0; i < CALL_TAGS; i++) {
        c->tags[i] = tags[i] ? tokenizer_find(c->m->text, tags[i]) : -1;
        if (form == FORM_PAIRS && tags[i] && c->tags[i] < 0) return fail(err, MOTE_EUNSUPPORTED, "tool_choice: the vocabulary has no %s", tags[i]);
    }
    c->shape = schema_new();
    if (!c->shape) return fail_memory(err);
    code = call_grammar_open(&c->calls, c->shape, tools, g->tool, form, c->tags, err);
    c->calls.one_call = g->one_call;
    return code;
}

/* Reads what the answer must be, and gets all memory for it. tools: without nodes: none. To be closed in any case. */
static int constraint_open(constraint *c, const mote_model *m, const mote_generation *g, const json *tools, mote_error *err) {
    int needs = g->schema || g->tool_choice || g->thinking_budget;
    memset(c, 0, sizeof *c);
    c->m = m;
    c->root = c->call = c->end_call = -1;
    for (int i = 0; i < CALL_TAGS; i++) c->tags[i] = -1;
    if (g->tool_choice < MOTE_TOOLS_AUTO || g->tool_choice > MOTE_TOOLS_REQUIRED)
        return fail(err, MOTE_EINVAL, "tool_choice must be MOTE_TOOLS_...");
    if (!needs) return MOTE_OK;
    if (g->verify) return fail(err, MOTE_EINVAL, "verify cannot be asked for beside schema, tool_choice or thinking_budget");
    int code = need_text(m, err);
    if (code) return code;
    c->think = tokenizer_find(m->text, chat_marks_of_model(m->family)->think);
    c->end_think = tokenizer_find(m->text, chat_marks_of_model(m->family)->think_end);
    code = constraint_budget(c, g->thinking_budget, err);
    if (!code && g->tool_choice) code = constraint_calls(c, g, tools, err);
    else if (!code && g->schema) code = schema_open(&c->shape, g->schema, &c->root, err);
    if (code) return code;
    c->vocabulary = model_vocabulary(m);
    c->allowed = (unsigned char *)malloc((size_t)tokenizer_vocab(m->text) + 1);
    if (c->shape && !follower_open(&c->text, c->shape)) return fail_memory(err);
    return c->vocabulary && c->allowed ? MOTE_OK : fail_memory(err);
}

static int constraint_is_active(const constraint *c) {
    return c->shape || c->budget;
}

/* Whether the prompt of n ids ends with the header of an answer, after which the model may open thinking itself. */
static int prompt_is_header(const mote_model *m, const int32_t *ids, int n) {
    const int32_t start = tokenizer_find(m->text, chat_marks_of_model(m->family)->turn);
    int found = 0;
    for (int i = n > 4 ? n - 4 : 0; i < n && start >= 0; i++) found |= ids[i] == start;
    if (m->family & CHAT_ANSWER_TURNS) found = n && ids[n - 1] == tokenizer_find(m->text, chat_marks_of(m->family)->turn);
    return found;
}

/* Before the first token. thinks: the prompt ends inside thinking. may_think: the model may open it. */
static void constraint_begin(constraint *c, int thinks, int may_think) {
    int lines = thinks ? 2 : 0;                             /* as templates have them after </think> */
    c->thinking = thinks;
    c->begins = may_think;
    if (c->shape && c->root >= 0) follower_begin(&c->text, c->root, lines);
    else if (c->shape) follower_begin_calls(&c->text, &c->calls, lines);
}

/* The token that must come next, to close thinking; -1: any. */
static int32_t constraint_forced(const constraint *c) {
    int due = c->closed ? c->closed < c->closing_count : c->budget && c->thinking && c->thought >= c->budget;
    return due ? c->closing[c->closed] : -1;
}

/* Marks what may come next, of n tokens. */
static void constraint_allow(constraint *c, int n) {
    unsigned char *allowed = c->allowed;
    const int32_t *eos = (const int32_t *)(const void *)c->m->eos.data;
    int complete = !c->thinking && follower_is_complete(&c->text);
    memset(allowed, c->thinking, (size_t)n);
    if (!c->thinking) mask_words(&c->text, c->vocabulary, allowed);
    for (size_t i = 0; i < c->m->eos.size / sizeof *eos; i++)
        if (eos[i] < n) allowed[eos[i]] = (unsigned char)complete;
    if (c->begins && c->think >= 0 && c->think < n) allowed[c->think] = 1;
    if (c->root >= 0 || c->thinking) return;
    if (c->call >= 0 && c->call < n) allowed[c->call] = (unsigned char)place_tag(&c->text, &c->text.now, &c->text.next, 1);
    for (int i = 0; i < CALL_TAGS; i++)
        if (c->tags[i] >= 0 && c->tags[i] < n) allowed[c->tags[i]] = (unsigned char)place_step(&c->text, &c->text.now, &c->text.next, TAG_BYTE + i);
    if (c->end_call >= 0 && c->end_call < n) allowed[c->end_call] = (unsigned char)place_tag(&c->text, &c->text.now, &c->text.next, 0);
}

/* Masks what must not come next in logits [n]. */
static void constraint_mask(constraint *c, float *logits, int n) {
    const int32_t forced = constraint_forced(c);
    if (forced < 0 && !c->shape) return;
    if (forced < 0) constraint_allow(c, n);
    for (int id = 0; id < n; id++)
        if (forced < 0 ? !c->allowed[id] : id != forced) logits[id] = -INFINITY;
    if (forced >= 0 && forced < n) logits[forced] = 0;      /* also against a bias */
}

/* A token is part of the answer. */
static void constraint_follow(constraint *c, int32_t id) {
    size_t n = 0;
    const char *bytes = tokenizer_token(c->m->text, id, &n);
    int opens = c->begins && id == c->think, thinks = c->thinking;
    char tag = 0;
    for (int i = 0; i < CALL_TAGS; i++)
        if (id == c->tags[i]) tag = (char)(TAG_BYTE + i);
    if (constraint_forced(c) == id) c->closed++;
    c->begins = 0;
    if (opens) constraint_begin(c, 1, 0);
    if (opens) return;
    c->thought += thinks;
    if (thinks) c->thinking = id != c->end_think;
    else if (c->shape && c->root < 0 && (id == c->call || id == c->end_call))
        (void)follower_tag(&c->text, id == c->call);
    else if (tag) (void)follower_take(&c->text, &tag, 1);
    else if (c->shape && !is_eos(c->m, id) && bytes) (void)follower_take(&c->text, bytes, n);
}
