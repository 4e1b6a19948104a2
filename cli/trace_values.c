/* cli/trace_values.c: what a trace keeps of the values that the library tells: few enough for a page, by layer, token and head. It knows
   nothing of how they are shown. */

enum { TRACE_TOKENS = 64, TRACE_NEXT = 5, TRACE_ANSWER = 16, TRACE_DRAFTS = 3 };
enum { PICTURE_CELLS = 400000 };           /* of all pictures of S together */

/* What is kept of each token in a layer: so many numbers, "n". */
enum series_name {
    MIXER_X, MIXER_ADDED, FFN_X, FFN_ADDED,    /* 1: lengths of vectors, |x| */
    DECAY, WRITE, S_LENGTH,                    /* [heads] of DeltaNet and Mamba */
    ATTENTION, GATE,                           /* [heads][tokens], zeros after the token; [heads] the mean */
    ROUTER, EXPERTS, SHARED,                   /* [experts] probabilities; [experts] weights; 1: sigmoid of the gate */
    SERIES_COUNT
};

typedef struct series { float *values; int n; } series;    /* [tokens][n]; NULL: there are none */

typedef struct traced_layer {
    const char *mixer, *ffn;               /* kinds; NULL: the layer has none, or nothing was told of it */
    int heads;
    series of[SERIES_COUNT];
    float *S;                              /* [heads][rows][columns] after the last token; NULL: none */
    int rows, columns;                     /* value and key dimensions or, of larger ones, blocks of them: the largest number of each */
} traced_layer;

typedef struct candidate { int32_t id; float p; } candidate;

typedef struct trace {
    const mote_model *model;
    const mote_info *info;
    const char *name;                      /* of the model */
    const int32_t *ids;
    int count, chat;
    traced_layer *layers;                  /* [info->layers + 1], the MTP layer last */
    float *final;                          /* [count] |x| before the head */
    candidate *next;                       /* [count][TRACE_NEXT] after each token */
    candidate *drafts;                     /* [count] of the MTP layer, for the token after the next one; the last one is none */
    bytes passes;                          /* mote_traced_pass */
    int state_layers;                      /* with an S */
    int failed;                            /* no memory */
} trace;

static const float *trace_at(const series *s, int token) {
    return s->values + (size_t)token * (size_t)s->n;
}

/* Where the n numbers of the token belong. NULL: there is no memory. */
static float *trace_place(trace *t, series *s, int token, int n) {
    if (!s->values) {
        s->values = calloc((size_t)t->count * (size_t)n, sizeof *s->values);
        s->n = n;
    }
    if (!s->values || s->n != n) t->failed = 1;
    return t->failed ? NULL : s->values + (size_t)token * (size_t)n;
}

static double length_of(const double *x, int n) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sqrt(sum);
}

/* out[n] = softmax(x) */
static void softmax_of(const double *x, int n, float *out) {
    double top = -INFINITY, sum = 0;
    for (int i = 0; i < n; i++) top = x[i] > top ? x[i] : top;
    for (int i = 0; i < n; i++) sum += exp(x[i] - top);
    for (int i = 0; i < n; i++) out[i] = (float)(exp(x[i] - top) / sum);
}

/* The `most` largest logits, best first, with their probabilities. */
static void candidates_of(const double *logits, int n, candidate *best, int most) {
    double sum = 0;
    int found = 0;
    for (int i = 0; i < n; i++) {
        int at = found < most ? found++ : most;
        for (; at > 0 && logits[i] > logits[best[at - 1].id]; at--)
            if (at < most) best[at] = best[at - 1];
        if (at < most) best[at].id = i;
    }
    for (int i = 0; i < n; i++) sum += exp(logits[i] - logits[best[0].id]);
    for (int k = 0; k < found; k++) best[k].p = (float)(exp(logits[best[k].id] - logits[best[0].id]) / sum);
}

/* ---- What is told --------------------------------------------------------------------------------------------------- */

static void keep_head(trace *t, const mote_traced *v) {
    if (!strcmp(v->name, "x") && v->layer < 0) t->final[v->token] = (float)length_of(v->values, v->count);
    if (strcmp(v->name, "logits")) return;
    if (v->layer < 0) candidates_of(v->values, v->count, t->next + v->token * TRACE_NEXT, TRACE_NEXT);
    else candidates_of(v->values, v->count, t->drafts + v->token, 1);
}

/* A number of each head: the length of its part of the values, or their mean. */
static void keep_heads(trace *t, traced_layer *l, enum series_name name, const mote_traced *v, int mean) {
    const int size = v->count / l->heads;
    float *to = trace_place(t, &l->of[name], v->token, l->heads);
    for (int h = 0; to && h < l->heads; h++) {
        const double *part = v->values + (size_t)h * (size_t)size;
        double sum = 0;
        for (int i = 0; i < size; i++) sum += part[i];
        to[h] = (float)(mean ? sum / size : length_of(part, size));
    }
}

static void keep_attention(trace *t, traced_layer *l, const mote_traced *v) {
    const int tokens = v->token + 1;
    l->heads = v->count / tokens;
    float *to = trace_place(t, &l->of[ATTENTION], v->token, l->heads * t->count);
    for (int h = 0; to && h < l->heads; h++)
        for (int p = 0; p < tokens; p++) to[h * t->count + p] = (float)v->values[h * tokens + p];
}

/* The number of a size of a kind, as mote_info has it; 0: it has not. */
static int size_named(const mote_info *info, const char *kind, const char *name) {
    for (int k = 0; k < info->kind_count; k++)
        for (int i = 0; i < info->kinds[k].size_count && !strcmp(info->kinds[k].name, kind); i++)
            if (!strcmp(info->kinds[k].sizes[i].name, name)) return info->kinds[k].sizes[i].value;
    return 0;
}

static int64_t blocks_of(int n, int block) {
    return (n + block - 1) / block;
}

/* S of every head, after the last token; of many or large ones the largest number of a block of it. */
static void keep_picture(trace *t, traced_layer *l, const mote_traced *v) {
    const int key_dim = strcmp(v->kind, "mamba") ? size_named(t->info, "deltanet", "key_head_dim") : size_named(t->info, "mamba", "state_dim");
    const int value_dim = v->count / l->heads / key_dim;
    int block = 1;
    while (blocks_of(value_dim, block) * blocks_of(key_dim, block) * l->heads * t->state_layers > PICTURE_CELLS && block < v->count) block++;
    l->rows = (int)blocks_of(value_dim, block);
    l->columns = (int)blocks_of(key_dim, block);
    l->S = calloc((size_t)l->heads * (size_t)l->rows * (size_t)l->columns, sizeof *l->S);
    if (!l->S) t->failed = 1;
    for (int i = 0; l->S && i < v->count; i++) {
        const int h = i / (value_dim * key_dim), row = i / key_dim % value_dim, column = i % key_dim;
        float *cell = l->S + ((size_t)h * (size_t)l->rows + (size_t)(row / block)) * (size_t)l->columns + column / block;
        if (fabs(v->values[i]) > fabs((double)*cell)) *cell = (float)v->values[i];
    }
}

/* Values that are kept as they are. */
static void keep_all(trace *t, traced_layer *l, enum series_name name, const mote_traced *v) {
    float *to = trace_place(t, &l->of[name], v->token, v->count);
    for (int i = 0; to && i < v->count; i++) to[i] = (float)v->values[i];
}

static void keep_length(trace *t, traced_layer *l, enum series_name name, const mote_traced *v) {
    float *to = trace_place(t, &l->of[name], v->token, 1);
    if (to) *to = (float)length_of(v->values, v->count);
}

static void keep_value(void *user, const mote_traced *v) {
    trace *t = user;
    const int ffn = !strcmp(v->kind, "moe") || !strcmp(v->kind, "mlp");
    float *to;
    if (!strcmp(v->kind, "head")) {
        keep_head(t, v);
        return;
    }
    traced_layer *l = &t->layers[v->layer];
    *(ffn ? &l->ffn : &l->mixer) = v->kind;
    if (!strcmp(v->name, "x")) keep_length(t, l, ffn ? FFN_X : MIXER_X, v);
    else if (!strcmp(v->name, "added")) keep_length(t, l, ffn ? FFN_ADDED : MIXER_ADDED, v);
    else if (!strcmp(v->name, "attention")) keep_attention(t, l, v);
    else if (!strcmp(v->name, "gate")) keep_heads(t, l, GATE, v, 1);
    else if (!strcmp(v->name, "decay")) l->heads = v->count, keep_all(t, l, DECAY, v);
    else if (!strcmp(v->name, "beta") || !strcmp(v->name, "dt")) keep_all(t, l, WRITE, v);
    else if (!strcmp(v->name, "S")) {
        keep_heads(t, l, S_LENGTH, v, 0);
        if (v->token == t->count - 1) keep_picture(t, l, v);
    } else if (!strcmp(v->name, "router")) {
        if ((to = trace_place(t, &l->of[ROUTER], v->token, v->count))) softmax_of(v->values, v->count, to);
    } else if (!strcmp(v->name, "experts")) keep_all(t, l, EXPERTS, v);
    else if (!strcmp(v->name, "shared_expert_gate")) {
        if ((to = trace_place(t, &l->of[SHARED], v->token, 1))) *to = (float)(1 / (1 + exp(-v->values[0])));
    }
}

static void keep_pass(void *user, const mote_traced_pass *pass) {
    trace *t = user;
    t->failed |= append(&t->passes, (const char *)pass, sizeof *pass) != 0;
}

/* ---- A trace --------------------------------------------------------------------------------------------------------- */

static void trace_free(trace *t) {
    for (int i = 0; t->layers && i <= t->info->layers; i++) {
        for (int k = 0; k < SERIES_COUNT; k++) free(t->layers[i].of[k].values);
        free(t->layers[i].S);
    }
    free(t->layers);
    free(t->final);
    free(t->next);
    free(t->drafts);
    free(t->passes.data);
}

static int trace_memory(trace *t) {
    const size_t count = (size_t)t->count;
    for (int k = 0; k < t->info->kind_count; k++) {
        const mote_layers *of = &t->info->kinds[k];
        if (!strcmp(of->name, "deltanet") || !strcmp(of->name, "mamba")) t->state_layers += of->count;
    }
    t->layers = calloc((size_t)t->info->layers + 1, sizeof *t->layers);
    t->final = calloc(count, sizeof *t->final);
    t->next = calloc(count * TRACE_NEXT, sizeof *t->next);
    t->drafts = calloc(count, sizeof *t->drafts);
    return t->layers && t->final && t->next && t->drafts ? 0 : complain(EXIT_FAILURE, "out of memory for a trace of %d tokens", t->count);
}

/* The answer to the tokens, by a session that drafts: by the MTP layer, or copies. */
static int trace_answer(trace *t) {
    mote_session_options how = {.size = sizeof how, .context = t->count + TRACE_ANSWER, .callbacks = callbacks(),
                                .mtp = TRACE_DRAFTS};
    mote_session *session = NULL;
    mote_error error = {0, ""};
    if (how.context > t->info->context_max) how.context = t->info->context_max;
    how.callbacks.progress = NULL;
    int code = mote_session_open(t->model, &how, &session, &error);
    if (!code) code = mote_feed(session, t->ids, (size_t)t->count, &error);
    if (!code && how.context > t->count) code = mote_trace_passes(session, TRACE_ANSWER, keep_pass, t, &error);
    mote_session_close(session);
    return code ? report(&error) : 0;
}

/* Layers of n-grams have no picture, and are refused. */
static int trace_shows(const trace *t) {
    for (int k = 0; k < t->info->kind_count; k++)
        if (!strcmp(t->info->kinds[k].name, "ngrams")) return complain(EXIT_FAILURE, "%s: trace: layers of n-grams are not shown", t->name);
    return 0;
}

/* Traces t->ids with t->model; to be freed in any case. */
static int trace_run(trace *t) {
    const mote_callbacks how = callbacks();
    mote_error error = {0, ""};
    int code = trace_shows(t);
    if (!code) code = trace_memory(t);
    if (!code && mote_trace(t->model, t->ids, (size_t)t->count, &how, keep_value, t, &error)) code = report(&error);
    clear_progress();
    if (!code) code = trace_answer(t);
    if (!code && t->failed) code = complain(EXIT_FAILURE, "out of memory for a trace of %d tokens", t->count);
    return code;
}
