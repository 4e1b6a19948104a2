/* layers/ngrams/cpu.c: a layer of n-gram embeddings on the CPU. Knows matrices and threads; the rows of the table come with the token rows
   (token_rows.looked_up), and where they are from it does not know.

   A row's n-grams have rows in a table, which side by side are e. With R[streams][hidden], norms by streams:

       k = key_proj e / rms norm_key,  q = R / rms(R) norm_query,  v = value_proj e
       s[c] = k[c] . q[c] / sqrt(hidden);  gate[c] = sigmoid(sign(s[c]) sqrt(max(|s[c]|, 1e-6)))
       G[c] = gate[c] v;  M = G / rms(G) norm_conv
       R += G + SiLU(sum over taps j of conv1d[j] M of the row grams (taps - 1 - j) tokens before)

   It remembers M of the last tokens, and their ids, of which the next rows' n-grams are made. As DeltaNet does it leaves both as they were
   before a block of up to MOTE_ROWS_MAX rows, and logs those of the block; longer ones are kept whole. */

/* One range of memory, in this order. An id is kept as id + 1; 0: there is no token. */
typedef struct ngrams_state {
    float *window;               /* [ngrams_reach][streams][hidden] M before the logged block, oldest first */
    float *log_window;           /* [MOTE_ROWS_MAX][streams][hidden] of the logged block, right after the window */
    int32_t *ids;                /* [grams - 1] before the logged block, oldest first */
    int32_t *log_ids;            /* [MOTE_ROWS_MAX] of the logged block, right after those */
} ngrams_state;

typedef struct ngrams_job {
    const ngrams_weights *w;
    int T, streams, hidden;
    float *x;                    /* [T][streams][hidden] R */
    float *key;                  /* [T][streams][hidden] */
    float *value;                /* [T][hidden] */
    float *G, *M;                /* [T][streams][hidden] */
    const float *window;         /* of the state, advanced */
    token_limbs *limbs;
} ngrams_job;

/* n numbers of four bytes before a block, of the `n` rows [size] each: those that were accepted of the logged block come in. */
static void ngrams_advance(void *rows, const void *log, int n, size_t size, int replay) {
    const int from_log = replay < n ? replay : n;
    memmove(rows, (char *)rows + (size_t)from_log * size, (size_t)(n - from_log) * size);
    memcpy((char *)rows + (size_t)(n - from_log) * size, (const char *)log + (size_t)(replay - from_log) * size, (size_t)from_log * size);
}

/* After a block of T rows: to the log if it may be kept in part, else the rows are moved on past it. */
static void ngrams_keep(void *rows, void *log, int n, size_t size, const void *block, int T) {
    if (T <= MOTE_ROWS_MAX) memcpy(log, block, (size_t)T * size);
    else ngrams_advance(rows, block, n, size, T);
}

/* The table's rows of each of a sequence's rows, to[T][ngrams_rows]. Leaves the state as it is. */
static void ngrams_look_up(const ngrams_weights *w, const ngrams_state *state, const token_row *rows, int T, int replay, int64_t *to) {
    const int before = w->shape.grams - 1;
    for (int t = 0; t < T; t++) {
        int32_t ids[MAX_GRAMS];
        for (int k = 0; k <= before; k++) ids[k] = t - k >= 0 ? rows[t - k].id : state->ids[before + replay + t - k] - 1;
        ngrams_numbers(w, ids, to + (size_t)t * (size_t)ngrams_rows(&w->shape));
    }
}

/* G and M of rows begin..end-1. */
static void ngrams_gate(void *context, int begin, int end, int thread) {
    const ngrams_job *job = (const ngrams_job *)context;
    const int n = job->hidden;
    const float eps = job->w->shape.eps;
    (void)thread;
    for (int item = begin; item < end; item++) {
        const size_t at = (size_t)item * (size_t)n, of_stream = (size_t)(item % job->streams) * (size_t)n;
        float *k = job->key + at, *G = job->G + at;
        const float *x = job->x + at, *value = job->value + (size_t)(item / job->streams) * (size_t)n, *query = job->w->norm_query + of_stream;
        const float factor = rms_factor(x, n, eps);
        double sum = 0;
        rms_norm(k, k, job->w->norm_key + of_stream, 1, n, eps);
        for (int i = 0; i < n; i++) sum += (double)k[i] * (double)(x[i] * factor * query[i]);
        const double s = sum / sqrt((double)n), root = sqrt(fmax(fabs(s), 1e-6));
        const float gate = sigmoid((float)(s > 0 ? root : s < 0 ? -root : 0));
        for (int i = 0; i < n; i++) G[i] = gate * value[i];
        rms_norm(job->M + at, G, job->w->norm_conv + of_stream, 1, n, eps);
    }
}

/* R of rows begin..end-1. */
static void ngrams_convolve(void *context, int begin, int end, int thread) {
    const ngrams_job *job = (const ngrams_job *)context;
    const ngrams_shape *s = &job->w->shape;
    const size_t width = (size_t)job->streams * (size_t)job->hidden;
    (void)thread;
    for (int t = begin; t < end; t++) {
        float *x = job->x + (size_t)t * width;
        const float *G = job->G + (size_t)t * width, *M[MAX_NGRAM_TAPS];
        for (int j = 0; j < s->taps; j++) {
            const int row = t - s->grams * (s->taps - 1 - j);
            M[j] = row < 0 ? job->window + (size_t)(row + ngrams_reach(s)) * width : job->M + (size_t)row * width;
        }
        for (size_t i = 0; i < width; i++) {
            float sum = 0;
            for (int j = 0; j < s->taps; j++) sum += job->w->conv1d[i * (size_t)s->taps + (size_t)j] * M[j][i];
            x[i] += G[i] + silu(sum);
        }
    }
}

/* The implementation of layers/kinds.c. */

enum { ngrams_rollback = ROLLBACK_REPLAY };

/* Floats of a token in the state. */
static size_t ngrams_row(const ngrams_shape *s) {
    return (size_t)s->streams * (size_t)s->hidden;
}

static void ngrams_layout_state(layout *l, const ngrams_shape *s, const capacity *r, ngrams_state *to) {
    const size_t reach = (size_t)ngrams_reach(s), before = (size_t)s->grams - 1;
    (void)r;
    to->window = layout_alloc(l, (reach + MOTE_ROWS_MAX) * ngrams_row(s));
    to->log_window = to->window ? to->window + reach * ngrams_row(s) : NULL;
    to->ids = (int32_t *)(void *)layout_alloc(l, before + MOTE_ROWS_MAX);
    to->log_ids = to->ids ? to->ids + before : NULL;
}

static void ngrams_layout_scratch(layout *l, const ngrams_shape *s, const capacity *r, ngrams_job *to) {
    const size_t T = (size_t)r->rows, width = T * ngrams_row(s);
    to->key = layout_alloc(l, width);
    to->value = layout_alloc(l, T * (size_t)s->hidden);
    to->G = layout_alloc(l, width);
    to->M = layout_alloc(l, width);
    to->limbs = limbs_alloc(l, T, ngrams_width(s));
}

static void ngrams_project(const token_rows *rows, const ngrams_weights *w, ngrams_job *job) {
    projection all = projection_of(rows->looked_up, rows->T, job->limbs);
    job->w = w;
    job->T = rows->T;
    job->streams = w->shape.streams;
    job->hidden = w->shape.hidden;
    job->x = rows->x;
    projection_add(&all, &w->key_proj, job->key);
    projection_add(&all, &w->value_proj, job->value);
    project(rows->threads, &all);
    parallel(rows->threads, job->T * job->streams, ngrams_gate, job);
}

static void ngrams_mix(const token_rows *rows, const token_sequence *of, const ngrams_job *all, const ngrams_state *state) {
    const ngrams_shape *s = &all->w->shape;
    const size_t first = (size_t)of->first * ngrams_row(s), row = ngrams_row(s) * sizeof(float);
    const int before = s->grams - 1;
    ngrams_job job = *all;
    job.T = of->T;
    job.x += first;
    job.G += first;
    job.M += first;
    job.window = state->window;
    ngrams_advance(state->window, state->log_window, ngrams_reach(s), row, of->replay);
    ngrams_advance(state->ids, state->log_ids, before, sizeof *state->ids, of->replay);
    parallel(rows->threads, job.T, ngrams_convolve, &job);
    ngrams_keep(state->window, state->log_window, ngrams_reach(s), row, job.M, job.T);
    for (int t = 0; t < job.T; t++) {
        const int32_t id = rows->table[of->first + t].id + 1;
        if (job.T <= MOTE_ROWS_MAX) state->log_ids[t] = id;
        else ngrams_advance(state->ids, &id, before, sizeof id, 1);
    }
}

/* R has become what it is to be. */
static void ngrams_output(const token_rows *rows, ngrams_job *job) {
    (void)rows, (void)job;
}

static int ngrams_pieces(const ngrams_shape *s, const capacity *r, const ngrams_state *state, state_piece *to) {
    (void)r;
    to[0] = state_piece_of("n-gram window", state->window, (size_t)ngrams_reach(s) * ngrams_row(s) * sizeof(float), 0, 0);
    to[1] = state_piece_of("n-gram ids", state->ids, ((size_t)s->grams - 1) * sizeof *state->ids, 0, 0);
    return 2;
}

static int ngrams_log(const ngrams_shape *s, const ngrams_state *state, state_piece *to) {
    to[0] = state_piece_of("n-gram window log", state->log_window, ngrams_row(s) * sizeof(float), MOTE_ROWS_MAX, 0);
    to[1] = state_piece_of("n-gram ids log", state->log_ids, sizeof *state->log_ids, MOTE_ROWS_MAX, 0);
    return 2;
}
