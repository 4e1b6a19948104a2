/* serve/rerank.c: POST /v1/rerank and /v2/rerank, as Jina's and Cohere's clients speak it: documents by how well each answers a query, as
   Qwen3-Reranker judges it. Each is a prompt of its own; the score is the probability of yes among yes and no as the next token. */

typedef struct ranked {
    int index;
    uint32_t text;                         /* the node of the request */
    double score;
} ranked;

typedef struct rerank {
    reply r;
    uint32_t query, task;                  /* nodes; task 0: the card's own */
    int32_t yes, no;
    ranked *documents;                     /* [count] in their order, then the best first */
    int count, top, gives_documents;
    size_t tokens;                         /* of all prompts */
} rerank;

/* Around what the request says, as the model's card has it. */
static const char rerank_before[] =
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct provided. "
    "Note that the answer can only be \"yes\" or \"no\".<|im_end|>\n<|im_start|>user\n";
static const char rerank_after[] = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";

/* The model's tokens for the prompt and the answer; one without them is no such reranker. */
static void rerank_find(rerank *k) {
    static const char *const marks[] = {"<|im_start|>", "<|im_end|>", "<think>", "</think>"};
    const mote_model *model = k->r.a.server->model;
    int missing = 0;
    for (int i = 0; i < 4; i++) missing |= token_of(model, marks[i]) < 0;
    k->yes = token_of(model, "yes");
    k->no = token_of(model, "no");
    if (missing || k->yes < 0 || k->no < 0)
        refuse(&k->r.f, 400, NULL, "this model cannot rerank: it has no tokens yes, no, and those of the prompt of Qwen3-Reranker");
}

static void rerank_ask(rerank *k) {
    enum { DOCUMENTS_MOST = 2048 };
    request *x = &k->r.request;
    const fields *q = &x->q;
    check_fields(q, API_RERANK, &x->noted);
    const uint32_t documents = field_of(q, "documents", JSON_ARRAY), count = documents ? q->j->nodes[documents].size : 0;
    k->query = field_of(q, "query", JSON_STRING);
    k->task = field_of(q, "instruction", JSON_STRING);
    field_whole(q, "top_n", 1, INT_MAX, &k->top);
    field_flag(q, "return_documents", &k->gives_documents);
    if (!k->query) refuse(q->f, 400, "query", "query is missing");
    if (!count) refuse(q->f, 400, "documents", "documents must be a list of texts");
    if (count > DOCUMENTS_MOST) refuse(q->f, 400, "documents", "more than %d documents", DOCUMENTS_MOST);
    if (q->f->status) return;
    k->documents = (ranked *)calloc(count, sizeof *k->documents);
    if (!k->documents || x->noted.failed) refuse(q->f, 503, NULL, "out of memory");
}

/* A document is a text, or an object that has one. */
static void rerank_take(rerank *k, uint32_t document) {
    const json *j = k->r.request.q.j;
    const uint32_t text = j->nodes[document].type == JSON_OBJECT ? json_get(j, document, "text") : document;
    if (!text || j->nodes[text].type != JSON_STRING) refuse(&k->r.f, 400, "documents", "document %d must be a text", k->count);
    k->documents[k->count].index = k->count;
    k->documents[k->count].text = text;
}

/* Appends the tokens of a text. special: as in mote_tokenize. */
static int rerank_put(const mote_model *model, buf *ids, const char *text, size_t n, int special, mote_error *error) {
    size_t count = 0;
    int code = mote_tokenize(model, text, n, special, NULL, 0, &count, error);
    if (!count) return code;
    int32_t *to = (int32_t *)buf_add(ids, NULL, count * sizeof *to);
    return to ? mote_tokenize(model, text, n, special, to, count, &count, error) : fail_memory(error);
}

/* A text of the request, as it is meant. */
static void put_said(buf *out, const json *j, uint32_t node) {
    const size_t n = json_string(j, node, NULL, 0);
    char *to = (char *)buf_add(out, NULL, n);
    if (to) json_string(j, node, to, n);
}

/* None of what the request says becomes a control token. */
static void rerank_prompt(rerank *k) {
    answer *a = &k->r.a;
    const mote_model *model = a->server->model;
    const json *j = k->r.request.q.j;
    buf text = {NULL, 0, 0, 0}, ids = {NULL, 0, 0, 0};
    mote_error error = {0, ""};
    buf_text(&text, "<Instruct>: ");
    if (k->task) put_said(&text, j, k->task);
    else buf_text(&text, "Given a web search query, retrieve relevant passages that answer the query");
    buf_text(&text, "\n<Query>: ");
    put_said(&text, j, k->query);
    buf_text(&text, "\n<Document>: ");
    put_said(&text, j, k->documents[k->count].text);
    int code = text.failed ? fail_memory(&error) : rerank_put(model, &ids, rerank_before, sizeof rerank_before - 1, 1, &error);
    if (!code) code = rerank_put(model, &ids, text.data, text.size, 0, &error);
    if (!code) code = rerank_put(model, &ids, rerank_after, sizeof rerank_after - 1, 1, &error);
    if (code) refuse_error(&k->r.f, &error);
    a->prompt = (int32_t *)(void *)ids.data;
    a->prompt_count = code ? 0 : ids.size / sizeof(int32_t);
    buf_free(&text);
}

static void rerank_too_long(const answer *a, failure *f) {
    text_too_long(a, f, "documents", "the prompt of document", ((const rerank *)a->user)->count);
}

/* The prompt has been read. */
static void rerank_scored(answer *a, size_t at, size_t n) {
    rerank *k = (rerank *)a->user;
    const float *logits = mote_logits(a->slot->session);
    const double score = logits ? 1 / (1 + exp((double)logits[k->no] - logits[k->yes])) : NAN;
    (void)at, (void)n;
    k->documents[k->count].score = score;
    if (!(score >= 0)) refuse(&k->r.f, 400, NULL, "the logits of document %d are not numbers: are the weights damaged?", k->count);
}

static int by_rank(const void *a, const void *b) {
    const ranked *x = (const ranked *)a, *y = (const ranked *)b;
    return x->score != y->score ? (x->score < y->score) - (x->score > y->score) : x->index - y->index;
}

static void rerank_whole(rerank *k) {
    buf *out = &k->r.event;
    const int shown = k->top && k->top < k->count ? k->top : k->count;
    qsort(k->documents, (size_t)k->count, sizeof *k->documents, by_rank);
    putf(out, "{\"id\": \"%s\", \"model\": ", k->r.id);
    put_text(out, k->r.a.server->name);
    buf_text(out, ", \"results\": [");
    for (int i = 0; i < shown; i++) {
        putf(out, "%s{\"index\": %d, \"relevance_score\": %.9g", i ? ", " : "", k->documents[i].index, k->documents[i].score);
        if (k->gives_documents) {
            buf_text(out, ", \"document\": {\"text\": ");
            put_node(out, k->r.request.q.j, k->documents[i].text);
            buf_text(out, "}");
        }
        buf_text(out, "}");
    }
    putf(out, "], \"usage\": {\"prompt_tokens\": %zu, \"total_tokens\": %zu}}", k->tokens, k->tokens);
    reply_whole(&k->r, 0);
}

static void serve_rerank(server *s, connection *c, const json *j) {
    rerank k;
    memset(&k, 0, sizeof k);
    reply_open(&k.r, s, c, j, "rank-");
    k.r.a.user = &k;
    k.r.a.too_long = rerank_too_long;
    k.r.a.scored = rerank_scored;
    k.r.a.forgets = k.r.a.is_raw = 1;
    k.r.a.max_tokens = 0;
    rerank_ask(&k);
    rerank_find(&k);
    const uint32_t documents = field(&k.r.request.q, "documents");
    for (uint32_t d = documents + 1; !k.r.f.status && !c->gone && d < j->nodes[documents].next; d = j->nodes[d].next, k.count++) {
        answer_again(&k.r.a);
        rerank_take(&k, d);
        if (!k.r.f.status) rerank_prompt(&k);
        if (k.r.f.status || answer_run(&k.r.a, &k.r.f)) break;
        k.tokens += k.r.a.prompt_count;
    }
    if (!k.r.f.status && !c->gone) rerank_whole(&k);
    if (k.r.f.status) reply_failed(&k.r, openai_failure_event);
    free(k.documents);
    reply_free(&k.r);
}
