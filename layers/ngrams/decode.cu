/* layers/ngrams/decode.cu: a layer of n-gram embeddings on a GPU, for the rows of a step: ngram_proj, ngram_gate, ngram_add. The formulas are
   layers/ngrams/cpu.c's, and so is the order of what it remembers. Uses cuda/ for launches, projections and hand-off. Knows no session, and not
   where the rows of the table come from: looked_up has them before the step begins. Ids are the host's matter alone (run/cuda/tables.cu).

   All that depends on a whole row of a stream is two numbers of it, which ngram_gate finds: with gate[c] and factor[c] = 1 / rms(G[c]),

       G = gate[c] value,  M = G factor[c] norm_conv

   So ngram_add takes columns one by one: a thread has a column of all streams, for all rows of a sequence. It reads M of rows before the block
   from window and log, which lie one after the other, and makes M of the block's own rows anew wherever it needs them. That column of window and
   log is its own, too: nothing else of a step touches it, and no block has to wait for another. */

typedef struct ngrams_gpu {
    handoff link;
    ngrams_shape shape;
    slot_view slot;
    float *window;               /* of the captured slot: ngrams_state's, with the log right after it */
    const float *norm_key, *norm_query, *norm_conv, *conv1d;
    const step_parameters *step;
    int sequences;               /* of a pass, or blocks in turn of one slot; 0: one */
    int in_turn;
    int T;                       /* token rows */
    float *x;                    /* [T][streams][hidden] R */
    float *looked_up;            /* [T][ngrams_width]; of the runner: [tables][rows][ngrams_width] */
    float *key, *value;          /* [T][streams][hidden], [T][hidden] */
    float2 *gate;                /* [T][streams] gate and factor */
} ngrams_gpu;

/* Columns of a row of R; rows before one on which that depends. */
static __host__ __device__ __forceinline__ int gpu_ngrams_columns(const ngrams_shape *s) {
    return s->streams * s->hidden;
}

static __host__ __device__ __forceinline__ int gpu_ngrams_reach(const ngrams_shape *s) {
    return s->grams * (s->taps - 1);
}

/* Four sums over a block, each of a warp first, then of the warps in order; all threads get them. */
__device__ __forceinline__ float4 gpu_ngrams_sums(float4 v) {
    __shared__ float4 of_warp[GPU_WARPS];
    float4 all = make_float4(0, 0, 0, 0);
    v = make_float4(warp_sum(v.x), warp_sum(v.y), warp_sum(v.z), warp_sum(v.w));
    if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < GPU_WARPS; w++) {
        all.x += of_warp[w].x;
        all.y += of_warp[w].y;
        all.z += of_warp[w].z;
        all.w += of_warp[w].w;
    }
    return all;
}

/* gate and factor of row t's stream c, by a block. */
__device__ __forceinline__ void gpu_ngrams_gate_row(const ngrams_gpu &p, int t, int c) {
    const int n = p.shape.hidden, of_stream = c * n;
    const size_t row = (size_t)t * (size_t)gpu_ngrams_columns(&p.shape) + (size_t)of_stream;
    float4 sum = make_float4(0, 0, 0, 0);                   /* of key^2, x^2, what becomes k . q, value^2 */
    for (int i = threadIdx.x; i < n; i += GPU_THREADS) {
        const float key = __ldcg(p.key + row + i), x = __ldcg(p.x + row + i), value = __ldcg(p.value + (size_t)t * n + i);
        sum.x = fmaf(key, key, sum.x);
        sum.y = fmaf(x, x, sum.y);
        sum.z = fmaf(key * __ldg(p.norm_key + of_stream + i), x * __ldg(p.norm_query + of_stream + i), sum.z);
        sum.w = fmaf(value, value, sum.w);
    }
    sum = gpu_ngrams_sums(sum);
    if (threadIdx.x) return;
    const float eps = p.shape.eps;
    const float s = sum.z * rms_factor_divided(sum.x, n, eps) * rms_factor_divided(sum.y, n, eps) * rsqrtf((float)n);
    const float root = sqrtf(fmaxf(fabsf(s), 1e-6f)), gate = gpu_sigmoid(s > 0 ? root : s < 0 ? -root : 0);
    p.gate[t * p.shape.streams + c] = make_float2(gate, rms_factor_divided(gate * gate * sum.w, n, eps));
}

/* Grid: (streams, T). */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_ngrams_gate(const __grid_constant__ ngrams_gpu p) {
    pdl_launch_dependents();
    pdl_wait();
    gpu_ngrams_gate_row(p, blockIdx.y, blockIdx.x);
}

/* A column of R, and where it is of a stream. */
typedef struct ngrams_column {
    int at, stream, i;           /* of R's row; the stream, and the column of that */
    float norm;                  /* norm_conv */
} ngrams_column;

__device__ __forceinline__ ngrams_column gpu_ngrams_column(const ngrams_gpu &p, int at) {
    return {at, at / p.shape.hidden, at % p.shape.hidden, __ldg(p.norm_conv + at)};
}

/* G of row t; *factor: what makes M of it. Rounded as written, so that who makes it again makes the same. */
__device__ __forceinline__ float gpu_ngrams_G(const ngrams_gpu &p, const ngrams_column &c, int t, float *factor) {
    const float2 gate = __ldcg(p.gate + t * p.shape.streams + c.stream);
    *factor = __fmul_rn(gate.y, c.norm);
    return __fmul_rn(gate.x, __ldcg(p.value + (size_t)t * p.shape.hidden + c.i));
}

__device__ __forceinline__ float gpu_ngrams_M(const ngrams_gpu &p, const ngrams_column &c, int t) {
    float factor;
    const float G = gpu_ngrams_G(p, c, t, &factor);
    return __fmul_rn(G, factor);
}

/* M of row t of the block; negative: of rows before it, which `past` has, a column of window and log. replay: rows of the log that count. */
__device__ __forceinline__ float gpu_ngrams_seen(const ngrams_gpu &p, const ngrams_column &c, const float *past, int replay, int t) {
    if (t >= 0) return gpu_ngrams_M(p, c, t);
    return __ldcg(past + (ptrdiff_t)(gpu_ngrams_reach(&p.shape) + replay + t) * gpu_ngrams_columns(&p.shape));
}

/* x of row t gets what the layer adds. */
__device__ __forceinline__ void gpu_ngrams_add_row(const ngrams_gpu &p, const ngrams_column &c, const float *past, int replay, int t) {
    const ngrams_shape *s = &p.shape;
    float *x = p.x + (size_t)t * gpu_ngrams_columns(s) + c.at, sum = 0, factor;
    const float before = __ldcg(x), G = gpu_ngrams_G(p, c, t, &factor);
    for (int j = 0; j < s->taps; j++)
        sum = __fmaf_rn(__ldg(p.conv1d + (size_t)c.at * s->taps + j), gpu_ngrams_seen(p, c, past, replay, t - s->grams * (s->taps - 1 - j)), sum);
    *x = __fadd_rn(before, __fadd_rn(G, gpu_silu(sum)));
}

/* The column of the window moves on: past the rows of the log that count, and past the block's first `kept` rows. Of several rows all are
   loaded before the first is stored, each of which was at least as far on. */
__device__ __forceinline__ void gpu_ngrams_advance(const ngrams_gpu &p, const ngrams_column &c, float *past, int replay, int kept) {
    enum { AT_ONCE = 9 };
    const int reach = gpu_ngrams_reach(&p.shape), columns = gpu_ngrams_columns(&p.shape);
    float M[AT_ONCE];
    if (replay + kept == 0) return;
    for (int first = 0; first < reach; first += AT_ONCE) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            M[i] = first + i < reach ? gpu_ngrams_seen(p, c, past, replay, first + i + kept - reach) : 0;
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i < reach) past[(size_t)(first + i) * columns] = M[i];
    }
}

/* The rows of sequence z of a pass, and its slot. */
__device__ __forceinline__ ngrams_gpu gpu_ngrams_sequence(const ngrams_gpu &all, int z) {
    const step_parameters *step = all.step + z;
    ngrams_gpu p = all;
    p.step = step;
    p.slot = gpu_slot_of(&all.slot, step);
    if (all.in_turn) p.T = gpu_rows_of_turns(step, all.sequences);
    if (!all.sequences || all.in_turn) return p;
    p.T = step->rows;
    p.x += (size_t)step->first * gpu_ngrams_columns(&all.shape);
    p.value += (size_t)step->first * all.shape.hidden;
    p.gate += step->first * all.shape.streams;
    return p;
}

/* Grid: (ceil(columns / 256), sequences; of blocks in turn, or a single one: 1). A block in turn is kept but for its last rows, which are logged. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_ngrams_add(const __grid_constant__ ngrams_gpu all) {
    const int at = blockIdx.x * GPU_THREADS + threadIdx.x, columns = gpu_ngrams_columns(&all.shape);
    pdl_launch_dependents();
    pdl_wait();
    if (at >= columns) return;
    const ngrams_gpu p = gpu_ngrams_sequence(all, blockIdx.y);
    const ngrams_column c = gpu_ngrams_column(p, at);
    const int replay = p.step->replay, kept = p.in_turn ? gpu_before_log(p.T) : 0;
    float *past = (float *)(void *)gpu_in_slot(&p.slot, p.window) + at, *log = past + (size_t)gpu_ngrams_reach(&p.shape) * columns;
    for (int t = 0; t < p.T; t++) gpu_ngrams_add_row(p, c, past, replay, t);
    gpu_ngrams_advance(p, c, past, replay, kept);
    for (int t = kept; t < p.T; t++) log[(size_t)(t - kept) * columns] = gpu_ngrams_M(p, c, t);
}

/* The implementation of layers/kinds.c on a GPU. */

static void ngrams_layout_gpu(layout *l, const ngrams_shape *s, const capacity *, const gpu_queue *q, ngrams_gpu *to) {
    const size_t T = (size_t)q->rows;
    memset(to, 0, sizeof *to);
    to->key = layout_alloc(l, T * ngrams_row(s));
    to->value = layout_alloc(l, T * (size_t)s->hidden);
    to->gate = (float2 *)(void *)layout_alloc(l, 2 * T * (size_t)s->streams);
}

/* What does not depend on the rows. */
static ngrams_gpu gpu_ngrams_of(const ngrams_weights *w, const ngrams_gpu *scratch, const ngrams_state *state) {
    ngrams_gpu p = *scratch;
    p.shape = w->shape;
    p.window = state->window;
    p.norm_key = w->norm_key;
    p.norm_query = w->norm_query;
    p.norm_conv = w->norm_conv;
    p.conv1d = w->conv1d;
    return p;
}

/* ngram_proj: both products of a row's numbers of the table. */
static void gpu_ngram_proj(const gpu_rows *rows, const ngrams_weights *w, const ngrams_gpu *to) {
    gpu_projection<gpu_plain_rows> p = gpu_projection_of<gpu_plain_rows>(rows->T, ngrams_width(&w->shape));
    p.in.x = to->looked_up;
    gpu_add_segment(&p, &w->key_proj, to->key);
    gpu_add_segment(&p, &w->value_proj, to->value);
    gpu_record_projection(rows->q, KERNEL_NGRAM_PROJ, &p);
}

static void ngrams_record(const gpu_rows *rows, const ngrams_weights *w, const ngrams_gpu *scratch, const ngrams_state *state,
                          const ngrams_state *) {
    const int columns = gpu_ngrams_columns(&w->shape), sequences = rows->in_turn ? 1 : max_int(rows->sequences, 1);
    ngrams_gpu p = gpu_ngrams_of(w, scratch, state);
    p.looked_up += (size_t)w->shape.number * (size_t)rows->q->rows * (size_t)ngrams_width(&w->shape);
    p.step = rows->step;
    p.slot = rows->slot;
    p.sequences = rows->sequences;
    p.in_turn = rows->in_turn;
    p.T = rows->T;
    p.x = rows->x;
    gpu_ngram_proj(rows, w, &p);
    gpu_record(rows->q, KERNEL_NGRAM_GATE, "", gpu_ngrams_gate, w->shape.streams, rows->T, 0, &p);
    gpu_record(rows->q, KERNEL_NGRAM_ADD, "", gpu_ngrams_add, (columns - 1) / GPU_THREADS + 1, sequences, 0, &p);
}

/* A block of more than STEP_ROWS rows has been accepted, and a step follows: the first STEP_ROWS rows of its log go into the window. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_ngrams_shorten(float *window, int rows, int columns) {
    const int at = blockIdx.x * GPU_THREADS + threadIdx.x;
    for (int t = 0; at < columns && t + STEP_ROWS < rows; t++)
        window[(size_t)t * columns + at] = window[(size_t)(t + STEP_ROWS) * columns + at];
}

static cudaError_t ngrams_shorten_log(cudaStream_t stream, const ngrams_shape *s, const ngrams_state *state) {
    const int columns = gpu_ngrams_columns(s);
    gpu_ngrams_shorten<<<(columns - 1) / GPU_THREADS + 1, GPU_THREADS, 0, stream>>>(state->window, gpu_ngrams_reach(s) + MOTE_ROWS_MAX, columns);
    return cudaGetLastError();
}
