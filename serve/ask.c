// serve/ask.c: what the APIs have in common in what they ask for: sampling, ends, tools, the shape of the answer; and the
// prompt: messages as the chat template takes them. It fills in an answer, and knows nothing of how an API words its own
// answers.

enum { STOP_MOST = 16, TOP_MOST = 20, CALLS_MOST = 128 };

// ---- How to sample, and when to end ----------------------------------------------------------------------------------

static void ask_sampling(answer *a, const fields *q) {
    mote_sampling *s = &a->sampling;
    float top_p = -1;
    int top_k = INT_MIN;
    mote_sampling_defaults(a->server->model, s);
    field_real(q, "temperature", 0, 100, &s->temperature);
    field_real(q, "top_p", 0, 1, &top_p);
    field_real(q, "min_p", 0, 1, &s->min_p);
    field_real(q, "repetition_penalty", 0.01, 10, &s->repetition_penalty);
    field_real(q, "presence_penalty", -2, 2, &s->presence_penalty);
    field_real(q, "frequency_penalty", -2, 2, &s->frequency_penalty);
    field_whole(q, "top_k", -1, INT_MAX, &top_k);
    if (top_p >= 0) s->top_p = top_p > 0 ? top_p : 1e-6f;  // 0 asks for the most probable token; of the library, for all
    if (top_k != INT_MIN) s->top_k = top_k < 0 ? 0 : top_k;
    uint32_t seed = field_of(q, "seed", JSON_NUMBER);
    double value;
    if (seed && !json_u64(q->j, seed, &s->seed)) {
        if (!node_whole(q->j, seed, -9.3e18, 0, &value)) refuse(q->f, 400, "seed", "seed must be a whole number");
        else s->seed = (uint64_t)(int64_t)value;
    }
}

// {"50256": -100, ...}
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

// Of all APIs. stop: what theirs is called.
static void ask_common(answer *a, const fields *q, const char *stop) {
    int caches = 1;
    ask_sampling(a, q);
    field_flag(q, "cache_prompt", &caches);
    field_flag(q, "return_token_ids", &a->gives_ids);
    a->forgets = !caches;
    field_whole(q, "min_tokens", 0, INT_MAX, &a->min_tokens);
    field_flag(q, "ignore_eos", &a->ignores_end);
    if (a->ignores_end) a->min_tokens = 0;             // there is no end to be masked
    ask_bias(a, q);
    ask_stop(a, q, stop);
    if (a->stops.failed || a->stop_texts.failed || a->bias.failed) refuse(q->f, 503, NULL, "out of memory");
    a->top = -1;
}

// ---- Messages as the template takes them ------------------------------------------------------------------------------

typedef struct request {                       // a chat in the making
    answer *a;
    fields q;
    buf system, messages, tools;           // inside a JSON text; JSON objects with commas between them
    int thinks;                            // MOTE_THINK_...
    int has_turns;                         // a message that is no system message was there
} request;

static void ask_close(request *x) {
    buf_free(&x->system);
    buf_free(&x->messages);
    buf_free(&x->tools);
}

static void put_next(buf *list) {
    if (list->size) buf_text(list, ", ");
}

// The escaped text of a string node, behind what is there.
static void put_inside(buf *out, const json *j, uint32_t node) {
    buf_add(out, j->text + j->nodes[node].start, j->nodes[node].size);
}

// A content, a text or a list of parts, into the inside of a JSON text. where: for messages.
static void put_content(request *x, buf *out, uint32_t content, const char *where) {
    const fields *q = &x->q;
    if (!content || node_type(q, content) == JSON_NULL) return;
    if (node_type(q, content) == JSON_STRING) {
        put_inside(out, q->j, content);
        return;
    }
    if (node_type(q, content) != JSON_ARRAY) refuse(q->f, 400, where, "%s must be a text or a list of parts", where);
    for (uint32_t k = content + 1; !q->f->status && k < node_next(q, content); k = node_next(q, k)) {
        fields part = {q->j, k, q->f};
        uint32_t type = field(&part, "type"), text = field(&part, "text");
        char *name = type ? node_text(q->j, type) : NULL;
        int is_text = name && (!strcmp(name, "text") || !strcmp(name, "input_text") || !strcmp(name, "output_text"));
        if (is_text && text && node_type(q, text) == JSON_STRING) put_inside(out, q->j, text);
        else if (name && !strcmp(name, "refusal")) (void)0;
        else refuse(q->f, 400, where, "%s holds a part of type \"%.40s\": mote takes text alone", where, name ? name : "");
        free(name);
    }
}

// A system message: those at the beginning become one.
static void ask_system(request *x, uint32_t content, const char *where) {
    if (x->has_turns) put_next(&x->messages), buf_text(&x->messages, "{\"role\": \"system\", \"content\": \"");
    else if (x->system.size) buf_text(&x->system, "\\n\\n");
    put_content(x, x->has_turns ? &x->messages : &x->system, content, where);
    if (x->has_turns) buf_text(&x->messages, "\"}");
}

static void ask_message(request *x, const char *role, uint32_t content, const char *where) {
    x->has_turns = 1;
    put_next(&x->messages);
    putf(&x->messages, "{\"role\": \"%s\", \"content\": \"", role);
    put_content(x, &x->messages, content, where);
    buf_text(&x->messages, "\"}");
}

// One call of an answer. arguments: an object, or its JSON as a text, which may be empty.
static void ask_call(request *x, buf *out, uint32_t name, uint32_t arguments, const char *where) {
    const fields *q = &x->q;
    if (!name || node_type(q, name) != JSON_STRING) {
        refuse(q->f, 400, where, "%s holds a call without a name", where);
        return;
    }
    put_next(out);
    buf_text(out, "{\"type\": \"function\", \"function\": {\"name\": ");
    put_node(out, q->j, name);
    buf_text(out, ", \"arguments\": ");
    if (arguments && node_type(q, arguments) == JSON_STRING) {
        char *text = node_text(q->j, arguments);
        json inner;
        memset(&inner, 0, sizeof inner);
        if (text && !text[strspn(text, " \n\t")]) buf_text(out, "{}");
        else if (!text || json_parse(&inner, text, strlen(text), "arguments", NULL) || inner.nodes[0].type != JSON_OBJECT)
            refuse(q->f, 400, where, "%s holds a call whose arguments are no JSON object", where);
        else put_node(out, &inner, 0);
        json_free(&inner);
        free(text);
    } else if (arguments && node_type(q, arguments) == JSON_OBJECT) {
        put_node(out, q->j, arguments);
    } else if (arguments) {
        refuse(q->f, 400, where, "%s holds a call whose arguments are no JSON object", where);
    } else {
        buf_text(out, "{}");
    }
    buf_text(out, "}}");
}

// An answer of the past: the insides of JSON texts, and calls with commas between them.
static void ask_assistant(request *x, const buf *text, const buf *thought, const buf *calls) {
    buf *out = &x->messages;
    x->has_turns = 1;
    put_next(out);
    buf_text(out, "{\"role\": \"assistant\", \"content\": \"");
    buf_add(out, text->data, text->size);
    buf_text(out, "\"");
    if (thought->size) {
        buf_text(out, ", \"reasoning_content\": \"");
        buf_add(out, thought->data, thought->size);
        buf_text(out, "\"");
    }
    if (calls->size) {
        buf_text(out, ", \"tool_calls\": [");
        buf_add(out, calls->data, calls->size);
        buf_text(out, "]");
    }
    buf_text(out, "}");
    out->failed |= text->failed | thought->failed | calls->failed;
}

// A function that may be called; schema 0: it takes nothing.
static void ask_tool(request *x, uint32_t name, uint32_t description, uint32_t schema) {
    const fields *q = &x->q;
    if (!name || node_type(q, name) != JSON_STRING) {
        refuse(q->f, 400, "tools", "a tool without a name");
        return;
    }
    put_next(&x->tools);
    buf_text(&x->tools, "{\"type\": \"function\", \"function\": {\"name\": ");
    put_node(&x->tools, q->j, name);
    if (description) buf_text(&x->tools, ", \"description\": "), put_node(&x->tools, q->j, description);
    buf_text(&x->tools, ", \"parameters\": ");
    if (schema) put_node(&x->tools, q->j, schema);
    else buf_text(&x->tools, "{\"type\": \"object\", \"properties\": {}}");
    buf_text(&x->tools, "}}");
}

static int32_t *token_list(const mote_model *model, const char *text, size_t size, size_t *count, mote_error *error) {
    int32_t *ids = NULL;
    *count = 0;
    for (size_t need = size / 2 + 64;; need = *count) {
        int32_t *more = (int32_t *)realloc(ids, need * sizeof *ids);
        if (more) ids = more;
        else error->code = MOTE_ENOMEM;
        if (more && !mote_tokenize(model, text, size, 1, ids, need, count, error)) return ids;
        if (!more || error->code != MOTE_EINVAL || *count <= need) break;
    }
    free(ids);
    return NULL;
}

// The answer must begin with a call; name: of this function; 0: of any. `begins`: how calls begin in the model's template.
static void ask_forced(request *x, uint32_t name) {
    answer *a = x->a;
    mote_error error = {0, ""};
    buf text = {NULL, 0, 0, 0};
    const char *family = mote_model_info(a->server->model)->chat_template;
    int tags = family && !strcmp(family, "Qwen3.5");
    char *called = name ? node_text(x->q.j, name) : NULL;
    putf(&text, "<tool_call>\n%s", tags ? "<function=" : "{\"name\": \"");
    if (called) buf_text(&text, called);
    if (called) buf_text(&text, tags ? ">\n" : "\", \"arguments\": ");
    free(called);
    if (text.failed) refuse(x->q.f, 503, NULL, "out of memory");
    else a->forced = token_list(a->server->model, text.data, text.size, &a->forced_count, &error);
    if (!a->forced) refuse_error(x->q.f, &error);
    buf_free(&text);
    x->thinks = MOTE_THINK_OFF;
}

// What response_format or its like asks for. format: {"type": ..., ...}; 0: nothing.
static void ask_format(request *x, uint32_t format, const char *where) {
    const fields *q = &x->q;
    fields in = {q->j, format, q->f};
    uint32_t schema = 0;
    if (!format || field_is(&in, "type", "text")) return;
    if (field_is(&in, "type", "json_schema")) {
        fields inner = {q->j, field(&in, "json_schema"), q->f};        // of chat completions; of responses it is flat
        schema = field(inner.object ? &inner : &in, "schema");
        if (!schema) refuse(q->f, 400, where, "%s lacks a schema", where);
    } else if (!field_is(&in, "type", "json_object")) {
        refuse(q->f, 400, where, "%s must be of type text, json_object or json_schema", where);
    }
    buf text = {NULL, 0, 0, 0};
    if (q->f->status) return;
    if (schema) put_node(&text, q->j, schema);
    else buf_text(&text, "{\"type\": \"object\"}");
    buf_add(&text, "", 1);
    if (text.failed) refuse(q->f, 503, NULL, "out of memory");
    x->a->schema = text.data;
    mote_generation g = {0};
    mote_error error;
    g.schema = x->a->schema;
    if (!q->f->status && mote_generation_check(x->a->server->model, &g, &error))
        refuse(q->f, error.code == MOTE_EINVAL ? 400 : 503, error.code == MOTE_EINVAL ? where : NULL, "%s", error.message);
}

// The prompt's tokens, of all that was put together.
static void ask_render(request *x) {
    answer *a = x->a;
    mote_error error = {0, ""};
    buf text = {NULL, 0, 0, 0};
    if (x->q.f->status) return;
    buf_text(&text, "{\"messages\": [");
    if (x->system.size) {
        buf_text(&text, "{\"role\": \"system\", \"content\": \"");
        buf_add(&text, x->system.data, x->system.size);
        buf_text(&text, x->messages.size ? "\"}, " : "\"}");
    }
    buf_add(&text, x->messages.data, x->messages.size);
    buf_text(&text, "]");
    if (x->tools.size) {
        buf_text(&text, ", \"tools\": [");
        buf_add(&text, x->tools.data, x->tools.size);
        buf_text(&text, "]");
        buf_text(&x->tools, "]");
        buf_add(&x->tools, "", 1);
    }
    if (x->thinks) putf(&text, ", \"enable_thinking\": %s", x->thinks == MOTE_THINK_ON ? "true" : "false");
    buf_text(&text, "}");
    if (text.failed || x->messages.failed || x->system.failed || x->tools.failed) {
        refuse(x->q.f, 503, NULL, "out of memory");
        buf_free(&text);
        return;
    }
    for (size_t need = text.size / 2 + 64;; need = a->prompt_count) {
        free(a->prompt);
        a->prompt = (int32_t *)malloc(need * sizeof *a->prompt);
        if (!a->prompt) error.code = MOTE_ENOMEM;
        int code = a->prompt ? mote_render_tokens(a->server->model, text.data, text.size, a->prompt, need, &a->prompt_count,
                                                  &error) : MOTE_ENOMEM;
        if (!code) break;
        if (code != MOTE_EINVAL || a->prompt_count <= need) {
            refuse_error(x->q.f, &error);
            break;
        }
    }
    buf_free(&text);
    if (!x->tools.size) return;
    size_t n = x->tools.size;              // mote_generate reads the types of arguments in them
    a->tools = (char *)malloc(n + 1);
    if (!a->tools) refuse(x->q.f, 503, NULL, "out of memory");
    else a->tools[0] = '[', memcpy(a->tools + 1, x->tools.data, n);
}
