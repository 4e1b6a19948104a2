/* kernels.cu: the stages of the forward pass. The mathematics of the model, and nothing of files, names or sessions.

   Contents   1. Numbers: F16, BF16, FP8 to float      2. Threads: one parallel loop
              3. Matrices: weight rows times token rows 4. Norms, activations, rotary angles
              5. CUDA: what all kernels share           6. CUDA: matrices
              7. Stage embed                            8. Stages of a DeltaNet layer
              9. Stages of an attention layer          10. Stages of the mixture of experts
             11. Stage head                            12. Sampling

   A stage computes a block of T token rows. Each is written here as plain C that reads like its formula: the definition,
   which every faster version is tested against. Rules all of them keep:
   - The arithmetic of a row does not depend on T or on the other rows: same operations, same order, same bits.
   - Every output element is computed by one thread, so that two runs give the same bits.
   - Weights stay as stored and become float on use; activations, KV and state are float.
   Notation: row-major; W[out][in], x[T][in]; `rms(x) = x / sqrt(mean(x^2) + eps)`. */

#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* ---- 1. Numbers --------------------------------------------------------------------------------------------------
   Each conversion is exact. FP8 is E4M3 "fn" (1 sign, 4 exponent, 3 mantissa bits, bias 7, largest 448, no infinity):
   its bits, moved to their places in a float, are the value times 2^-120, subnormals included. The two NaN codes 0x7f and
   0xff would come out as 480: a checkpoint holding them is refused when it is loaded. */

typedef enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_FP8 } dtype;

static inline float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline float float_of_bf16(uint16_t h) {
    return float_of_bits((uint32_t)h << 16);
}

/* F16 has 5 exponent bits, bias 15: moved into a float it is the value times 2^-112; infinities and NaNs (exponent 31,
   here 143 after the product) need all exponent bits set. */
static inline float float_of_f16(uint16_t h) {
    float f = float_of_bits((uint32_t)(h & 0x7fff) << 13) * 0x1p112f;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    bits |= (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    return float_of_bits(bits | (uint32_t)(h & 0x8000) << 16);
}

#define FP8_UNIT 0x1p120f /* fp8_bits(code) * FP8_UNIT is the value; a block's scale is multiplied into it first */

static inline float fp8_bits(uint8_t code) {
    return float_of_bits((uint32_t)(int32_t)(int8_t)code << 20 & 0x87f00000u);
}

/* Functions marked SIMD are compiled once for each level of x86-64 and chosen when the program starts, so that one build
   is fast everywhere. Other processors need no choice. */
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12
#define SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && defined(__GLIBC__) && (!defined(__clang__) || __clang_major__ >= 14)
#define SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SIMD
#endif

/* Small helpers that must become part of the SIMD function around them. */
#define INLINE static inline __attribute__((always_inline))

/* 16 floats at any address: one register or several, whatever the processor has. */
typedef float lanes __attribute__((vector_size(64), aligned(4), may_alias));

/* ---- 2. Threads --------------------------------------------------------------------------------------------------
   A stage is a loop over independent items (rows of a weight, heads). parallel() hands out pieces of the loop to a few
   threads that live as long as the session. A decode step has hundreds of such loops of some microseconds, so waiting
   threads look for work a while before they sleep. And a loop does not wait for helpers that have not come to it: on a
   busy machine one may be kept away for milliseconds, while the caller has long done the work alone. */

enum { POOL_SPINS = 4000, POOL_CLOSED = 1 << 30 };

typedef void (*loop_body)(void *context, int begin, int end, int thread);

typedef struct pool {
    int threads;                 /* the caller included */
    pthread_t *ids;              /* threads - 1 */
    int started;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    loop_body body;              /* the present loop: written before `round` is */
    void *context;
    int count, piece;
    int next;                    /* first item not handed out (atomic) */
    int gate;                    /* helpers inside the present loop, + POOL_CLOSED when none may enter (atomic) */
    unsigned round;              /* grows with every loop (atomic) */
    int quit;                    /* (atomic) */
} pool;

typedef struct pool_thread { pool *owner; int index; } pool_thread;

static void pool_work(pool *p, int thread) {
    for (;;) {
        int begin = __atomic_fetch_add(&p->next, p->piece, __ATOMIC_RELAXED);
        if (begin >= p->count) return;
        int end = begin + p->piece < p->count ? begin + p->piece : p->count;
        p->body(p->context, begin, end, thread);
    }
}

static unsigned pool_wait(pool *p, unsigned seen) {
    for (int i = 0; i < POOL_SPINS; i++) {
        unsigned round = __atomic_load_n(&p->round, __ATOMIC_ACQUIRE);
        if (round != seen) return round;
        if (i % 64 == 63) sched_yield();
    }
    pthread_mutex_lock(&p->lock);
    while (__atomic_load_n(&p->round, __ATOMIC_ACQUIRE) == seen) pthread_cond_wait(&p->wake, &p->lock);
    pthread_mutex_unlock(&p->lock);
    return __atomic_load_n(&p->round, __ATOMIC_ACQUIRE);
}

static void *pool_main(void *argument) {
    pool_thread me = *(pool_thread *)argument;
    free(argument);
    unsigned seen = 0;
    for (;;) {
        seen = pool_wait(me.owner, seen);
        if (__atomic_load_n(&me.owner->quit, __ATOMIC_ACQUIRE)) return NULL;
        if (!(__atomic_fetch_add(&me.owner->gate, 1, __ATOMIC_ACQ_REL) & POOL_CLOSED)) pool_work(me.owner, me.index);
        __atomic_sub_fetch(&me.owner->gate, 1, __ATOMIC_RELEASE);
    }
}

static void pool_announce(pool *p) {
    pthread_mutex_lock(&p->lock);
    __atomic_add_fetch(&p->round, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

static void pool_close(pool *p) {
    if (!p) return;
    __atomic_store_n(&p->quit, 1, __ATOMIC_RELEASE);
    pool_announce(p);
    for (int i = 0; i < p->started; i++) pthread_join(p->ids[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->ids);
    free(p);
}

/* A pool of `threads` threads, the caller's included; NULL when the system gives none. */
static pool *pool_open(int threads) {
    pool *p = (pool *)calloc(1, sizeof *p);
    if (!p) return NULL;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->threads = threads;
    p->gate = POOL_CLOSED;
    p->ids = (pthread_t *)calloc((size_t)threads, sizeof *p->ids);
    for (int i = 1; p->ids && i < threads; i++) {
        pool_thread *start = (pool_thread *)malloc(sizeof *start);
        if (!start) break;
        start->owner = p;
        start->index = i;
        if (pthread_create(&p->ids[p->started], NULL, pool_main, start)) {
            free(start);
            break;
        }
        p->started++;
    }
    if (p->started == threads - 1) return p;
    pool_close(p);
    return NULL;
}

/* Calls body(context, begin, end, thread) for pieces that together make up 0..count-1, and returns when all are done. */
static void parallel(pool *p, int count, loop_body body, void *context) {
    if (p->threads == 1 || count < 2) {
        if (count > 0) body(context, 0, count, 0);
        return;
    }
    p->body = body;
    p->context = context;
    p->count = count;
    p->piece = 1 + (count - 1) / (p->threads * 4);
    __atomic_store_n(&p->next, 0, __ATOMIC_RELAXED);
    __atomic_fetch_and(&p->gate, ~POOL_CLOSED, __ATOMIC_ACQ_REL);
    pool_announce(p);
    pool_work(p, 0);
    __atomic_fetch_or(&p->gate, POOL_CLOSED, __ATOMIC_ACQ_REL);
    while (__atomic_load_n(&p->gate, __ATOMIC_ACQUIRE) & ~POOL_CLOSED) sched_yield();
}

/* ---- 3. Matrices -------------------------------------------------------------------------------------------------
   All linear layers are y = W x for a few token rows x. One token reads each weight once, so what counts is how fast the
   weights stream through: a piece of a weight row is turned into floats in the first-level cache once and used there for
   all token rows. Each sum is kept as 32 partial sums, in the same order for any T. */

typedef struct matrix {
    dtype type;
    int rows, cols;
    const void *data;            /* [rows][cols] */
    const float *scale; /* FP8: [ceil(rows/block_rows)][ceil(cols/block_cols)], weight = code * scale, scale < 128 */
    int block_rows, block_cols;
} matrix;

enum {
    TILE = 128,                  /* columns turned into floats at a time, the width of an FP8 block */
    GROUP = 64                   /* token rows in one call */
};

/* out[n] = columns col.. of the weight row at `data`, as floats; scale: of the row's FP8 blocks. */
INLINE void decode(const matrix *w, const void *data, const float *scale, int col, int n, float *__restrict out,
                   const dtype type) {
    const uint16_t *__restrict half = (const uint16_t *)data + col;
    const uint8_t *__restrict code = (const uint8_t *)data + col;
    if (type == DTYPE_F32) memcpy(out, (const float *)data + col, (size_t)n * sizeof *out);
    if (type == DTYPE_F16)
        for (int i = 0; i < n; i++) out[i] = float_of_f16(half[i]);
    if (type == DTYPE_BF16)
        for (int i = 0; i < n; i++) out[i] = float_of_bf16(half[i]);
    if (type != DTYPE_FP8) return;
    if (w->block_cols == TILE && col % TILE == 0 && n <= TILE) {
        float unit = scale[col / TILE] * FP8_UNIT;
        for (int i = 0; i < n; i++) out[i] = fp8_bits(code[i]) * unit;
    } else {
        for (int i = 0; i < n; i++) out[i] = fp8_bits(code[i]) * (scale[(col + i) / w->block_cols] * FP8_UNIT);
    }
}

INLINE const float *scale_row(const matrix *w, int row) {
    return w->type == DTYPE_FP8 ? w->scale + (size_t)(row / w->block_rows) * (size_t)((w->cols - 1) / w->block_cols + 1)
                                : NULL;
}

INLINE const void *data_row(const matrix *w, int row) {
    size_t size = w->type == DTYPE_F32 ? 4 : w->type == DTYPE_FP8 ? 1 : 2;
    return (const char *)w->data + (size_t)row * (size_t)w->cols * size;
}

/* The partial sums of a dot product: lane l of `low` takes elements l, l + 32, ..., of `high` l + 16, l + 48, ... */
typedef struct partial { lanes low, high; } partial;

/* sum[j] += w . x[j][col..col+n) without the last n % 32 products, for `count` <= 4 rows of x, a constant. */
INLINE void add_products(partial *sum, const float *w, const float *const *x, int col, int n, const int count) {
    lanes low[4], high[4];
    for (int j = 0; j < count; j++) low[j] = sum[j].low, high[j] = sum[j].high;
    for (int i = 0; i + 32 <= n; i += 32) {
        lanes first = *(const lanes *)(w + i), second = *(const lanes *)(w + i + 16);
        for (int j = 0; j < count; j++) {
            low[j] += first * *(const lanes *)(x[j] + col + i);
            high[j] += second * *(const lanes *)(x[j] + col + i + 16);
        }
    }
    for (int j = 0; j < count; j++) sum[j].low = low[j], sum[j].high = high[j];
}

INLINE float sum_lanes(const partial *sum) {
    lanes both = sum->low + sum->high;
    float total = 0;
    for (int l = 0; l < 16; l++) total += both[l];
    return total;
}

/* sum + the last n % 32 products, one after the other. */
INLINE float add_tail(float sum, const float *w, const float *x, int n) {
    for (int i = n / 32 * 32; i < n; i++) sum += w[i] * x[i];
    return sum;
}

INLINE float dot(const float *a, const float *b, int n) {
    partial sum;
    memset(&sum, 0, sizeof sum);
    add_products(&sum, a, &b, 0, n, 1);
    return add_tail(sum_lanes(&sum), a, b, n);
}

/* y[t] = W[row] . x[t] for the `count` <= GROUP rows x[t]; type is a constant. */
INLINE void type_dots(const matrix *w, int row, const float *const *x, int count, float *y, const dtype type) {
    float tile[TILE] __attribute__((aligned(64)));
    partial sum[GROUP] __attribute__((aligned(64)));
    const void *data = data_row(w, row);
    const float *scale = scale_row(w, row);
    int col = 0, rest = w->cols % TILE;
    for (int t = 0; t < count; t++) memset(&sum[t], 0, sizeof *sum);
    for (; col < w->cols - rest; col += TILE) {
        int t = 0;
        decode(w, data, scale, col, TILE, tile, type);
        for (; t + 4 <= count; t += 4) add_products(sum + t, tile, x + t, col, TILE, 4);
        for (; t < count; t++) add_products(sum + t, tile, x + t, col, TILE, 1);
    }
    if (!rest) {
        for (int t = 0; t < count; t++) y[t] = sum_lanes(sum + t);
        return;
    }
    float last[TILE]; /* not `tile`: what is never read again need not be stored */
    decode(w, data, scale, col, rest, last, type);
    for (int t = 0; t < count; t++) {
        add_products(sum + t, last, x + t, col, rest, 1);
        y[t] = add_tail(sum_lanes(sum + t), last, x[t] + col, rest);
    }
}

INLINE void any_type_dots(const matrix *w, int row, const float *const *x, int count, float *y) {
    if (w->type == DTYPE_FP8) type_dots(w, row, x, count, y, DTYPE_FP8);
    else if (w->type == DTYPE_BF16) type_dots(w, row, x, count, y, DTYPE_BF16);
    else if (w->type == DTYPE_F16) type_dots(w, row, x, count, y, DTYPE_F16);
    else type_dots(w, row, x, count, y, DTYPE_F32);
}

/* The same for a matrix of any type. A single row, decoding, is worth a copy of its own: its sums stay in registers. */
SIMD static void matrix_row_dots(const matrix *w, int row, const float *const *x, int count, float *y) {
    if (count == 1) any_type_dots(w, row, x, 1, y);
    else any_type_dots(w, row, x, count, y);
}

enum { PROJECTIONS = 4 };

/* Several linear layers of one input, as one loop: y[i][t][row] = W[i][row] . x[t], or += when `add` is set. */
typedef struct projection {
    int count;
    const matrix *w[PROJECTIONS];
    float *y[PROJECTIONS];       /* [T][rows of w] */
    const float *x;              /* [T][cols] */
    int T, add;
} projection;

static void projection_rows(void *context, int begin, int end, int thread) {
    const projection *p = (const projection *)context;
    (void)thread;
    for (int item = begin; item < end; item++) {
        int i = 0, row = item;
        while (row >= p->w[i]->rows) row -= p->w[i++]->rows;
        const matrix *w = p->w[i];
        for (int first = 0; first < p->T; first += GROUP) {
            int count = p->T - first < GROUP ? p->T - first : GROUP;
            const float *x[GROUP];
            float y[GROUP];
            for (int t = 0; t < count; t++) x[t] = p->x + (size_t)(first + t) * (size_t)w->cols;
            matrix_row_dots(w, row, x, count, y);
            float *out = p->y[i] + (size_t)first * (size_t)w->rows + row;
            for (int t = 0; t < count; t++)
                out[(size_t)t * (size_t)w->rows] = p->add ? out[(size_t)t * (size_t)w->rows] + y[t] : y[t];
        }
    }
}

static void project(pool *p, projection *job) {
    int rows = 0;
    for (int i = 0; i < job->count; i++) rows += job->w[i]->rows;
    parallel(p, rows, projection_rows, job);
}

/* y[t] = W x[t], or y[t] += W x[t]. */
static void linear(pool *p, const matrix *w, const float *x, float *y, int T, int add) {
    projection job;
    memset(&job, 0, sizeof job);
    job.count = 1;
    job.w[0] = w;
    job.y[0] = y;
    job.x = x;
    job.T = T;
    job.add = add;
    project(p, &job);
}

/* ---- 4. Norms, activations, rotary angles ------------------------------------------------------------------------
   Qwen3.5 keeps the weights of most RMSNorms around zero, so that the factor is 1 + w; the gated norm inside a DeltaNet
   layer multiplies by w itself. */

static inline float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static inline float silu(float x) {
    return x * sigmoid(x);
}

static inline float softplus(float x) {
    return x > 20.0f ? x : log1pf(expf(x));
}

static float rms_factor(const float *x, int n, float eps) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * x[i];
    return (float)(1.0 / sqrt(sum / n + (double)eps));
}

/* out[t] = rms(x[t]) * (1 + w) for T rows of n; out may be x. */
static void rms_norm(float *out, const float *x, const float *w, int T, int n, float eps) {
    for (int t = 0; t < T; t++) {
        const float *row = x + (size_t)t * (size_t)n;
        float *to = out + (size_t)t * (size_t)n, factor = rms_factor(row, n, eps);
        for (int i = 0; i < n; i++) to[i] = row[i] * factor * (1.0f + w[i]);
    }
}

/* angles[t] = cos of each frequency, then sin of each, at position first + t. Frequency i of `dim` rotated dimensions is
   theta^(-2i/dim), in single precision as the model was trained with. */
static void rotary_angles(float *angles, int first, int T, int dim, float theta) {
    int half = dim / 2;
    for (int i = 0; i < half; i++) {
        float frequency = 1.0f / powf(theta, (float)(2 * i) / (float)dim);
        for (int t = 0; t < T; t++) {
            float angle = (float)(first + t) * frequency;
            angles[(size_t)t * (size_t)dim + (size_t)i] = cosf(angle);
            angles[(size_t)t * (size_t)dim + (size_t)(half + i)] = sinf(angle);
        }
    }
}

/* Rotates the pairs (x[i], x[i + dim/2]) by the angles of one position. */
static void rotate(float *x, const float *angles, int dim) {
    int half = dim / 2;
    for (int i = 0; i < half; i++) {
        float a = x[i], b = x[half + i], c = angles[i], s = angles[half + i];
        x[i] = a * c - b * s;
        x[half + i] = b * c + a * s;
    }
}

/* ---- 5. CUDA: what all kernels share -----------------------------------------------------------------------------
   Decoding moves bytes: a step reads every weight it needs once, and uses it for one to four token rows. So a step is a
   chain of some 250 small kernels that each stream the weights of one stage, and what decides is that the stream never
   stops between them. Programmatic dependent launch makes the next kernels resident while this one still runs; each asks
   for its first weights, which never change, before it waits for its predecessor (gpu_wait), and touches nothing else
   before that. Every kernel waits, also one that needs nothing, so that "all before me is complete" holds along the whole
   chain. The chain is captured once as a graph: what differs from step to step is in device memory (gpu_step). */

#ifdef __CUDACC__
#include <cuda_runtime.h>

enum {
    GPU_THREADS = 256, GPU_WARPS = GPU_THREADS / 32,        /* of every block */
    GPU_ROWS = 4,                                           /* most token rows of a step */
    GPU_SHARED = 101376                                     /* most shared memory a block may use: what SM12x grants */
};

/* The stages, in the order of the names below; a step can be cut down to some of them, to time these alone. */
enum gpu_stage {
    GPU_EMBED, GPU_IN_PROJ, GPU_DELTA, GPU_OUT_PROJ, GPU_QKV, GPU_ATTEND, GPU_O_PROJ, GPU_ROUTER, GPU_UP, GPU_DOWN,
    GPU_HEAD, GPU_MTP, GPU_STAGES
};

static const char *const gpu_stage_names[GPU_STAGES] = {
    "embed", "norm_in_proj", "conv_delta", "gated_norm_out", "norm_qkv", "rope_attend", "out", "norm_router",
    "experts_up", "experts_down", "head", "mtp"};

/* What changes from step to step. */
typedef struct gpu_step {
    int32_t position;            /* of the block's first row: tokens before it */
    int32_t replay;              /* rows of the logged block that were kept */
    int32_t ids[GPU_ROWS];
} gpu_step;

typedef struct gpu_note {        /* a launch, for those who ask what ran */
    const void *kernel;
    enum gpu_stage stage;
    int layer;
    const char *format;          /* of the weights; "" without */
    dim3 grid;
    size_t shared;
} gpu_note;

/* Where launches go. The first failure stays; launches after it do nothing. */
typedef struct gpu_queue {
    cudaStream_t stream;
    cudaError_t status;
    const char *failed;          /* the operation */
    int sms;                     /* multiprocessors to fill */
    int dependent;               /* programmatic dependent launch: from compute capability 9.0 on */
    unsigned stages;             /* bit set of those to run */
    enum gpu_stage as;           /* GPU_STAGES, or the stage that all launches count as (the MTP layer's) */
    int layer;
    gpu_note *notes;             /* of the launches, up to note_capacity; NULL: none kept */
    int note_count, note_capacity;
} gpu_queue;

static int gpu_check(gpu_queue *q, cudaError_t status, const char *what) {
    if (status != cudaSuccess && q->status == cudaSuccess) {
        q->status = status;
        q->failed = what;
    }
    return q->status == cudaSuccess;
}

/* Launches kernel(*p) on x * y blocks of GPU_THREADS threads with `shared` bytes of dynamic shared memory. */
template <class P>
static void gpu_launch(gpu_queue *q, enum gpu_stage stage, const char *format, void (*kernel)(P), int x, int y,
                       size_t shared, const P *p) {
    cudaLaunchConfig_t c;
    cudaLaunchAttribute dependent;
    if (q->as != GPU_STAGES) stage = q->as;
    if (q->status != cudaSuccess || !(q->stages >> stage & 1)) return;
    if (q->notes && q->note_count < q->note_capacity) {
        gpu_note *n = &q->notes[q->note_count++];
        n->kernel = (const void *)kernel;
        n->stage = stage;
        n->layer = q->layer;
        n->format = format;
        n->grid = dim3((unsigned)x, (unsigned)y);
        n->shared = shared;
    }
    memset(&c, 0, sizeof c);
    memset(&dependent, 0, sizeof dependent);
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3((unsigned)x, (unsigned)y);
    c.blockDim = dim3(GPU_THREADS);
    c.dynamicSmemBytes = shared;
    c.stream = q->stream;
    c.attrs = &dependent;
    c.numAttrs = q->dependent ? 1 : 0;
    if (shared > 48 * 1024)
        gpu_check(q, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared),
                  gpu_stage_names[stage]);
    gpu_check(q, cudaLaunchKernelEx(&c, kernel, *p), gpu_stage_names[stage]);
}

/* Blocks of a kernel that run at once on the multiprocessors to fill, but at most `most`. */
template <class P> static int gpu_blocks(gpu_queue *q, void (*kernel)(P), size_t shared, int64_t most) {
    int per_sm = 0;
    if (shared > 48 * 1024)
        gpu_check(q, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared), "occupancy");
    gpu_check(q, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, GPU_THREADS, shared), "occupancy");
    int64_t blocks = (int64_t)(per_sm < 1 ? 1 : per_sm) * q->sms;
    return (int)(blocks < most ? blocks : most);
}

/* Everything before this kernel is complete and visible. Before it only weights may be read, and state that no kernel of
   this step writes. */
__device__ __forceinline__ void gpu_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel become resident. At entry: what it may do before its gpu_wait harms nobody. */
__device__ __forceinline__ void gpu_trigger() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Sum over a warp, the same bits on all lanes. */
__device__ __forceinline__ float warp_sum(float v) {
    for (int i = 16; i; i /= 2) v += __shfl_xor_sync(~0u, v, i);
    return v;
}

__device__ __forceinline__ float gpu_sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

/* Two floats as two BF16 in a register, the first in the low half. */
__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ float bf16_low(uint32_t pair) {
    return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float bf16_high(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

/* c[16][8] += a[16][16] b[16][8], BF16 times BF16 in float, shared by a warp. With g = lane / 4, i = lane % 4 a lane has
   a: rows g, g+8, g, g+8 at k = 2i, 2i, 2i+8, 2i+8 (two neighbouring k each); b: column g at the same two k;
   c: row g columns 2i, 2i+1, row g+8 columns 2i, 2i+1. Which k is which does not matter as long as a and b agree. */
__device__ __forceinline__ void mma_bf16(float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
#endif

/* ---- 7. Stage embed ----------------------------------------------------------------------------------------------
   x[t] = embed_tokens[id[t]]. The caller has checked the ids. */

static void embed(const matrix *embed_tokens, const int32_t *ids, int T, float *x) {
    for (int t = 0; t < T; t++)
        decode(embed_tokens, data_row(embed_tokens, ids[t]), scale_row(embed_tokens, ids[t]), 0, embed_tokens->cols,
               x + (size_t)t * (size_t)embed_tokens->cols, embed_tokens->type);
}

/* ---- 8. Stages of a DeltaNet layer -------------------------------------------------------------------------------
   Gated DeltaNet (Yang et al. 2024) keeps, for every value head, a matrix S that maps keys to values. A token first lets
   the memory fade, then corrects what it holds for the token's key, then reads with the query:

       S = exp(g) S                     the decay comes first, so that the correction below is against the faded memory
       u = beta (v - S k)               what the memory should have said for k, minus what it says: the delta
       S = S + u k^T                    written along k
       o = S q                          read after the write, so that a token sees itself

   S is laid out [value_dim][key_dim]: row j of S belongs to element j of v, u and o and is independent of all others, so
   one row stays in registers or first-level cache for the whole block of tokens.

   Speculation asks for a block of rows of which only some are kept, and S cannot be cut back. So a block of up to BLOCK
   rows leaves S as it was before the block and logs what each row did to it (decay, k, u); the next block first repeats
   the kept part of the log, by the same operations in the same order, hence with the same bits. S is read and written
   once a block. Longer blocks, of a prompt, are kept whole: they write S directly. */

enum {
    BLOCK = 4,                   /* most rows of a block that can be taken back */
    MAX_KEY_DIM = 512            /* of a DeltaNet head: a row of S fits a small array */
};

typedef struct deltanet_shape {
    int hidden, key_heads, value_heads, key_dim, value_dim, taps;   /* taps of conv1d */
    float eps;
} deltanet_shape;

typedef struct deltanet_weights {
    const float *input_norm;                                        /* [hidden] */
    matrix in_proj_qkv, in_proj_z, in_proj_b, in_proj_a, out_proj;
    const float *conv1d;                                            /* [channels][taps], the last tap is the present */
    const float *A_log, *dt_bias;                                   /* [value_heads] */
    const float *norm;                                              /* [value_dim] */
} deltanet_weights;

/* Pointers into the session's state. channels = 2 key_heads key_dim + value_heads value_dim. */
typedef struct deltanet_state {
    float *S;                    /* [value_heads][value_dim][key_dim] before the logged block */
    float *window;               /* [taps - 1][channels] raw conv inputs before the logged block, oldest first */
    float *log_raw;              /* [BLOCK][channels] raw conv inputs of the logged block */
    float *log_k;                /* [BLOCK][key_heads][key_dim] */
    float *log_u;                /* [BLOCK][value_heads][value_dim] */
    float *log_decay;            /* [BLOCK][value_heads] */
} deltanet_state;

typedef struct deltanet_job {
    const deltanet_shape *shape;
    const deltanet_weights *w;
    deltanet_state state;
    int T;                       /* rows of this block */
    int replay;                  /* rows of the logged block that were kept */
    const float *raw;            /* [T][channels] in_proj_qkv of the block */
    float *conv;                 /* [T][channels] q | k | v after conv1d, SiLU and normalisation */
    const float *b, *a;          /* [T][value_heads] */
    float *decay, *beta;         /* [T][value_heads] */
    float *o;                    /* [T][value_heads][value_dim] */
    const float *z;              /* the same shape */
} deltanet_job;

static int deltanet_channels(const deltanet_shape *s) {
    return 2 * s->key_heads * s->key_dim + s->value_heads * s->value_dim;
}

/* norm_in_proj: u = rms(x)(1 + input_norm); qkv, z, b, a = the four projections of u. */
static void stage_norm_in_proj(pool *p, const deltanet_shape *s, const deltanet_weights *w, const float *x, int T,
                               float *u, float *qkv, float *z, float *b, float *a) {
    projection job;
    memset(&job, 0, sizeof job);
    rms_norm(u, x, w->input_norm, T, s->hidden, s->eps);
    job.count = 4;
    job.w[0] = &w->in_proj_qkv;
    job.w[1] = &w->in_proj_z;
    job.w[2] = &w->in_proj_b;
    job.w[3] = &w->in_proj_a;
    job.y[0] = qkv;
    job.y[1] = z;
    job.y[2] = b;
    job.y[3] = a;
    job.x = u;
    job.T = T;
    project(p, &job);
}

/* The raw conv inputs of `taps - 1` tokens before the block: the window, moved on by the kept rows of the logged block. */
static void deltanet_advance_window(const deltanet_job *job) {
    int channels = deltanet_channels(job->shape), keep = job->shape->taps - 1, replay = job->replay;
    size_t row = (size_t)channels * sizeof(float);
    float *window = job->state.window;
    int from_log = replay < keep ? replay : keep;
    memmove(window, window + (size_t)from_log * (size_t)channels, (size_t)(keep - from_log) * row);
    memcpy(window + (size_t)(keep - from_log) * (size_t)channels,
           job->state.log_raw + (size_t)(replay - from_log) * (size_t)channels, (size_t)from_log * row);
}

/* After the block: log its raw rows if it is short enough to be taken back, else move the window on past it. */
static void deltanet_keep_raw(const deltanet_job *job) {
    int channels = deltanet_channels(job->shape), keep = job->shape->taps - 1;
    size_t row = (size_t)channels * sizeof(float);
    if (job->T <= BLOCK) {
        memcpy(job->state.log_raw, job->raw, (size_t)job->T * row);
        return;
    }
    int from_block = job->T < keep ? job->T : keep;
    memmove(job->state.window, job->state.window + (size_t)from_block * (size_t)channels,
            (size_t)(keep - from_block) * row);
    memcpy(job->state.window + (size_t)(keep - from_block) * (size_t)channels,
           job->raw + (size_t)(job->T - from_block) * (size_t)channels, (size_t)from_block * row);
}

/* conv[t][c] = SiLU(sum over taps j of conv1d[c][j] * raw[t - taps + 1 + j][c]) for `n` channels from `first`. */
static void deltanet_conv(const deltanet_job *job, int t, int first, int n) {
    int channels = deltanet_channels(job->shape), taps = job->shape->taps;
    float *out = job->conv + (size_t)t * (size_t)channels;
    for (int c = first; c < first + n; c++) {
        float sum = 0;
        for (int j = 0; j < taps; j++) {
            int at = t - taps + 1 + j;
            const float *row = at < 0 ? job->state.window + (size_t)(at + taps - 1) * (size_t)channels
                                      : job->raw + (size_t)at * (size_t)channels;
            sum += job->w->conv1d[(size_t)c * (size_t)taps + (size_t)j] * row[c];
        }
        out[c] = silu(sum);
    }
}

/* x = x / sqrt(sum(x^2) + 1e-6) * factor: sum, not mean, and no weight. */
static void l2_norm(float *x, int n, float factor) {
    double sum = 0;
    for (int i = 0; i < n; i++) sum += (double)x[i] * x[i];
    float f = factor / (float)sqrt(sum + 1e-6);
    for (int i = 0; i < n; i++) x[i] *= f;
}

/* Items 0..key_heads-1: q and k of a key head; then v, decay and beta of each value head. */
static void deltanet_conv_heads(void *context, int begin, int end, int thread) {
    const deltanet_job *job = (const deltanet_job *)context;
    const deltanet_shape *s = job->shape;
    int channels = deltanet_channels(s), keys = s->key_heads * s->key_dim;
    (void)thread;
    for (int item = begin; item < end; item++)
        for (int t = 0; t < job->T; t++) {
            float *row = job->conv + (size_t)t * (size_t)channels;
            if (item < s->key_heads) {
                int q = item * s->key_dim, k = keys + q;
                deltanet_conv(job, t, q, s->key_dim);
                deltanet_conv(job, t, k, s->key_dim);
                l2_norm(row + q, s->key_dim, 1.0f / sqrtf((float)s->key_dim));
                l2_norm(row + k, s->key_dim, 1.0f);
            } else {
                int h = item - s->key_heads, at = t * s->value_heads + h;
                deltanet_conv(job, t, 2 * keys + h * s->value_dim, s->value_dim);
                job->decay[at] = expf(-expf(job->w->A_log[h]) * softplus(job->a[at] + job->w->dt_bias[h]));
                job->beta[at] = sigmoid(job->b[at]);
            }
        }
}

/* S = decay S, then S = S + u k^T, for one row of S. Two loops, so that replay and first run round alike. */
INLINE void delta_decay(float *row, int n, float decay) {
    for (int i = 0; i < n; i++) row[i] *= decay;
}

INLINE void delta_write(float *row, int n, float u, const float *k) {
    for (int i = 0; i < n; i++) row[i] += u * k[i];
}

/* The delta rule for rows of S, items (value head h, element j): all tokens of the block, one after the other. */
SIMD static void deltanet_delta_rows(void *context, int begin, int end, int thread) {
    const deltanet_job *job = (const deltanet_job *)context;
    const deltanet_shape *s = job->shape;
    int channels = deltanet_channels(s), keys = s->key_heads * s->key_dim, n = s->key_dim, logged = job->T <= BLOCK;
    (void)thread;
    for (int item = begin; item < end; item++) {
        int h = item / s->value_dim, j = item % s->value_dim, key_head = h / (s->value_heads / s->key_heads);
        float *row = job->state.S + (size_t)item * (size_t)n, copy[MAX_KEY_DIM];
        for (int t = 0; t < job->replay; t++) {
            delta_decay(row, n, job->state.log_decay[t * s->value_heads + h]);
            delta_write(row, n, job->state.log_u[(size_t)t * (size_t)(s->value_heads * s->value_dim) + (size_t)item],
                        job->state.log_k + (size_t)(t * s->key_heads + key_head) * (size_t)n);
        }
        if (logged) row = (float *)memcpy(copy, row, (size_t)n * sizeof(float));
        for (int t = 0; t < job->T; t++) {
            const float *q = job->conv + (size_t)t * (size_t)channels + (size_t)(key_head * n), *k = q + keys;
            float v = job->conv[(size_t)t * (size_t)channels + (size_t)(2 * keys + h * s->value_dim + j)];
            int at = t * s->value_heads + h;
            delta_decay(row, n, job->decay[at]);
            float u = job->beta[at] * (v - dot(row, k, n));
            delta_write(row, n, u, k);
            job->o[(size_t)t * (size_t)(s->value_heads * s->value_dim) + (size_t)item] = dot(row, q, n);
            if (logged) job->state.log_u[(size_t)t * (size_t)(s->value_heads * s->value_dim) + (size_t)item] = u;
        }
    }
}

/* conv_delta: conv1d + SiLU, l2 norms, gates, replay of the kept rows, delta rule. Fills job->o and the log. */
static void stage_conv_delta(pool *p, deltanet_job *job) {
    const deltanet_shape *s = job->shape;
    int channels = deltanet_channels(s), keys = s->key_heads * s->key_dim;
    deltanet_advance_window(job);
    parallel(p, s->key_heads + s->value_heads, deltanet_conv_heads, job);
    parallel(p, s->value_heads * s->value_dim, deltanet_delta_rows, job);
    deltanet_keep_raw(job);
    if (job->T > BLOCK) return;
    memcpy(job->state.log_decay, job->decay, (size_t)(job->T * s->value_heads) * sizeof(float));
    for (int t = 0; t < job->T; t++)
        memcpy(job->state.log_k + (size_t)t * (size_t)keys, job->conv + (size_t)t * (size_t)channels + (size_t)keys,
               (size_t)keys * sizeof(float));
}

/* o = rms(o) * norm * SiLU(z), for each head of each row. */
static void deltanet_gate_heads(void *context, int begin, int end, int thread) {
    const deltanet_job *job = (const deltanet_job *)context;
    int n = job->shape->value_dim;
    (void)thread;
    for (int item = begin; item < end; item++) {
        float *o = job->o + (size_t)item * (size_t)n, factor = rms_factor(o, n, job->shape->eps);
        const float *z = job->z + (size_t)item * (size_t)n;
        for (int i = 0; i < n; i++) o[i] = o[i] * factor * job->w->norm[i] * silu(z[i]);
    }
}

/* gated_norm_out: x += out_proj (gated norm of o). */
static void stage_gated_norm_out(pool *p, deltanet_job *job, float *x) {
    parallel(p, job->T * job->shape->value_heads, deltanet_gate_heads, job);
    linear(p, &job->w->out_proj, job->o, x, job->T, 1);
}

/* ---- 9. Stages of an attention layer -----------------------------------------------------------------------------
   Grouped-query attention. q_proj yields for every head a query and an output gate, [q | gate]; query and key heads are
   normalised and the first rotary_dim dimensions rotated by position; softmax runs over the tokens up to the row's own;
   the result is multiplied by sigmoid(gate). The KV cache holds k after norm and rotation, and v as projected, both
   rounded to its type when they are appended: a row of the present block is used as rounded, too. */

typedef struct attention_shape {
    int hidden, heads, kv_heads, head_dim, rotary_dim;
    float eps;
} attention_shape;

typedef struct attention_weights {
    const float *input_norm;                       /* [hidden] */
    matrix q_proj, k_proj, v_proj, o_proj;
    const float *q_norm, *k_norm;                  /* [head_dim] */
} attention_weights;

typedef struct attention_job {
    const attention_shape *shape;
    const attention_weights *w;
    int T, position;             /* rows of this block, position of the first */
    const float *angles;         /* [T][rotary_dim] */
    float *qg;                   /* [T][heads][2][head_dim] */
    float *k_new;                /* [T][kv_heads][head_dim] */
    const float *v_new;          /* the same shape */
    dtype kv;                    /* type of the KV cache: F32, BF16 or FP8 */
    void *k, *v;                 /* KV cache [context][kv_heads][head_dim] */
    float *scores;               /* [threads][context] */
    int context;
    float *o;                    /* [T][heads][head_dim] */
} attention_job;

/* To the nearest BF16, ties to even; beyond the largest to infinity, any NaN to 0x7fff. */
static inline uint16_t bf16_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* To the nearest E4M3, ties to even; beyond 448 to 448, any NaN to 0x7f. Below 2^-6 codes count units of 2^-9: that is
   the last bit of a float next to 2^14, so adding 2^14 rounds. Above, the float's exponent and first three bits of its
   mantissa are the code, 120 exponents too large. */
static inline uint8_t fp8_of_float(float f) {
    uint32_t bits, size, code;
    memcpy(&bits, &f, 4);
    size = bits & 0x7fffffff;
    if (size > 0x7f800000) return 0x7f;
    if (size < 0x3c800000) {
        f = fabsf(f) + 0x1p14f;
        memcpy(&code, &f, 4);
        code -= 0x46800000;
    } else {
        code = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
        if (code > 0x7e) code = 0x7e;
    }
    return (uint8_t)(code | (bits >> 24 & 0x80));
}

/* Here the NaN codes are NaN: unlike weights, keys and values are not checked before they are used. */
static inline float float_of_fp8(uint8_t code) {
    float value = fp8_bits(code) * FP8_UNIT;
    return fabsf(value) > 448.0f ? NAN : value;
}

static size_t kv_size(dtype type) {
    return type == DTYPE_F32 ? 4 : type == DTYPE_BF16 ? 2 : 1;
}

/* Elements at.. of a KV cache = n floats. */
static void kv_store(dtype type, void *cache, size_t at, const float *from, size_t n) {
    uint16_t *half = (uint16_t *)cache + at;
    uint8_t *code = (uint8_t *)cache + at;
    if (type == DTYPE_F32) memcpy((float *)cache + at, from, n * sizeof *from);
    for (size_t i = 0; type == DTYPE_BF16 && i < n; i++) half[i] = bf16_of_float(from[i]);
    for (size_t i = 0; type == DTYPE_FP8 && i < n; i++) code[i] = fp8_of_float(from[i]);
}

/* The floats of n elements at.. of a KV cache: where they lie or, decoded, in `to`. */
INLINE const float *kv_floats(const void *cache, size_t at, int n, float *__restrict to, const dtype type) {
    const uint16_t *__restrict half = (const uint16_t *)cache + at;
    const uint8_t *__restrict code = (const uint8_t *)cache + at;
    if (type == DTYPE_F32) return (const float *)cache + at;
    if (type == DTYPE_BF16)
        for (int i = 0; i < n; i++) to[i] = float_of_bf16(half[i]);
    else
        for (int i = 0; i < n; i++) to[i] = float_of_fp8(code[i]);
    return to;
}

/* norm_qkv: u = rms(x)(1 + input_norm); q | gate, k, v = projections of u. */
static void stage_norm_qkv(pool *p, const attention_shape *s, const attention_weights *w, const float *x, int T,
                           float *u, float *qg, float *k, float *v) {
    projection job;
    memset(&job, 0, sizeof job);
    rms_norm(u, x, w->input_norm, T, s->hidden, s->eps);
    job.count = 3;
    job.w[0] = &w->q_proj;
    job.w[1] = &w->k_proj;
    job.w[2] = &w->v_proj;
    job.y[0] = qg;
    job.y[1] = k;
    job.y[2] = v;
    job.x = u;
    job.T = T;
    project(p, &job);
}

/* Norm and rotation of the queries and keys in place, and keys and values into the cache, for rows begin..end-1. */
static void attention_prepare(void *context, int begin, int end, int thread) {
    const attention_job *job = (const attention_job *)context;
    const attention_shape *s = job->shape;
    size_t d = (size_t)s->head_dim, kv = (size_t)s->kv_heads * d;
    (void)thread;
    for (int t = begin; t < end; t++) {
        const float *angles = job->angles + (size_t)t * (size_t)s->rotary_dim;
        for (int h = 0; h < s->heads; h++) {
            float *q = job->qg + ((size_t)t * (size_t)s->heads + (size_t)h) * 2 * d;
            rms_norm(q, q, job->w->q_norm, 1, s->head_dim, s->eps);
            rotate(q, angles, s->rotary_dim);
        }
        float *k = job->k_new + (size_t)t * kv;
        for (int h = 0; h < s->kv_heads; h++) {
            rms_norm(k + (size_t)h * d, k + (size_t)h * d, job->w->k_norm, 1, s->head_dim, s->eps);
            rotate(k + (size_t)h * d, angles, s->rotary_dim);
        }
        kv_store(job->kv, job->k, (size_t)(job->position + t) * kv, k, kv);
        kv_store(job->kv, job->v, (size_t)(job->position + t) * kv, job->v_new + (size_t)t * kv, kv);
    }
}

/* q . k for the key at element `at` of the cache; the same bits for any type that holds the same values. */
INLINE float attention_score(const attention_job *job, const float *q, size_t at, const dtype type) {
    float piece[TILE] __attribute__((aligned(64)));
    partial sum;
    int d = job->shape->head_dim, col = 0;
    if (type == DTYPE_F32) return dot(q, (const float *)job->k + at, d);
    memset(&sum, 0, sizeof sum);
    for (; col + TILE <= d; col += TILE)
        add_products(&sum, kv_floats(job->k, at + (size_t)col, TILE, piece, type), &q, col, TILE, 1);
    const float *last = kv_floats(job->k, at + (size_t)col, d - col, piece, type);
    add_products(&sum, last, &q, col, d - col, 1);
    return add_tail(sum_lanes(&sum), last, q + col, d - col);
}

/* o += weight * the value at element `at` of the cache. */
INLINE void attention_add(const attention_job *job, float *o, float weight, size_t at, const dtype type) {
    float piece[TILE] __attribute__((aligned(64)));
    int d = job->shape->head_dim, width = type == DTYPE_F32 ? d : TILE;
    for (int col = 0; col < d; col += width) {
        int n = d - col < width ? d - col : width;
        const float *v = kv_floats(job->v, at + (size_t)col, n, piece, type);
        for (int j = 0; j < n; j++) o[col + j] += weight * v[j];
    }
}

INLINE void attention_item(const attention_job *job, int item, float *score, const dtype type) {
    const attention_shape *s = job->shape;
    int d = s->head_dim, t = item / s->heads, h = item % s->heads, length = job->position + t + 1;
    size_t kv = (size_t)s->kv_heads * (size_t)d, group = (size_t)(h / (s->heads / s->kv_heads)) * (size_t)d;
    const float *q = job->qg + (size_t)item * 2 * (size_t)d, *gate = q + d;
    float *o = job->o + (size_t)item * (size_t)d, top = -INFINITY, sum = 0, scale = 1.0f / sqrtf((float)d);
    for (int i = 0; i < length; i++) {
        score[i] = attention_score(job, q, (size_t)i * kv + group, type) * scale;
        if (score[i] > top) top = score[i];
    }
    for (int i = 0; i < d; i++) o[i] = 0;
    for (int i = 0; i < length; i++) {
        float weight = expf(score[i] - top);
        sum += weight;
        attention_add(job, o, weight, (size_t)i * kv + group, type);
    }
    for (int i = 0; i < d; i++) o[i] = o[i] / sum * sigmoid(gate[i]);
}

/* o = sigmoid(gate) * sum over p of softmax(q . k[p] / sqrt(head_dim)) v[p], for items (row, head). */
SIMD static void attention_heads(void *context, int begin, int end, int thread) {
    const attention_job *job = (const attention_job *)context;
    float *score = job->scores + (size_t)thread * (size_t)job->context;
    for (int item = begin; item < end; item++) {
        if (job->kv == DTYPE_F32) attention_item(job, item, score, DTYPE_F32);
        else if (job->kv == DTYPE_BF16) attention_item(job, item, score, DTYPE_BF16);
        else attention_item(job, item, score, DTYPE_FP8);
    }
}

/* rope_attend: norms, rotation, KV append, attention, gate. Fills job->o. */
static void stage_rope_attend(pool *p, attention_job *job) {
    parallel(p, job->T, attention_prepare, job);
    parallel(p, job->T * job->shape->heads, attention_heads, job);
}

/* out: x += o_proj o. */
static void stage_out(pool *p, attention_job *job, float *x) {
    linear(p, &job->w->o_proj, job->o, x, job->T, 1);
}

/* ---- 10. Stages of the mixture of experts -------------------------------------------------------------------------
   A router scores all experts for a row; the best top_k run, weighted by the softmax of their scores; the shared expert
   runs for every row, weighted by a sigmoid gate of its own. Rows of a block often choose the same experts, so the work
   is listed by expert: a weight row is read once and used for all token rows that chose it. The shared expert is one more
   entry of that list, and comes last. A token's sum runs over its experts in ascending order, whatever the others chose. */

typedef struct moe_shape {
    int hidden, experts, top_k, expert_size, shared_size;
    float eps;
} moe_shape;

typedef struct moe_weights {
    const float *norm;                                      /* [hidden] */
    matrix router, shared_expert_gate;                      /* [experts][hidden], [1][hidden] */
    matrix *gate_proj, *up_proj, *down_proj;                /* [experts + 1], the last one is the shared expert */
} moe_weights;

typedef struct moe_job {
    const moe_shape *shape;
    const moe_weights *w;
    int T;
    float *u;                    /* [T][hidden] */
    float *router;               /* [T][experts] logits */
    float *shared_gate;          /* [T] logits */
    int32_t *choice;             /* [T][top_k] experts of a row, ascending */
    float *weight;               /* [T][top_k] */
    int count;                   /* distinct experts, the shared one included */
    int32_t *list;               /* [experts + 1] which */
    int32_t *first;              /* [experts + 2] their first use; first[count] = all uses */
    int32_t *use_row;            /* [T (top_k + 1)] row of a use */
    float *use_weight;           /* the same shape */
    float *h;                    /* [T (top_k + 1)][max(expert_size, shared_size)] */
    float *x;                    /* [T][hidden] residual */
} moe_job;

static int moe_width(const moe_shape *s) {
    return s->expert_size > s->shared_size ? s->expert_size : s->shared_size;
}

/* The top_k best of a row's logits (the lower index first among equals), ascending by index, and softmax over them, which
   equals softmax over all experts renormalised to the chosen. */
static void moe_choose(const float *logits, int experts, int top_k, int32_t *choice, float *weight) {
    int n = 0;
    for (int e = 0; e < experts; e++) {
        int at = n < top_k ? n : top_k;
        while (at > 0 && logits[e] > logits[choice[at - 1]]) at--;
        if (at == top_k) continue;
        if (n < top_k) n++;
        memmove(choice + at + 1, choice + at, (size_t)(n - 1 - at) * sizeof *choice);
        choice[at] = e;
    }
    float best = logits[choice[0]], sum = 0;
    for (int i = 1; i < top_k; i++)
        for (int at = i; at > 0 && choice[at] < choice[at - 1]; at--) {
            int32_t other = choice[at];
            choice[at] = choice[at - 1];
            choice[at - 1] = other;
        }
    for (int i = 0; i < top_k; i++) sum += weight[i] = expf(logits[choice[i]] - best);
    for (int i = 0; i < top_k; i++) weight[i] /= sum;
}

/* Sorts the rows' choices into uses by expert (counting sort), and appends the shared expert. */
static void moe_list_uses(moe_job *job) {
    const moe_shape *s = job->shape;
    int32_t *cursor = job->list, at = 0;         /* before it holds the list, `list` counts and places the uses */
    memset(cursor, 0, (size_t)(s->experts + 1) * sizeof *cursor);
    for (int i = 0; i < job->T * s->top_k; i++) cursor[job->choice[i]]++;
    for (int e = 0; e < s->experts; e++) {
        int32_t uses = cursor[e];
        cursor[e] = at;
        at += uses;
    }
    for (int i = 0; i < job->T * s->top_k; i++) {
        int32_t to = cursor[job->choice[i]]++;
        job->use_row[to] = i / s->top_k;
        job->use_weight[to] = job->weight[i];
    }
    job->count = 0;
    at = 0;
    for (int e = 0; e < s->experts; e++) {       /* cursor[e] is now the end of expert e's uses */
        int32_t end = cursor[e];
        if (end == at) continue;
        job->list[job->count] = e;               /* count <= e: what is overwritten has been read */
        job->first[job->count++] = at;
        at = end;
    }
    job->list[job->count] = s->experts;
    job->first[job->count++] = at;
    for (int t = 0; t < job->T; t++, at++) {
        job->use_row[at] = t;
        job->use_weight[at] = sigmoid(job->shared_gate[t]);
    }
    job->first[job->count] = at;
}

/* norm_router: u = rms(x)(1 + norm); router logits; choice and weights; list of distinct experts. */
static void stage_norm_router(pool *p, moe_job *job) {
    const moe_shape *s = job->shape;
    projection scores;
    memset(&scores, 0, sizeof scores);
    rms_norm(job->u, job->x, job->w->norm, job->T, s->hidden, s->eps);
    scores.count = 2;
    scores.w[0] = &job->w->router;
    scores.w[1] = &job->w->shared_expert_gate;
    scores.y[0] = job->router;
    scores.y[1] = job->shared_gate;
    scores.x = job->u;
    scores.T = job->T;
    project(p, &scores);
    for (int t = 0; t < job->T; t++)
        moe_choose(job->router + (size_t)t * (size_t)s->experts, s->experts, s->top_k,
                   job->choice + (size_t)t * (size_t)s->top_k, job->weight + (size_t)t * (size_t)s->top_k);
    moe_list_uses(job);
}

/* h[use][r] = SiLU(gate_proj[r] . u) * (up_proj[r] . u), for items (expert of the list, r). */
static void moe_up_rows(void *context, int begin, int end, int thread) {
    const moe_job *job = (const moe_job *)context;
    const moe_shape *s = job->shape;
    int width = moe_width(s);
    (void)thread;
    for (int item = begin; item < end; item++) {
        int i = item / width, r = item % width, e = job->list[i];
        if (r >= job->w->gate_proj[e].rows) continue;
        for (int first = job->first[i]; first < job->first[i + 1]; first += GROUP) {
            int count = job->first[i + 1] - first < GROUP ? job->first[i + 1] - first : GROUP;
            const float *x[GROUP];
            float gate[GROUP], up[GROUP];
            for (int j = 0; j < count; j++) x[j] = job->u + (size_t)job->use_row[first + j] * (size_t)s->hidden;
            matrix_row_dots(&job->w->gate_proj[e], r, x, count, gate);
            matrix_row_dots(&job->w->up_proj[e], r, x, count, up);
            for (int j = 0; j < count; j++)
                job->h[(size_t)(first + j) * (size_t)width + (size_t)r] = silu(gate[j]) * up[j];
        }
    }
}

/* x[t][r] += sum over the row's uses of weight * (down_proj[r] . h[use]), for output rows r. */
static void moe_down_rows(void *context, int begin, int end, int thread) {
    const moe_job *job = (const moe_job *)context;
    const moe_shape *s = job->shape;
    int width = moe_width(s);
    (void)thread;
    for (int r = begin; r < end; r++)
        for (int i = 0; i < job->count; i++)
            for (int first = job->first[i]; first < job->first[i + 1]; first += GROUP) {
                int count = job->first[i + 1] - first < GROUP ? job->first[i + 1] - first : GROUP;
                const float *h[GROUP];
                float y[GROUP];
                for (int j = 0; j < count; j++) h[j] = job->h + (size_t)(first + j) * (size_t)width;
                matrix_row_dots(&job->w->down_proj[job->list[i]], r, h, count, y);
                for (int j = 0; j < count; j++)
                    job->x[(size_t)job->use_row[first + j] * (size_t)s->hidden + (size_t)r] +=
                        job->use_weight[first + j] * y[j];
            }
}

/* experts_up, experts_down: x += weighted sum of the chosen experts and the shared one. */
static void stage_experts_up(pool *p, moe_job *job) {
    parallel(p, job->count * moe_width(job->shape), moe_up_rows, job);
}

static void stage_experts_down(pool *p, moe_job *job) {
    parallel(p, job->shape->hidden, moe_down_rows, job);
}

/* ---- 11. Stage head -----------------------------------------------------------------------------------------------
   logits[t] = lm_head h[t], where h = rms(x)(1 + norm). h itself is what the MTP layer takes in. */

static void stage_head(pool *p, const matrix *lm_head, const float *h, int T, float *logits) {
    linear(p, lm_head, h, logits, T, 0);
}
