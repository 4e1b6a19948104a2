/* run/cuda/tables.cu: a GPU's rows of tables (layers/ngrams/): the host fetches them before it launches a pass, and copies them to where the kernels
   of the pass look. It knows slots and the model.

   Which rows these are follows from the tokens, and of those that the GPU chooses or drafts the host has to wait for its posts. So a model with
   tables launches a step when its token is known, and the GPU idles from the end of sampling on: a poll, some preads, a copy, a launch. In exchange what
   cannot be read has cost nothing: no state has been touched, the timeline is as it was. (A host function in the graph, or a kernel that
   waits for a thread of the host, would do all of that while the first layer computes, and could only fail after states have changed.)

   The tokens before a block are the slot's, here: gpu_slot.tokens. In GPU memory, where a saved session has them, they are brought up to date
   when somebody looks there. */

/* The layer whose tokens are those of all. */
static int gpu_table_layer(const mote_model *m) {
    for (int i = m->part.first; i < m->part.end; i++)
        if (table_of(m, i)) return i;
    return -1;
}

/* Tables whose rows a runner has memory for: they are numbered in their layers' order. */
static size_t gpu_tables(const mote_model *m) {
    size_t count = 0;
    for (int i = m->part.first; i < m->part.end; i++)
        if (table_of(m, i)) count = (size_t)m->layers[i].mixer.w.ngrams.shape.number + 1;
    return count;
}

/* Rows of the host's memory: of a pass, or of a prompt's chunk. */
static size_t gpu_table_rows(const mote_runner *r) {
    return (size_t)max_int(PASS_ROWS_MAX, r->gpu->prefill.rows);
}

static size_t gpu_table_width(const mote_model *m) {
    return (size_t)ngrams_width(&m->largest.ngrams);
}

/* Lays out what the kernels of a step read. */
static void gpu_layout_tables(layout *l, const mote_runner *r) {
    r->gpu->layers.ngrams.looked_up = layout_alloc(l, gpu_tables(r->m) * PASS_ROWS_MAX * gpu_table_width(r->m));
}

/* What the host needs: memory that the GPU reads, and threads for long prompts. */
static int gpu_open_tables(mote_runner *r, mote_error *err) {
    enum { THREADS = 8 };
    struct gpu_runner *g = r->gpu;
    const size_t rows = gpu_table_rows(r), tables = gpu_tables(r->m);
    if (!tables) return MOTE_OK;
    g->table_numbers = (int64_t *)malloc(rows * MAX_NGRAM_ROWS * sizeof *g->table_numbers);
    g->table_tokens = (int32_t *)malloc((rows + MAX_GRAMS + MOTE_ROWS_MAX) * sizeof *g->table_tokens);
    if (!g->table_numbers || !g->table_tokens) return fail_memory(err);
    r->threads = pool_open(min_int(processors(), THREADS));
    if (!r->threads) return fail(err, MOTE_ENOMEM, "the system gives no threads");
    gpu_check(&g->q, cudaHostAlloc((void **)&g->table_rows, tables * rows * gpu_table_width(r->m) * sizeof(float), cudaHostAllocMapped), "pinning memory");
    if (g->q.status == cudaSuccess) gpu_check(&g->q, cudaEventCreateWithFlags(&g->tables_free, cudaEventDisableTiming), "an event");
    return gpu_failed(&g->q, err);
}

/* Where the rows of a table begin, here. */
static float *gpu_table_at(const mote_runner *r, int i) {
    return r->gpu->table_rows + (size_t)r->m->layers[i].mixer.w.ngrams.shape.number * gpu_table_rows(r) * gpu_table_width(r->m);
}

/* ---- The tokens before a block ------------------------------------------------------------------------------------------ */

/* The tokens in the states of its layers become those of the slot, if it has others. */
static void gpu_put_tokens(slot *s) {
    const mote_model *m = s->m;
    if (s->gpu->tokens_stale || !s->gpu->tokens_new) return;
    for (int i = m->part.first; i < m->part.end; i++) {
        if (!table_of(m, i)) continue;
        const size_t n = (size_t)m->layers[i].mixer.w.ngrams.shape.grams - 1 + MOTE_ROWS_MAX;
        gpu_move(&s->runner->gpu->q, s->state[i].ngrams.ids, s->gpu->tokens, n * sizeof *s->gpu->tokens, "putting tokens");
    }
    s->gpu->tokens_new = 0;
}

/* The reverse, when they have been written there. */
static int gpu_get_tokens(slot *s, mote_error *err) {
    const int i = gpu_table_layer(s->m);
    if (!s->gpu->tokens_stale) return MOTE_OK;
    const size_t n = (size_t)s->m->layers[i].mixer.w.ngrams.shape.grams - 1 + MOTE_ROWS_MAX;
    gpu_move(&s->runner->gpu->q, s->gpu->tokens, s->state[i].ngrams.ids, n * sizeof *s->gpu->tokens, "getting tokens");
    const int code = gpu_finish(s, err);
    if (!code) s->gpu->tokens_stale = s->gpu->tokens_new = 0;
    return code;
}

/* Tokens of a slot's block, for which rows are wanted. */
typedef struct gpu_tokens {
    slot *s;
    const token_row *rows;       /* [T] */
    const int32_t *ids;          /* [T] in place of theirs, which are the device's; NULL: they have them */
    int T, replay;
} gpu_tokens;

/* The block's tokens in g->table_tokens, and those before it: ids and 1, 0 for none. Returns where the block begins. */
static int gpu_line_up(const gpu_tokens *of) {
    int32_t *line = of->s->runner->gpu->table_tokens;
    const int before = of->s->m->layers[gpu_table_layer(of->s->m)].mixer.w.ngrams.shape.grams - 1 + of->replay;
    memcpy(line, of->s->gpu->tokens, (size_t)before * sizeof *line);
    for (int t = 0; t < of->T; t++) line[before + t] = (of->ids ? of->ids[t] : of->rows[t].id) + 1;
    return before;
}

/* The slot's tokens, after such a block: of the last that is kept, and of those that are logged. As ngrams_state has them. */
static void gpu_remember_tokens(const gpu_tokens *of, int kept) {
    const int before = gpu_line_up(of) - of->replay;
    memcpy(of->s->gpu->tokens, of->s->runner->gpu->table_tokens + of->replay + kept, (size_t)(before + of->T - kept) * sizeof(int32_t));
    of->s->gpu->tokens_new = 1;
}

/* ---- Fetching ----------------------------------------------------------------------------------------------------------- */

/* Layer i's numbers of the block's rows, from number `at` of all on. */
static void gpu_number_rows(const gpu_tokens *of, int i, int at) {
    const struct gpu_runner *g = of->s->runner->gpu;
    const ngrams_weights *w = &of->s->m->layers[i].mixer.w.ngrams;
    const int begin = gpu_line_up(of);
    for (int t = 0; t < of->T; t++) {
        int32_t ids[MAX_GRAMS];
        for (int k = 0; k < w->shape.grams; k++) ids[k] = g->table_tokens[begin + t - k] - 1;
        ngrams_numbers(w, ids, g->table_numbers + (size_t)(at + t) * (size_t)ngrams_rows(&w->shape));
    }
}

/* Layer i's rows of n blocks, one after the other, come to gpu_table_at. */
static int gpu_fetch_rows(mote_runner *r, int i, const gpu_tokens *of, int n, mote_error *err) {
    const ngrams_shape *s = &r->m->layers[i].mixer.w.ngrams.shape;
    int rows = 0;
    for (int k = 0; k < n; k++) {
        gpu_number_rows(&of[k], i, rows);
        rows += of[k].T;
    }
    gpu_check(&r->gpu->q, cudaEventSynchronize(r->gpu->tables_free), "rows of a table");
    const int code = gpu_failed(&r->gpu->q, err);
    return code ? code : tables_read(r->threads, table_of(r->m, i), r->gpu->table_numbers, rows * ngrams_rows(s), s->row_size, gpu_table_at(r, i), err);
}

/* Whether those of one block alone can be read. */
static int gpu_fetch_rows_alone(mote_runner *r, const gpu_tokens *of, mote_error *err) {
    int code = MOTE_OK;
    for (int i = r->m->part.first; i < r->m->part.end && !code; i++)
        if (table_of(r->m, i)) code = gpu_fetch_rows(r, i, of, 1, err);
    return code;
}

/* All layers' rows of n blocks of a pass come to where its kernels read them; slots know the tokens then. If any cannot be read, nothing has happened. */
static int gpu_look_up(mote_runner *r, const gpu_tokens *of, int n, mote_error *err) {
    const mote_model *m = r->m;
    struct gpu_runner *g = r->gpu;
    const size_t width = gpu_table_width(m);
    size_t rows = 0;
    int code = MOTE_OK;
    for (int k = 0; k < n && !code; k++) {
        rows += (size_t)of[k].T;
        code = gpu_get_tokens(of[k].s, err);
    }
    for (int i = m->part.first; i < m->part.end && !code; i++)
        if (table_of(m, i)) code = gpu_fetch_rows(r, i, of, n, err);
    if (code) return code;
    for (int i = m->part.first; i < m->part.end; i++)
        if (table_of(m, i))
            gpu_move(&g->q, g->layers.ngrams.looked_up + (size_t)m->layers[i].mixer.w.ngrams.shape.number * PASS_ROWS_MAX * width, gpu_table_at(r, i),
                     rows * width * sizeof(float), "copying rows of a table");
    gpu_check(&g->q, cudaEventRecord(g->tables_free, g->stream), "rows of a table");
    for (int k = 0; k < n; k++) gpu_remember_tokens(&of[k], of[k].T > STEP_ROWS ? gpu_before_log(of[k].T) : 0);
    return gpu_failed(&g->q, err);
}

/* The same of one block. ids: see gpu_tokens. */
static int gpu_look_up_block(slot *s, const block *b, const int32_t *ids, mote_error *err) {
    const gpu_tokens one = {.s = s, .rows = b->rows, .ids = ids, .T = b->T, .replay = b->replay};
    return gpu_table_layer(s->m) < 0 ? MOTE_OK : gpu_look_up(s->runner, &one, 1, err);
}

/* A prompt's rows for layer i, before that is launched: the layers before it run meanwhile. */
static int gpu_look_up_prompt(slot *s, const block *b, prefill_rows *to, int i, mote_error *err) {
    const gpu_tokens one = {.s = s, .rows = b->rows, .ids = NULL, .T = b->T, .replay = 0};
    if (!table_of(s->m, i)) return MOTE_OK;
    int code = gpu_get_tokens(s, err);
    if (!code) code = gpu_fetch_rows(s->runner, i, &one, 1, err);
    to->looked_up = gpu_table_at(s->runner, i);
    return code;
}

/* It has been launched. */
static void gpu_looked_up_prompt(const slot *s, int i) {
    struct gpu_runner *g = s->runner->gpu;
    if (table_of(s->m, i)) gpu_check(&g->q, cudaEventRecord(g->tables_free, g->stream), "rows of a table");
}

/* All of a prompt's block is part of the states. */
static void gpu_keep_prompt(slot *s, const block *b) {
    const gpu_tokens one = {.s = s, .rows = b->rows, .ids = NULL, .T = b->T, .replay = 0};
    if (gpu_table_layer(s->m) >= 0) gpu_remember_tokens(&one, b->T);
}
