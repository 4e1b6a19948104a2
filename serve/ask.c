/* serve/ask.c: what the APIs have in common in what they ask for: sampling, ends, thinking, the shape of the answer. It fills
   in an answer, and knows nothing of how an API words its own answers. */

enum { STOP_MOST = 16, TOP_MOST = 20, IMAGES_MOST = 32 };

typedef struct request {                       /* a chat in the making */
    answer *a;
    fields q;
    buf noted;                             /* names of what is passed over, for the answer's head */
    const char *list;                      /* what the API calls its list of messages; NULL: messages */
    buf system, messages, tools;           /* inside a JSON text; JSON objects with commas between them */
    buf known;                             /* known_tool[]: see tools.c */
    int choice, is_strict;                 /* CHOICE_...; calls are to follow a schema */
    uint32_t chosen, allowed;              /* the tool to call; the only ones that may be called, a list; 0: not given */
    int thinks, preserves;                 /* MOTE_THINK_...; whether thoughts of earlier turns stay, as that */
    const char *effort;                    /* of thinking, which the template knows; NULL: its own */
    int has_turns;                         /* a message that is no system message was there */
    int last_answers, last_calls;          /* the last message is an answer of the past; it calls a tool */
    int continues, adds_prompt;            /* the last message is continued; else the answer's turn is opened */
    mote_image images[IMAGES_MOST];        /* their data is owned */
    char image_places[IMAGES_MOST][IMAGE_PLACE];            /* where they stand, as messages[2].content[1] */
    int image_count;
    size_t image_bytes, image_text;        /* of all of them, and of the texts in which they came */
} request;

/* ---- How to sample, and when to end ------------------------------------------------------------------------------- */

/* -1 is a random one, others below 0 are taken as their two's complement. */
static void ask_seed(mote_sampling *s, const fields *q) {
    uint32_t seed = field_of(q, "seed", JSON_NUMBER);
    double value;
    if (!seed || json_u64(q->j, seed, &s->seed)) return;
    const json_node *n = q->j->nodes + seed;
    char text[32], *end = text;
    snprintf(text, sizeof text, "%.*s", (int)(n->size < sizeof text ? n->size : 0), q->j->text + n->start);
    errno = 0;
    long long whole = strtoll(text, &end, 10);
    int is_whole = *text && !*end && !errno;
    if (!is_whole && node_whole(q->j, seed, -0x1p53, 0x1p53, &value)) whole = (long long)value, is_whole = 1;      /* 1e3 */
    if (!is_whole) refuse(q->f, 400, "seed", "seed must be a whole number of 64 bits");
    else if (whole != -1) s->seed = (uint64_t)whole;
}

static void ask_sampling(answer *a, const fields *q) {
    mote_sampling *s = &a->sampling;
    float top_p = -1;
    int top_k = INT_MIN, last = -1;
    mote_sampling_defaults(a->server->model, s);
    field_real(q, "temperature", 0, 100, &s->temperature);
    field_real(q, "top_p", 0, 1, &top_p);
    field_real(q, "min_p", 0, 1, &s->min_p);
    field_real(q, "repeat_penalty", 0.01, 10, &s->repetition_penalty);
    field_real(q, "repetition_penalty", 0.01, 10, &s->repetition_penalty);
    field_real(q, "presence_penalty", -2, 2, &s->presence_penalty);
    field_real(q, "frequency_penalty", -2, 2, &s->frequency_penalty);
    field_whole(q, "top_k", -1, INT_MAX, &top_k);
    field_whole(q, "repeat_last_n", -1, INT_MAX, &last);
    if (last >= 0 && s->repetition_penalty > 0 && s->repetition_penalty != 1)
        refuse(q->f, 400, "repeat_last_n", "repeat_last_n must be -1: repetition is that of the whole context");
    if (top_p >= 0) s->top_p = top_p > 0 ? top_p : 1e-6f;  /* 0 asks for the most probable token; of the library, for all */
    if (top_k != INT_MIN) s->top_k = top_k < 0 ? 0 : top_k;
    ask_seed(s, q);
}

/* {"50256": -100, ...} */
static void ask_bias(answer *a, const fields *q) {
    uint32_t list = field_of(q, "logit_bias", JSON_OBJECT), vocab = (uint32_t)mote_model_info(a->server->model)->vocab_size;
    for (uint32_t k = list + 1; list && k < node_next(q, list); k = node_next(q, k + 1)) {
        char *key = node_text(q->j, k), *end = key;
        unsigned long id = key && key[0] >= '0' && key[0] <= '9' ? strtoul(key, &end, 10) : ULONG_MAX;
        double value;
        if (!key || *end || id >= vocab || json_double(q->j, k + 1, &value) || !(fabs(value) <= 100))
            refuse(q->f, 400, "logit_bias", "logit_bias must map token ids to numbers from -100 to 100");
        else {
            mote_bias one = {(int32_t)id, (float)value};
            buf_add(&a->bias, &one, sizeof one);
        }
        free(key);
        if (q->f->status) return;
    }
}

static void ask_stop(answer *a, const fields *q, const char *name) {
    uint32_t list = field(q, name), first = list;
    uint32_t count = !list ? 0 : node_type(q, list) == JSON_ARRAY ? q->j->nodes[list].size : 1;
    size_t at = 0;
    if (list && node_type(q, list) == JSON_ARRAY) first = list + 1;
    if (count > STOP_MOST) refuse(q->f, 400, name, "%s holds more than %d texts", name, STOP_MOST);
    for (uint32_t i = 0, k = first; i < count && !q->f->status; i++, k = node_next(q, k)) {
        char *text = node_type(q, k) == JSON_STRING ? node_text(q->j, k) : NULL;
        if (!text) refuse(q->f, 400, name, "%s must be a text, or a list of texts", name);
        else if (*text) buf_add(&a->stop_texts, text, strlen(text) + 1);
        free(text);
    }
    while (!a->stop_texts.failed && at < a->stop_texts.size) {
        char *text = a->stop_texts.data + at;
        buf_add(&a->stops, &text, sizeof text);
        at += strlen(text) + 1;
    }
}

/* Of all APIs. q: what holds the fields; api: those that it may have; stop: what theirs is called. */
static void ask_common_in(request *x, const fields *q, int api, const char *stop) {
    answer *a = x->a;
    int caches = 1;
    check_fields(q, api, &x->noted);
    ask_sampling(a, q);
    field_flag(q, "cache_prompt", &caches);
    a->forgets = !caches;
    field_whole(q, "min_tokens", 0, INT_MAX, &a->min_tokens);
    field_flag(q, "ignore_eos", &a->ignores_end);
    if (a->ignores_end) a->min_tokens = 0;             /* there is no end to be masked */
    ask_bias(a, q);
    ask_stop(a, q, stop);
    if (a->stops.failed || a->stop_texts.failed || a->bias.failed || x->noted.failed) refuse(q->f, 503, NULL, "out of memory");
    a->top = -1;
}

static void ask_common(request *x, int api, const char *stop) {
    ask_common_in(x, &x->q, api, stop);
}

/* llama.cpp's name for the most tokens of an answer, where -1 is no limit. */
static void ask_predict(answer *a, const fields *q) {
    field_whole(q, "n_predict", -1, INT_MAX, &a->max_tokens);
}

/* Of OpenAI's two: n and best_of, and what is told besides. */
static void ask_openai(answer *a, const fields *q) {
    int n = 1, best = 1;
    field_whole(q, "n", 1, 128, &n);
    field_whole(q, "best_of", 1, 128, &best);
    if (n > 1) refuse(q->f, 400, "n", "n must be 1: one answer to a request");
    if (best > 1) refuse(q->f, 400, "best_of", "best_of must be 1: one answer to a request");
    field_flag(q, "return_progress", &a->gives_progress);
    field_flag(q, "timings_per_token", &a->gives_timings);
}

/* ---- How much to think ---------------------------------------------------------------------------------------------- */

static void ask_think(request *x, int thinks, const char *where) {
    int before = x->thinks;
    x->thinks = thinks ? MOTE_THINK_ON : MOTE_THINK_OFF;
    if (before && before != x->thinks) refuse(x->q.f, 400, where, "%s asks for thinking and something else for none, or the reverse", where);
}

static void ask_think_flag(request *x, const fields *in, const char *key) {
    int thinks = -1;
    field_flag(in, key, &thinks);
    if (thinks >= 0) ask_think(x, thinks, key);
}

/* The most tokens of thinking: 0 is none, -1 no limit. */
static void ask_budget(request *x, const fields *in, const char *key) {
    int budget = -2;
    field_whole(in, key, -1, INT_MAX, &budget);
    if (budget == 0) ask_think(x, 0, key);
    if (budget > 0) x->a->thinking_budget = budget;
}

typedef struct effort { const char *name; int budget; } effort;        /* budget: tokens; 0: no limit, -1: no thinking */

/* The effort that a field asks for; NULL: none, or it is refused. */
static const effort *effort_of(const fields *in, const char *key) {
    static const effort efforts[] = {
        {"none", -1}, {"minimal", 256}, {"low", 1024}, {"medium", 8192}, {"high", 0}, {"xhigh", 0}, {"max", 0}};
    uint32_t node = field_of(in, key, JSON_STRING);
    if (!node) return NULL;
    for (size_t i = 0; i < sizeof efforts / sizeof efforts[0]; i++)
        if (json_equals(in->j, node, efforts[i].name)) return &efforts[i];
    refuse(in->f, 400, key, "%s must be none, minimal, low, medium, high, xhigh or max", key);
    return NULL;
}

/* How hard to think: where the template knows efforts that is its to say, else it is a budget. */
static void ask_effort(request *x, const fields *in, const char *key) {
    const effort *e = effort_of(in, key);
    if (!e) return;
    ask_think(x, e->budget >= 0, key);
    if (x->a->server->has_efforts) x->effort = e->name;
    else if (e->budget > 0 && !x->a->thinking_budget) x->a->thinking_budget = e->budget;
}

/* The fields that all APIs for chats take, beside the words of their own. */
static void ask_thinking(request *x) {
    fields kwargs = {x->q.j, field_of(&x->q, "chat_template_kwargs", JSON_OBJECT), x->q.f};
    ask_budget(x, &x->q, "thinking_budget");
    ask_budget(x, &x->q, "thinking_token_budget");
    ask_budget(x, &x->q, "thinking_budget_tokens");
    ask_think_flag(x, &x->q, "enable_thinking");
    if (!kwargs.object) return;
    ask_think_flag(x, &kwargs, "enable_thinking");
    ask_think_flag(x, &kwargs, "thinking");                /* DeepSeek's word */
    ask_budget(x, &kwargs, "thinking_budget");
    int preserves = -1;
    field_flag(&kwargs, "preserve_thinking", &preserves);
    int clears = -1;
    field_flag(&kwargs, "clear_thinking", &clears);        /* GLM's word for the opposite */
    if (clears >= 0) preserves = !clears;
    if (preserves >= 0) x->preserves = preserves ? MOTE_THINK_ON : MOTE_THINK_OFF;
    ask_effort(x, &kwargs, "reasoning_effort");
}

/* ---- The shape of the answer --------------------------------------------------------------------------------------- */

/* Refuses what mote_generate would refuse. where: the field that asks for it. */
static void ask_check(request *x, const mote_generation *g, const char *where) {
    mote_error error = {0, ""};
    if (x->q.f->status || !mote_generation_check(x->a->server->model, g, &error)) return;
    if (error.code == MOTE_EINVAL) refuse(x->q.f, 400, where, "%s: %s", where, error.message);
    else refuse_error(x->q.f, &error);
}

/* An answer that is JSON by a schema; 0: any object. where: the field that asks for it. */
static void ask_schema(request *x, uint32_t schema, const char *where) {
    const fields *q = &x->q;
    buf text = {NULL, 0, 0, 0};
    if (q->f->status) return;
    if (schema) put_node(&text, q->j, schema);
    else buf_text(&text, "{\"type\": \"object\"}");
    buf_add(&text, "", 1);
    if (text.failed) refuse(q->f, 503, NULL, "out of memory");
    x->a->schema = text.data;
    if (x->a->ignores_end) refuse(q->f, 400, "ignore_eos", "ignore_eos cannot go with a schema, which says where the answer ends");
    mote_generation g = {.size = sizeof g};
    g.schema = x->a->schema;
    ask_check(x, &g, where);
}

/* The schema that response_format or its like asks for. format: {"type": ..., ...}; 0: nothing. */
static void ask_format(request *x, uint32_t format, const char *where) {
    const fields *q = &x->q;
    fields in = {q->j, format, q->f};
    uint32_t schema = 0;
    if (!format || field_is(&in, "type", "text")) return;
    const int any = field_is(&in, "type", "json_object");              /* any object, unless a schema stands beside it */
    if (any || field_is(&in, "type", "json_schema")) {
        fields inner = {q->j, field(&in, "json_schema"), q->f};        /* of chat completions; of responses it is flat */
        schema = field(inner.object ? &inner : &in, "schema");
        if (any && schema && node_type(q, schema) == JSON_OBJECT && !q->j->nodes[schema].size) schema = 0;
        if (!schema && !any) refuse(q->f, 400, where, "%s lacks a schema", where);
    } else {
        refuse(q->f, 400, where, "%s must be of type text, json_object or json_schema", where);
    }
    ask_schema(x, schema, where);
}
