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

#ifdef __CUDACC__
/* CUDA, rope_attend: flash decoding, split over the context. The positions are dealt in chunks of 64: chunk c of a kv
   head belongs to split c % splits, so which positions form a part depends on the position alone, and a row gets the
   same bits in any block of rows. A block (kv head, split) keeps, for all rows and all query heads of its kv head, the
   running maximum m of the scores, l = sum of exp(score - m) and o = sum of exp(score - m) v; a position that a row
   does not see adds exactly nothing. The parts are put together in the order of the splits, again by maximum and
   rescaled sums.

   attend_fast, for heads of 256 with 64 rotated dimensions: query rows (token, head) are the A rows of mma, 16 to a
   tile. A query, and later a weight exp(score - m), goes in as two terms of half precision, high and low (BF16 for a
   BF16 cache; F16 for FP8, where each code is exact), so that the products are those of a float of 16 or more bits.
   Keys and values go from the cache to the B operand without being moved between lanes:
     scores   warp w has positions 8w..8w+7 of the chunk, lane (g, i) reads pieces i, i + 4, ... of 16 bytes of row
              8w + g; the queries lie in shared memory in that order of dimensions.
     values   warp w has dimensions 32w..32w+31, lane (g, i) reads 4 dimensions from 32w + 4g of the 16 positions that
              its part of the B operand needs; byte permutes pair them.
   The next chunk's rows are on their way while this one is computed, the first chunk's before gpu_wait: old rows never
   change within a step. The new rows come from shared memory, rounded as the cache holds them.

   Parts are put together first by clusters of 8 blocks (neighbouring splits) through distributed shared memory, each
   block a slice of 32 dimensions; then, where there are several clusters, by the block that finishes its slice last (a
   ticket, zero again afterwards). Before compute capability 9.0 there are no clusters, and the last block does it all.
   attend_any does any other shape, by plain loops. */

enum {
    ATTEND_CHUNK = 64,           /* positions */
    ATTEND_CLUSTER = 8,          /* splits of a cluster, and slices of a head */
    ATTEND_DIM = 256,            /* head_dim of attend_fast */
    ATTEND_STRIDE = ATTEND_DIM + 8                           /* floats from row to row of o in shared memory */
};

typedef struct gpu_attention {
    attention_shape shape;
    const float *q_norm, *k_norm;                            /* [head_dim] */
    const gpu_step *step;
    int offset;                  /* position of row 0 less step->position; a row before position 0 yields zeros */
    int T;
    const float *frequencies;    /* [rotary_dim / 2] */
    const float *qg;             /* [T][heads][2][head_dim] */
    const float *k_new, *v_new;  /* [T][kv_heads][head_dim] */
    dtype kv;                    /* BF16 or FP8 */
    void *k, *v;                 /* KV cache [context][kv_heads][head_dim] */
    int context;
    int splits;                  /* gpu_attention_splits */
    float *parts;                /* gpu_attention_parts floats */
    int *tickets;                /* [kv_heads][ATTEND_CLUSTER], zero between launches */
    float *o;                    /* [T][heads][head_dim] */
    int kv_only;                 /* append k and v, and no more */
} gpu_attention;

/* Which positions a block works on. */
typedef struct attend_span {
    int first;                   /* position of row 0 */
    int end;                     /* positions in the cache after this step */
    int chunks;                  /* that hold them */
} attend_span;

__device__ __forceinline__ attend_span attend_span_of(const gpu_attention *p) {
    attend_span s;
    s.first = p->step->position + p->offset;
    s.end = min(s.first + p->T, p->context);
    s.chunks = (s.end + ATTEND_CHUNK - 1) / ATTEND_CHUNK;
    return s;
}

/* Is position `at` appended here? Every block of attend_any that only appends owns all. */
__device__ __forceinline__ bool attend_owns(const gpu_attention *p, const attend_span *s, int at) {
    return at >= 0 && at < s->end && (p->kv_only || at / ATTEND_CHUNK % p->splits == (int)blockIdx.y);
}

/* cs[t][i] = cos, cs[t][rotary_dim / 2 + i] = sin of the angle of dimension i at row t's position. The angle is the
   float that the C twin has; its multiple of pi is reduced in double, exact enough for any position. */
__device__ __forceinline__ void attend_angles(const gpu_attention *p, int first, float *cs) {
    int half = p->shape.rotary_dim / 2;
    for (int j = threadIdx.x; j < p->T * half; j += GPU_THREADS) {
        int t = j / half, i = j % half;
        double turn = (double)((float)(first + t) * p->frequencies[i]) * 0.31830988618379067154;
        float rest = (float)(turn - 2 * rint(turn / 2));
        cs[t * 2 * half + i] = cospif(rest);
        cs[t * 2 * half + half + i] = sinpif(rest);
    }
}

/* 1 / rms of a head that the lanes of a warp hold the squares of. */
__device__ __forceinline__ float attend_factor(const gpu_attention *p, float squares) {
    return 1.0f / sqrtf(warp_sum(squares) / (float)p->shape.head_dim + p->shape.eps);
}

__device__ __forceinline__ uint8_t attend_fp8(float x) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return (uint8_t)pair;
}

/* Element `at` of a cache = x. */
template <bool FP8> __device__ __forceinline__ void attend_store(void *cache, size_t at, float x) {
    if (FP8) ((uint8_t *)cache)[at] = attend_fp8(x);
    else ((uint16_t *)cache)[at] = (uint16_t)bf16_pair(x, 0);
}

/* Two codes of FP8, the low byte first, as a pair of F16. */
__device__ __forceinline__ uint32_t attend_f16_pair(uint32_t codes) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((uint16_t)codes));
    return pair;
}

__device__ __forceinline__ float attend_f16_low(uint32_t pair) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)pair));
    return f;
}

template <bool FP8> __device__ __forceinline__ float attend_load(const void *cache, size_t at) {
    return FP8 ? attend_f16_low(attend_f16_pair(((const uint8_t *)cache)[at]))
               : bf16_low(((const uint16_t *)cache)[at]);
}

/* ---- attend_fast ---- */

/* x and y as two terms each, in pairs: BF16 or F16. */
template <bool FP8> __device__ __forceinline__ void attend_terms(float x, float y, uint32_t *high, uint32_t *low) {
    if (FP8) {
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(*high) : "f"(y), "f"(x));
        float dx = x - attend_f16_low(*high), dy = y - attend_f16_low(*high >> 16);
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(*low) : "f"(dy), "f"(dx));
    } else {
        *high = bf16_pair(x, y);
        *low = bf16_pair(x - bf16_low(*high), y - bf16_high(*high));
    }
}

template <bool FP8>
__device__ __forceinline__ void attend_mma(float *c, const uint4 &a, uint32_t b0, uint32_t b1) {
    if (FP8)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* Shared memory of a block. o takes the place of the queries when they are no longer needed, p that of the norms. */
template <bool FP8, int TILES> struct attend_shared {
    union {
        uint4 q[TILES][2][ATTEND_DIM / 16][32];              /* A operands of the scores: high, low */
        float o[TILES * 16][ATTEND_STRIDE];
    };
    union {
        float norm[2][ATTEND_DIM];                           /* q_norm, k_norm, for the start */
        uint4 p[TILES][2][ATTEND_CHUNK / 16][32];            /* A operands of the values: weights, by 16 positions */
    };
    uint4 fresh[2][GPU_ROWS][ATTEND_DIM / (FP8 ? 16 : 8)];   /* new rows of k and v as the cache holds them */
    float cs[GPU_ROWS][64];
    float top[TILES * 16][GPU_WARPS];                        /* largest score of a warp's positions; at the end sums */
    float2 ml[TILES * 16];
    int sees[TILES * 16];                                    /* the last position that a row sees */
    int last;
};

static_assert(sizeof(attend_shared<false, 4>) <= GPU_SHARED, "shared memory of attend_fast");

/* A block's rows of a chunk, on their way to the B operands. */
template <bool FP8> struct attend_rows {
    uint4 k[FP8 ? 4 : 8];
    uint32_t v[ATTEND_CHUNK / 16][4][FP8 ? 1 : 2];           /* [positions / 16][2i, 2i+1, 2i+8, 2i+9][dimensions] */
};

/* threadIdx.x, read anew: what is computed from it need not stay in registers from chunk to chunk. */
__device__ __forceinline__ int attend_thread() {
    int thread;
    asm volatile("mov.u32 %0, %%tid.x;" : "=r"(thread));
    return thread;
}

/* Loads what is in the cache from before this step: `old` positions. Registers for later ones get some old row, or zero
   where the chunk has none: what is not seen has weight 0. */
template <bool FP8>
__device__ __forceinline__ void attend_load_k(const gpu_attention *p, int old, int chunk, attend_rows<FP8> *r) {
    int thread = attend_thread(), lane = thread % 32;
    int at = min(chunk * ATTEND_CHUNK + thread / 32 * 8 + lane / 4, old - 1);
    const uint4 *row = (const uint4 *)((const char *)p->k + ((size_t)at * p->shape.kv_heads + blockIdx.x) *
                                                                (ATTEND_DIM * (FP8 ? 1 : 2))) + lane % 4;
    bool some = chunk * ATTEND_CHUNK < old;
#pragma unroll
    for (int j = 0; j < (FP8 ? 4 : 8); j++) r->k[j] = some ? row[4 * j] : make_uint4(0, 0, 0, 0);
}

template <bool FP8>
__device__ __forceinline__ void attend_load_v(const gpu_attention *p, int old, int chunk, attend_rows<FP8> *r) {
    int thread = attend_thread(), lane = thread % 32, most = old - 1 - chunk * ATTEND_CHUNK;
    int stride = p->shape.kv_heads * ATTEND_DIM * (FP8 ? 1 : 2);
    const char *base = (const char *)p->v + (size_t)chunk * ATTEND_CHUNK * stride +
                       (blockIdx.x * ATTEND_DIM + thread / 32 * 32 + lane / 4 * 4) * (FP8 ? 1 : 2);
#pragma unroll
    for (int j = 0; j < ATTEND_CHUNK / 4; j++) {
        int offset = min(j / 4 * 16 + j % 2 + j % 4 / 2 * 8 + lane % 4 * 2, most);
        const char *row = base + (int64_t)offset * stride;
        if (FP8) {
            r->v[j / 4][j % 4][0] = most >= 0 ? *(const uint32_t *)row : 0;
        } else {
            uint2 two = most >= 0 ? *(const uint2 *)row : make_uint2(0, 0);
            r->v[j / 4][j % 4][0] = two.x;
            r->v[j / 4][j % 4][FP8 ? 0 : 1] = two.y;
        }
    }
}

/* The new rows among a chunk's, from shared memory. */
template <bool FP8, int TILES>
__device__ __forceinline__ void attend_new_k(const attend_shared<FP8, TILES> *sh, const attend_span *s, int chunk,
                                             attend_rows<FP8> *r) {
    int lane = threadIdx.x % 32, at = chunk * ATTEND_CHUNK + threadIdx.x / 32 * 8 + lane / 4;
    if (at < s->first || at >= s->end) return;
#pragma unroll
    for (int j = 0; j < (FP8 ? 4 : 8); j++) r->k[j] = sh->fresh[0][at - s->first][lane % 4 + 4 * j];
}

template <bool FP8, int TILES>
__device__ __forceinline__ void attend_new_v(const attend_shared<FP8, TILES> *sh, const attend_span *s, int chunk,
                                             attend_rows<FP8> *r) {
    int lane = threadIdx.x % 32, column = threadIdx.x / 32 * 8 + lane / 4;      /* in units of 4 dimensions */
#pragma unroll
    for (int j = 0; j < ATTEND_CHUNK / 4; j++) {
        int at = chunk * ATTEND_CHUNK + j / 4 * 16 + j % 2 + j % 4 / 2 * 8 + lane % 4 * 2;
        if (at < s->first || at >= s->end) continue;
        const uint32_t *row = (const uint32_t *)sh->fresh[1][at - s->first] + column * (FP8 ? 1 : 2);
        r->v[j / 4][j % 4][0] = row[0];
        r->v[j / 4][j % 4][FP8 ? 0 : 1] = row[FP8 ? 0 : 1];
    }
}

/* A head in registers, element lane + 32 j in x[j]: norm, then rotation of the first 64. */
__device__ __forceinline__ void attend_norm_rotate(const gpu_attention *p, float *x, const float *norm,
                                                   const float *cs) {
    float sum = 0, factor;
#pragma unroll
    for (int j = 0; j < ATTEND_DIM / 32; j++) sum = fmaf(x[j], x[j], sum);
    factor = attend_factor(p, sum);
#pragma unroll
    for (int j = 0; j < ATTEND_DIM / 32; j++) x[j] = x[j] * factor * (1.0f + norm[threadIdx.x % 32 + 32 * j]);
    float a = x[0], b = x[1], c = cs[threadIdx.x % 32], s = cs[32 + threadIdx.x % 32];
    x[0] = fmaf(a, c, -(b * s));
    x[1] = fmaf(b, c, a * s);
}

/* Puts query row `row` (x, as above) where the scores' A operands lie, times the scale of the scores and log2(e), for
   exp2. */
template <bool FP8, int TILES>
__device__ __forceinline__ void attend_put_query(attend_shared<FP8, TILES> *sh, int row, const float *x) {
    enum { PIECE = FP8 ? 16 : 8 };                           /* elements in 16 bytes of the cache */
    int lane = threadIdx.x % 32;
    uint16_t *high = (uint16_t *)sh->q[row / 16][0], *low = (uint16_t *)sh->q[row / 16][1];
#pragma unroll
    for (int j = 0; j < ATTEND_DIM / 32; j++) {
        int e = lane + 32 * j, step = e / (4 * PIECE) * (PIECE / 4) + e % PIECE / 4, i = e / PIECE % 4;
        int at = step * 256 + (row % 8 * 4 + i) * 8 + row % 16 / 8 * 2 + e % 4 / 2 * 4 + e % 2;
        uint32_t h, l;
        attend_terms<FP8>(x[j] * (1.44269504f / 16.0f), 0, &h, &l);
        high[at] = (uint16_t)h;
        low[at] = (uint16_t)l;
    }
}

/* Everything that comes before the chunks: queries, new rows of k and v. */
template <bool FP8, int TILES>
__device__ __forceinline__ void attend_prepare(const gpu_attention *p, const attend_span *s,
                                               attend_shared<FP8, TILES> *sh) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, group = p->shape.heads / p->shape.kv_heads;
    int rows = p->T * group, tiles = (rows + 15) / 16;
    int which = warp / GPU_ROWS, t = warp % GPU_ROWS;        /* warps 0-3 take a new row of k each, warps 4-7 of v */
    bool mine = t < p->T && attend_owns(p, s, s->first + t);
    float extra[ATTEND_DIM / 32];
    if (mine) {
        const float *from = (which ? p->v_new : p->k_new) + ((size_t)t * p->shape.kv_heads + blockIdx.x) * ATTEND_DIM;
#pragma unroll
        for (int j = 0; j < ATTEND_DIM / 32; j++) extra[j] = from[lane + 32 * j];
    }
#pragma unroll 1
    for (int tile = 0; tile < tiles; tile++) {
        float x[2][ATTEND_DIM / 32];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = tile * 16 + half * 8 + warp;
            size_t head = (size_t)(row / group) * p->shape.heads + blockIdx.x * group + row % group;
            const float *q = p->qg + head * 2 * ATTEND_DIM + lane;
#pragma unroll
            for (int j = 0; j < ATTEND_DIM / 32; j++) x[half][j] = row < rows ? q[32 * j] : 0;
        }
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = tile * 16 + half * 8 + warp;
            if (row < rows) attend_norm_rotate(p, x[half], sh->norm[0], sh->cs[row / group]);
            attend_put_query<FP8, TILES>(sh, row, x[half]);
        }
    }
    if (!mine) return;
    if (!which) attend_norm_rotate(p, extra, sh->norm[1], sh->cs[t]);
    size_t at = ((size_t)(s->first + t) * (size_t)p->shape.kv_heads + blockIdx.x) * ATTEND_DIM;
#pragma unroll
    for (int j = 0; j < ATTEND_DIM / 32; j++) {
        attend_store<FP8>(which ? p->v : p->k, at + lane + 32 * j, extra[j]);
        attend_store<FP8>(sh->fresh[which][t], lane + 32 * j, extra[j]);
    }
}

/* What a lane keeps from chunk to chunk. */
template <int TILES> struct attend_state {
    float m[TILES / 2];                                      /* of rows lane, lane + 32; in all warps alike */
    float l[TILES][2];                                       /* of rows g, g+8 of a tile, the lane's own positions */
    float o[TILES][4][4];                                    /* [n]: dimensions 8i + n, 8i + 4 + n of the warp's */
};

/* Scores of the warp's 8 positions: c[tile] = q . k. */
template <bool FP8, int TILES>
__device__ __forceinline__ void attend_scores(const attend_shared<FP8, TILES> *sh, const attend_rows<FP8> *r, int tiles,
                                              float (*c)[4]) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < ATTEND_DIM / 16; step++) {
        uint32_t b0, b1;
        if (FP8) {
            const uint4 &four = r->k[step / 4 % 4];
            uint32_t codes = step % 4 == 0 ? four.x : step % 4 == 1 ? four.y : step % 4 == 2 ? four.z : four.w;
            b0 = attend_f16_pair(codes);
            b1 = attend_f16_pair(codes >> 16);
        } else {
            const uint4 &four = r->k[step / 2 % (FP8 ? 4 : 8)];
            b0 = step % 2 ? four.z : four.x;
            b1 = step % 2 ? four.w : four.y;
        }
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            if (tile >= tiles) break;
            attend_mma<FP8>(c[tile], sh->q[tile][0][step][lane], b0, b1);
            attend_mma<FP8>(c[tile], sh->q[tile][1][step][lane], b0, b1);
        }
    }
}

/* o += weights times values, for the warp's 32 dimensions. */
template <bool FP8, int TILES>
__device__ __forceinline__ void attend_values(const attend_shared<FP8, TILES> *sh, const attend_rows<FP8> *r, int tiles,
                                              attend_state<TILES> *state) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int step = 0; step < ATTEND_CHUNK / 16; step++) {
        uint32_t b[4][2];                                    /* [dimension][B operand] */
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t *one = r->v[step][2 * half], *two = r->v[step][2 * half + 1];
            if (FP8) {
                uint32_t low = __byte_perm(one[0], two[0], 0x5140), high = __byte_perm(one[0], two[0], 0x7362);
                b[0][half] = attend_f16_pair(low);
                b[1][half] = attend_f16_pair(low >> 16);
                b[2][half] = attend_f16_pair(high);
                b[3][half] = attend_f16_pair(high >> 16);
            } else {
                b[0][half] = __byte_perm(one[0], two[0], 0x5410);
                b[1][half] = __byte_perm(one[0], two[0], 0x7632);
                b[2][half] = __byte_perm(one[FP8 ? 0 : 1], two[FP8 ? 0 : 1], 0x5410);
                b[3][half] = __byte_perm(one[FP8 ? 0 : 1], two[FP8 ? 0 : 1], 0x7632);
            }
        }
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            if (tile >= tiles) break;
            uint4 high = sh->p[tile][0][step][lane], low = sh->p[tile][1][step][lane];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                attend_mma<FP8>(state->o[tile][n], high, b[n][0], b[n][1]);
                attend_mma<FP8>(state->o[tile][n], low, b[n][0], b[n][1]);
            }
        }
    }
}

/* The largest score of each row, over the warp's positions, after masking what the row does not see. */
template <bool FP8, int TILES>
__device__ __forceinline__ void attend_tops(attend_shared<FP8, TILES> *sh, int chunk, int tiles, float (*c)[4]) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = chunk * ATTEND_CHUNK + warp * 8 + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (tile >= tiles) break;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = tile * 16 + half * 8 + lane / 4, sees = sh->sees[row];
            if (at > sees) c[tile][2 * half] = -INFINITY;
            if (at + 1 > sees) c[tile][2 * half + 1] = -INFINITY;
            float top = fmaxf(c[tile][2 * half], c[tile][2 * half + 1]);
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
            top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
            if (lane % 4 == 0) sh->top[row][warp] = top;
        }
    }
}

/* New maxima; weights of the warp's positions into shared memory; sums and o rescaled. FP8: weights times 2^14, so that
   small ones keep their bits in F16; l and o both carry it. */
template <bool FP8, int TILES>
__device__ __forceinline__ void attend_weights(attend_shared<FP8, TILES> *sh, int tiles, const float (*c)[4],
                                               attend_state<TILES> *state) {
    const float unit = FP8 ? 16384.0f : 1.0f;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float bases[TILES / 2], fades[TILES / 2];
#pragma unroll
    for (int k = 0; k < TILES / 2; k++) {
        const float4 *tops = (const float4 *)sh->top[k * 32 + lane];
        float4 a = tops[0], b = tops[1];
        float m = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
        m = fmaxf(m, state->m[k]);
        bases[k] = m == -INFINITY ? 0 : m;
        fades[k] = exp2f(state->m[k] - bases[k]);
        state->m[k] = m;
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (tile >= tiles) break;
        uint32_t high[2], low[2];
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int from = tile % 2 * 16 + half * 8 + lane / 4;  /* the lane that has this row */
            float base = __shfl_sync(~0u, bases[tile / 2], from), fade = __shfl_sync(~0u, fades[tile / 2], from);
            float x = exp2f(c[tile][2 * half] - base) * unit, y = exp2f(c[tile][2 * half + 1] - base) * unit;
            state->l[tile][half] = fmaf(state->l[tile][half], fade, x + y);
            attend_terms<FP8>(x, y, &high[half], &low[half]);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                state->o[tile][n][2 * half] *= fade;
                state->o[tile][n][2 * half + 1] *= fade;
            }
        }
        ((uint2 *)&sh->p[tile][0][warp / 2][lane])[warp % 2] = make_uint2(high[0], high[1]);
        ((uint2 *)&sh->p[tile][1][warp / 2][lane])[warp % 2] = make_uint2(low[0], low[1]);
    }
}

/* The block's part into shared memory: ml and o of each row. */
template <bool FP8, int TILES>
__device__ __forceinline__ void attend_put_part(attend_shared<FP8, TILES> *sh, int tiles,
                                                const attend_state<TILES> *state) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();                                         /* q and top are no longer read */
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (tile >= tiles) break;
#pragma unroll
        for (int half = 0; half < 2; half++) {
            int row = tile * 16 + half * 8 + lane / 4;
            float l = state->l[tile][half];
            l += __shfl_xor_sync(~0u, l, 1);
            l += __shfl_xor_sync(~0u, l, 2);
            if (lane % 4 == 0) sh->top[row][warp] = l;
            float4 *o = (float4 *)&sh->o[row][warp * 32 + lane % 4 * 8];
            o[0] = make_float4(state->o[tile][0][2 * half], state->o[tile][1][2 * half], state->o[tile][2][2 * half],
                               state->o[tile][3][2 * half]);
            o[1] = make_float4(state->o[tile][0][2 * half + 1], state->o[tile][1][2 * half + 1],
                               state->o[tile][2][2 * half + 1], state->o[tile][3][2 * half + 1]);
        }
    }
#pragma unroll
    for (int k = 0; k < TILES / 2; k++)
        if (warp == 0) sh->ml[k * 32 + lane].x = state->m[k];
    __syncthreads();
    if (threadIdx.x < tiles * 16) {
        float sum = 0;
        for (int w = 0; w < GPU_WARPS; w++) sum += sh->top[threadIdx.x][w];
        sh->ml[threadIdx.x].y = sum;
    }
    __syncthreads();
}

/* One row of several parts put together: m, l and 4 dimensions of o. */
typedef struct attend_part { float m, l; float4 o; } attend_part;

__device__ __forceinline__ void attend_join(attend_part *to, float top, float2 ml, float4 o) {
    float weight = ml.x == -INFINITY ? 0 : exp2f(ml.x - top);
    to->m = top;
    to->l = fmaf(weight, ml.y, to->l);
    to->o.x = fmaf(weight, o.x, to->o.x);
    to->o.y = fmaf(weight, o.y, to->o.y);
    to->o.z = fmaf(weight, o.z, to->o.z);
    to->o.w = fmaf(weight, o.w, to->o.w);
}

/* o = o / l * sigmoid(gate) for 4 dimensions of a row; a row that saw nothing is 0. */
__device__ __forceinline__ void attend_finish(const gpu_attention *p, int row, int column, const attend_part *part) {
    int group = p->shape.heads / p->shape.kv_heads;
    size_t head = (size_t)(row / group) * p->shape.heads + blockIdx.x * group + row % group;
    float4 gate = *(const float4 *)(p->qg + (head * 2 + 1) * ATTEND_DIM + column), o = part->o;
    float l = part->l > 0 ? part->l : 1;
    o.x = o.x / l * gpu_sigmoid(gate.x);
    o.y = o.y / l * gpu_sigmoid(gate.y);
    o.z = o.z / l * gpu_sigmoid(gate.z);
    o.w = o.w / l * gpu_sigmoid(gate.w);
    if (isnan(part->l)) o = make_float4(part->l, part->l, part->l, part->l);
    *(float4 *)(p->o + head * ATTEND_DIM + column) = o;
}

/* Parts in device memory: o [kv_heads][splits][rows][head_dim], then ml [kv_heads][slices][splits][rows]. A unit is
   what the last step puts together: a cluster, or a single block. */
__device__ __forceinline__ float *attend_part_o(const gpu_attention *p, int rows, int unit, int row, int column) {
    return p->parts + (((size_t)blockIdx.x * p->splits + unit) * rows + row) * p->shape.head_dim + column;
}

__device__ __forceinline__ float2 *attend_part_ml(const gpu_attention *p, int rows, int unit, int row, int slice) {
    float *ml = p->parts + (size_t)p->shape.kv_heads * p->splits * rows * p->shape.head_dim;
    return (float2 *)ml + ((size_t)(blockIdx.x * ATTEND_CLUSTER + slice) * p->splits + unit) * rows + row;
}

/* True in the block that is the last of `count` to come here, in all its threads; then everything the others wrote
   before is visible. */
__device__ __forceinline__ bool attend_is_last(int *ticket, int count, int *last) {
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *last = atomicAdd(ticket, 1) == count - 1;
        if (*last) *ticket = 0;
    }
    __syncthreads();
    if (*last) __threadfence();
    return *last;
}

/* The item'th 4 dimensions of the slices that this block puts together: one of them, or all. */
__device__ __forceinline__ void attend_item(int item, int rows, int slice, int *row, int *column) {
    *row = item / 8 % rows;
    *column = (slice < 0 ? item / 8 / rows : slice) * 32 + item % 8 * 4;
}

/* What a block does when the parts are put together. */
typedef struct attend_place {
    int unit, units;             /* its cluster (a block without clusters) of those that have work */
    int ranks;                   /* blocks of its cluster that have work */
    int slice;                   /* which dimensions it puts together; -1: all, it has no cluster */
} attend_place;

/* A cluster stays whole if one of its splits has work, unless that is all the work there is. */
__device__ __forceinline__ attend_place attend_place_of(const gpu_attention *p, int chunks) {
    attend_place at;
#if __CUDA_ARCH__ >= 900
    at.unit = chunks > 1 ? blockIdx.y / ATTEND_CLUSTER : blockIdx.y;
    at.units = chunks > 1 ? min((chunks - 1) / ATTEND_CLUSTER + 1, p->splits / ATTEND_CLUSTER) : 1;
    at.ranks = min(chunks - at.unit * ATTEND_CLUSTER, (int)ATTEND_CLUSTER);
    at.slice = chunks > 1 ? (int)blockIdx.y % ATTEND_CLUSTER : -1;
#else
    at.unit = blockIdx.y;
    at.units = max(1, min(chunks, p->splits));
    at.ranks = 1;
    at.slice = -1;
#endif
    return at;
}

__device__ __forceinline__ void attend_cluster_wait(int slice) {
#if __CUDA_ARCH__ >= 900
    if (slice < 0) return;
    __cluster_barrier_arrive();
    __cluster_barrier_wait();
#endif
}

/* Puts the parts of all blocks together: see above. */
template <bool FP8, int TILES>
__device__ __forceinline__ void attend_combine(const gpu_attention *p, attend_shared<FP8, TILES> *sh,
                                               const attend_place *place) {
    int slice = place->slice, unit = place->unit, units = place->units;
    int rows = p->T * (p->shape.heads / p->shape.kv_heads), items = rows * (slice < 0 ? ATTEND_CLUSTER : 1) * 8;
    int row, column;
    for (int item = threadIdx.x; item < items; item += GPU_THREADS) {
        attend_part part = {-INFINITY, 0, {0, 0, 0, 0}};
        float top = -INFINITY;
        attend_item(item, rows, slice, &row, &column);
        if (slice < 0) {
            attend_join(&part, sh->ml[row].x, sh->ml[row], *(const float4 *)&sh->o[row][column]);
        } else {
#if __CUDA_ARCH__ >= 900
            float2 ml[ATTEND_CLUSTER];
            float4 o[ATTEND_CLUSTER];
#pragma unroll
            for (int i = 0; i < ATTEND_CLUSTER; i++) {
                if (i >= place->ranks) break;
                ml[i] = *(const float2 *)__cluster_map_shared_rank(&sh->ml[row], i);
                o[i] = *(const float4 *)__cluster_map_shared_rank(&sh->o[row][column], i);
                top = fmaxf(top, ml[i].x);
            }
#pragma unroll
            for (int i = 0; i < ATTEND_CLUSTER; i++)
                if (i < place->ranks) attend_join(&part, top, ml[i], o[i]);
#endif
        }
        if (units == 1) {
            attend_finish(p, row, column, &part);
        } else {
            *(float4 *)attend_part_o(p, rows, unit, row, column) = part.o;
            if (item % 8 == 0) *attend_part_ml(p, rows, unit, row, column / 32) = make_float2(part.m, part.l);
        }
    }
    int *ticket = p->tickets + blockIdx.x * ATTEND_CLUSTER + max(slice, 0);
    if (units == 1 || !attend_is_last(ticket, units, &sh->last)) return;
    for (int item = threadIdx.x; item < items; item += GPU_THREADS) {
        attend_part part = {-INFINITY, 0, {0, 0, 0, 0}};
        float top = -INFINITY;
        attend_item(item, rows, slice, &row, &column);
#pragma unroll 4
        for (int i = 0; i < units; i++) top = fmaxf(top, __ldcg(attend_part_ml(p, rows, i, row, column / 32)).x);
#pragma unroll 4
        for (int i = 0; i < units; i++)
            attend_join(&part, top, __ldcg(attend_part_ml(p, rows, i, row, column / 32)),
                        __ldcg((const float4 *)attend_part_o(p, rows, i, row, column)));
        attend_finish(p, row, column, &part);
    }
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ATTEND_CLUSTERS __cluster_dims__(1, ATTEND_CLUSTER, 1)
#else
#define ATTEND_CLUSTERS
#endif

/* Blocks (kv head, split). FP8: type of the cache; TILES: 16 query rows each, as many as T rows can need. */
template <bool FP8, int TILES>
__global__ void ATTEND_CLUSTERS __launch_bounds__(GPU_THREADS, TILES <= 2 ? 2 : 1)
attend_fast(const __grid_constant__ gpu_attention p) {
    extern __shared__ __align__(16) char memory[];
    attend_shared<FP8, TILES> *sh = (attend_shared<FP8, TILES> *)memory;
    attend_rows<FP8> r;
    attend_state<TILES> state;
    gpu_trigger();
    attend_span s = attend_span_of(&p);
    int group = p.shape.heads / p.shape.kv_heads, tiles = (p.T * group + 15) / 16, chunk = blockIdx.y;
    attend_place place = attend_place_of(&p, s.chunks);
    if (place.unit >= place.units) return;
    int old = max(0, min(s.first, s.end));
    attend_load_k<FP8>(&p, old, chunk, &r);
    attend_load_v<FP8>(&p, old, chunk, &r);
    attend_angles(&p, s.first, &sh->cs[0][0]);
    sh->norm[0][threadIdx.x] = p.q_norm[threadIdx.x];
    sh->norm[1][threadIdx.x] = p.k_norm[threadIdx.x];
    if (threadIdx.x < TILES * 16) sh->sees[threadIdx.x] = min(s.first + (int)threadIdx.x / group, s.end - 1);
    __syncthreads();
    gpu_wait();
    attend_prepare<FP8, TILES>(&p, &s, sh);
    __syncthreads();
    if ((chunk + 1) * ATTEND_CHUNK > s.first) {
        attend_new_k<FP8, TILES>(sh, &s, chunk, &r);
        attend_new_v<FP8, TILES>(sh, &s, chunk, &r);
    }
    memset(&state, 0, sizeof state);
#pragma unroll
    for (int k = 0; k < TILES / 2; k++) state.m[k] = -INFINITY;
    for (; chunk < s.chunks; chunk += p.splits) {
        float c[TILES][4];
        int next = chunk + p.splits;
        memset(c, 0, sizeof c);
        attend_scores<FP8, TILES>(sh, &r, tiles, c);
        if (next < s.chunks) {
            attend_load_k<FP8>(&p, old, next, &r);
            if ((next + 1) * ATTEND_CHUNK > s.first) attend_new_k<FP8, TILES>(sh, &s, next, &r);
        }
        attend_tops<FP8, TILES>(sh, chunk, tiles, c);
        __syncthreads();
        attend_weights<FP8, TILES>(sh, tiles, c, &state);
        __syncthreads();
        attend_values<FP8, TILES>(sh, &r, tiles, &state);
        if (next < s.chunks) {
            attend_load_v<FP8>(&p, old, next, &r);
            if ((next + 1) * ATTEND_CHUNK > s.first) attend_new_v<FP8, TILES>(sh, &s, next, &r);
        }
    }
    attend_put_part<FP8, TILES>(sh, tiles, &state);
    place = attend_place_of(&p, attend_span_of(&p).chunks);  /* again: not kept in registers meanwhile */
    attend_cluster_wait(place.slice);
    attend_combine<FP8, TILES>(&p, sh, &place);
    attend_cluster_wait(place.slice);                        /* the others may still read this block's shared memory */
}

/* ---- attend_any ---- */

/* to[head_dim] = norm and rotation of x; one warp. The same operations as attend_norm_rotate. */
__device__ __forceinline__ void attend_head(const gpu_attention *p, const float *x, const float *norm, const float *cs,
                                            float *to) {
    int d = p->shape.head_dim, half = p->shape.rotary_dim / 2, lane = threadIdx.x % 32;
    float sum = 0, factor;
    for (int i = lane; i < d; i += 32) sum = fmaf(x[i], x[i], sum);
    factor = attend_factor(p, sum);
    for (int i = lane; i < half; i += 32) {
        float a = x[i] * factor * (1.0f + norm[i]), b = x[half + i] * factor * (1.0f + norm[half + i]);
        to[i] = fmaf(a, cs[i], -(b * cs[half + i]));
        to[half + i] = fmaf(b, cs[i], a * cs[half + i]);
    }
    for (int i = 2 * half + lane; i < d; i += 32) to[i] = x[i] * factor * (1.0f + norm[i]);
    __syncwarp();
}

/* Appends the new rows that are this block's. q: room for a head. */
template <bool FP8>
__device__ __forceinline__ void attend_append(const gpu_attention *p, const attend_span *s, const float *cs,
                                              float *q) {
    int d = p->shape.head_dim, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    for (int t = 0; t < p->T; t++) {
        if (!attend_owns(p, s, s->first + t)) continue;
        size_t from = ((size_t)t * p->shape.kv_heads + blockIdx.x) * d;
        size_t to = ((size_t)(s->first + t) * p->shape.kv_heads + blockIdx.x) * d;
        if (warp == 0) {
            attend_head(p, p->k_new + from, p->k_norm, cs + t * p->shape.rotary_dim, q);
            for (int i = lane; i < d; i += 32) attend_store<FP8>(p->k, to + i, q[i]);
            __syncwarp();
        } else if (warp == 1) {
            for (int i = lane; i < d; i += 32) attend_store<FP8>(p->v, to + i, p->v_new[from + i]);
        }
    }
    __syncthreads();
}

/* Adds a chunk to m, l and o of a row that sees positions up to `sees`. */
template <bool FP8>
__device__ __forceinline__ void attend_chunk(const gpu_attention *p, int chunk, int sees, const float *q,
                                             float *weights, float *o, float *m, float *l) {
    int d = p->shape.head_dim, lane = threadIdx.x % 32, first = chunk * ATTEND_CHUNK;
    int count = min(sees + 1 - first, (int)ATTEND_CHUNK);
    size_t stride = (size_t)p->shape.kv_heads * d, base = (size_t)first * stride + (size_t)blockIdx.x * d;
    for (int j = threadIdx.x / 32; j < count; j += GPU_WARPS) {
        float sum = 0;
        for (int i = lane; i < d; i += 32) sum = fmaf(q[i], attend_load<FP8>(p->k, base + j * stride + i), sum);
        sum = warp_sum(sum);
        if (lane == 0) weights[j] = sum;
    }
    __syncthreads();
    float top = *m, sum = 0;
    for (int j = 0; j < count; j++) top = fmaxf(top, weights[j]);
    float shift = top == -INFINITY ? 0 : top, fade = exp2f(*m - shift);
    for (int j = 0; j < count; j++) sum += exp2f(weights[j] - shift);
    *m = top;
    *l = fmaf(*l, fade, sum);
    for (int i = threadIdx.x; i < d; i += GPU_THREADS) {
        float value = o[i] * fade;
        for (int j = 0; j < count; j++)
            value = fmaf(exp2f(weights[j] - shift), attend_load<FP8>(p->v, base + j * stride + i), value);
        o[i] = value;
    }
    __syncthreads();
}

/* o = o / l * sigmoid(gate). */
__device__ __forceinline__ void attend_finish_any(const gpu_attention *p, int row, int column, float l, float o) {
    int group = p->shape.heads / p->shape.kv_heads, d = p->shape.head_dim;
    size_t head = (size_t)(row / group) * p->shape.heads + blockIdx.x * group + row % group;
    p->o[head * d + column] = o / (l == 0 ? 1 : l) * gpu_sigmoid(p->qg[(head * 2 + 1) * d + column]);
}

/* Puts the parts of `units` blocks together. */
__device__ __forceinline__ void attend_combine_any(const gpu_attention *p, int rows, int units) {
    int d = p->shape.head_dim;
    for (int item = threadIdx.x; item < rows * d; item += GPU_THREADS) {
        int row = item / d, column = item % d;
        float top = -INFINITY, l = 0, o = 0;
        for (int i = 0; i < units; i++) top = fmaxf(top, __ldcg(attend_part_ml(p, rows, i, row, 0)).x);
        for (int i = 0; i < units; i++) {
            float2 ml = __ldcg(attend_part_ml(p, rows, i, row, 0));
            float weight = ml.x == -INFINITY ? 0 : exp2f(ml.x - top);
            l = fmaf(weight, ml.y, l);
            o = fmaf(weight, __ldcg(attend_part_o(p, rows, i, row, column)), o);
        }
        attend_finish_any(p, row, column, l, o);
    }
}

/* Blocks (kv head, split), or (kv head) with kv_only. */
template <bool FP8> __global__ void __launch_bounds__(GPU_THREADS) attend_any(const __grid_constant__ gpu_attention p) {
    extern __shared__ __align__(16) char memory[];
    __shared__ float weights[ATTEND_CHUNK];
    __shared__ int last;
    int d = p.shape.head_dim, group = p.shape.heads / p.shape.kv_heads, rows = p.T * group;
    float *q = (float *)memory, *o = q + d, *cs = o + d;
    gpu_trigger();
    attend_span s = attend_span_of(&p);
    int unit = blockIdx.y, units = max(1, min(s.chunks, p.splits));
    if (unit >= units) return;
    attend_angles(&p, s.first, cs);
    __syncthreads();
    gpu_wait();
    attend_append<FP8>(&p, &s, cs, q);
    if (p.kv_only) return;
    for (int row = 0; row < rows; row++) {
        int t = row / group, sees = min(s.first + t, s.end - 1);
        float m = -INFINITY, l = 0;
        size_t head = (size_t)t * p.shape.heads + blockIdx.x * group + row % group;
        if (threadIdx.x < 32) attend_head(&p, p.qg + head * 2 * d, p.q_norm, cs + t * p.shape.rotary_dim, q);
        __syncthreads();
        for (int i = threadIdx.x; i < d; i += GPU_THREADS) {
            q[i] *= 1.44269504f / sqrtf((float)d);
            o[i] = 0;
        }
        __syncthreads();
        for (int chunk = unit; chunk * ATTEND_CHUNK <= sees; chunk += p.splits)
            attend_chunk<FP8>(&p, chunk, sees, q, weights, o, &m, &l);
        for (int i = threadIdx.x; i < d; i += GPU_THREADS) {
            if (units == 1) attend_finish_any(&p, row, i, l, o[i]);
            else *attend_part_o(&p, rows, unit, row, i) = o[i];
        }
        if (units > 1 && threadIdx.x == 0) *attend_part_ml(&p, rows, unit, row, 0) = make_float2(m, l);
        __syncthreads();
    }
    if (units > 1 && attend_is_last(&p.tickets[blockIdx.x * ATTEND_CLUSTER], units, &last))
        attend_combine_any(&p, rows, units);
}

/* ---- Launch ---- */

static int gpu_attention_is_fast(const attention_shape *s) {
    return s->head_dim == ATTEND_DIM && s->rotary_dim == 64 && s->heads / s->kv_heads <= 16;
}

/* Shared memory of attend_any; a shape that needs more than GPU_SHARED cannot run. */
static size_t gpu_attention_shared(const attention_shape *s) {
    return (2 * (size_t)s->head_dim + GPU_ROWS * (size_t)s->rotary_dim) * sizeof(float);
}

/* Splits of the context: about two blocks for each multiprocessor, whole clusters. */
static int gpu_attention_splits(const gpu_queue *q, const attention_shape *s) {
    int splits = 2 * q->sms / s->kv_heads / ATTEND_CLUSTER * ATTEND_CLUSTER;
    return splits < ATTEND_CLUSTER ? ATTEND_CLUSTER : splits;
}

/* Floats of scratch for parts. */
static size_t gpu_attention_parts(const attention_shape *s, int splits) {
    return (size_t)splits * GPU_ROWS * (size_t)s->heads * ((size_t)s->head_dim + 2 * ATTEND_CLUSTER);
}

/* Ints of scratch for tickets, zero at first. */
static size_t gpu_attention_tickets(const attention_shape *s) {
    return (size_t)s->kv_heads * ATTEND_CLUSTER;
}

template <bool FP8> static void gpu_rope_attend_as(gpu_queue *q, const gpu_attention *p) {
    const char *format = FP8 ? "KV FP8" : "KV BF16";
    int kv_heads = p->shape.kv_heads;
    if (p->kv_only)
        gpu_launch(q, GPU_ATTEND, format, attend_any<FP8>, kv_heads, 1, gpu_attention_shared(&p->shape), p);
    else if (!gpu_attention_is_fast(&p->shape))
        gpu_launch(q, GPU_ATTEND, format, attend_any<FP8>, kv_heads, p->splits, gpu_attention_shared(&p->shape), p);
    else if (p->shape.heads / kv_heads <= 8)
        gpu_launch(q, GPU_ATTEND, format, attend_fast<FP8, 2>, kv_heads, p->splits, sizeof(attend_shared<FP8, 2>), p);
    else
        gpu_launch(q, GPU_ATTEND, format, attend_fast<FP8, 4>, kv_heads, p->splits, sizeof(attend_shared<FP8, 4>), p);
}

/* rope_attend on the GPU. */
static void gpu_rope_attend(gpu_queue *q, const gpu_attention *p) {
    if (p->kv == DTYPE_FP8) gpu_rope_attend_as<true>(q, p);
    else gpu_rope_attend_as<false>(q, p);
}
#endif

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
