/* serve/embeddings.c: POST /v1/embeddings, as OpenAI's clients speak it: one or several texts, each as a row of numbers. */

typedef struct embeddings {
    reply r;
    mote_embedding how;
    int dimensions, is_base64;
    float *numbers;                        /* [dimensions] of the input at hand */
    buf data;                              /* the inside of the answer's list */
    size_t tokens;                         /* of all inputs */
    int index, is_several;                 /* of the input at hand, one of a list */
} embeddings;

/* The number of a field's word: 1, 2; 0: it is not given. */
static int field_word(const fields *q, const char *key, const char *first, const char *second) {
    const uint32_t node = field_of(q, key, JSON_STRING);
    if (!node) return 0;
    if (json_equals(q->j, node, first)) return 1;
    if (json_equals(q->j, node, second)) return 2;
    refuse(q->f, 400, key, "%s must be %s or %s", key, first, second);
    return 0;
}

static void embeddings_too_long(const answer *a, failure *f) {
    text_too_long(a, f, "input", "input", ((const embeddings *)a->user)->index);
}

static void embeddings_ask(embeddings *e) {
    static const int poolings[] = {MOTE_POOLING_DEFAULT, MOTE_POOLING_LAST, MOTE_POOLING_MEAN};
    request *x = &e->r.request;
    const fields *q = &x->q;
    check_fields(q, API_EMBEDDINGS, &x->noted);
    e->how.size = sizeof e->how;
    e->dimensions = mote_model_info(x->a->server->model)->hidden_size;
    field_whole(q, "dimensions", 1, e->dimensions, &e->dimensions);
    e->how.dimensions = e->dimensions;
    e->how.pooling = poolings[field_word(q, "pooling", "last", "mean")];
    e->is_base64 = field_word(q, "encoding_format", "float", "base64") == 2;
    e->numbers = (float *)malloc((size_t)e->dimensions * sizeof *e->numbers);
    if (!e->numbers || x->noted.failed) refuse(q->f, 503, NULL, "out of memory");
    x->a->too_long = embeddings_too_long;
    x->a->embeds = &e->how;
    x->a->embedding = e->numbers;
    x->a->forgets = x->a->is_raw = 1;      /* each is read from its beginning, */
    x->a->max_tokens = 0;                  /* and nothing follows */
}

/* An input into the answer, as its prompt. A text is what somebody wrote, so none of it becomes a control token; around it are the
   tokens that the model's texts begin and end with. Token ids are taken as they are. */
static void embedding_input(embeddings *e, uint32_t input) {
    answer *a = &e->r.a;
    const json *j = e->r.request.q.j;
    failure *f = &e->r.f;
    const mote_info *info = mote_model_info(a->server->model);
    mote_error error = {0, ""};
    buf ids = {NULL, 0, 0, 0};
    if (j->nodes[input].type == JSON_STRING) {
        const size_t n = json_string(j, input, NULL, 0);
        char *text = node_text(j, input);
        if (text) a->prompt = token_list(a->server->model, text, n, 0, info->end_token, &a->prompt_count, &error);
        free(text);
        if (!a->prompt && !refuse_error(f, &error)) refuse(f, 503, NULL, "out of memory");
    } else if (j->nodes[input].type == JSON_ARRAY) {
        if (!node_ids(j, input, info->vocab_size, &ids))
            refuse(f, 400, "input", "input %d must be token ids of the vocabulary, which has %d", e->index, info->vocab_size);
        a->prompt = (int32_t *)(void *)ids.data;
        a->prompt_count = ids.size / sizeof(int32_t);
    } else {
        refuse(f, 400, "input", "input must be a text, token ids, or a list of either");
    }
    if (!f->status && !a->prompt_count && e->is_several) refuse(f, 400, "input", "input %d is empty", e->index);
    if (!f->status && !a->prompt_count) refuse(f, 400, "input", "input is empty");
}

/* As text, three bytes in four characters. */
static void put_base64(buf *out, const void *bytes, size_t n) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const unsigned char *from = (const unsigned char *)bytes;
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const unsigned three = (unsigned)from[i] << 16 | (left > 1 ? (unsigned)from[i + 1] << 8 : 0) | (left > 2 ? from[i + 2] : 0);
        char four[4] = {digits[three >> 18], digits[three >> 12 & 63], '=', '='};
        if (left > 1) four[2] = digits[three >> 6 & 63];
        if (left > 2) four[3] = digits[three & 63];
        buf_add(out, four, 4);
    }
}

/* Floats of 32 bits, of the machine's own order, which is little-endian on all that mote builds on; as numbers they are told to the bit. */
static void put_embedding(embeddings *e) {
    buf *out = &e->data;
    put_next(out);
    putf(out, "{\"object\": \"embedding\", \"index\": %d, \"embedding\": ", e->index);
    if (e->is_base64) {
        buf_text(out, "\"");
        put_base64(out, e->numbers, (size_t)e->dimensions * sizeof *e->numbers);
        buf_text(out, "\"}");
        return;
    }
    for (int i = 0; i < e->dimensions; i++) putf(out, "%s%.9g", i ? ", " : "[", (double)e->numbers[i]);
    buf_text(out, "]}");
}

/* One of the inputs, up to its part of the answer, of whose memory the request is to have as much as copies of it may take. */
static void embedding_run(embeddings *e, uint32_t input) {
    enum { COPIES = 4 };
    reply *r = &e->r;
    answer_again(&r->a);
    embedding_input(e, input);
    if (r->f.status || answer_run(&r->a, &r->f) || r->f.status || r->c->gone) return;
    put_embedding(e);
    e->tokens += r->a.prompt_count;
    int status = connection_take(r->c, r->held + COPIES * e->data.size);
    if (status) refuse(&r->f, status, NULL, "%s", r->c->in.problem);
}

static void embeddings_whole(embeddings *e) {
    buf *out = &e->r.event;
    buf_text(out, "{\"object\": \"list\", \"data\": [");
    buf_add(out, e->data.data, e->data.size);
    buf_text(out, "], \"model\": ");
    put_text(out, e->r.a.server->name);
    putf(out, ", \"usage\": {\"prompt_tokens\": %zu, \"total_tokens\": %zu}}", e->tokens, e->tokens);
    reply_whole(&e->r, e->data.failed);
}

static void serve_embeddings(server *s, connection *c, const json *j) {
    enum { INPUTS_MOST = 2048 };
    embeddings e;
    memset(&e, 0, sizeof e);
    reply_open(&e.r, s, c, j, "embd-");
    e.r.a.user = &e;
    embeddings_ask(&e);
    const uint32_t input = field(&e.r.request.q, "input");
    const int several = e.is_several = input && holds_prompts(j, input);
    if (!input) refuse(&e.r.f, 400, "input", "input is missing");
    if (several && j->nodes[input].size > INPUTS_MOST) refuse(&e.r.f, 400, "input", "more than %d inputs", INPUTS_MOST);
    for (uint32_t k = several ? input + 1 : input; !e.r.f.status && !c->gone; k = j->nodes[k].next, e.index++) {
        if (several ? k >= j->nodes[input].next : e.index > 0) break;
        embedding_run(&e, k);
    }
    if (!e.r.f.status && !c->gone) embeddings_whole(&e);
    if (e.r.f.status) reply_failed(&e.r, openai_failure_event);
    free(e.numbers);
    buf_free(&e.data);
    reply_free(&e.r);
}
