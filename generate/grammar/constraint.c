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
    int32_t opening[16];         /* tokens that follow the one which opens thinking, where that names what it opens; opened: so many are there */
    size_t opening_count, opened;
    int32_t ends_thinking;       /* what must not come in thinking, as it would end it; -1: there is none */
    int headed;                  /* an answer of messages with headers: */
    message_headers headers;
} constraint;

static void constraint_close(constraint *c) {
    if (c->shape) follower_close(&c->text);
    call_grammar_close(&c->calls);
    schema_free(c->shape);
    free(c->allowed);
    free(c->closing);
    headers_close(&c->headers);
    memset(c, 0, sizeof *c);
}

/* The text that cuts thinking short, as Qwen's models know it. */
static int constraint_budget(constraint *c, int budget, mote_error *err) {
    static const char words[] = "\n\nConsidering the limited time by the user, I have to give the solution based on the thinking directly now.";
    const char *const end = c->headed ? header_marks[MARK_END] : chat_marks_of_model(c->m->family)->think_end;
    const int lines = !(c->m->family & CHAT_ANSWER_TURNS) && !c->headed, gemma = c->m->family & CHAT_GEMMA;       /* those that templates have there */
    char text[sizeof words + 32];
    if (budget < 0) return fail(err, MOTE_EINVAL, "thinking_budget must not be negative");
    if (!budget || c->end_think < 0) return MOTE_OK;
    c->budget = budget;
    const int size = snprintf(text, sizeof text, "%s%s%s%s", words, lines ? "\n" : "", end, lines && !gemma ? "\n\n" : "");
    c->closing = (int32_t *)malloc(sizeof text * sizeof *c->closing);  /* a token has a byte at least */
    if (!c->closing) return fail_memory(err);
    return mote_tokenize(c->m, text, (size_t)size, 1, c->closing, sizeof text, &c->closing_count, err);
}

/* Gemma's thinking is a channel of that name; another, or a call inside, would be told as something else. */
static int constraint_channel(constraint *c, mote_error *err) {
    static const char name[] = "thought\n";
    c->ends_thinking = -1;
    if (!(c->m->family & CHAT_GEMMA)) return MOTE_OK;
    c->opened = sizeof c->opening / sizeof *c->opening;
    c->ends_thinking = tokenizer_find(c->m->text, chat_marks_of_model(c->m->family)->call);
    return mote_tokenize(c->m, name, sizeof name - 1, 0, c->opening, c->opened, &c->opening_count, err);
}

/* How the models of a chat family write calls. */
static enum call_form call_form_of(int family) {
    if (family & CHAT_QWEN3) return FORM_JSON;
    if (family & CHAT_DEEPSEEK) return family & CHAT_QUIET ? FORM_MARKED : FORM_MARKED_BLOCK;
    if (family & (CHAT_GLM | CHAT_LAGUNA)) return family & CHAT_LINED ? FORM_KEY_LINES : FORM_KEYS;
    if (family & CHAT_LLAMA3 && family & CHAT_DATED) return FORM_BARE;
    if (family & CHAT_GEMMA) return FORM_PAIRS;
    if (family & CHAT_HARMONY) return FORM_HEADED;
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
    c->headed = m->family & CHAT_HARMONY && !g->raw;
    if (c->headed) code = headers_open(&c->headers, m, g->schema != NULL, err);
    if (c->headed && !code) c->end_think = c->headers.marks[MARK_END];
    if (!code) code = constraint_budget(c, g->thinking_budget, err);
    if (!code) code = constraint_channel(c, err);
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

/* The same in Gemma 4's template: after a role's name, which is no control token, or after results. */
static int gemma_is_header(const mote_model *m, const int32_t *ids, int n) {
    const chat_marks *marks = chat_marks_of(m->family);
    int words = 0;
    while (words < n && words < 8 && !tokenizer_is_added(m->text, ids[n - 1 - words])) words++;
    const int32_t last = words < n ? ids[n - 1 - words] : -1;
    return last >= 0 && ((words && last == tokenizer_find(m->text, marks->turn)) || (!words && last == tokenizer_find(m->text, marks->result_end)));
}

/* Whether the prompt of n ids ends with the header of an answer, after which the model may open thinking itself. */
static int prompt_is_header(const mote_model *m, const int32_t *ids, int n) {
    const int32_t start = tokenizer_find(m->text, chat_marks_of_model(m->family)->turn);
    int found = 0;
    for (int i = n > 4 ? n - 4 : 0; i < n && start >= 0; i++) found |= ids[i] == start;
    if (m->family & CHAT_GEMMA) return gemma_is_header(m, ids, n);
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

/* The same of messages with headers, where `place` of chat_channels.c says in them. */
static void constraint_begin_headed(constraint *c, int place, int thinks) {
    headers_begin(&c->headers, place == IN_BODY);
    c->headers.may_open &= !c->budget || c->thought < c->budget;
    if (place == BETWEEN_MESSAGES && c->shape) c->headers.resumes.at = 0;
    constraint_begin(c, thinks, 0);
}

/* The token that must come next, to open thinking or to close it; -1: any. */
static int32_t constraint_forced(const constraint *c) {
    if (c->opened < c->opening_count) return c->opening[c->opened];
    if (c->headed && token_text_next(&c->headers.resumes) >= 0) return token_text_next(&c->headers.resumes);
    int due = c->closed ? c->closed < c->closing_count : c->budget && c->thinking && c->thought >= c->budget;
    return due ? c->closing[c->closed] : -1;
}

/* Marks which ends and which marks of headers may come, of n tokens. complete: the answer is. */
static void constraint_allow_marks(constraint *c, int n, int complete) {
    const int32_t *eos = (const int32_t *)(const void *)c->m->eos.data, call = c->headed ? c->headers.marks[MARK_CALL] : -1;
    for (size_t i = 0; i < c->m->eos.size / sizeof *eos; i++)
        if (eos[i] < n) c->allowed[eos[i]] = (unsigned char)(complete && (eos[i] == call ? c->root < 0 : !c->headed || c->root >= 0));
    for (int i = 0; c->headed && i < HEADER_MARKS; i++) {
        const int32_t mark = c->headers.marks[i];
        if (mark >= 0 && mark < n && mark != c->end_think && !is_eos(c->m, mark)) c->allowed[mark] = 0;
    }
}

/* Marks what may come next, of n tokens. */
static void constraint_allow(constraint *c, int n) {
    unsigned char *allowed = c->allowed;
    const int complete = !c->thinking && follower_is_complete(&c->text);
    memset(allowed, c->thinking, (size_t)n);
    if (c->ends_thinking >= 0 && c->ends_thinking < n) allowed[c->ends_thinking] = 0;
    if (c->headed && !c->thinking && headers_allow(&c->headers, allowed, n)) return;
    if (!c->thinking) mask_words(&c->text, c->vocabulary, allowed);
    constraint_allow_marks(c, n, complete);
    if (c->begins && c->think >= 0 && c->think < n) allowed[c->think] = 1;
    if (c->headed && !c->thinking) (void)headers_allow(&c->headers, allowed, n);
    if (c->root >= 0 || c->thinking) return;
    if (c->call >= 0 && c->call < n) allowed[c->call] = (unsigned char)place_tag(&c->text, &c->text.now, &c->text.next, 1);
    for (int i = 0; i < CALL_TAGS; i++)
        if (c->tags[i] >= 0 && c->tags[i] < n) allowed[c->tags[i]] = (unsigned char)place_step(&c->text, &c->text.now, &c->text.next, TAG_BYTE + i);
    if (c->end_call >= 0 && c->end_call < n) allowed[c->end_call] = (unsigned char)place_tag(&c->text, &c->text.now, &c->text.next, 0);
}

/* Masks what must not come next in logits [n]. */
static void constraint_mask(constraint *c, float *logits, int n) {
    const int32_t forced = constraint_forced(c);
    const token_text *opening = &c->headers.opening;
    if (c->headed && opening->at == 1 && c->budget && c->thought >= c->budget) logits[opening->ids[1]] = -INFINITY;     /* no more of it */
    if (forced < 0 && !c->shape) return;
    if (forced < 0) constraint_allow(c, n);
    for (int id = 0; id < n; id++)
        if (forced < 0 ? !c->allowed[id] : id != forced) logits[id] = -INFINITY;
    if (forced >= 0 && forced < n) logits[forced] = 0;      /* also against a bias */
}

/* A token of messages with headers. 1: it is none of the answer itself. */
static int constraint_follow_headers(constraint *c, int32_t id) {
    message_headers *h = &c->headers;
    const int in_header = token_text_next(&h->answer) >= 0;
    if (id == token_text_next(&h->resumes)) {
        if (++h->resumes.at == h->resumes.count) constraint_begin_headed(c, IN_HEADER, 0);
        return 1;
    }
    if (c->thinking) {
        c->thought++;
        c->thinking = id != c->end_think;
        if (!c->thinking && c->closed == c->closing_count) c->closed = 0;
        if (!c->thinking && (c->shape || c->budget)) h->resumes.at = 0;
        return 1;
    }
    if (headers_follow(h, id, c->shape != NULL)) constraint_begin(c, 1, 0), headers_begin(h, 0);
    return c->thinking || in_header || h->opening.at > 1;
}

/* A token is part of the answer. */
static void constraint_follow(constraint *c, int32_t id) {
    size_t n = 0;
    const char *bytes = tokenizer_token(c->m->text, id, &n);
    int opens = c->begins && id == c->think, thinks = c->thinking;
    char tag = 0;
    for (int i = 0; i < CALL_TAGS; i++)
        if (id == c->tags[i]) tag = (char)(TAG_BYTE + i);
    if (c->opened < c->opening_count) c->opened++;
    else if (constraint_forced(c) == id && !(c->headed && token_text_next(&c->headers.resumes) >= 0)) c->closed++;
    if (c->headed && constraint_follow_headers(c, id)) return;
    c->begins = 0;
    if (opens) constraint_begin(c, 1, 0);
    if (opens) c->opened = 0;
    if (opens) return;
    c->thought += thinks;
    if (thinks) c->thinking = id != c->end_think && id != c->ends_thinking;
    else if (c->shape && c->root < 0 && (id == c->call || id == c->end_call))
        (void)follower_tag(&c->text, id == c->call);
    else if (tag) (void)follower_take(&c->text, &tag, 1);
    else if (c->shape && !is_eos(c->m, id) && bytes) (void)follower_take(&c->text, bytes, n);
}
