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

#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
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
   is fast everywhere. Other processors need no choice. MOTE_NO_TARGET_CLONES leaves one version: ThreadSanitizer needs that,
   because the choice runs before the sanitizer does. */
#if defined(MOTE_NO_TARGET_CLONES)
#define SIMD
#elif defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12
#define SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && defined(__GLIBC__) && (!defined(__clang__) || __clang_major__ >= 14)
#define SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SIMD
#endif

/* Small helpers that must become part of the SIMD function around them. */
#define INLINE static inline __attribute__((always_inline))

/* 16 floats at any address: one register or several, whatever the processor has. */
typedef float half_lanes __attribute__((vector_size(32)));
typedef float quarter_lanes __attribute__((vector_size(16)));
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

/* Frees a pool in a forked child. Its threads did not come along, so there is nobody to join; and lock and wake are as
   those threads left them, so they must not be touched, not even to destroy them. */
static void pool_abandon(pool *p) {
    if (p) free(p->ids);
    free(p);
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

/* pthread_create with all signals blocked in the new thread: signals are the application's, and one that it waits for
   (sigwait) must not be delivered to a thread it knows nothing of. Returns 0 or pthread_create's error. */
static int thread_start(pthread_t *id, void *(*body)(void *), void *argument) {
    sigset_t all, before;
    sigfillset(&all);
    int code = pthread_sigmask(SIG_SETMASK, &all, &before);
    if (code) return code;
    code = pthread_create(id, NULL, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
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
        if (thread_start(&p->ids[p->started], pool_main, start)) {
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

/* On a GPU a matrix is packed: eight rows (an octet) times 64 bytes (a group) lie together, see section 6. It is given
   the room that takes on a CPU, too. */
enum { OCTET = 8, GROUP_BYTES = 64, PIECE = OCTET * GROUP_BYTES };

static int dtype_size(dtype type) {
    return type == DTYPE_F32 ? 4 : type == DTYPE_FP8 ? 1 : 2;
}

/* Groups and octets of a matrix. */
static int gpu_groups(dtype type, int cols) {
    return (int)(((int64_t)cols * dtype_size(type) + GROUP_BYTES - 1) / GROUP_BYTES);
}

static int gpu_octets(int rows) {
    return (rows + OCTET - 1) / OCTET;
}

/* Bytes of a packed matrix. */
static size_t gpu_packed_size(dtype type, int rows, int cols) {
    return (size_t)gpu_octets(rows) * (size_t)gpu_groups(type, cols) * PIECE;
}

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
    lanes all = sum->low + sum->high;
    half_lanes a, b;
    quarter_lanes c, d;
    memcpy(&a, &all, sizeof a);
    memcpy(&b, (const char *)&all + sizeof a, sizeof b);
    a += b;
    memcpy(&c, &a, sizeof c);
    memcpy(&d, (const char *)&a + sizeof c, sizeof d);
    c += d;
    return (c[0] + c[2]) + (c[1] + c[3]);
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
        for (; t + 2 <= count; t += 2) add_products(sum + t, tile, x + t, col, TILE, 2);
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

/* The same for a matrix of any type. One row, decoding, and two, verifying a draft, are worth a copy of their own: the sums
   stay in registers. */
SIMD static void matrix_row_dots(const matrix *w, int row, const float *const *x, int count, float *y) {
    if (count == 1) any_type_dots(w, row, x, 1, y);
    else if (count == 2) any_type_dots(w, row, x, 2, y);
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
   before that (but see gpu_trigger and gpu_mark). Every kernel waits, also one that needs nothing, so that "all before me is
   complete" holds along the whole chain. The chain is captured once as a graph: what differs from step to step is in device
   memory (gpu_step). */

#ifdef __CUDACC__
#include <cuda_fp16.h>
#include <cuda_runtime.h>

enum {
    GPU_THREADS = 256, GPU_WARPS = GPU_THREADS / 32,        /* of every block */
    GPU_ROWS = 4,                                           /* most token rows of a step */
    GPU_SHARED = 101376,                                    /* most shared memory a block may use: what SM12x grants */
    GPU_SHARED_FREE = 32 * 1024,                            /* beyond it (48 KB with a kernel's own) one has to ask */
    GPU_SOON = 5                                            /* of the second-level cache 1/5 is for what comes next */
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
    int32_t ids[GPU_ROWS];       /* the block's tokens: behind the first, drafts to verify */
    uint32_t sequence;           /* number of the last answer to the host */
} gpu_step;

/* What carries marks (see gpu_mark). */
enum gpu_marked { GPU_MARKED_X, GPU_MARKED_ROUTER, GPU_MARKED };

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
    uint32_t soon;               /* most bytes to bring into the second-level cache ahead of time */
    unsigned stages;             /* bit set of those to run */
    enum gpu_stage as;           /* GPU_STAGES, or the stage that all launches count as (the MTP layer's) */
    int layer;
    int *writes;                 /* [GPU_MARKED] how often each was written in this step; NULL: nothing is marked */
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

/* Lets a kernel have `shared` bytes of dynamic shared memory. Beyond the usual it asks for as much as a block may have:
   the limit is the kernel's, not the launch's, and other threads set it for their sessions at the same time. */
static void gpu_allow_shared(gpu_queue *q, const void *kernel, size_t shared, const char *what) {
    cudaFuncAttributes own;
    if (shared <= GPU_SHARED_FREE || !gpu_check(q, cudaFuncGetAttributes(&own, kernel), what)) return;
    gpu_check(q, cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      GPU_SHARED - (int)own.sharedSizeBytes), what);
}

/* Launches kernel(*p) on x * y blocks of GPU_THREADS threads with `shared` bytes of dynamic shared memory. */
template <class P>
static void gpu_launch(gpu_queue *q, enum gpu_stage stage, const char *format, void (*kernel)(P), int x, int y,
                       size_t shared, const P *p) {
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute dependent = {};
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
    dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    dependent.val.programmaticStreamSerializationAllowed = 1;
    c.gridDim = dim3((unsigned)x, (unsigned)y);
    c.blockDim = dim3(GPU_THREADS);
    c.dynamicSmemBytes = shared;
    c.stream = q->stream;
    c.attrs = &dependent;
    c.numAttrs = q->dependent ? 1 : 0;
    gpu_allow_shared(q, (const void *)kernel, shared, gpu_stage_names[stage]);
    gpu_check(q, cudaLaunchKernelEx(&c, kernel, *p), gpu_stage_names[stage]);
}

/* Blocks of a kernel that run at once on the multiprocessors to fill, but at most `most`. */
template <class P> static int gpu_blocks(gpu_queue *q, void (*kernel)(P), size_t shared, int64_t most) {
    int per_sm = 0;
    gpu_allow_shared(q, (const void *)kernel, shared, "occupancy");
    gpu_check(q, cudaOccupancyMaxActiveBlocksPerMultiprocessor(&per_sm, kernel, GPU_THREADS, shared), "occupancy");
    int64_t blocks = (int64_t)(per_sm < 1 ? 1 : per_sm) * q->sms;
    return (int)(blocks < most ? blocks : most);
}

/* Everything before this kernel is complete and visible. Before it only weights may be read, state that no kernel of this
   step writes, and what was complete before the kernel in front triggered, if that triggers late. A rehearsal may read
   anything: what a kernel is to do right after its wait it does once before, on whatever is in memory, and drops the
   result. Then its code and parameters are in the caches when its turn comes. */
__device__ __forceinline__ void gpu_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Lets the next kernel become resident: what it may do before its gpu_wait harms nobody. Projections do so just before
   their own wait, which is a little quicker than at entry, where other kernels do. Only experts_up does so late, after its
   wait, when it has written what experts_down wants to know early. */
__device__ __forceinline__ void gpu_trigger() {
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/* Marks. A gpu_wait is over half a microsecond after the last store of the kernel in front, and only then can its results be
   asked for. Where that counts, a kernel asks for the values themselves until they are there: a float that is handed on in
   this way has a mark in its last two bits, a new one each time it is written. (So do the flags in NCCL's LL protocol,
   one beside every four bytes.) The rules:
   - x is stored after the writer's gpu_wait. So who has seen all of x knows that all before the writer is complete (and
     asks the second-level cache, where that is), and that the writer has read all it reads. Then norm_router may store the
     logits and the shared expert's h; who has seen all logits knows that x is complete.
   - The reader calls gpu_wait, too, but later: before it stores anything else, and before it ends.
   - Two bits are enough. experts_up triggers behind its wait, so a kernel that runs knows norm_router of the layer before
     complete, and since then the logits have been written once and x twice at most.
   - Nobody watches for what is written for the first time in a step: whatever was there before may look like it. */
typedef struct gpu_mark {
    uint32_t mask, bits;         /* which bits count: the last two, or none (no mark); what they say */
} gpu_mark;

/* The mark for what `stage` is about to write. */
static gpu_mark gpu_next_mark(const gpu_queue *q, enum gpu_stage stage, enum gpu_marked what) {
    gpu_mark mark = {0, 0};
    if (!q->writes || !(q->stages >> stage & 1)) return mark;
    mark.mask = 3;
    mark.bits = (uint32_t)++q->writes[what] & 3;
    return mark;
}

/* The mark to watch for; none: wait. */
static gpu_mark gpu_last_mark(const gpu_queue *q, enum gpu_marked what) {
    gpu_mark mark = {0, 0};
    if (!q->dependent || !q->writes || q->writes[what] < 2 || !(q->stages >> GPU_UP & 1)) return mark;
    mark.mask = 3;
    mark.bits = (uint32_t)q->writes[what] & 3;
    return mark;
}

/* *at = x, marked. */
__device__ __forceinline__ void gpu_tell(float *at, float x, const gpu_mark &mark) {
    uint32_t bits = (__float_as_uint(x) & ~mark.mask) | mark.bits;
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(at), "r"(bits) : "memory");
}

/* What may not be there yet. */
__device__ __forceinline__ float gpu_hear(const float *at) {
    float x;
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1];" : "=f"(x) : "l"(at) : "memory");
    return x;
}

__device__ __forceinline__ float4 gpu_hear4(const float *at) {
    float4 x;
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4];"
                 : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "l"(at) : "memory");
    return x;
}

/* Not zero if one of n values is not there yet. */
__device__ __forceinline__ uint32_t gpu_missing(const float *x, int n, const gpu_mark &mark) {
    uint32_t other = 0;
#pragma unroll
    for (int i = 0; i < n; i++) other |= __float_as_uint(x[i]) ^ mark.bits;
    return other & mark.mask;
}

/* Asks for a single value until it is there: many lanes and blocks that ask for many slow down the kernel in front. */
__device__ __forceinline__ void gpu_hear_one(const float *at, const gpu_mark &mark) {
    float x;
#pragma unroll 1
    do x = gpu_hear(at);
    while (gpu_missing(&x, 1, mark));
}

/* A barrier of the block's at which only some warps wait: the others say that they have come, and go on. */
__device__ __forceinline__ void gpu_arrive() {
    asm volatile("bar.arrive 1, %0;" ::"n"((int)GPU_THREADS) : "memory");
}

__device__ __forceinline__ void gpu_await_arrival() {
    asm volatile("bar.sync 1, %0;" ::"n"((int)GPU_THREADS) : "memory");
}

/* Sum over a warp, the same bits on all lanes. */
__device__ __forceinline__ float warp_sum(float v) {
    for (int i = 16; i; i /= 2) v += __shfl_xor_sync(~0u, v, i);
    return v;
}

__device__ __forceinline__ float gpu_sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
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

/* The same with F16. */
__device__ __forceinline__ void mma_f16(float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ uint32_t f16_pair(float low, float high) {
    __half2 pair = __floats2half2_rn(low, high);
    return *(uint32_t *)&pair;
}

__device__ __forceinline__ float2 f16_floats(uint32_t pair) {
    return __half22float2(*(__half2 *)&pair);
}
#endif

/* ---- 6. CUDA: matrices -------------------------------------------------------------------------------------------
   y[t] = W x[t] on the tensor cores, for one to four rows at the price of one. W is the A operand, 16 of its rows at a
   time. Which k is which inside an mma does not matter as long as A and B agree, so a lane takes 16 bytes of its row as
   they come, and four lanes take 64 bytes side by side (a group). The token rows are the B operand: a float is split into
   two terms, high and low, and as B has eight columns, column t holds the high and column t + 4 the low terms of row t.
   Sums are in float. Columns do not mix: a row gets the same bits whatever the others hold.

   The terms are of the type that a weight becomes without rounding. Two of BF16 have 16 significant bits and the range of a
   float. Two of F16 have 22 bits but little range, so each group of a token row is first multiplied with the power of two
   that brings its largest value to 2^14; its inverse, the group's unit, is multiplied into the sum, as FP8's scale is.

   So that a warp reads memory in one piece, a matrix is packed when it is loaded: eight rows (an octet) times 64 bytes lie
   together as 512 bytes, the groups of an octet behind each other; rows are filled up to whole octets and groups with
   zeros. The bytes of a weight stay what they were.

   A tile is 16 rows of W: two octets. The eight warps of a block share its columns, group by group, and add up their parts
   at the end in a fixed order. A warp keeps AHEAD groups of loads in flight, across tiles too; the first are asked for
   before the block waits for the kernel before it, and the rest of its first tile is brought into the second-level cache. */

#ifdef __CUDACC__

enum { TILE_ROWS = 2 * OCTET, AHEAD = 4 };

/* Word i, a constant after unrolling. */
__device__ __forceinline__ uint32_t gpu_word(const uint4 &v, int i) {
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* A weight format: 16 bytes hold per_load weights; the sum of `terms` numbers is one of them, exactly, or with `scaled`
   what its block's scale is multiplied with. The numbers are F16 if `half`, else BF16. fragment gives the A registers of
   mma number `step`, which takes weights 4 step .. 4 step + 3: k0 the first two, k1 the others. */
struct format_bf16 {
    enum { per_load = 8, terms = 1, half = 0, scaled = 0 };
    static __device__ __forceinline__ void fragment(const uint4 &raw, int step, int, uint32_t *k0, uint32_t *k1) {
        *k0 = gpu_word(raw, 2 * step);
        *k1 = gpu_word(raw, 2 * step + 1);
    }
};

struct format_f16 {
    enum { per_load = 8, terms = 1, half = 1, scaled = 0 };
    static __device__ __forceinline__ void fragment(const uint4 &raw, int step, int, uint32_t *k0, uint32_t *k1) {
        *k0 = gpu_word(raw, 2 * step);
        *k1 = gpu_word(raw, 2 * step + 1);
    }
};

struct format_fp8 {
    enum { per_load = 16, terms = 1, half = 1, scaled = 1 };
    static __device__ __forceinline__ void fragment(const uint4 &raw, int step, int, uint32_t *k0, uint32_t *k1) {
        asm("{.reg .b16 low, high;\n\t"
            "mov.b32 {low, high}, %2;\n\t"
            "cvt.rn.f16x2.e4m3x2 %0, low;\n\t"
            "cvt.rn.f16x2.e4m3x2 %1, high;}"
            : "=r"(*k0), "=r"(*k1) : "r"(gpu_word(raw, step)));
    }
};

/* The BF16 term number `term` of two floats: the first is the nearest, the next that of what is left. */
__device__ __forceinline__ uint32_t bf16_term(float x, float y, int term) {
    uint32_t pair = bf16_pair(x, y);
    for (int i = 0; i < term; i++) {
        x -= bf16_low(pair);
        y -= bf16_high(pair);
        pair = bf16_pair(x, y);
    }
    return pair;
}

struct format_f32 {              /* 24 bits: three terms */
    enum { per_load = 4, terms = 3, half = 0, scaled = 0 };
    static __device__ __forceinline__ void fragment(const uint4 &raw, int, int term, uint32_t *k0, uint32_t *k1) {
        *k0 = bf16_term(__uint_as_float(raw.x), __uint_as_float(raw.y), term);
        *k1 = bf16_term(__uint_as_float(raw.z), __uint_as_float(raw.w), term);
    }
};

/* A packed matrix. */
typedef struct gpu_matrix {
    const char *data;
    const float *scale;          /* FP8: [ceil(rows >> row_shift)][scale_cols] */
    int rows, cols;
    int groups;                  /* of a row */
    int octets;
    int row_shift, group_shift;  /* FP8: log2 of a block's rows, and of its groups */
    int scale_cols;
    dtype type;
} gpu_matrix;

/* log2 of n; -1: not a power of two. */
static int log2_of(int n) {
    int shift = 0;
    while (shift < 30 && 1 << shift < n) shift++;
    return 1 << shift == n ? shift : -1;
}

static gpu_matrix gpu_matrix_of(const matrix *w) {
    gpu_matrix g;
    memset(&g, 0, sizeof g);
    g.data = (const char *)w->data;
    g.rows = w->rows;
    g.cols = w->cols;
    g.groups = gpu_groups(w->type, w->cols);
    g.octets = gpu_octets(w->rows);
    g.type = w->type;
    if (w->type != DTYPE_FP8) return g;
    g.scale = w->scale;
    g.row_shift = log2_of(w->block_rows);
    g.group_shift = log2_of(w->block_cols) - 6;
    g.scale_cols = (w->cols - 1) / w->block_cols + 1;
    return g;
}

/* Packs `count` matrices of rows x row_bytes that lie `stride` bytes apart; from: one as it is in the file, to: packed. */
typedef struct gpu_packing { const char *from; char *to; int rows; int64_t row_bytes, total; } gpu_packing;

static __global__ void gpu_pack_kernel(const __grid_constant__ gpu_packing p) {
    int64_t groups = (p.row_bytes + GROUP_BYTES - 1) / GROUP_BYTES;
    for (int64_t at = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; at < p.total; at += (int64_t)gridDim.x * blockDim.x) {
        int64_t piece = at / PIECE, row = piece / groups * OCTET + at % PIECE / GROUP_BYTES;
        int64_t byte = piece % groups * GROUP_BYTES + at % GROUP_BYTES;
        p.to[at] = row < p.rows && byte < p.row_bytes ? p.from[row * p.row_bytes + byte] : 0;
    }
}

static cudaError_t gpu_pack(const gpu_packing *packing, int sms) {
    gpu_packing p = *packing;
    p.total = (int64_t)gpu_octets(p.rows) * ((p.row_bytes + GROUP_BYTES - 1) / GROUP_BYTES) * PIECE;
    int64_t blocks = (p.total - 1) / GPU_THREADS + 1, most = (int64_t)sms * 8;
    gpu_pack_kernel<<<(unsigned)(blocks < most ? blocks : most), GPU_THREADS>>>(p);
    return cudaGetLastError();
}

/* Where the element [row][col] of a packed matrix is. */
__device__ __forceinline__ const char *gpu_element(const gpu_matrix *w, int row, int col, int size) {
    size_t byte = (size_t)col * size;
    return w->data + ((size_t)(row / OCTET) * w->groups + byte / GROUP_BYTES) * PIECE + row % OCTET * GROUP_BYTES +
           byte % GROUP_BYTES;
}

__device__ __forceinline__ float gpu_weight(const gpu_matrix *w, int row, int col) {
    if (w->type == DTYPE_F32) return *(const float *)gpu_element(w, row, col, 4);
    if (w->type == DTYPE_BF16) return __uint_as_float((uint32_t)*(const uint16_t *)gpu_element(w, row, col, 2) << 16);
    if (w->type == DTYPE_F16) return __half2float(*(const __half *)gpu_element(w, row, col, 2));
    int code = *(const int8_t *)gpu_element(w, row, col, 1), block = col / GROUP_BYTES >> w->group_shift;
    return __uint_as_float((uint32_t)code << 20 & 0x87f00000u) *
           (w->scale[(row >> w->row_shift) * w->scale_cols + block] * FP8_UNIT);
}

/* The E4M3 code nearest to x, at most 448. */
__device__ __forceinline__ uint8_t gpu_fp8(float x) {
    uint16_t pair;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(pair) : "f"(0.0f), "f"(x));
    return (uint8_t)pair;
}

/* The first rows of a packed matrix, copied to FP8: the largest weight of each block becomes 448. */
typedef struct gpu_quantising { gpu_matrix from, to; } gpu_quantising;

/* Grid: blocks of `to`, column by row. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_quantise_blocks(const __grid_constant__ gpu_quantising p) {
    __shared__ float largest[GPU_WARPS];
    const int side_row = 1 << p.to.row_shift, side_col = GROUP_BYTES << p.to.group_shift;
    const int rows = min(side_row, p.to.rows - (int)blockIdx.y * side_row);
    const int cols = min(side_col, p.to.cols - (int)blockIdx.x * side_col);
    float most = 0;
    for (int i = threadIdx.x; i < rows * cols; i += GPU_THREADS)
        most = fmaxf(most, fabsf(gpu_weight(&p.from, blockIdx.y * side_row + i / cols, blockIdx.x * side_col + i % cols)));
    for (int i = 16; i; i /= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, i));
    if (threadIdx.x % 32 == 0) largest[threadIdx.x / 32] = most;
    __syncthreads();
    for (int w = 0; w < GPU_WARPS; w++) most = fmaxf(most, largest[w]);
    float scale = most > 0 ? most / 448 : 1;
    if (threadIdx.x == 0) ((float *)p.to.scale)[blockIdx.y * p.to.scale_cols + blockIdx.x] = scale;
    for (int i = threadIdx.x; i < rows * cols; i += GPU_THREADS) {
        int row = blockIdx.y * side_row + i / cols, col = blockIdx.x * side_col + i % cols;
        *(uint8_t *)gpu_element(&p.to, row, col, 1) = gpu_fp8(gpu_weight(&p.from, row, col) / scale);
    }
}

static cudaError_t gpu_quantise(const matrix *from, const matrix *to) {
    gpu_quantising p;
    p.from = gpu_matrix_of(from);
    p.to = gpu_matrix_of(to);
    gpu_quantise_blocks<<<dim3((to->cols - 1) / to->block_cols + 1, (to->rows - 1) / to->block_rows + 1), GPU_THREADS>>>(p);
    return cudaGetLastError();
}

/* Where a lane reads of a tile: its 16 bytes of the first group of either octet; the scales of octet lane / 16. An octet
   behind the last counts as the last. Rows of an octet share a scale. */
typedef struct gpu_place {
    const char *data[2];
    const float *scale;
} gpu_place;

/* a and b: two matrices of one shape, or the same one. */
__device__ __forceinline__ gpu_place gpu_place_of(const gpu_matrix &a, int octet_a, const gpu_matrix &b, int octet_b) {
    gpu_place at;
    int lane = threadIdx.x % 32;
    octet_b = min(octet_b, b.octets - 1);
    at.data[0] = a.data + (size_t)octet_a * (uint32_t)(a.groups * PIECE) + lane * 16;
    at.data[1] = b.data + (size_t)octet_b * (uint32_t)(a.groups * PIECE) + lane * 16;
    at.scale = lane < 16 ? a.scale : b.scale;
    at.scale += ((lane < 16 ? octet_a : octet_b) * OCTET >> a.row_shift) * a.scale_cols;
    return at;
}

/* One thread brings memory into the second-level cache; a multiple of 16 bytes. */
__device__ __forceinline__ void gpu_prefetch(const void *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

/* What a later kernel reads first. A kernel that leaves the bus idle brings it into the second-level cache. */
typedef struct gpu_soon {
    const char *from;
    uint32_t bytes;              /* whole 16; 0: nothing */
    uint32_t share;              /* of a block */
} gpu_soon;

/* Where `stage` runs, the first bytes of the matrix that it reads first. */
static gpu_soon gpu_soon_of(const gpu_queue *q, enum gpu_stage stage, const matrix *w) {
    gpu_soon soon = {(const char *)w->data, 0, 0};
    int64_t bytes = (int64_t)gpu_packed_size(w->type, w->rows, w->cols);
    if (q->stages >> (q->as != GPU_STAGES ? q->as : stage) & 1) soon.bytes = bytes < q->soon ? (uint32_t)bytes : q->soon;
    return soon;
}

static void gpu_share_soon(gpu_soon *soon, int blocks) {
    soon->share = (soon->bytes / (uint32_t)blocks / 128 + 1) * 128;
}

/* A block's share of it. */
__device__ __forceinline__ void gpu_prefetch_share(const gpu_soon &soon) {
    uint32_t at = soon.share * blockIdx.x;
    if (threadIdx.x == GPU_THREADS - 1 && at < soon.bytes) gpu_prefetch(soon.from + at, min(soon.share, soon.bytes - at));
}

/* What a warp multiplies weights with, in shared memory: fragments [group][pair of steps][high, low][ROWS][4 lanes] of
   four registers, units [group][ROWS] (formats with `half`). */
typedef struct gpu_operand {
    uint4 *x;
    float *unit;
} gpu_operand;

/* Steps of a group come in pairs, F32's only one counts as one. */
template <class F> __host__ __device__ constexpr int gpu_step_pairs() {
    return (F::per_load / 4 + 1) / 2;
}

template <class F, int ROWS> __device__ __forceinline__ gpu_operand gpu_operand_at(void *memory, int groups) {
    gpu_operand o;
    o.x = (uint4 *)memory;
    o.unit = (float *)(o.x + groups * gpu_step_pairs<F>() * 8 * ROWS);
    return o;
}

/* Its bytes, for rows of `groups` groups. */
static size_t gpu_operand_size(dtype type, int rows, int groups) {
    return (size_t)groups * (size_t)rows * ((type == DTYPE_FP8 ? 256 : 128) + sizeof(float)) + 16;
}

/* What this lane reads of group 0. */
template <class F, int ROWS> __device__ __forceinline__ const uint4 *gpu_lane_fragments(const gpu_operand &o) {
    int lane = threadIdx.x % 32;
    return o.x + (lane / 16 * ROWS + lane % 16 / 4 % ROWS) * 4 + lane % 4;
}

/* sum += a group of a tile times x, this lane's B registers, two steps at a time. With `half` the sums of token row t
   and octet o are multiplied with what `factor` is on lane from + 16 o + t (with ROWS = 1, on lane from + 16 o), or, if
   the octets have it in common (step = 0), on lane from + t. Without, a group that is not there counts nothing. OCTETS: of
   the tile, 1 or 2; the rows of one that is not there get zeros. */
template <class F, int ROWS, int OCTETS = 2>
__device__ __forceinline__ void gpu_multiply(float *sum, const uint4 *raw, const uint4 *x, float factor, int from,
                                             const int step, bool there) {
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int s = 0; s < F::per_load / 4; s++)
#pragma unroll
        for (int term = 0; term < F::terms; term++) {
            uint32_t a[4] = {}, b0 = s % 2 ? x[s / 2].z : x[s / 2].x, b1 = s % 2 ? x[s / 2].w : x[s / 2].y;
            F::fragment(raw[0], s, term, &a[0], &a[2]);
            if (OCTETS == 2) F::fragment(raw[1], s, term, &a[1], &a[3]);
            if (F::half) mma_f16(part, a, b0, b1);
            else mma_bf16(part, a, b0, b1);
        }
#pragma unroll
    for (int i = 0; i < 2 * OCTETS; i++) {                  /* column 2 (lane % 4) + i % 2, row i / 2 * 8 + lane / 4 */
        if (ROWS == 1 && i % 2) continue;
        int t = ROWS == 1 ? 0 : threadIdx.x % 2 * 2 + i % 2;
        if (F::half) sum[i] = fmaf(__shfl_sync(~0u, factor, from + i / 2 * step + t), part[i], sum[i]);
        else sum[i] += there ? part[i] : 0;
    }
}

/* Eight neighbouring floats of a token row as B registers of two steps: the high terms, and *low the low ones. */
template <class F> __device__ __forceinline__ uint4 gpu_split(const float *v, uint4 *low) {
    uint32_t h[4], l[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (F::half) {
            h[i] = f16_pair(v[2 * i], v[2 * i + 1]);
            float2 back = f16_floats(h[i]);
            l[i] = f16_pair(v[2 * i] - back.x, v[2 * i + 1] - back.y);
        } else {
            h[i] = bf16_pair(v[2 * i], v[2 * i + 1]);
            l[i] = bf16_pair(v[2 * i] - bf16_low(h[i]), v[2 * i + 1] - bf16_high(h[i]));
        }
    }
    *low = make_uint4(l[0], l[1], l[2], l[3]);
    return make_uint4(h[0], h[1], h[2], h[3]);
}

/* Multiplies the eight floats of each of LANES neighbouring lanes with the power of two that brings the largest of all
   into [2^14, 2^15), and returns its inverse. */
template <int LANES> __device__ __forceinline__ float gpu_bring_into_range(float *v) {
    float top = fmaxf(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))),
                      fmaxf(fmaxf(fabsf(v[4]), fabsf(v[5])), fmaxf(fabsf(v[6]), fabsf(v[7]))));
#pragma unroll
    for (int i = 1; i < LANES; i *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
    int exponent = min(268 - (__float_as_int(top) >> 23), 253);
    float factor = __int_as_float(exponent << 23);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] *= factor;
    return __int_as_float((254 - exponent) << 23);
}

/* Eight floats that another kernel writes; zeros from column `cols` on. Sizes of rows are multiples of four. */
__device__ __forceinline__ void gpu_load8(float *v, const float *row, int col, int cols) {
    *(float4 *)v = col < cols ? gpu_hear4(row + col) : make_float4(0, 0, 0, 0);
    *(float4 *)(v + 4) = col + 4 < cols ? gpu_hear4(row + col + 4) : make_float4(0, 0, 0, 0);
}

/* The same of a weight, which a rehearsal leaves in the first-level cache. */
__device__ __forceinline__ void gpu_load8_constants(float *v, const float *row, int col, int cols) {
    *(float4 *)v = col < cols ? __ldg((const float4 *)(row + col)) : make_float4(0, 0, 0, 0);
    *(float4 *)(v + 4) = col + 4 < cols ? __ldg((const float4 *)(row + col + 4)) : make_float4(0, 0, 0, 0);
}

/* Four floats, zeros if not there. */
__device__ __forceinline__ void gpu_load4(float *v, const float *at, bool there) {
    *(float4 *)v = there ? __ldcg((const float4 *)at) : make_float4(0, 0, 0, 0);
}

/* The unit of the group that this lane has eight columns of, which it brings into range; its other lanes do the same. */
template <class F> __device__ __forceinline__ float gpu_unit(float *v) {
    return F::half ? gpu_bring_into_range<4 * F::per_load / 8>(v) : 1;
}

/* Eight columns of token row t, number `part` of those of a group, to their place in an operand. */
template <class F, int ROWS>
__device__ __forceinline__ void gpu_put_columns(const gpu_operand &to, int group, int part, int t, const float *v,
                                                float unit) {
    const int pairs = gpu_step_pairs<F>();
    uint4 low, high = gpu_split<F>(v, &low), *x;
    if (F::half && part == 0) to.unit[group * ROWS + t] = unit;
    if (F::per_load > 4) {                                  /* two steps of lane part / pairs */
        x = to.x + ((group * pairs + part % pairs) * 2 * ROWS + t) * 4 + part / pairs;
        x[0] = high;
        x[4 * ROWS] = low;
    } else {                                                /* the only step of two lanes */
        x = to.x + (group * 2 * ROWS + t) * 4 + part * 2;
        *(uint2 *)&x[0] = make_uint2(high.x, high.y);
        *(uint2 *)&x[1] = make_uint2(high.z, high.w);
        *(uint2 *)&x[4 * ROWS] = make_uint2(low.x, low.y);
        *(uint2 *)&x[4 * ROWS + 1] = make_uint2(low.z, low.w);
    }
}

/* One warp fills in `count` groups of an operand, from group `first` on, AT_ONCE times eight columns a lane at a time.
   in.load(v, more, T, col) asks for eight columns of all token rows, zeros from in.cols on, and whatever else is needed;
   when all has been asked for, in.finish makes of them what is multiplied, and where there is a norm sums up their squares,
   each lane its own. Kernels are made for ROWS = 1 and for ROWS = 4, which serves T = 2, 3, 4
   (experts_down for ROWS = 2, too): rows that are not there stay as they are, their sums go nowhere. */
template <class F, int ROWS, int AT_ONCE, class IN>
__device__ __forceinline__ void gpu_fill(const IN &in, int T, int first, int count, const gpu_operand &to, float *square) {
    enum { COLS = 4 * F::per_load, LANES = COLS / 8 };      /* of a group */
    const int lane = threadIdx.x % 32, items = count * LANES;
#pragma unroll 1
    for (int begin = 0; begin < items; begin += 32 * AT_ONCE) {
        float v[AT_ONCE][ROWS][8], unit[AT_ONCE][ROWS];
        typename IN::template more<ROWS> more[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            int item = begin + n * 32 + lane;
            in.template load<ROWS>(v[n], &more[n], T, item < items ? first * COLS + item * 8 : in.cols);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            in.template finish<ROWS>(v[n], &more[n], square, false);
#pragma unroll
            for (int t = 0; t < ROWS; t++)
                if (ROWS == 1 || t < T) unit[n][t] = gpu_unit<F>(v[n][t]);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            int item = begin + n * 32 + lane, group = first + item / LANES, part = item % LANES;
#pragma unroll
            for (int t = 0; t < ROWS; t++)
                if ((ROWS == 1 || t < T) && item < items) gpu_put_columns<F, ROWS>(to, group, part, t, v[n][t], unit[n][t]);
        }
    }
    __syncwarp();
}

/* Where the parts of the warps meet. Two tiles take turns, so that one barrier a tile is enough. */
struct gpu_parts {
    float tile[2][TILE_ROWS][GPU_ROWS][GPU_WARPS];
    float squares[GPU_ROWS][GPU_WARPS];
};

/* The share of one of `of` workers in `groups` groups: the first, and how many. */
__device__ __forceinline__ int gpu_share(int groups, int worker, int of, int *mine) {
    int first = groups * worker / of;
    *mine = groups * (worker + 1) / of - first;
    return first;
}

/* Puts this warp's part of a tile in its place: high and low terms meet; rows g and g + 8, token rows 2i and 2i + 1. */
template <int ROWS> __device__ __forceinline__ void gpu_put_part(float (*to)[GPU_ROWS][GPU_WARPS], float *sum) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, i = lane % 4;
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (ROWS > 1 || j % 2 == 0) sum[j] += __shfl_xor_sync(~0u, sum[j], 2);
    if (2 * i >= ROWS) return;
    to[g][2 * i][warp] = sum[0];
    to[g + 8][2 * i][warp] = sum[2];
    if (ROWS == 1) return;
    to[g][2 * i + 1][warp] = sum[1];
    to[g + 8][2 * i + 1][warp] = sum[3];
}

template <int ROWS> __device__ __forceinline__ void gpu_put_squares(gpu_parts *parts, const float *square) {
#pragma unroll
    for (int t = 0; t < ROWS; t++) parts->squares[t][threadIdx.x / 32] = warp_sum(square[t]);
}

/* The sum of the warps' parts, in their order. */
__device__ __forceinline__ float gpu_add_parts(const float *part) {
    float4 a = *(const float4 *)part, b = *(const float4 *)(part + 4);
    return a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
}

/* 1 / root mean square of a token row, once all warps have filled in their part of it. */
__device__ __forceinline__ float gpu_rms_factor(const gpu_parts *parts, int t, float scale, float eps) {
    return rsqrtf(fmaf(gpu_add_parts(parts->squares[t]), scale, eps));
}

/* The weights of a warp that are on their way: AHEAD groups of both octets of a tile. */
template <int ROWS> struct gpu_ahead {
    int first, mine;             /* the warp's groups of every tile */
    gpu_place place;
    uint4 raw[AHEAD][2];
    float scale;                 /* of group `piece` of them */

    __device__ __forceinline__ int piece() const { return threadIdx.x % 16 / ROWS % AHEAD; }
    /* Asks for group from + j of the warp's, of which there are `left` from `from` on. */
    __device__ __forceinline__ void load(int j, int from, int left) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (j < left) raw[j][half] = __ldcs((const uint4 *)(place.data[half] + (first + from) * PIECE) + j * (PIECE / 16));
    }
    __device__ __forceinline__ void load_scale(const gpu_matrix &w, int from, int left) {
        if (w.scale && piece() < left) scale = __ldg(place.scale + (first + from + piece() >> w.group_shift));
    }
    __device__ __forceinline__ void nothing(const gpu_matrix &w) {
        first = gpu_share(w.groups, threadIdx.x / 32, GPU_WARPS, &mine);
        memset(&place, 0, sizeof place);
        memset(raw, 0, sizeof raw);
        scale = 1;
    }
    /* The first of a tile's, if it is one. */
    template <class TILES> __device__ __forceinline__ void begin(const TILES &tiles, int tile, const gpu_matrix &w) {
        int left = tiles.valid(tile) ? mine : 0;
        if (left) place = tiles.place(tile);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) load(j, 0, left);
        load_scale(w, 0, left);
        if (threadIdx.x || !left || mine <= AHEAD) return;
        gpu_prefetch(place.data[0], (uint32_t)(w.groups * PIECE));
        gpu_prefetch(place.data[1], (uint32_t)(w.groups * PIECE));
    }
};

/* The loop over a block's tiles. TILES says what they are:
     next(tile), valid(tile)        the block's next tile; is it one
     place(tile)                    where this lane reads
     old(tile, row, t)              what is read before the sum is there, handed on to store
     store(tile, row, t, parts of the tile, old, rms, real)
   The last two are called by one thread for each of the 16 rows and T token rows, of other warps from tile to tile; rms
   is the token row's factor where there is a norm.
     prepare(first, mine, operand, square, real)   waits for the kernel before and fills in the operand
   Between entering and waiting there is time. A block that rehearses runs through its first tile once before it waits, on
   whatever is in memory, and drops the result: then the code is in the instruction cache when it counts. real: from which
   to which of the two, 0 the rehearsal, 1 not. Of tiles that are only known after the wait (TILES::routed) nothing is
   loaded in a rehearsal. */
template <class F, int ROWS, class TILES>
__device__ __forceinline__ void gpu_run_tiles(const TILES &tiles, int tile, const gpu_matrix &w, int T, void *memory,
                                              gpu_parts *parts, gpu_ahead<ROWS> &ahead, int real, int to) {
    const int pairs = gpu_step_pairs<F>(), lane = threadIdx.x % 32, turns = GPU_THREADS / (TILE_ROWS * GPU_ROWS);
    const int row = threadIdx.x % TILE_ROWS, t = threadIdx.x / TILE_ROWS % GPU_ROWS;
    const int turn = threadIdx.x / (TILE_ROWS * GPU_ROWS);  /* this thread stores tiles n % turns == turn */
    const int first = ahead.first, mine = ahead.mine, rounds = (mine + AHEAD - 1) / AHEAD, piece = ahead.piece();
    const gpu_operand operand = gpu_operand_at<F, ROWS>(memory, w.groups);
    const uint4 *fragments = gpu_lane_fragments<F, ROWS>(operand) + first * pairs * 8 * ROWS;
    const float *unit = operand.unit + (first + piece) * ROWS + lane % ROWS;
    float rms = 1;
#pragma unroll 1
    for (; real <= to; real++) {
        float square[ROWS] = {};
        tiles.template prepare<F, ROWS>(first, mine, operand, square, real);
        for (int n = 0; tiles.valid(tile); n++) {
            int next = tiles.next(tile);
            bool more = real && tiles.valid(next), stores = n % turns == turn && t < T;
            float sum[4] = {0, 0, 0, 0}, old = 0;
            if (stores) old = tiles.old(tile, row, t);
            for (int r = 0; r < rounds; r++) {
                bool last = r == rounds - 1;
                int from = last ? 0 : (r + 1) * AHEAD, left = last ? (more ? mine : 0) : real ? mine - from : 0;
                float factor = 0;
                if (F::half && r * AHEAD + piece < mine) factor = ahead.scale * unit[r * AHEAD * ROWS];
                if (last && more) ahead.place = tiles.place(next);
                if (F::scaled) ahead.load_scale(w, from, left);
#pragma unroll
                for (int j = 0; j < AHEAD; j++) {
                    uint4 x[pairs];
                    bool there = r * AHEAD + j < mine;
                    const uint4 *at = fragments + (there ? r * AHEAD + j : 0) * pairs * 8 * ROWS;
#pragma unroll
                    for (int pair = 0; pair < pairs; pair++) x[pair] = at[pair * 8 * ROWS];
                    gpu_multiply<F, ROWS>(sum, ahead.raw[j], x, factor, j * ROWS, 16, there);
                    ahead.load(j, from, left);
                }
            }
            gpu_put_part<ROWS>(parts->tile[n % 2], sum);
            if (n == 0 && TILES::normed) gpu_put_squares<ROWS>(parts, square);
            __syncthreads();
            if (n == 0 && TILES::normed && t < ROWS) rms = gpu_rms_factor(parts, t, tiles.per_col(), tiles.eps());
            if (stores) tiles.store(tile, row, t, parts->tile[n % 2], old, rms, real);
            if (!real) break;
            tile = next;
        }
        if (!real) __syncthreads();
    }
}

/* Whole groups, MINE for each warp: a quicker way to the same sums in the same order. What a block does once, from its wait
   on, has neither loops nor branches here: before a loop the compiler waits for weights that are on their way, and x comes
   late. So nothing of that is rehearsed, which would take such a loop. ROWS is the number of token rows, T, exactly. */
template <class F, int MINE, int ROWS> struct gpu_short {
    enum { COLS = 4 * F::per_load, LANES = COLS / 8, PARTS = MINE * LANES / 32, pairs = gpu_step_pairs<F>() };
    enum { EACH = 16 / ROWS, FACTORS = (MINE - 1) / EACH + 1 };     /* groups whose factors a register of a warp holds */
    gpu_place place;
    uint4 raw[MINE][2];
    float scale[FACTORS];        /* of group piece(k), for octet lane / 16 */

    __device__ __forceinline__ static int first() { return threadIdx.x / 32 * MINE; }
    __device__ __forceinline__ static int piece(int k) { return k * EACH + threadIdx.x % 16 / ROWS; }
    __device__ __forceinline__ void load(int j) {
#pragma unroll
        for (int half = 0; half < 2; half++) raw[j][half] = __ldcs((const uint4 *)(place.data[half] + (first() + j) * PIECE));
    }
    __device__ __forceinline__ void load_scale(const gpu_matrix &w) {
#pragma unroll
        for (int k = 0; k < FACTORS; k++)
            scale[k] = F::scaled && piece(k) < MINE ? __ldg(place.scale + (first() + piece(k) >> w.group_shift)) : 1;
    }
    /* This lane's columns of x. */
    template <class IN> struct columns {
        enum { MOST = IN::template at_once<ROWS>(), AT_ONCE = MOST < PARTS ? MOST : PARTS };
        float v[AT_ONCE][ROWS][8];
        typename IN::template more<ROWS> more[AT_ONCE];
        __device__ __forceinline__ static int column(int part) {
            return first() * COLS + (part * 32 + (int)threadIdx.x % 32) * 8;
        }
        __device__ __forceinline__ void load(const IN &in, int from) {
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) in.template load<ROWS>(v[n], &more[n], ROWS, column(from + n));
        }
        /* Once more what was not there yet; all of it if it has no mark. Without a branch. */
        __device__ __forceinline__ void load_missing(const IN &in, const gpu_mark &mark) {
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
                for (int t = 0; t < ROWS; t++)
                    if (!mark.mask || gpu_missing(v[n][t], 8, mark)) in.load_row(v[n][t], ROWS, t, column(n));
        }
        /* Is something missing, on any lane? */
        __device__ __forceinline__ bool missing(const gpu_mark &mark) const {
            uint32_t other = 0;
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
                for (int t = 0; t < ROWS; t++) other |= gpu_missing(v[n][t], 8, mark);
            return __any_sync(~0u, other);
        }
        /* Loads them when they are there. */
        __device__ __forceinline__ void watch(const IN &in, const gpu_mark &mark) {
            load(in, 0);
#pragma unroll 1
            while (missing(mark)) {
                gpu_hear_one(in.x + first() * COLS, mark);
                load(in, 0);
            }
        }
        __device__ __forceinline__ void fill(const IN &in, const gpu_operand &to, float *square) {
#pragma unroll
            for (int from = 0; from < PARTS; from += AT_ONCE) {
                if (from) load(in, from);
#pragma unroll
                for (int n = 0; n < AT_ONCE; n++) {
                    int part = (from + n) * 32 + threadIdx.x % 32;
                    in.template finish<ROWS>(v[n], &more[n], square, true);
#pragma unroll
                    for (int t = 0; t < ROWS; t++) {
                        float unit = gpu_unit<F>(v[n][t]);
                        gpu_put_columns<F, ROWS>(to, first() + part / LANES, part % LANES, t, v[n][t], unit);
                    }
                }
            }
            __syncwarp();
        }
    };
    /* Of group piece(k), row lane % 16 % ROWS. */
    __device__ __forceinline__ float unit(const gpu_operand &x, int k) const {
        return F::half && piece(k) < MINE ? x.unit[(first() + piece(k)) * ROWS + threadIdx.x % 16 % ROWS] : 0;
    }
    /* sum += group j of the tile times x. */
    __device__ __forceinline__ void multiply(int j, const uint4 *fragments, const float *factor, float *sum) const {
        uint4 x[pairs];
#pragma unroll
        for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[((first() + j) * pairs + pair) * 8 * ROWS];
        gpu_multiply<F, ROWS>(sum, raw[j], x, factor[j / EACH], j % EACH * ROWS, 16, true);
    }
};

/* The block's only tile. EARLY of its groups are asked for before the wait: all of them would keep the kernel in front from
   what it needs. With several rows the rest is asked for when their x has left its registers. Rows that are normalised are
   x, which is marked: they are watched for. These blocks come so early that their weights are there before x, and the loop
   costs nothing.

   norm_router, for whose logits all of experts_up watches, stores before its wait, which has yet to come: a kernel that
   ends is to mean that those in front have. With one row it also rehearses storing: the first time in a launch, that takes
   0.9 us instead of 0.2. */
template <class F, int MINE, int EARLY, int ROWS, class IN, class TILES>
__device__ __forceinline__ void gpu_run_one_tile(const TILES &tiles, const IN &in, int tile, const gpu_matrix &w,
                                                 void *memory, gpu_parts *parts) {
    typedef gpu_short<F, MINE, ROWS> sizes;
    enum { LATE = ROWS > 1, OLD = !TILES::normed };         /* projections of a norm add to nothing */
    const int row = threadIdx.x % TILE_ROWS, t = threadIdx.x / TILE_ROWS;
    const gpu_operand operand = gpu_operand_at<F, ROWS>(memory, w.groups);
    const uint4 *fragments = gpu_lane_fragments<F, ROWS>(operand);
    const bool stores = t < ROWS;
    sizes weights;
    typename sizes::template columns<IN> x;
    float sum[4] = {0, 0, 0, 0}, square[ROWS] = {}, factor[sizes::FACTORS], old = 0;
    auto multiply = [&]() {
        weights.place = tiles.place(tile);
        if (LATE && threadIdx.x == 0) {
            gpu_prefetch(weights.place.data[0], (uint32_t)(w.groups * PIECE));
            gpu_prefetch(weights.place.data[1], (uint32_t)(w.groups * PIECE));
        }
#pragma unroll
        for (int j = 0; j < EARLY; j++) weights.load(j);
        weights.load_scale(w);
        if constexpr (TILES::normed) {
            gpu_trigger();
            if (!tiles.p.watch.mask) gpu_wait();
            x.watch(in, tiles.p.watch);
        } else {
            tiles.wait();
            x.load(in, 0);
        }
#pragma unroll
        for (int j = LATE ? MINE : EARLY; j < MINE; j++) weights.load(j);
        if (OLD && !LATE && stores) old = tiles.old(tile, row, t);
        x.fill(in, operand, square);
#pragma unroll
        for (int j = LATE ? EARLY : MINE; j < MINE; j++) weights.load(j);
        if (OLD && LATE && stores) old = tiles.old(tile, row, t);
#pragma unroll
        for (int k = 0; k < sizes::FACTORS; k++) factor[k] = weights.scale[k] * weights.unit(operand, k);
#pragma unroll
        for (int j = 0; j < MINE; j++) weights.multiply(j, fragments, factor, sum);
        gpu_put_part<ROWS>(parts->tile[0], sum);
        if (TILES::normed) gpu_put_squares<ROWS>(parts, square);
    };
    auto store = [&](bool real) {
        float rms = TILES::normed ? gpu_rms_factor(parts, t, tiles.per_col(), tiles.eps()) : 1;
        tiles.store(tile, row, t, parts->tile[0], old, rms, real);
    };
    if constexpr (TILES::router) {
#pragma unroll 1
        for (int real = ROWS > 1 || (int)blockIdx.x >= tiles.p.rehearse; real < 2; real++) {
            if (real) multiply();
            __syncthreads();
            if (stores) store(real);
            if (!real) __syncthreads();
        }
        gpu_wait();
    } else {
        multiply();
        __syncthreads();
        if (TILES::normed) gpu_wait();
        if (stores) store(true);
    }
}

/* All of the block's tiles; see gpu_run_tiles. Half of the blocks come when the kernel in front is nearly done. A single row is
   asked for before their weights are, and after the wait only what was not there yet. */
template <class F, int MINE, int ROWS, class IN, class TILES>
__device__ __forceinline__ void gpu_run_short_tiles(const TILES &tiles, const IN &in, int tile, const gpu_matrix &w,
                                                    void *memory, gpu_parts *parts) {
    enum { GUESS = TILES::normed && ROWS == 1 };
    typedef gpu_short<F, MINE, ROWS> sizes;
    const int row = threadIdx.x % TILE_ROWS, t = threadIdx.x / TILE_ROWS % GPU_ROWS;
    const int turns = GPU_THREADS / (TILE_ROWS * GPU_ROWS), turn = threadIdx.x / (TILE_ROWS * GPU_ROWS);
    const gpu_operand operand = gpu_operand_at<F, ROWS>(memory, w.groups);
    const uint4 *fragments = gpu_lane_fragments<F, ROWS>(operand);
    sizes weights;
    typename sizes::template columns<IN> x;
    float square[ROWS] = {}, rms = 1, unit[sizes::FACTORS];
    weights.place = tiles.place(tile);
    if (GUESS) x.load(in, 0);
#pragma unroll
    for (int j = 0; j < MINE; j++) weights.load(j);
    weights.load_scale(w);
    tiles.wait();
    if constexpr (GUESS) x.load_missing(in, tiles.p.watch);
    else x.load(in, 0);
    x.fill(in, operand, square);
    if (TILES::normed) gpu_put_squares<ROWS>(parts, square);
#pragma unroll
    for (int k = 0; k < sizes::FACTORS; k++) unit[k] = weights.unit(operand, k);
#pragma unroll 1
    for (int n = 0; tiles.valid(tile); n++) {
        const int next = tiles.next(tile);
        const bool more = tiles.valid(next), stores = n % turns == turn && t < ROWS;
        const float old = stores ? tiles.old(tile, row, t) : 0;
        float sum[4] = {0, 0, 0, 0}, factor[sizes::FACTORS];
#pragma unroll
        for (int k = 0; k < sizes::FACTORS; k++) factor[k] = weights.scale[k] * unit[k];
        if (more) {
            weights.place = tiles.place(next);
            weights.load_scale(w);
        }
#pragma unroll
        for (int j = 0; j < MINE; j++) {
            weights.multiply(j, fragments, factor, sum);
            if (more) weights.load(j);
        }
        gpu_put_part<ROWS>(parts->tile[n % 2], sum);
        __syncthreads();
        if (n == 0 && TILES::normed) rms = gpu_rms_factor(parts, t, tiles.per_col(), tiles.eps());
        if (stores) tiles.store(tile, row, t, parts->tile[n % 2], old, rms, true);
        tile = next;
    }
}

/* Projections: every stage that multiplies token rows by matrices. What the stage does first to the rows (the prologue,
   IN) is computed again by every block, which is cheaper than a kernel of its own. A block works on one matrix. */

typedef struct gpu_segment {     /* one matrix of a projection */
    gpu_matrix w, up;            /* with up.data: h = SiLU(w x) * (up x) instead of y = w x; a tile has an octet of each */
    float *y;                    /* [T][rows] */
    float *h;                    /* [T][h_row] */
    int first_block, blocks;
} gpu_segment;

template <class IN> struct gpu_projection {
    int count, T, cols, add;     /* add: y += instead of y = */
    int rehearse;                /* so many blocks do, the first */
    float eps;
    size_t h_row;                /* elements of a row of h */
    gpu_soon soon;
    gpu_mark mark, watch;        /* y's, and that of the rows */
    gpu_segment segment[PROJECTIONS];
    IN in;
};

/* Prologues. normed: the root mean square is divided out at the end; router: of norm_router; at_once: how often eight columns
   a lane asks for before it uses the first; blocks: that fit a multiprocessor with four rows; is_short: load asks for all
   that finish needs, as it must where that is `quick`. */

/* Prologue: the rows as they are. */
struct gpu_plain_rows {
    enum { normed = 0, router = 0, blocks = 2 };
    template <int ROWS> __host__ __device__ static constexpr int at_once() { return ROWS > 2 ? 1 : 2; }
    const float *x;              /* [T][cols] */
    int cols;
    template <int ROWS> struct more {};
    template <int ROWS> __device__ __forceinline__ void load(float (*v)[8], more<ROWS> *, int T, int col) const {
#pragma unroll
        for (int t = 0; t < ROWS; t++) gpu_load8(v[t], x + (size_t)t * cols, col, t < T ? cols : 0);
    }
    template <int ROWS> __device__ __forceinline__ void finish(float (*)[8], const more<ROWS> *, float *, bool) const {}
    bool is_short() const { return true; }
    void select(int t) { x += (size_t)t * cols; }           /* row t alone */
};

/* Prologue: rms(x)(1 + norm). Dividing by the root mean square is left to the end, when all warps know it. */
struct gpu_norm_rows {
    enum { normed = 1, router = 0, blocks = 2 };
    template <int ROWS> __host__ __device__ static constexpr int at_once() { return 1; }
    const float *x, *norm;       /* [T][cols], [cols] */
    int cols;
    template <int ROWS> struct more { float w[8]; };
    template <int ROWS> __device__ __forceinline__ void load(float (*v)[8], more<ROWS> *of, int T, int col) const {
        gpu_load8_constants(of->w, norm, col, cols);
#pragma unroll
        for (int t = 0; t < ROWS; t++) load_row(v[t], T, t, col);
    }
    __device__ __forceinline__ void load_row(float *v, int T, int t, int col) const {
        gpu_load8(v, x + (size_t)t * cols, col, t < T ? cols : 0);
    }
    template <int ROWS> __device__ __forceinline__ void finish(float (*v)[8], const more<ROWS> *of, float *square, bool) const {
#pragma unroll
        for (int t = 0; t < ROWS; t++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                square[t] = fmaf(v[t][i], v[t][i], square[t]);
                v[t][i] *= 1.0f + of->w[i];
            }
    }
    bool is_short() const { return true; }
    void select(int t) { x += (size_t)t * cols; }
};

/* Prologue of norm_router: the same, but see gpu_run_one_tile. */
struct gpu_router_rows : gpu_norm_rows {
    enum { router = 1 };
};

/* The tiles of one segment that this block has. */
template <class IN> struct gpu_segment_tiles {
    enum { normed = IN::normed, router = IN::router, routed = 0 };
    const gpu_projection<IN> &p;
    const gpu_segment &s;
    const bool pairs;            /* an octet of w and the same of up, instead of two of w */
    __device__ __forceinline__ int first() const { return (int)blockIdx.x - s.first_block; }
    __device__ __forceinline__ float per_col() const { return 1.0f / (float)p.cols; }
    __device__ __forceinline__ float eps() const { return p.eps; }
    __device__ __forceinline__ int next(int tile) const { return tile + s.blocks; }
    __device__ __forceinline__ bool valid(int tile) const { return (pairs ? tile : 2 * tile) < s.w.octets; }
    __device__ __forceinline__ gpu_place place(int tile) const {
        return pairs ? gpu_place_of(s.w, tile, s.up, tile) : gpu_place_of(s.w, 2 * tile, s.w, 2 * tile + 1);
    }
    __device__ __forceinline__ void wait() const {
        gpu_trigger();
        gpu_wait();
    }
    template <class F, int ROWS>
    __device__ __forceinline__ void prepare(int first, int mine, const gpu_operand &operand, float *square, int real) const {
        if (real) wait();
        gpu_fill<F, ROWS, ROWS == 1 ? IN::template at_once<1>() : 1>(p.in, p.T, first, mine, operand, square);
    }
    __device__ __forceinline__ float old(int tile, int row, int t) const {
        return p.add && tile * TILE_ROWS + row < s.w.rows ? __ldcg(&s.y[(size_t)t * s.w.rows + tile * TILE_ROWS + row]) : 0;
    }
    __device__ __forceinline__ void store(int tile, int row, int t, const float (*part)[GPU_ROWS][GPU_WARPS], float old,
                                          float rms, bool real) const {
        float y = gpu_add_parts(part[row][t]) * rms;
        if (!pairs) {
            row += tile * TILE_ROWS;
            if (real && row < s.w.rows) gpu_tell(&s.y[(size_t)t * s.w.rows + row], old + y, p.mark);
        } else if (row < OCTET) {
            float up = gpu_add_parts(part[row + OCTET][t]) * rms;
            row += tile * OCTET;
            if (real && row < s.w.rows) s.h[t * p.h_row + row] = y * gpu_sigmoid(y) * up;
        }
    }
};

/* Those of the segment that this block works on. */
template <class IN> __device__ __forceinline__ gpu_segment_tiles<IN> gpu_tiles_of(const gpu_projection<IN> &p) {
    int i = 0;
    while (i + 1 < p.count && (int)blockIdx.x >= p.segment[i + 1].first_block) i++;
    return {p, p.segment[i], p.segment[i].up.data != NULL};
}

template <class IN, int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, ROWS == 1 ? 2 : IN::blocks)
gpu_project(const __grid_constant__ gpu_projection<IN> p) {
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) gpu_parts parts;
    gpu_prefetch_share(p.soon);
    const gpu_segment_tiles<IN> tiles = gpu_tiles_of(p);
    const gpu_matrix &w = tiles.s.w;
    const int tile = tiles.first(), real = (int)blockIdx.x >= p.rehearse;
    gpu_ahead<ROWS> ahead;
    ahead.nothing(w);
    ahead.begin(tiles, tile, w);
    switch (w.type) {
        case DTYPE_FP8: gpu_run_tiles<format_fp8, ROWS>(tiles, tile, w, p.T, dynamic, &parts, ahead, real, 1); break;
        case DTYPE_BF16: gpu_run_tiles<format_bf16, ROWS>(tiles, tile, w, p.T, dynamic, &parts, ahead, real, 1); break;
        case DTYPE_F16: gpu_run_tiles<format_f16, ROWS>(tiles, tile, w, p.T, dynamic, &parts, ahead, real, 1); break;
        default: gpu_run_tiles<format_f32, ROWS>(tiles, tile, w, p.T, dynamic, &parts, ahead, real, 1);
    }
}

/* Where ptxas can do with norms of one row in 96 registers, a block of conv_delta finds room beside two. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ / 100 == 9
#define GPU_FEW_REGISTERS 96
#else
#define GPU_FEW_REGISTERS 128
#endif

/* The same where all segments are of the sizes below (see gpu_is_quick). */
template <class IN, int ROWS>
__global__ void __maxnreg__(IN::normed && !IN::router && ROWS == 1 ? GPU_FEW_REGISTERS : 128)
gpu_project_quick(const __grid_constant__ gpu_projection<IN> p) {
    enum { EARLY = ROWS > 2 ? 4 : 5, ALL = IN::normed && ROWS == 1 ? 8 : EARLY };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) gpu_parts parts;
    gpu_prefetch_share(p.soon);
    const gpu_segment_tiles<IN> tiles = gpu_tiles_of(p);
    const gpu_matrix &w = tiles.s.w;
    const int tile = tiles.first();
    if (w.type == DTYPE_BF16) gpu_run_one_tile<format_bf16, 8, ALL, ROWS>(tiles, p.in, tile, w, dynamic, &parts);
    else if (IN::normed) gpu_run_short_tiles<format_fp8, 4, ROWS>(tiles, p.in, tile, w, dynamic, &parts);
    else gpu_run_one_tile<format_fp8, 8, EARLY, ROWS>(tiles, p.in, tile, w, dynamic, &parts);
}

static const char *const dtype_names[] = {"F32", "F16", "BF16", "FP8"};

/* How many blocks rehearse, the first ones: as a rule the first on each multiprocessor, which come early. Who else does, and
   who does not, is as measured: conv_delta leaves gated_norm_out no time for it, and with several rows most take longer. Of
   the quick projections only norm_router's do, their last part. */
static int gpu_rehearse(const gpu_queue *q, enum gpu_stage stage, int T) {
    if (!q->dependent) return 0;
    if (T > 1) return stage == GPU_UP ? q->sms / 2 : stage == GPU_O_PROJ ? q->sms : 0;
    return stage == GPU_OUT_PROJ ? 0 : stage == GPU_IN_PROJ ? INT_MAX : q->sms;
}

/* Tiles of a segment. */
static int gpu_tiles(const gpu_segment *s) {
    return s->up.data ? s->w.octets : (s->w.octets + 1) / 2;
}

/* Deals the blocks of a kernel to the segments; how many there are. What is too small for one gets one or two. */
template <class IN>
static int gpu_deal_blocks(gpu_queue *q, gpu_projection<IN> *p, void (*kernel)(gpu_projection<IN>), size_t shared) {
    int64_t all = 0, large = 0;
    for (int i = 0; i < p->count; i++) all += gpu_tiles(&p->segment[i]);
    int most = gpu_blocks(q, kernel, shared, all), left = most, used = 0;
    for (int i = 0; i < p->count; i++) {
        int tiles = gpu_tiles(&p->segment[i]);
        bool small = (int64_t)tiles * most < all;
        p->segment[i].blocks = small ? (tiles < 2 ? tiles : 2) : 0;
        left -= p->segment[i].blocks;
        large += small ? 0 : tiles;
    }
    for (int i = 0; i < p->count; i++) {
        gpu_segment *s = &p->segment[i];
        if (!s->blocks) s->blocks = (int)((int64_t)gpu_tiles(s) * left / large);
        if (s->blocks < 1) s->blocks = 1;
        s->first_block = used;
        used += s->blocks;
    }
    return used;
}

/* Is gpu_project_quick made for it? */
template <class IN> static bool gpu_is_quick(const gpu_projection<IN> *p) {
    bool quick = p->in.is_short();
    for (int i = 0; i < p->count; i++) {
        const gpu_segment *s = &p->segment[i];
        bool whole = s->w.cols * dtype_size(s->w.type) == s->w.groups * GROUP_BYTES, only = s->blocks >= gpu_tiles(s);
        bool four = IN::normed && s->w.type == DTYPE_FP8 && s->w.groups == 4 * GPU_WARPS;
        bool eight = (s->w.type == DTYPE_BF16 || (!IN::normed && s->w.type == DTYPE_FP8)) && s->w.groups == 8 * GPU_WARPS;
        quick = quick && whole && (four || (eight && only));
    }
    return quick;
}

/* Bytes of the largest operand. */
template <class IN> static size_t gpu_operand_room(const gpu_projection<IN> *p, int rows) {
    size_t most = 0;
    for (int i = 0; i < p->count; i++) {
        size_t bytes = gpu_operand_size(p->segment[i].w.type, rows, p->segment[i].w.groups);
        if (bytes > most) most = bytes;
    }
    return most;
}

/* Deals the blocks to the segments and launches. */
template <class IN> static void gpu_launch_projection(gpu_queue *q, enum gpu_stage stage, gpu_projection<IN> *p) {
    size_t bytes = gpu_operand_room(p, p->T == 1 ? 1 : GPU_ROWS);
    if (p->T > 1 && bytes + sizeof(gpu_parts) > GPU_SHARED) {
        for (int t = 0; t < p->T; t++) {                    /* too wide for four rows at once */
            gpu_projection<IN> one = *p;
            one.T = 1;
            one.in.select(t);
            for (int i = 0; i < p->count; i++) {
                if (one.segment[i].y) one.segment[i].y += (size_t)t * one.segment[i].w.rows;
                if (one.segment[i].h) one.segment[i].h += (size_t)t * p->h_row;
            }
            gpu_launch_projection(q, stage, &one);
        }
        return;
    }
    void (*kernel)(gpu_projection<IN>) = p->T == 1 ? gpu_project<IN, 1> : gpu_project<IN, GPU_ROWS>;
    int used = gpu_deal_blocks(q, p, kernel, bytes);
    if (gpu_is_quick(p)) {
        kernel = p->T == 1 ? gpu_project_quick<IN, 1> : p->T == 2 ? gpu_project_quick<IN, 2>
               : p->T == 3 ? gpu_project_quick<IN, 3> : gpu_project_quick<IN, GPU_ROWS>;
        bytes = gpu_operand_room(p, p->T);
        used = gpu_deal_blocks(q, p, kernel, bytes);
    }
    p->rehearse = gpu_rehearse(q, stage, p->T);
    gpu_share_soon(&p->soon, used);
    gpu_launch(q, stage, dtype_names[p->segment[0].w.type], kernel, used, 1, bytes, p);
}

template <class IN> static void gpu_add_segment(gpu_projection<IN> *p, const matrix *w, float *y) {
    p->segment[p->count].w = gpu_matrix_of(w);
    p->segment[p->count++].y = y;
}

/* A projection of rms(x)(1 + norm), without segments yet. */
template <class IN>
static gpu_projection<IN> gpu_norm_projection(const gpu_queue *q, const float *x, const float *norm, int cols, int T, float eps) {
    gpu_projection<IN> p;
    memset(&p, 0, sizeof p);
    p.T = T;
    p.cols = p.in.cols = cols;
    p.eps = eps;
    p.watch = gpu_last_mark(q, GPU_MARKED_X);
    p.in.x = x;
    p.in.norm = norm;
    return p;
}

/* y = W x, or, of the residual, y += W x. */
static void gpu_linear(gpu_queue *q, enum gpu_stage stage, const matrix *w, const float *x, float *y, int T, int add) {
    gpu_projection<gpu_plain_rows> p;
    memset(&p, 0, sizeof p);
    p.T = T;
    p.cols = p.in.cols = w->cols;
    p.add = add;
    p.in.x = x;
    if (add) p.mark = gpu_next_mark(q, stage, GPU_MARKED_X);
    gpu_add_segment(&p, w, y);
    gpu_launch_projection(q, stage, &p);
}
#endif

/* ---- 7. Stage embed ----------------------------------------------------------------------------------------------
   x[t] = embed_tokens[id[t]]. The caller has checked the ids. */

static void embed(const matrix *embed_tokens, const int32_t *ids, int T, float *x) {
    for (int t = 0; t < T; t++)
        decode(embed_tokens, data_row(embed_tokens, ids[t]), scale_row(embed_tokens, ids[t]), 0, embed_tokens->cols,
               x + (size_t)t * (size_t)embed_tokens->cols, embed_tokens->type);
}

#ifdef __CUDACC__

typedef struct gpu_embedding {
    gpu_matrix embed_tokens;
    const gpu_step *step;
    float *x;                    /* [T][cols] */
    const float *hidden;         /* [GPU_ROWS][cols] final rows of the block before */
    float *last_hidden;          /* [cols] that of the last row kept; NULL: not wanted */
} gpu_embedding;

/* Grid: (columns, T + 1): a row of blocks for each token, and one for last_hidden. */
static __global__ void gpu_embed_rows(const __grid_constant__ gpu_embedding p) {
    int col = blockIdx.x * GPU_THREADS + threadIdx.x, t = blockIdx.y, cols = p.embed_tokens.cols;
    gpu_trigger();
    gpu_wait();
    if (col >= cols) return;
    if (t < (int)gridDim.y - 1) p.x[(size_t)t * cols + col] = gpu_weight(&p.embed_tokens, p.step->ids[t], col);
    else if (p.last_hidden && p.step->replay) p.last_hidden[col] = p.hidden[(size_t)(p.step->replay - 1) * cols + col];
}

static void gpu_embed(gpu_queue *q, const gpu_embedding *p, int T) {
    int blocks = (p->embed_tokens.cols + GPU_THREADS - 1) / GPU_THREADS;
    gpu_launch(q, GPU_EMBED, dtype_names[p->embed_tokens.type], gpu_embed_rows, blocks, T + 1, 0, p);
}
#endif

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
typedef struct deltanet_state {  /* one piece of memory, in this order */
    float *S;                    /* [value_heads][value_dim][key_dim] before the logged block */
    float *window;               /* [taps - 1][channels] raw conv inputs before the logged block, oldest first */
    float *log_raw;              /* [BLOCK][channels] raw conv inputs of the logged block, right behind the window */
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

#ifdef __CUDACC__
/* conv_delta on the GPU. Block (h, part) has the elements j of value head h that belong to `part`, a warp has R rows of S:
   lane l keeps their elements l, l + 32, ... in registers, C of each row. Before the wait: load S, repeat the kept rows,
   write S back, and sum what past raw rows contribute to the convolutions. After it: each thread finishes one channel of
   q or k for all token rows; these meet in shared memory, behind the only barrier. q and k stay unnormalised there: the
   norms are sums over the lanes just as the products with S are, and one reduction a token serves all. It also gives o,

       S' = decay S    u = beta (v - fk S' k)    o = fq (S' q + u fk (k . q))    fk = 1 / |k|    fq = 1 / (|q| sqrt(n))

   which is S q after the write, without waiting for it. S after the block's own rows is never stored: see the log.
   The gate follows here, o norm SiLU(z), and the squares of o are summed up for the root mean square of the head: were
   this left to gated_norm_out, each of its blocks would do it for all heads. */

typedef struct gpu_delta {
    deltanet_shape shape;
    deltanet_state state;        /* in device memory */
    const float *conv1d, *A_log, *dt_bias;
    const gpu_step *step;
    int T;                       /* rows of this block, 1..GPU_ROWS */
    int ratio;                   /* value heads that share a key head */
    uint32_t per_key;            /* 2^32 / ratio, rounded up: h * per_key >> 32 is value head h's key head */
    const float *raw;            /* [T][channels] in_proj_qkv of the block */
    const float *b, *a;          /* [T][value_heads] */
    float *k;                    /* [T][key_heads][key_dim] normalised, for the log */
    float *decay;                /* [T][value_heads], for the log */
    const float *z, *norm;       /* [T][value_heads][value_dim], [value_dim] */
    float *o;                    /* [T][value_heads][value_dim] o norm SiLU(z), not divided by the root mean square of o */
    float *squares;              /* [T][value_heads][room] sums of o^2, for that */
} gpu_delta;

/* Blocks that share a value head; each has eight warps of R rows. */
static int gpu_delta_parts(const deltanet_shape *s) {
    int rows = GPU_WARPS * (s->key_dim <= 128 ? 4 : s->key_dim <= 256 ? 2 : 1);
    return (s->value_dim + rows - 1) / rows;
}

/* Their room: whole float4. */
static __host__ __device__ int gpu_squares_room(int parts) {
    return (parts + 3) / 4 * 4;
}

__device__ __forceinline__ int gpu_channels(const deltanet_shape *s) {
    return 2 * s->key_heads * s->key_dim + s->value_heads * s->value_dim;
}

/* The raw input of a channel `age` tokens before the block, age = 1..taps-1: window, then `replay` rows of the log. */
__device__ __forceinline__ float gpu_past(const gpu_delta *p, int channel, int replay, int age) {
    return p->state.window[(p->shape.taps - 1 + replay - age) * gpu_channels(&p->shape) + channel];
}

/* One channel of the convolution: weights of the lags 0, 1, ... (of the row itself, of the row before it, ...), the raw
   inputs of the rows before the block by age, and for each row of the block its sum. channel < 0: all zero. */
template <int ROWS> struct gpu_conv {
    enum { LAGS = ROWS + GPU_ROWS - 1 };
    int channel;
    const float *present;        /* this block's raw inputs */
    float w[LAGS], past[GPU_ROWS], x[ROWS], sum[ROWS];
};

template <int ROWS> __device__ __forceinline__ void gpu_conv_weights(const gpu_delta *p, int channel, gpu_conv<ROWS> *c) {
    int taps = p->shape.taps;
    const float *weight = p->conv1d + channel * taps + taps - 1;                /* weight[-lag] */
    c->channel = channel;
    c->present = p->raw + channel;
#pragma unroll
    for (int lag = 0; lag < gpu_conv<ROWS>::LAGS; lag++) c->w[lag] = channel >= 0 && lag < taps ? weight[-lag] : 0;
}

template <int ROWS> __device__ __forceinline__ void gpu_conv_past(const gpu_delta *p, int replay, gpu_conv<ROWS> *c) {
#pragma unroll
    for (int age = 1; age < GPU_ROWS; age++)
        c->past[age] = c->channel >= 0 && age < p->shape.taps ? gpu_past(p, c->channel, replay, age) : 0;
}

/* What the rows before the block contribute, the oldest first. */
template <int ROWS> __device__ __forceinline__ void gpu_conv_sum_past(const gpu_delta *p, int replay, gpu_conv<ROWS> *c) {
    int taps = p->shape.taps;
    const float *weight = p->conv1d + c->channel * taps + taps - 1;
#pragma unroll
    for (int t = 0; t < ROWS; t++) c->sum[t] = 0;
#pragma unroll 1
    for (int age = taps - 1; c->channel >= 0 && age >= GPU_ROWS; age--) {
        float old = gpu_past(p, c->channel, replay, age);
#pragma unroll
        for (int t = 0; t < ROWS; t++)
            if (age + t < taps) c->sum[t] = fmaf(weight[-(age + t)], old, c->sum[t]);
    }
#pragma unroll
    for (int age = GPU_ROWS - 1; age > 0; age--)
#pragma unroll
        for (int t = 0; t < ROWS; t++)
            if (age + t < taps) c->sum[t] = fmaf(c->w[age + t], c->past[age], c->sum[t]);
}

/* This block's raw inputs. */
template <int ROWS> __device__ __forceinline__ void gpu_conv_present(const gpu_delta *p, gpu_conv<ROWS> *c) {
#pragma unroll
    for (int t = 0; t < ROWS; t++)
        c->x[t] = c->channel >= 0 && t < p->T ? c->present[t * gpu_channels(&p->shape)] : 0;
}

template <int ROWS> __device__ __forceinline__ void gpu_conv_sum_present(const gpu_delta *p, gpu_conv<ROWS> *c) {
#pragma unroll
    for (int t = 0; t < ROWS; t++)
#pragma unroll
        for (int from = 0; from <= t; from++)
            if (t - from < p->shape.taps) c->sum[t] = fmaf(c->w[t - from], c->x[from], c->sum[t]);
}

__device__ __forceinline__ float gpu_silu(float x) {
    return x * gpu_sigmoid(x);
}

/* log(1 + exp(a)), as 2 artanh(x / (2 + x)) for x = exp(-|a|), by its series, without branches. */
__device__ __forceinline__ float gpu_softplus(float a) {
    float x = expf(-fabsf(a)), s = __fdividef(x, 2.0f + x), q = s * s, sum = 1.0f / 15;
#pragma unroll
    for (int i = 13; i > 0; i -= 2) sum = fmaf(sum, q, 1.0f / i);
    return fmaf(2.0f * s, sum, fmaxf(a, 0.0f));
}

/* N sums over a warp at once: the 32/N lanes from i 32/N on get the sum of v[i]. Each step halves what a lane cares for. */
template <int N> __device__ __forceinline__ float gpu_warp_sums(float *v) {
    int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = N / 2, bit = 16; bit; n /= 2, bit /= 2) {
        if (!n) v[0] += __shfl_xor_sync(~0u, v[0], bit);
        for (int i = 0; i < n; i++) {
            float keep = lane & bit ? v[i + n] : v[i], give = lane & bit ? v[i] : v[i + n];
            v[i] = keep + __shfl_xor_sync(~0u, give, bit);
        }
    }
    return v[0];
}

/* A warp's part of a row of key_dim elements, C to a lane: with C >= 4 four neighbours at a time. */
template <int C> __device__ __forceinline__ int gpu_key_element(int c) {
    enum { V = C < 4 ? C : 4 };
    return c / V * 32 * V + threadIdx.x % 32 * V + c % V;
}

/* Zeros from element n on; with C >= 4 it is a multiple of four. */
template <int C> __device__ __forceinline__ void gpu_load_key_row(float *to, const float *row, int n) {
    if (C < 4)
        for (int c = 0; c < C; c++) to[c] = gpu_key_element<C>(c) < n ? row[gpu_key_element<C>(c)] : 0;
    else
#pragma unroll
        for (int c = 0; c < C; c += 4)
            *(float4 *)(to + c) = gpu_key_element<C>(c) < n ? *(const float4 *)(row + gpu_key_element<C>(c))
                                                            : make_float4(0, 0, 0, 0);
}

template <int C> __device__ __forceinline__ void gpu_store_key_row(float *row, const float *from, int n) {
    if (C < 4) {
        for (int c = 0; c < C; c++)
            if (gpu_key_element<C>(c) < n) row[gpu_key_element<C>(c)] = from[c];
    } else
#pragma unroll
        for (int c = 0; c < C; c += 4)
            if (gpu_key_element<C>(c) < n) *(float4 *)(row + gpu_key_element<C>(c)) = *(const float4 *)(from + c);
}

/* Where a warp's rows of S lie, and S in its registers. Elements beyond value_dim or key_dim are zero. What there is one of
   for each token and row (u, v) is on one lane: of row r of token t on lane 8 t + r LANES and, the same, the lanes to the
   next. LANES is also how many lanes hold each of the SUMS of gpu_warp_sums. */
template <int R, int C> struct gpu_delta_rows {
    enum { SUMS = R == 4 ? 16 : 8, LANES = 32 / SUMS };
    int h, key_head, first;      /* value head, key head, first row of R */
    float S[R][C];
};

template <int R, int C, int STORE>
__device__ __forceinline__ void gpu_move_rows(const gpu_delta *p, gpu_delta_rows<R, C> *rows) {
    const deltanet_shape *s = &p->shape;
    float *at = p->state.S + (rows->h * s->value_dim + rows->first) * s->key_dim;
#pragma unroll
    for (int r = 0; r < R; r++, at += s->key_dim) {
        int n = rows->first + r < s->value_dim ? s->key_dim : 0;
        if (STORE) gpu_store_key_row<C>(at, rows->S[r], n);
        else gpu_load_key_row<C>(rows->S[r], at, n);
    }
}

/* The log of the last block, as many rows of k as are likely to count and there are registers for. Lane 8 t + i has decay
   and, for row i / LANES, u of row t. Loaded before it is known how many rows count. */
template <int R, int C, int ROWS> struct gpu_log {
    enum { BATCH = ROWS > 1 && C <= 4 ? BLOCK : 1, LANES = gpu_delta_rows<R, C>::LANES };
    float k[BATCH][C], u, decay;
};

template <int R, int C, int ROWS>
__device__ __forceinline__ void gpu_load_log_k(const gpu_delta *p, const gpu_delta_rows<R, C> *rows, int first,
                                               gpu_log<R, C, ROWS> *log) {
    const deltanet_shape *s = &p->shape;
#pragma unroll
    for (int i = 0; i < gpu_log<R, C, ROWS>::BATCH; i++)
        gpu_load_key_row<C>(log->k[i], p->state.log_k + ((first + i) * s->key_heads + rows->key_head) * s->key_dim, s->key_dim);
}

template <int R, int C, int ROWS>
__device__ __forceinline__ void gpu_load_log(const gpu_delta *p, const gpu_delta_rows<R, C> *rows, gpu_log<R, C, ROWS> *log) {
    const deltanet_shape *s = &p->shape;
    const int lane = threadIdx.x % 32, at = lane / 8 * s->value_heads + rows->h, r = lane % 8 / gpu_log<R, C, ROWS>::LANES;
    gpu_load_log_k<R, C, ROWS>(p, rows, 0, log);
    log->u = r < R && rows->first + r < s->value_dim ? p->state.log_u[at * s->value_dim + rows->first + r] : 0;
    log->decay = p->state.log_decay[at];
}

/* S = decay S + u k^T for the kept rows of the log, in the operations and the order of the first run. */
template <int R, int C, int ROWS>
__device__ __forceinline__ void gpu_replay(const gpu_delta *p, int replay, gpu_log<R, C, ROWS> *log,
                                           gpu_delta_rows<R, C> *rows) {
    enum { BATCH = gpu_log<R, C, ROWS>::BATCH, LANES = gpu_log<R, C, ROWS>::LANES };
#pragma unroll 1
    for (int first = 0; first < replay; first += BATCH) {
        if (first) gpu_load_log_k<R, C, ROWS>(p, rows, first, log);
#pragma unroll
        for (int i = 0; i < BATCH && first + i < replay; i++) {
            float fade = __shfl_sync(~0u, log->decay, 8 * (first + i));
#pragma unroll
            for (int r = 0; r < R; r++) {
                float write = __shfl_sync(~0u, log->u, 8 * (first + i) + r * LANES);
#pragma unroll
                for (int c = 0; c < C; c++) rows->S[r][c] = fmaf(write, log->k[i][c], fade * rows->S[r][c]);
            }
        }
    }
    if (replay > 0) gpu_move_rows<R, C, 1>(p, rows);
}

/* The delta rule for a warp's rows, token after token. q and k of all tokens are in shared memory, [t][q, k][32 C], not yet
   normalised; lane 8 t + i has decay, beta and, for row i / LANES, v and gate = norm SiLU(z) of token t. S fades when it is
   written, so that the sums need not wait for the decay. Leaves the warp's sums of o^2. */
template <int R, int C, int ROWS>
__device__ __forceinline__ void gpu_delta_tokens(const gpu_delta *p, gpu_delta_rows<R, C> *rows, const float *qk,
                                                 float decay, float beta, float v, float gate,
                                                 float (*squares)[GPU_WARPS]) {
    enum { N = gpu_delta_rows<R, C>::SUMS, LANES = gpu_delta_rows<R, C>::LANES };
    enum { KK = N / 4, QQ = N / 4 + 1, KQ = N / 2 + N / 4 };            /* S k of the rows: 0.., S q: N/2.. */
    const deltanet_shape *s = &p->shape;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, j = rows->first + lane / LANES;
    const bool writes = lane % LANES == 0 && lane < R * LANES && j < s->value_dim;
    const bool logs_k = rows->h == rows->key_head * p->ratio && blockIdx.y == 0;
    const float scale = rsqrtf((float)s->key_dim);
    for (int t = 0; t < (ROWS == 1 ? 1 : p->T); t++, qk += 2 * 32 * C) {
        float q[C], k[C], sum[N];
        gpu_load_key_row<C>(q, qk, 32 * C);
        gpu_load_key_row<C>(k, qk + 32 * C, 32 * C);
        for (int i = 0; i < N; i++) sum[i] = 0;
#pragma unroll
        for (int c = 0; c < C; c++) {
            sum[KK] = fmaf(k[c], k[c], sum[KK]);
            sum[QQ] = fmaf(q[c], q[c], sum[QQ]);
            sum[KQ] = fmaf(k[c], q[c], sum[KQ]);
            for (int r = 0; r < R; r++) {
                sum[r] = fmaf(rows->S[r][c], k[c], sum[r]);
                sum[N / 2 + r] = fmaf(rows->S[r][c], q[c], sum[N / 2 + r]);
            }
        }
        float fade = __shfl_sync(~0u, decay, 8 * t), strength = __shfl_sync(~0u, beta, 8 * t);
        float value = __shfl_sync(~0u, v, 8 * t + lane % 8), gated = __shfl_sync(~0u, gate, 8 * t + lane % 8);
        float total = gpu_warp_sums<N>(sum), Sq = fade * __shfl_xor_sync(~0u, total, 16);
        float fk = rsqrtf(__shfl_sync(~0u, total, KK * LANES) + 1e-6f);
        float fq = rsqrtf(__shfl_sync(~0u, total, QQ * LANES) + 1e-6f) * scale;
        float kq = __shfl_sync(~0u, total, KQ * LANES) * fk;
        float u = strength * fmaf(-fk * fade, total, value), o = fq * fmaf(u, kq, Sq);
        int at = (t * s->value_heads + rows->h) * s->value_dim + j;
        if (writes) p->o[at] = o * gated;
        if (writes) p->state.log_u[at] = u;
        float square = writes ? o * o : 0;
#pragma unroll
        for (int i = LANES; i < R * LANES; i *= 2) square += __shfl_xor_sync(~0u, square, i);
        if (lane == 0) squares[t][warp] = square;
        if ((logs_k && warp == t) || (ROWS > 1 && t + 1 < p->T)) {
#pragma unroll
            for (int c = 0; c < C; c++) k[c] *= fk;
            float *to = p->k + (t * s->key_heads + rows->key_head) * s->key_dim;
            if (logs_k && warp == t) gpu_store_key_row<C>(to, k, s->key_dim);
        }
        for (int r = 0; ROWS > 1 && r < R && t + 1 < p->T; r++) {
            float write = __shfl_sync(~0u, u, r * LANES);
            for (int c = 0; c < C; c++) rows->S[r][c] = fmaf(write, k[c], fade * rows->S[r][c]);
        }
    }
}

/* Keeps the compiler from putting off what it can compute now. */
template <class T> __device__ __forceinline__ void gpu_now(T *&pointer) {
    asm volatile("" : "+l"(pointer));
}

/* C = ceil(key_dim / 32), rounded up to a power of two; ROWS: 1, or 4 for T = 2, 3 and 4. Grid: value heads,
   value_dim / (8 R). What must be loaded is asked for all at once, before it is known how many rows of the log count: as if
   it were one, and once more if not. */
template <int C, int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, C > 4 ? 1 : ROWS == 1 ? 4 : 2)
gpu_delta_kernel(const __grid_constant__ gpu_delta p) {
    enum { R = C <= 4 ? 4 : 16 / C, WIDTH = 32 * C, SLOTS = C <= 4 ? 1 : C / 4 };
    __shared__ __align__(16) float qk[ROWS][2][WIDTH], squares[ROWS][GPU_WARPS];
    const deltanet_shape *s = &p.shape;
    const int lane = threadIdx.x % 32, token = lane / 8, element = lane % 8 / gpu_delta_rows<R, C>::LANES;
    const int replay = p.step->replay, guess = 1;
    gpu_conv<ROWS> conv[SLOTS], v_conv;
    gpu_delta_rows<R, C> rows;
    gpu_log<R, C, ROWS> log;
    gpu_trigger();
    rows.h = blockIdx.x;
    rows.key_head = p.ratio == 1 ? rows.h : (int)__umulhi((uint32_t)rows.h, p.per_key);
    rows.first = (blockIdx.y * GPU_WARPS + threadIdx.x / 32) * R;
    gpu_move_rows<R, C, 0>(&p, &rows);
    gpu_load_log<R, C, ROWS>(&p, &rows, &log);
    const bool has = element < R && rows.first + element < s->value_dim;       /* this lane: a row */
    const int row = rows.h * s->value_dim + rows.first + element, head = token * s->value_heads + rows.h;
#pragma unroll
    for (int n = 0; n < SLOTS; n++) {                       /* q channels, then k channels, each padded to WIDTH */
        int i = n * GPU_THREADS + threadIdx.x, is_k = i / WIDTH, e = i % WIDTH;
        gpu_conv_weights<ROWS>(&p, is_k < 2 && e < s->key_dim ? (is_k * s->key_heads + rows.key_head) * s->key_dim + e : -1,
                               &conv[n]);
        gpu_conv_past<ROWS>(&p, guess, &conv[n]);
    }
    gpu_conv_weights<ROWS>(&p, has ? 2 * s->key_heads * s->key_dim + row : -1, &v_conv);
    gpu_conv_past<ROWS>(&p, guess, &v_conv);
    float norm = has ? p.norm[rows.first + element] : 0, rate = p.A_log[rows.h], bias = p.dt_bias[rows.h];
    const float *z_at = p.z + (token * s->value_heads * s->value_dim + row), *a_at = p.a + head, *b_at = p.b + head;
    if (replay != guess) {
#pragma unroll
        for (int n = 0; n < SLOTS; n++) gpu_conv_past<ROWS>(&p, replay, &conv[n]);
        gpu_conv_past<ROWS>(&p, replay, &v_conv);
    }
    rate = -expf(rate);
    gpu_replay<R, C, ROWS>(&p, replay, &log, &rows);
#pragma unroll
    for (int n = 0; n < SLOTS; n++) gpu_conv_sum_past<ROWS>(&p, replay, &conv[n]);
    gpu_conv_sum_past<ROWS>(&p, replay, &v_conv);
#pragma unroll
    for (int n = 0; n < SLOTS; n++) gpu_now(conv[n].present);
    gpu_now(v_conv.present);
    gpu_now(z_at);
    gpu_now(a_at);
    gpu_now(b_at);
    gpu_wait();
#pragma unroll
    for (int n = 0; n < SLOTS; n++) gpu_conv_present<ROWS>(&p, &conv[n]);
    gpu_conv_present<ROWS>(&p, &v_conv);
    const bool there = token < p.T;
    float z = there && has ? *z_at : 0, a = there ? *a_at : 0, b = there ? *b_at : 0;
#pragma unroll
    for (int n = 0; n < SLOTS; n++) {
        int i = n * GPU_THREADS + threadIdx.x;
        gpu_conv_sum_present<ROWS>(&p, &conv[n]);
#pragma unroll
        for (int t = 0; t < ROWS; t++)
            if (t < p.T && i < 2 * WIDTH) qk[t][i / WIDTH][i % WIDTH] = gpu_silu(conv[n].sum[t]);
    }
    __syncthreads();
    gpu_conv_sum_present<ROWS>(&p, &v_conv);
    float v = v_conv.sum[0], decay = expf(rate * gpu_softplus(a + bias));
#pragma unroll
    for (int t = 1; t < ROWS; t++) v = token == t ? v_conv.sum[t] : v;
    if (blockIdx.y == 0 && threadIdx.x < 32 && lane % 8 == 0 && there) p.decay[head] = decay;
    gpu_delta_tokens<R, C, ROWS>(&p, &rows, &qk[0][0][0], decay, gpu_sigmoid(b), gpu_silu(v), norm * gpu_silu(z), squares);
    __syncthreads();
    const int t = threadIdx.x, of_head = (t * s->value_heads + rows.h) * gpu_squares_room(gridDim.y);
    if (t < p.T) p.squares[of_head + blockIdx.y] = gpu_add_parts(squares[t]);
}

template <int C> static void gpu_conv_delta_wide(gpu_queue *q, const gpu_delta *p) {
    gpu_launch(q, GPU_DELTA, "", p->T == 1 ? gpu_delta_kernel<C, 1> : gpu_delta_kernel<C, GPU_ROWS>, p->shape.value_heads,
               gpu_delta_parts(&p->shape), 0, p);
}

/* Fills o, squares, k, decay and log_u. A later kernel of the step, experts_down, calls gpu_delta_log. */
static void gpu_conv_delta(gpu_queue *q, const gpu_delta *p) {
    int n = p->shape.key_dim;
    if (n <= 32) gpu_conv_delta_wide<1>(q, p);
    else if (n <= 64) gpu_conv_delta_wide<2>(q, p);
    else if (n <= 128) gpu_conv_delta_wide<4>(q, p);
    else if (n <= 256) gpu_conv_delta_wide<8>(q, p);
    else gpu_conv_delta_wide<16>(q, p);
}

/* Window and raw log of one channel: all is read before anything that it depends on is overwritten. */
__device__ __forceinline__ void gpu_log_channel(const gpu_delta *p, int channel, int replay) {
    int keep = p->shape.taps - 1, channels = gpu_channels(&p->shape);
    float x[GPU_ROWS], old[GPU_ROWS];
#pragma unroll
    for (int t = 0; t < GPU_ROWS; t++) x[t] = t < p->T ? p->raw[(size_t)t * channels + channel] : 0;
    for (int first = 0; replay > 0 && first < keep; first += GPU_ROWS) {
#pragma unroll
        for (int i = 0; i < GPU_ROWS; i++)
            old[i] = first + i < keep ? gpu_past(p, channel, replay, keep - first - i) : 0;
#pragma unroll
        for (int i = 0; i < GPU_ROWS; i++)
            if (first + i < keep) p->state.window[(size_t)(first + i) * channels + channel] = old[i];
    }
    for (int t = 0; t < GPU_ROWS; t++)
        if (t < p->T) p->state.log_raw[(size_t)t * channels + channel] = x[t];
}

/* Brings window and log up to date, shared by all threads of the calling grid. It belongs to the kernel after conv_delta,
   behind its gpu_wait: in conv_delta other blocks still read the old ones. */
__device__ __forceinline__ void gpu_delta_log(const gpu_delta *p, int block, int blocks) {
    const deltanet_shape *s = &p->shape;
    const int channels = gpu_channels(s), replay = p->step->replay;
    const int k_count = p->T * s->key_heads * s->key_dim, decay_count = p->T * s->value_heads;
    for (int item = block * GPU_THREADS + threadIdx.x; item < channels + k_count + decay_count; item += blocks * GPU_THREADS) {
        int i = item - channels;
        if (i < 0) gpu_log_channel(p, item, replay);
        else if (i < k_count) p->state.log_k[i] = p->k[i];
        else p->state.log_decay[i - k_count] = p->decay[i - k_count];
    }
}
#endif

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

#ifdef __CUDACC__

/* Prologue of out_proj: what conv_delta has left of the gated norm, the division by the root mean square of a head. */
struct gpu_gated_rows {
    enum { normed = 0, router = 0, blocks = 1 };
    template <int ROWS> __host__ __device__ static constexpr int at_once() { return ROWS > 1 ? 1 : 2; }
    const float *o, *squares;    /* [T][cols], [T][heads][room] */
    int cols, heads, room;
    uint32_t per_head;           /* 2^32 / a head's columns, rounded up: col * per_head >> 32 is its head */
    float scale, eps;            /* 1 / a head's columns */
    /* The heads of four columns and of the next four: where their sums of squares are, and the first four of those. */
    template <int ROWS> struct more { const float *of_head[2]; float sums[ROWS][2][4]; };
    template <int ROWS> __device__ __forceinline__ void load(float (*v)[8], more<ROWS> *of, int T, int col) const {
#pragma unroll
        for (int i = 0; i < 2; i++)
            of->of_head[i] = squares + min((int)__umulhi((uint32_t)(col + 4 * i), per_head), heads - 1) * room;
#pragma unroll
        for (int t = 0; t < ROWS; t++) {
            gpu_load8(v[t], o + (size_t)t * cols, col, t < T ? cols : 0);
#pragma unroll
            for (int i = 0; i < 2; i++) gpu_load4(of->sums[t][i], of->of_head[i] + t * heads * room, t < T);
        }
    }
    template <int ROWS> __device__ __forceinline__ void finish(float (*v)[8], const more<ROWS> *of, float *, bool quick) const {
#pragma unroll
        for (int t = 0; t < ROWS; t++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const float *s = of->sums[t][i];
                float sum = s[0] + s[1] + s[2] + s[3];
#pragma unroll 1
                for (int part = 4; !quick && part < room; part++) sum += __ldcg(of->of_head[i] + t * heads * room + part);
                float factor = rsqrtf(fmaf(sum, scale, eps));
#pragma unroll
                for (int c = 0; c < 4; c++) v[t][4 * i + c] *= factor;
            }
    }
    bool is_short() const { return room == 4; }
    void select(int t) {
        o += (size_t)t * cols;
        squares += (size_t)t * heads * room;
    }
};

/* The projections of a DeltaNet layer as the GPU takes them; see the plain ones above. */
static void gpu_norm_in_proj(gpu_queue *q, const deltanet_shape *s, const deltanet_weights *w, const float *x, int T,
                             const deltanet_state *state, float *qkv, float *z, float *b, float *a) {
    const matrix *all[4] = {&w->in_proj_qkv, &w->in_proj_z, &w->in_proj_b, &w->in_proj_a};
    float *to[4] = {qkv, z, b, a};
    gpu_projection<gpu_norm_rows> p = gpu_norm_projection<gpu_norm_rows>(q, x, w->input_norm, s->hidden, T, s->eps);
    for (int i = 0; i < 4; i++) gpu_add_segment(&p, all[i], to[i]);
    p.soon.from = (const char *)state->S;
    p.soon.bytes = (uint32_t)((const char *)state->log_decay - p.soon.from);
    gpu_launch_projection(q, GPU_IN_PROJ, &p);
}

static void gpu_gated_norm_out(gpu_queue *q, const deltanet_weights *w, const gpu_delta *block, float *x) {
    const deltanet_shape *s = &block->shape;
    gpu_projection<gpu_gated_rows> p;
    memset(&p, 0, sizeof p);
    p.T = block->T;
    p.cols = p.in.cols = s->value_heads * s->value_dim;
    p.add = 1;
    p.in.o = block->o;
    p.in.squares = block->squares;
    p.in.per_head = (uint32_t)((((uint64_t)1 << 32) + (uint64_t)s->value_dim - 1) / (uint64_t)s->value_dim);
    p.in.scale = 1.0f / (float)s->value_dim;
    p.in.heads = s->value_heads;
    p.in.room = gpu_squares_room(gpu_delta_parts(s));
    p.in.eps = s->eps;
    p.mark = gpu_next_mark(q, GPU_OUT_PROJ, GPU_MARKED_X);
    gpu_add_segment(&p, &w->out_proj, x);
    gpu_launch_projection(q, GPU_OUT_PROJ, &p);
}
#endif

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
    float *qg;                   /* [T][heads][2][head_dim]; NULL: only KV rows are wanted */
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

/* norm_qkv: u = rms(x)(1 + input_norm); q | gate (unless qg is NULL), k, v = projections of u. */
static void stage_norm_qkv(pool *p, const attention_shape *s, const attention_weights *w, const float *x, int T,
                           float *u, float *qg, float *k, float *v) {
    projection job;
    memset(&job, 0, sizeof job);
    rms_norm(u, x, w->input_norm, T, s->hidden, s->eps);
    job.w[0] = &w->k_proj;
    job.w[1] = &w->v_proj;
    job.w[2] = &w->q_proj;
    job.y[0] = k;
    job.y[1] = v;
    job.y[2] = qg;
    job.count = qg ? 3 : 2;
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
        for (int h = 0; job->qg && h < s->heads; h++) {
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
    int group;                   /* query heads of a kv head */
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

/* cs[i] = cos, cs[rotary_dim / 2 + i] = sin of the angle of dimension i, of this frequency, at a position. The angle is the
   float that the C twin has; its multiple of pi is reduced in double, exact enough for any position. */
__device__ __forceinline__ void attend_angle(const gpu_attention *p, int position, int i, float frequency, float *cs) {
    double turn = (double)((float)position * frequency) * 0.31830988618379067154;
    float rest = (float)(turn - 2 * rint(turn / 2));
    cs[i] = cospif(rest);
    cs[p->shape.rotary_dim / 2 + i] = sinpif(rest);
}

/* 2^x; less than 2^-126 is 0. */
__device__ __forceinline__ float attend_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Element `at` of a cache = x. */
template <bool FP8> __device__ __forceinline__ void attend_store(void *cache, size_t at, float x) {
    if (FP8) ((uint8_t *)cache)[at] = gpu_fp8(x);
    else ((uint16_t *)cache)[at] = (uint16_t)bf16_pair(x, 0);
}

/* Elements 2 pair and 2 pair + 1. */
template <bool FP8> __device__ __forceinline__ void attend_store_pair(void *cache, size_t pair, float2 x) {
    if (FP8) ((uint16_t *)cache)[pair] = (uint16_t)(gpu_fp8(x.x) | gpu_fp8(x.y) << 8);
    else ((uint32_t *)cache)[pair] = bf16_pair(x.x, x.y);
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

/* A lane's A operand: elements 2i, 2i + 1 of row g (and of row g + 8 if HALVES is 2), then 2i + 8, 2i + 9. */
template <int HALVES> struct __align__(8 * HALVES) attend_a {
    uint32_t r[2 * HALVES];
};

template <bool FP8, int HALVES>
__device__ __forceinline__ void attend_mma(float *c, const attend_a<HALVES> &a, uint32_t b0, uint32_t b1) {
    uint32_t a1 = HALVES > 1 ? a.r[1] : 0, a3 = HALVES > 1 ? a.r[2 * HALVES - 1] : 0;
    if (FP8)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a.r[0]), "r"(a1), "r"(a.r[HALVES]), "r"(a3), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a.r[0]), "r"(a1), "r"(a.r[HALVES]), "r"(a3), "r"(b0), "r"(b1));
}

/* Query rows come in tiles of 16, the A rows of mma; of 8 rows (a single token row of the first model) only one half is
   there, and half as much is read from shared memory. ROOM: rows that warps look after, 32 at a time. */
template <int ROWS> struct attend_sizes {
    enum { TILES = (ROWS + 15) / 16, HALVES = ROWS < 16 ? 1 : 2, ROOM = ROWS < 32 ? 32 : ROWS };
};

/* Shared memory of a block. o takes the place of the queries when they are no longer needed. */
template <bool FP8, int ROWS> struct attend_shared {
    enum { TILES = attend_sizes<ROWS>::TILES, HALVES = attend_sizes<ROWS>::HALVES, ROOM = attend_sizes<ROWS>::ROOM };
    union {
        attend_a<HALVES> q[TILES][2][ATTEND_DIM / 16][32];   /* A operands of the scores: high, low */
        float o[ROWS][ATTEND_STRIDE];
    };
    attend_a<HALVES> p[TILES][2][ATTEND_CHUNK / 16][32];     /* A operands of the values: weights, by 16 positions */
    uint4 fresh[2][GPU_ROWS][ATTEND_DIM / (FP8 ? 16 : 8)];   /* new rows of k and v as the cache holds them */
    float cs[GPU_ROWS][64];
    float top[ROOM][GPU_WARPS];                              /* largest score of a warp's positions; at the end sums */
    float2 ml[ROOM];
    int sees[ROWS];                                          /* the last position that a row sees */
    int last;
};

static_assert(sizeof(attend_shared<false, 64>) <= GPU_SHARED, "shared memory of attend_fast");

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
template <bool FP8, int ROWS>
__device__ __forceinline__ void attend_new_k(const attend_shared<FP8, ROWS> *sh, const attend_span *s, int chunk,
                                             attend_rows<FP8> *r) {
    int lane = threadIdx.x % 32, at = chunk * ATTEND_CHUNK + threadIdx.x / 32 * 8 + lane / 4;
    if (at < s->first || at >= s->end) return;
#pragma unroll
    for (int j = 0; j < (FP8 ? 4 : 8); j++) r->k[j] = sh->fresh[0][at - s->first][lane % 4 + 4 * j];
}

template <bool FP8, int ROWS>
__device__ __forceinline__ void attend_new_v(const attend_shared<FP8, ROWS> *sh, const attend_span *s, int chunk,
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

/* The token row of a query row, without a division. */
__device__ __forceinline__ int attend_token(const gpu_attention *p, int row) {
    return (row >= p->group) + (row >= 2 * p->group) + (row >= 3 * p->group);
}

/* Which head of qg and o a query row is. */
__device__ __forceinline__ size_t attend_head_of(const gpu_attention *p, int row) {
    int t = attend_token(p, row);
    return (size_t)(t * p->shape.heads + (int)blockIdx.x * p->group + row - t * p->group);
}

/* A head in registers: a lane has elements 2 lane + 64 j and the one behind it. */
typedef struct attend_vector { float2 x[ATTEND_DIM / 64]; } attend_vector;

__device__ __forceinline__ void attend_load_vector(attend_vector *v, const float *from) {
#pragma unroll
    for (int j = 0; j < ATTEND_DIM / 64; j++) v->x[j] = ((const float2 *)from)[threadIdx.x % 32 + 32 * j];
}

/* The sum of a head's squares on this lane. */
__device__ __forceinline__ float attend_squares(const attend_vector *v) {
    float sum = 0;
#pragma unroll
    for (int j = 0; j < ATTEND_DIM / 64; j++) sum = fmaf(v->x[j].y, v->x[j].y, fmaf(v->x[j].x, v->x[j].x, sum));
    return sum;
}

/* Norm, given the sum of all squares, then rotation of the first 64, element i with i + 32: a lane's other half is on
   lane ^ 16. */
__device__ __forceinline__ void attend_norm_rotate(const gpu_attention *p, attend_vector *v, float squares,
                                                   const attend_vector *norm, const float *cs) {
    const int lane = threadIdx.x % 32;
    const float factor = rsqrtf(fmaf(squares, 1.0f / ATTEND_DIM, p->shape.eps));
#pragma unroll
    for (int j = 0; j < ATTEND_DIM / 64; j++) {
        v->x[j].x = v->x[j].x * factor * (1.0f + norm->x[j].x);
        v->x[j].y = v->x[j].y * factor * (1.0f + norm->x[j].y);
    }
    float2 cosine = ((const float2 *)cs)[lane % 16], sine = ((const float2 *)cs)[16 + lane % 16];
    float2 other = {__shfl_xor_sync(~0u, v->x[0].x, 16), __shfl_xor_sync(~0u, v->x[0].y, 16)};
    if (lane < 16) other = make_float2(-other.x, -other.y);
    v->x[0].x = fmaf(v->x[0].x, cosine.x, other.x * sine.x);
    v->x[0].y = fmaf(v->x[0].y, cosine.y, other.y * sine.y);
}

/* Puts a query row where the scores' A operands lie, times the scale of the scores and log2(e), for exp2. */
template <bool FP8, int ROWS>
__device__ __forceinline__ void attend_put_query(attend_shared<FP8, ROWS> *sh, int row, const attend_vector *v) {
    enum { PIECE = FP8 ? 16 : 8, HALVES = attend_sizes<ROWS>::HALVES };  /* PIECE: elements in 16 bytes of the cache */
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int j = 0; j < ATTEND_DIM / 64; j++) {
        int e = 2 * lane + 64 * j, step = e / (4 * PIECE) * (PIECE / 4) + e % PIECE / 4, i = e / PIECE % 4;
        int to = row % 8 * 4 + i, at = e % 4 / 2 * HALVES + row % 16 / 8;
        attend_terms<FP8>(v->x[j].x * (1.44269504f / 16.0f), v->x[j].y * (1.44269504f / 16.0f),
                          &sh->q[row / 16][0][step][to].r[at], &sh->q[row / 16][1][step][to].r[at]);
    }
}

/* Everything that comes before the chunks: queries, new rows of k and v. Of those, warps 0-3 have a row of k each, warps
   4-7 of v, if the chunk is this block's (mine). */
template <bool FP8, int ROWS>
__device__ __forceinline__ void attend_prepare(const gpu_attention *p, const attend_span *s, const attend_vector *q_norm,
                                               const attend_vector *k_norm, bool mine, attend_shared<FP8, ROWS> *sh) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, rows = p->T * p->group;
    const int which = warp / GPU_ROWS, t = warp % GPU_ROWS;
    attend_vector v = {}, next = {}, fresh = {};
    if (warp < rows) attend_load_vector(&v, p->qg + attend_head_of(p, warp) * 2 * ATTEND_DIM);
    if (mine) attend_load_vector(&fresh, (which ? p->v_new : p->k_new) + (t * p->shape.kv_heads + blockIdx.x) * ATTEND_DIM);
    float squares = attend_squares(&v), of_fresh = attend_squares(&fresh);
#pragma unroll
    for (int i = 16; i; i /= 2) {                            /* of a query and of the new row side by side */
        squares += __shfl_xor_sync(~0u, squares, i);
        of_fresh += __shfl_xor_sync(~0u, of_fresh, i);
    }
    if (mine && !which) attend_norm_rotate(p, &fresh, of_fresh, k_norm, sh->cs[t]);
    if (mine) {
        size_t at = ((size_t)(s->first + t) * (size_t)p->shape.kv_heads + blockIdx.x) * (ATTEND_DIM / 2) + lane;
#pragma unroll
        for (int j = 0; j < ATTEND_DIM / 64; j++) {
            attend_store_pair<FP8>(which ? p->v : p->k, at + 32 * j, fresh.x[j]);
            attend_store_pair<FP8>(sh->fresh[which][t], lane + 32 * j, fresh.x[j]);
        }
    }
#pragma unroll 1
    for (int row = warp; row < rows; row += GPU_WARPS) {
        bool more = ROWS > GPU_WARPS && row + GPU_WARPS < rows;
        if (more) attend_load_vector(&next, p->qg + attend_head_of(p, row + GPU_WARPS) * 2 * ATTEND_DIM);
        attend_norm_rotate(p, &v, squares, q_norm, sh->cs[attend_token(p, row)]);
        attend_put_query<FP8, ROWS>(sh, row, &v);
        if (!more) break;
        v = next;
        squares = warp_sum(attend_squares(&v));
    }
}

/* What a lane keeps from chunk to chunk. */
template <int ROWS> struct attend_state {
    enum { TILES = attend_sizes<ROWS>::TILES, HALVES = attend_sizes<ROWS>::HALVES, ROOM = attend_sizes<ROWS>::ROOM };
    float m[ROOM / 32];                                      /* of rows lane, lane + 32; in all warps alike */
    float l[TILES][HALVES];                                  /* of rows g, g+8 of a tile, the lane's own positions */
    float o[TILES][4][4];                                    /* [n]: dimensions 8i + n, 8i + 4 + n of the warp's */
};

/* Scores of the warp's 8 positions: c[tile] = q . k. */
template <bool FP8, int ROWS>
__device__ __forceinline__ void attend_scores(const attend_shared<FP8, ROWS> *sh, const attend_rows<FP8> *r, int tiles,
                                              float (*c)[4]) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int tile = 0; tile < attend_sizes<ROWS>::TILES; tile++) {
        if (tile >= tiles) break;
#pragma unroll
        for (int step = 0; step < ATTEND_DIM / 16; step++) {
            const uint4 &four = r->k[FP8 ? step / 4 : step / 2 % (FP8 ? 4 : 8)];
            uint32_t codes = step % 4 == 0 ? four.x : step % 4 == 1 ? four.y : step % 4 == 2 ? four.z : four.w;
            uint32_t b0 = FP8 ? attend_f16_pair(codes) : step % 2 ? four.z : four.x;
            uint32_t b1 = FP8 ? attend_f16_pair(codes >> 16) : step % 2 ? four.w : four.y;
            attend_mma<FP8>(c[tile], sh->q[tile][0][step][lane], b0, b1);
            attend_mma<FP8>(c[tile], sh->q[tile][1][step][lane], b0, b1);
        }
    }
}

/* o += weights times values, for the warp's 32 dimensions. */
template <bool FP8, int ROWS>
__device__ __forceinline__ void attend_values(const attend_shared<FP8, ROWS> *sh, const attend_rows<FP8> *r, int tiles,
                                              attend_state<ROWS> *state) {
    enum { TILES = attend_sizes<ROWS>::TILES };
    const int lane = threadIdx.x % 32;
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
            attend_a<attend_sizes<ROWS>::HALVES> high = sh->p[tile][0][step][lane], low = sh->p[tile][1][step][lane];
#pragma unroll
            for (int n = 0; n < 4; n++) {
                attend_mma<FP8>(state->o[tile][n], high, b[n][0], b[n][1]);
                attend_mma<FP8>(state->o[tile][n], low, b[n][0], b[n][1]);
            }
        }
    }
}

/* The largest score of each row, over the warp's positions, after masking what the row does not see. */
template <bool FP8, int ROWS>
__device__ __forceinline__ void attend_tops(attend_shared<FP8, ROWS> *sh, int chunk, int tiles, float (*c)[4]) {
    enum { TILES = attend_sizes<ROWS>::TILES, HALVES = attend_sizes<ROWS>::HALVES };
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, at = chunk * ATTEND_CHUNK + warp * 8 + lane % 4 * 2;
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (tile >= tiles) break;
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
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
template <bool FP8, int ROWS>
__device__ __forceinline__ void attend_weights(attend_shared<FP8, ROWS> *sh, int tiles, const float (*c)[4],
                                               attend_state<ROWS> *state) {
    enum { TILES = attend_sizes<ROWS>::TILES, HALVES = attend_sizes<ROWS>::HALVES, ROOM = attend_sizes<ROWS>::ROOM };
    const float unit = FP8 ? 16384.0f : 1.0f;
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    float bases[ROOM / 32], fades[ROOM / 32];
#pragma unroll
    for (int k = 0; k < ROOM / 32; k++) {
        const float4 *tops = (const float4 *)sh->top[k * 32 + lane];
        float4 a = tops[0], b = tops[1];
        float m = fmaxf(fmaxf(fmaxf(a.x, a.y), fmaxf(a.z, a.w)), fmaxf(fmaxf(b.x, b.y), fmaxf(b.z, b.w)));
        m = fmaxf(m, state->m[k]);
        bases[k] = m == -INFINITY ? 0 : m;
        fades[k] = attend_exp2(state->m[k] - bases[k]);
        state->m[k] = m;
    }
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (tile >= tiles) break;
        uint32_t high[HALVES], low[HALVES];
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            int from = tile % 2 * 16 + half * 8 + lane / 4;  /* the lane that has this row */
            float base = __shfl_sync(~0u, bases[tile / 2], from), fade = __shfl_sync(~0u, fades[tile / 2], from);
            float x = attend_exp2(c[tile][2 * half] - base) * unit, y = attend_exp2(c[tile][2 * half + 1] - base) * unit;
            state->l[tile][half] = fmaf(state->l[tile][half], fade, x + y);
            attend_terms<FP8>(x, y, &high[half], &low[half]);
#pragma unroll
            for (int n = 0; n < 4; n++) {
                state->o[tile][n][2 * half] *= fade;
                state->o[tile][n][2 * half + 1] *= fade;
            }
        }
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
            sh->p[tile][0][warp / 2][lane].r[warp % 2 * HALVES + half] = high[half];
            sh->p[tile][1][warp / 2][lane].r[warp % 2 * HALVES + half] = low[half];
        }
    }
}

/* The block's part into shared memory: ml and o of each row. */
template <bool FP8, int ROWS>
__device__ __forceinline__ void attend_put_part(attend_shared<FP8, ROWS> *sh, int tiles,
                                                const attend_state<ROWS> *state) {
    enum { TILES = attend_sizes<ROWS>::TILES, HALVES = attend_sizes<ROWS>::HALVES, ROOM = attend_sizes<ROWS>::ROOM };
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    __syncthreads();                                         /* q and top are no longer read */
#pragma unroll
    for (int tile = 0; tile < TILES; tile++) {
        if (tile >= tiles) break;
#pragma unroll
        for (int half = 0; half < HALVES; half++) {
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
    for (int k = 0; k < ROOM / 32; k++)
        if (warp == 0) sh->ml[k * 32 + lane].x = state->m[k];
    __syncthreads();
    if (threadIdx.x < ROWS) {
        float sum = 0;
        for (int w = 0; w < GPU_WARPS; w++) sum += sh->top[threadIdx.x][w];
        sh->ml[threadIdx.x].y = sum;
    }
    __syncthreads();
}

/* One row of several parts put together: m, l and 4 dimensions of o. */
typedef struct attend_part { float m, l; float4 o; } attend_part;

/* Adds up to eight more parts, `count` of them. Any order of loads, one order of sums. */
__device__ __forceinline__ void attend_join(attend_part *to, int count, const float2 *ml, const float4 *o) {
    float top = to->m;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) top = fmaxf(top, ml[i].x);
    float base = top == -INFINITY ? 0 : top, fade = attend_exp2(to->m - base);
    to->m = top;
    to->l *= fade;
    to->o = make_float4(to->o.x * fade, to->o.y * fade, to->o.z * fade, to->o.w * fade);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float weight = i < count ? attend_exp2(ml[i].x - base) : 0;
        to->l = fmaf(weight, ml[i].y, to->l);
        to->o.x = fmaf(weight, o[i].x, to->o.x);
        to->o.y = fmaf(weight, o[i].y, to->o.y);
        to->o.z = fmaf(weight, o[i].z, to->o.z);
        to->o.w = fmaf(weight, o[i].w, to->o.w);
    }
}

/* The gates of 4 dimensions of a row. */
__device__ __forceinline__ float4 attend_gate(const gpu_attention *p, int row, int column) {
    return *(const float4 *)(p->qg + (attend_head_of(p, row) * 2 + 1) * ATTEND_DIM + column);
}

/* o = o / l * sigmoid(gate) for 4 dimensions of a row; a row that saw nothing is 0. */
__device__ __forceinline__ void attend_finish(const gpu_attention *p, int row, int column, const attend_part *part,
                                              float4 gate) {
    float factor = __fdividef(1.0f, part->l == 0 ? 1 : part->l);
    *(float4 *)(p->o + attend_head_of(p, row) * ATTEND_DIM + column) =
        make_float4(part->o.x * factor * gpu_sigmoid(gate.x), part->o.y * factor * gpu_sigmoid(gate.y),
                    part->o.z * factor * gpu_sigmoid(gate.z), part->o.w * factor * gpu_sigmoid(gate.w));
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

/* True in the block that is the last of `count` to come here, in all its threads; then everything the others wrote before
   is visible to loads that pass the first-level cache by. */
__device__ __forceinline__ bool attend_is_last(int *ticket, int count, int *last) {
    __syncthreads();
    if (threadIdx.x == 0) {
        int before;
        asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(ticket) : "memory");
        *last = before == count - 1;
        if (*last) *ticket = 0;
    }
    __syncthreads();
    return *last;
}

/* What a block does when the parts are put together. */
typedef struct attend_place {
    int unit, units;             /* its cluster (a block without clusters) of those that have work */
    int ranks;                   /* blocks of its cluster that have work */
    int slice, slices;           /* which dimensions it puts together, by 32: without clusters all of them */
} attend_place;

/* A cluster stays whole if one of its splits has work. */
__device__ __forceinline__ attend_place attend_place_of(const gpu_attention *p, int chunks) {
    attend_place at;
#if __CUDA_ARCH__ >= 900
    at.unit = blockIdx.y / ATTEND_CLUSTER;
    at.units = max(1, min((chunks + ATTEND_CLUSTER - 1) / ATTEND_CLUSTER, p->splits / ATTEND_CLUSTER));
    at.ranks = max(1, min(chunks - at.unit * ATTEND_CLUSTER, (int)ATTEND_CLUSTER));
    at.slice = blockIdx.y % ATTEND_CLUSTER;
    at.slices = 1;
#else
    at.unit = blockIdx.y;
    at.units = max(1, min(chunks, p->splits));
    at.ranks = 1;
    at.slice = 0;
    at.slices = ATTEND_CLUSTER;
#endif
    return at;
}

/* What the blocks of a cluster left in shared memory for each other before they arrived is there after the wait. */
__device__ __forceinline__ void attend_cluster_arrive() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}

/* The same after reading: all loads are complete, for their values have been used. */
__device__ __forceinline__ void attend_cluster_leave() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.arrive.relaxed;" ::: "memory");
#endif
}

__device__ __forceinline__ void attend_cluster_wait() {
#if __CUDA_ARCH__ >= 900
    asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}

/* The parts of a cluster: what its blocks have of a row. */
template <bool FP8, int ROWS>
__device__ __forceinline__ attend_part attend_join_cluster(attend_shared<FP8, ROWS> *sh, int ranks, int row, int column) {
    attend_part part = {-INFINITY, 0, {0, 0, 0, 0}};
    float2 ml[ATTEND_CLUSTER] = {};
    float4 o[ATTEND_CLUSTER] = {};
#pragma unroll
    for (int i = 0; i < ATTEND_CLUSTER; i++) {
#if __CUDA_ARCH__ >= 900
        if (i >= ranks) continue;
        ml[i] = *(const float2 *)__cluster_map_shared_rank(&sh->ml[row], i);
        o[i] = *(const float4 *)__cluster_map_shared_rank(&sh->o[row][column], i);
#else
        ml[i] = sh->ml[row];
        o[i] = *(const float4 *)&sh->o[row][column];
#endif
    }
    attend_join(&part, ranks, ml, o);
    return part;
}

/* The parts of all units, eight at a time. */
__device__ __forceinline__ attend_part attend_join_units(const gpu_attention *p, int units, int row, int column) {
    attend_part part = {-INFINITY, 0, {0, 0, 0, 0}};
    const int rows = p->T * p->group;
#pragma unroll 1
    for (int base = 0; base < units; base += 8) {
        float2 ml[8];
        float4 o[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int unit = min(base + i, units - 1);
            ml[i] = __ldcg(attend_part_ml(p, rows, unit, row, column / 32));
            o[i] = __ldcg((const float4 *)attend_part_o(p, rows, unit, row, column));
        }
        attend_join(&part, units - base, ml, o);
    }
    return part;
}

/* Puts the parts of all blocks together: see above. A thread has four dimensions of every 32nd row of a slice. */
template <bool FP8, int ROWS>
__device__ __forceinline__ void attend_combine(const gpu_attention *p, attend_shared<FP8, ROWS> *sh,
                                               const attend_place *place) {
    const int rows = p->T * p->group, first = threadIdx.x / 8, slice = place->slice, units = place->units;
    const int column = slice * 32 + threadIdx.x % 8 * 4, end = column + place->slices * 32;
    float4 gate = first < rows ? attend_gate(p, first, column) : make_float4(0, 0, 0, 0);
    attend_cluster_wait();
#pragma unroll 1
    for (int c = column; c < end; c += 32)
#pragma unroll 1
        for (int row = first; row < rows; row += GPU_THREADS / 8) {
            attend_part part = attend_join_cluster<FP8, ROWS>(sh, place->ranks, row, c);
            if (units == 1) {
                if (c > column || row > first) gate = attend_gate(p, row, c);
                attend_finish(p, row, c, &part, gate);
            } else {
                *(float4 *)attend_part_o(p, rows, place->unit, row, c) = part.o;
                if (threadIdx.x % 8 == 0) *attend_part_ml(p, rows, place->unit, row, c / 32) = make_float2(part.m, part.l);
            }
        }
    attend_cluster_leave();
    if (units > 1 && attend_is_last(p->tickets + blockIdx.x * ATTEND_CLUSTER + slice, units, &sh->last)) {
#pragma unroll 1
        for (int c = column; c < end; c += 32)
#pragma unroll 1
            for (int row = first; row < rows; row += GPU_THREADS / 8) {
                attend_part part = attend_join_units(p, units, row, c);
                if (c > column || row > first) gate = attend_gate(p, row, c);
                attend_finish(p, row, c, &part, gate);
            }
    }
    attend_cluster_wait();                                   /* the others may still read this block's shared memory */
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ATTEND_CLUSTERS __cluster_dims__(1, ATTEND_CLUSTER, 1)
#else
#define ATTEND_CLUSTERS
#endif

/* Blocks (kv head, split). FP8: type of the cache; ROWS: as many query rows as T rows can need. */
template <bool FP8, int ROWS>
__global__ void ATTEND_CLUSTERS __launch_bounds__(GPU_THREADS, ROWS <= 32 ? 2 : 1)
attend_fast(const __grid_constant__ gpu_attention p) {
    extern __shared__ __align__(16) char memory[];
    enum { TILES = attend_sizes<ROWS>::TILES };
    attend_shared<FP8, ROWS> *sh = (attend_shared<FP8, ROWS> *)memory;
    attend_rows<FP8> r;
    attend_state<ROWS> state;
    attend_vector q_norm, k_norm = {};
    gpu_trigger();
    const float frequency = p.frequencies[threadIdx.x % 32];
    attend_load_vector(&q_norm, p.q_norm);
    const attend_span s = attend_span_of(&p);
    const int t = threadIdx.x / 32 % GPU_ROWS;
    const int tiles = TILES == 1 ? 1 : (p.T * p.group + 15) / 16;
    if (attend_place_of(&p, s.chunks).unit >= attend_place_of(&p, s.chunks).units) return;
    int chunk = blockIdx.y, old = max(0, min(s.first, s.end));
    attend_load_k<FP8>(&p, old, chunk, &r);
    attend_load_v<FP8>(&p, old, chunk, &r);
    const bool mine = t < p.T && attend_owns(&p, &s, s.first + t);
    if (mine) attend_load_vector(&k_norm, p.k_norm);
    if (threadIdx.x / 32 < p.T) attend_angle(&p, s.first + t, threadIdx.x % 32, frequency, sh->cs[t]);
    if (threadIdx.x < ROWS) sh->sees[threadIdx.x] = min(s.first + attend_token(&p, threadIdx.x), s.end - 1);
    __syncthreads();
    gpu_wait();
    attend_prepare<FP8, ROWS>(&p, &s, &q_norm, &k_norm, mine, sh);
    __syncthreads();
    if ((chunk + 1) * ATTEND_CHUNK > s.first) {
        attend_new_k<FP8, ROWS>(sh, &s, chunk, &r);
        attend_new_v<FP8, ROWS>(sh, &s, chunk, &r);
    }
    memset(&state, 0, sizeof state);
#pragma unroll
    for (int k = 0; k < attend_sizes<ROWS>::ROOM / 32; k++) state.m[k] = -INFINITY;
#pragma unroll 1
    for (; chunk < s.chunks; chunk += p.splits) {
        float c[TILES][4];
        int next = chunk + p.splits;
        memset(c, 0, sizeof c);
        attend_scores<FP8, ROWS>(sh, &r, tiles, c);
        if (next < s.chunks) {
            attend_load_k<FP8>(&p, old, next, &r);
            if ((next + 1) * ATTEND_CHUNK > s.first) attend_new_k<FP8, ROWS>(sh, &s, next, &r);
        }
        attend_tops<FP8, ROWS>(sh, chunk, tiles, c);
        __syncthreads();
        attend_weights<FP8, ROWS>(sh, tiles, c, &state);
        __syncthreads();
        attend_values<FP8, ROWS>(sh, &r, tiles, &state);
        if (next < s.chunks) {
            attend_load_v<FP8>(&p, old, next, &r);
            if ((next + 1) * ATTEND_CHUNK > s.first) attend_new_v<FP8, ROWS>(sh, &s, next, &r);
        }
    }
    attend_put_part<FP8, ROWS>(sh, tiles, &state);
    attend_cluster_arrive();
    attend_place place = attend_place_of(&p, attend_span_of(&p).chunks);  /* again: not kept in registers meanwhile */
    attend_combine<FP8, ROWS>(&p, sh, &place);
}

/* ---- attend_any ---- */

/* to[head_dim] = norm and rotation of x; one warp. The same operations as attend_norm_rotate. */
__device__ __forceinline__ void attend_head(const gpu_attention *p, const float *x, const float *norm, const float *cs,
                                            float *to) {
    int d = p->shape.head_dim, half = p->shape.rotary_dim / 2, lane = threadIdx.x % 32;
    float sum = 0, factor;
    for (int i = 2 * lane; i < d; i += 64) {
        sum = fmaf(x[i], x[i], sum);
        if (i + 1 < d) sum = fmaf(x[i + 1], x[i + 1], sum);
    }
    factor = rsqrtf(fmaf(warp_sum(sum), 1.0f / (float)d, p->shape.eps));
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
    float shift = top == -INFINITY ? 0 : top, fade = attend_exp2(*m - shift);
    for (int j = 0; j < count; j++) sum += attend_exp2(weights[j] - shift);
    *m = top;
    *l = fmaf(*l, fade, sum);
    for (int i = threadIdx.x; i < d; i += GPU_THREADS) {
        float value = o[i] * fade;
        for (int j = 0; j < count; j++)
            value = fmaf(attend_exp2(weights[j] - shift), attend_load<FP8>(p->v, base + j * stride + i), value);
        o[i] = value;
    }
    __syncthreads();
}

/* o = o / l * sigmoid(gate). */
__device__ __forceinline__ void attend_finish_any(const gpu_attention *p, int row, int column, float l, float o) {
    int group = p->group, d = p->shape.head_dim;
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
            float weight = ml.x == -INFINITY ? 0 : attend_exp2(ml.x - top);
            l = fmaf(weight, ml.y, l);
            o = fmaf(weight, __ldcg(attend_part_o(p, rows, i, row, column)), o);
        }
        attend_finish_any(p, row, column, l, o);
    }
}

/* Blocks (kv head, split), or (kv head) with kv_only. */
template <bool FP8> __global__ void __launch_bounds__(GPU_THREADS, 2) attend_any(const __grid_constant__ gpu_attention p) {
    extern __shared__ __align__(16) char memory[];
    __shared__ float weights[ATTEND_CHUNK];
    __shared__ int last;
    int d = p.shape.head_dim, group = p.group, rows = p.T * group;
    float *q = (float *)memory, *o = q + d, *cs = o + d;
    gpu_trigger();
    attend_span s = attend_span_of(&p);
    int unit = blockIdx.y, units = max(1, min(s.chunks, p.splits));
    if (unit >= units) return;
    for (int j = threadIdx.x; j < p.T * (p.shape.rotary_dim / 2); j += GPU_THREADS) {
        int t = j / (p.shape.rotary_dim / 2);
        int i = j % (p.shape.rotary_dim / 2);
        attend_angle(&p, s.first + t, i, p.frequencies[i], cs + t * p.shape.rotary_dim);
    }
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

/* Splits of the context, at most: about two blocks for each multiprocessor, whole clusters. */
static int gpu_attention_most_splits(const gpu_queue *q, const attention_shape *s) {
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

typedef void (*attend_kernel)(gpu_attention);

/* The kernel for T rows, and its shared memory. */
template <bool FP8, int ROWS> static attend_kernel gpu_attend_fast(size_t *shared) {
    *shared = sizeof(attend_shared<FP8, ROWS>);
    return attend_fast<FP8, ROWS>;
}

template <bool FP8> static attend_kernel gpu_attend_kernel(const attention_shape *s, int T, size_t *shared) {
    int rows = T * (s->heads / s->kv_heads);
    *shared = gpu_attention_shared(s);
    if (!gpu_attention_is_fast(s)) return attend_any<FP8>;
    if (rows <= 8) return gpu_attend_fast<FP8, 8>(shared);
    if (rows <= 16) return gpu_attend_fast<FP8, 16>(shared);
    return rows <= 32 ? gpu_attend_fast<FP8, 32>(shared) : gpu_attend_fast<FP8, 64>(shared);
}

/* As many splits as run at once, of at most `most`: a multiprocessor that has no neighbours left cannot take a cluster, and
   a single cluster that comes when the others are done doubles the time. An eighth less than an empty GPU would take, for
   the kernels before and behind this one need room, too (H100: 26 clusters; with 28 attention takes 1.3 times as long at
   131,072 tokens, with 30 1.7 times). */
static int gpu_attention_splits(gpu_queue *q, const attention_shape *s, dtype kv, int most) {
    size_t shared;
    attend_kernel kernel = kv == DTYPE_FP8 ? gpu_attend_kernel<true>(s, GPU_ROWS, &shared)
                                           : gpu_attend_kernel<false>(s, GPU_ROWS, &shared);
    cudaLaunchConfig_t c = {};
    cudaLaunchAttribute cluster = {};
    int clusters = 0;
    if (!q->dependent || !gpu_attention_is_fast(s)) return most;
    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = cluster.val.clusterDim.z = 1;
    cluster.val.clusterDim.y = ATTEND_CLUSTER;
    c.gridDim = dim3((unsigned)s->kv_heads, (unsigned)most);
    c.blockDim = dim3(GPU_THREADS);
    c.dynamicSmemBytes = shared;
    c.attrs = &cluster;
    c.numAttrs = 1;
    gpu_allow_shared(q, (const void *)kernel, shared, "occupancy");
    gpu_check(q, cudaOccupancyMaxActiveClusters(&clusters, kernel, &c), "occupancy");
    int splits = clusters * 7 / 8 / s->kv_heads * ATTEND_CLUSTER;
    return splits < ATTEND_CLUSTER ? ATTEND_CLUSTER : splits < most ? splits : most;
}

template <bool FP8> static void gpu_rope_attend_as(gpu_queue *q, const gpu_attention *p) {
    size_t shared;
    attend_kernel kernel = gpu_attend_kernel<FP8>(&p->shape, p->T, &shared);
    int splits = p->kv_only ? 1 : p->splits;
    if (p->kv_only) kernel = attend_any<FP8>, shared = gpu_attention_shared(&p->shape);
    gpu_launch(q, GPU_ATTEND, FP8 ? "KV FP8" : "KV BF16", kernel, p->shape.kv_heads, splits, shared, p);
}

/* norm_qkv on the GPU; without qg it leaves out the queries. */
static void gpu_norm_qkv(gpu_queue *q, const attention_shape *s, const attention_weights *w, const float *x, int T,
                         float *qg, float *k, float *v) {
    gpu_projection<gpu_norm_rows> p = gpu_norm_projection<gpu_norm_rows>(q, x, w->input_norm, s->hidden, T, s->eps);
    if (qg) gpu_add_segment(&p, &w->q_proj, qg);
    gpu_add_segment(&p, &w->k_proj, k);
    gpu_add_segment(&p, &w->v_proj, v);
    gpu_launch_projection(q, GPU_QKV, &p);
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

#ifdef __CUDACC__

enum { GPU_TOP = 32, GPU_EXPERTS = 1024, GPU_CHOSEN = GPU_ROWS * GPU_TOP };  /* most: of a row, to choose from, of a block */

/* The distinct routed experts of a block of rows, ascending, and for each a bit set of the rows that use it. */
typedef struct gpu_routing {
    int32_t count, expert[GPU_CHOSEN], rows[GPU_CHOSEN];
} gpu_routing;

typedef struct gpu_moe {
    moe_shape shape;
    int T;
    gpu_matrix gate, up, down;   /* of expert 0 */
    int64_t stride;              /* bytes from an expert's matrices to the next one's */
    uint32_t per_tile;           /* 2^32 / gate.octets, rounded up: tile * per_tile >> 32 is the tile's expert */
    gpu_matrix shared_down;
    const float *norm;
    const float *router;         /* [T][experts] logits */
    const float *shared_gate;    /* [T] logits */
    gpu_routing *routing;        /* written by experts_up, read by experts_down */
    int32_t *chosen;             /* this layer's count, for those who ask what was read */
    float *h;                    /* [1 + GPU_CHOSEN][GPU_ROWS][h_row]: the shared expert's first */
    int h_row;
    gpu_soon soon;               /* of the kernel behind experts_down: which experts it needs is not known yet */
    int rehearse;                /* so many blocks do, the first */
    gpu_mark logits, after;      /* to watch for: router's; to write: x's */
    uint32_t overlap;            /* simulated share of its experts that a row has in common with row 0, of 2^32; 0: none */
    float *x;                    /* [T][hidden] residual */
    gpu_delta log;               /* log_blocks > 0: more blocks of experts_down bring its window and log up to date */
    int log_blocks;
} gpu_moe;

/* Elements of a row of h: whole groups in any format. What is behind an expert's size stays zero. */
static size_t gpu_h_row(const moe_shape *s) {
    return (size_t)(moe_width(s) + 63) / 64 * 64;
}

static size_t gpu_h_size(const moe_shape *s) {
    return (size_t)(1 + GPU_CHOSEN) * GPU_ROWS * gpu_h_row(s);
}

/* norm_router: the logits of router and shared_expert_gate, and the shared expert's h, which no choice precedes. */
static void gpu_norm_router(gpu_queue *q, const moe_shape *s, const moe_weights *w, const float *x, int T, float *router,
                            float *shared_gate, float *h) {
    gpu_projection<gpu_router_rows> p = gpu_norm_projection<gpu_router_rows>(q, x, w->norm, s->hidden, T, s->eps);
    gpu_add_segment(&p, &w->gate_proj[s->experts], NULL);
    p.segment[0].up = gpu_matrix_of(&w->up_proj[s->experts]);
    p.segment[0].h = h;
    p.h_row = gpu_h_row(s);
    p.mark = gpu_next_mark(q, GPU_ROUTER, GPU_MARKED_ROUTER);
    gpu_add_segment(&p, &w->router, router);
    gpu_add_segment(&p, &w->shared_expert_gate, shared_gate);
    gpu_launch_projection(q, GPU_ROUTER, &p);
}

/* Sorts eight keys, the greatest first, in six rounds of comparisons that do not wait for each other. */
__device__ __forceinline__ void gpu_sort8(uint32_t *key) {
    constexpr uint8_t pair[19][2] = {{0, 2}, {1, 3}, {4, 6}, {5, 7}, {0, 4}, {1, 5}, {2, 6}, {3, 7}, {0, 1}, {2, 3},
                                     {4, 5}, {6, 7}, {2, 4}, {3, 5}, {1, 4}, {3, 6}, {1, 2}, {3, 4}, {5, 6}};
#pragma unroll
    for (int i = 0; i < 19; i++) {
        uint32_t a = key[pair[i][0]], b = key[pair[i][1]];
        key[pair[i][0]] = max(a, b);
        key[pair[i][1]] = min(a, b);
    }
}

/* Where row t's logit of an expert is. Simulated overlap: of some every row has row 0's. */
template <int ROWS> __device__ __forceinline__ const float *gpu_logit(const gpu_moe &p, int t, int expert) {
    const int row = ROWS > 1 && p.overlap && (uint32_t)(expert + 1) * 0x9e3779b1u < p.overlap ? 0 : t;
    return p.router + (size_t)row * p.shape.experts + expert;
}

/* Row t's logits of experts lane, lane + 32, ..., when they are there; behind the last expert the least. Blocks that come
   late find them there at once, the others watch for one of them: with several rows not all for the same one, which is in
   one of eight lines of memory. */
template <int LISTS, int ROWS>
__device__ __forceinline__ void gpu_hear_logits(const gpu_moe &p, int t, const gpu_mark &mark, uint32_t (*key)[8]) {
    const int one = ROWS == 1 ? 0 : min((int)blockIdx.x % 8 * 32, p.shape.experts - 1);
    uint32_t other = 0;
#pragma unroll 1
    do {
        if (other) gpu_hear_one(gpu_logit<ROWS>(p, t, one), mark);
        other = 0;
#pragma unroll
        for (int i = 0; i < 8 * LISTS; i++) {
            const int expert = i * 32 + (int)threadIdx.x % 32;
            key[i / 8][i % 8] = ~0u;
            if (expert >= p.shape.experts) continue;
            key[i / 8][i % 8] = __float_as_uint(gpu_hear(gpu_logit<ROWS>(p, t, expert)));
            other |= key[i / 8][i % 8] ^ mark.bits;
        }
        other = __any_sync(~0u, other & mark.mask);
    } while (other);
}

/* One warp: the top_k best (TOP, if not 0) of a row's logits; lane r learns the expert that is the r-th. All blocks wait for
   it, so a round is short. A lane looks after experts lane, lane + 32, ..., in sorted lists of eight; the best is at the
   head of one. key: the logits, which become keys that are ordered like the floats. The last bits of a key are not the
   logit's but tell the lane's experts apart: what differs by less than 2^-18 of its value, more than the sums resolve,
   counts as equal, and the lower index comes first. */
template <int LISTS, int TOP = 0> __device__ __forceinline__ int gpu_choose(const gpu_moe &p, uint32_t (*key)[8]) {
    enum { MINE = 8 * LISTS };
    const int lane = threadIdx.x % 32;
    uint32_t chosen = 0, lanes_with_it = 1;
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        uint32_t bits = key[i / 8][i % 8], ordered = bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
        key[i / 8][i % 8] = ordered / MINE * MINE + (MINE - 1 - i);
    }
#pragma unroll
    for (int s = 0; s < LISTS; s++) gpu_sort8(key[s]);
#pragma unroll TOP ? TOP : 1
    for (int r = 0; r < (TOP ? TOP : p.shape.top_k); r++) {
        uint32_t best = key[0][0];
#pragma unroll
        for (int s = 1; s < LISTS; s++) best = max(best, key[s][0]);
        const uint32_t top = __reduce_max_sync(~0u, best), lanes = __ballot_sync(~0u, best == top);
        const bool first = best == top && !(lanes & ((1u << lane) - 1));
        if (lane == r) chosen = top, lanes_with_it = lanes;
#pragma unroll
        for (int s = 0; s < LISTS; s++)
            if (first && key[s][0] == top) {
#pragma unroll
                for (int i = 0; i < 8; i++) key[s][i] = i < 7 ? key[s][i + 1] : 0;
            }
    }
    return min((MINE - 1 - (int)(chosen % MINE)) * 32 + __ffs((int)lanes_with_it) - 1, p.shape.experts - 1);
}

/* Softmax over the chosen, one a lane, the best first. */
__device__ __forceinline__ float gpu_weigh(float logit, int top_k) {
    float best = __shfl_sync(~0u, logit, 0), share = (int)threadIdx.x % 32 < top_k ? __expf(logit - best) : 0;
    return share / warp_sum(share);
}

/* What experts_up knows of the routing: the weights, too. */
struct gpu_choice {
    gpu_routing list;
    float weight[GPU_CHOSEN][GPU_ROWS];
    uint32_t mask[GPU_EXPERTS / 32];                        /* bit set of the experts */
};

/* Empties a choice, before gpu_route. */
__device__ __forceinline__ void gpu_route_nothing(gpu_choice *to) {
    if (threadIdx.x < GPU_EXPERTS / 32) to->mask[threadIdx.x] = 0;
    if (threadIdx.x < GPU_CHOSEN) to->list.rows[threadIdx.x] = 0;
    __syncthreads();
}

/* The same, of row t's logits, which are there. */
template <int LISTS, int ROWS> __device__ __forceinline__ int gpu_choose_of(const gpu_moe &p, int t) {
    const gpu_mark none = {0, 0};
    uint32_t key[LISTS][8];
    gpu_hear_logits<LISTS, ROWS>(p, t, none, key);
    return gpu_choose<LISTS>(p, key);
}

/* All blocks find the same routing for themselves: that is quicker than to be told. Warp t chooses for row t. Leaves the
   weights for later; a lane learns which expert it has chosen, and where that is in the list. */
template <int ROWS> __device__ __forceinline__ void gpu_route(const gpu_moe &p, gpu_choice *to, int *chosen, int *place) {
    int t = threadIdx.x / 32, lane = threadIdx.x % 32, words = (p.shape.experts + 31) / 32, expert = 0;
    if (t < p.T) {
        expert = p.shape.experts <= 256 ? gpu_choose_of<1, ROWS>(p, t) : gpu_choose_of<GPU_EXPERTS / 256, ROWS>(p, t);
        if (lane < p.shape.top_k) atomicOr(&to->mask[expert / 32], 1u << expert % 32);
    }
    __syncthreads();
    if (t < p.T) {                                          /* place in the list: experts in use that come before */
        uint32_t word = lane < words ? to->mask[lane] : 0;
        int all = __popc(word);
#pragma unroll
        for (int i = 1; i < 32; i *= 2) {
            int up = __shfl_up_sync(~0u, all, i);
            all += lane >= i ? up : 0;
        }
        int before = __shfl_sync(~0u, all - __popc(word), expert / 32);
        before += __popc(__shfl_sync(~0u, word, expert / 32) & ((1u << expert % 32) - 1));
        if (lane < p.shape.top_k) {
            to->list.expert[before] = expert;
            atomicOr(&to->list.rows[before], 1 << t);
        }
        if (threadIdx.x == 31) to->list.count = all;
        *place = before;
    }
    *chosen = expert;
    __syncthreads();
}

/* The last block, which has the fewest tiles, writes the routing down; then experts_down may begin. One warp. */
__device__ __forceinline__ void gpu_publish(const gpu_moe &p, const gpu_choice &choice) {
    if (blockIdx.x == gridDim.x - 1) {
        for (int i = threadIdx.x % 32; i < choice.list.count; i += 32) {
            p.routing->expert[i] = choice.list.expert[i];
            p.routing->rows[i] = choice.list.rows[i];
        }
        if (threadIdx.x % 32 == 0) p.routing->count = *p.chosen = choice.list.count;
        __threadfence();
        __syncwarp();
    }
    if (threadIdx.x % 32 == 0) gpu_trigger();
}

/* SiLU(gate) * up of a row of a tile's octets. */
__device__ __forceinline__ float gpu_up_times(const float (*part)[GPU_ROWS][GPU_WARPS], int row, int t, float rms) {
    float gate = gpu_add_parts(part[row][t]) * rms, up = gpu_add_parts(part[row + OCTET][t]) * rms;
    return gate * gpu_sigmoid(gate) * up;
}

/* Tiles of experts_up: an octet of an expert's gate rows and the same of its up rows. */
template <int ROWS> struct gpu_up_tiles {
    enum { normed = 1, routed = 1 };
    const gpu_moe &p;
    gpu_choice *choice;
    float square[ROWS];          /* this lane's part of the rows' squares */
    int chosen, listed;          /* the expert this lane has chosen, and its place in the list */
    __device__ __forceinline__ float per_col() const { return 1.0f / (float)p.shape.hidden; }
    __device__ __forceinline__ float eps() const { return p.shape.eps; }
    __device__ __forceinline__ int next(int tile) const { return tile + gridDim.x; }
    __device__ __forceinline__ bool valid(int tile) const { return tile < choice->list.count * p.gate.octets; }
    __device__ __forceinline__ int entry(int tile) const {
        return p.gate.octets == 1 ? tile : (int)__umulhi((uint32_t)tile, p.per_tile);
    }
    __device__ __forceinline__ gpu_place place(int tile) const {
        int i = entry(tile), octet = tile - i * p.gate.octets;
        gpu_place at = gpu_place_of(p.gate, octet, p.up, octet);
        int64_t shift = choice->list.expert[i] * p.stride;
        at.data[0] += shift;
        at.data[1] += shift;
        at.scale = (const float *)((const char *)at.scale + shift);
        return at;
    }
    template <class F, int>
    __device__ __forceinline__ void prepare(int, int, const gpu_operand &, float *to, int) const {
#pragma unroll
        for (int t = 0; t < ROWS; t++) to[t] = square[t];
        const int t = threadIdx.x / 32;                     /* the weights: not needed before the first sum is */
        if (t >= p.T) return;
        float weight = gpu_weigh(__ldcg(gpu_logit<ROWS>(p, t, chosen)), p.shape.top_k);
        if ((int)threadIdx.x % 32 < p.shape.top_k) choice->weight[listed][t] = weight;
    }
    __device__ __forceinline__ float old(int, int, int) const { return 0; }
    __device__ __forceinline__ void store(int tile, int row, int t, const float (*part)[GPU_ROWS][GPU_WARPS], float,
                                          float rms, bool real) const {
        int i = entry(tile), at = (tile - i * p.gate.octets) * OCTET + row;
        if (row >= OCTET || at >= p.gate.rows || !(choice->list.rows[i] >> t & 1)) return;
        float h = gpu_up_times(part, row, t, rms) * choice->weight[i][t];
        if (real) p.h[((i + 1) * GPU_ROWS + t) * p.h_row + at] = h;
    }
};

/* The operand of experts_up: each warp what it will read itself. */
template <class F, int ROWS>
__device__ __forceinline__ void gpu_fill_up(const gpu_moe &p, void *memory, float *square) {
    const gpu_norm_rows in = {p.x, p.norm, p.shape.hidden};
    int count, first = gpu_share(p.gate.groups, threadIdx.x / 32, GPU_WARPS, &count);
    gpu_fill<F, ROWS, 1>(in, p.T, first, count, gpu_operand_at<F, ROWS>(memory, p.gate.groups), square);
}

/* experts_up: routing, then h = SiLU(gate u) * (up u) for the rows that use an expert. */
template <int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_up(const __grid_constant__ gpu_moe p) {
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) gpu_parts parts;
    __shared__ gpu_choice choice;
    const int tile = (int)blockIdx.x;
    gpu_ahead<ROWS> ahead;
    gpu_prefetch_share(p.soon);
#pragma unroll 1
    for (int real = tile >= p.rehearse; real < 2; real++) {
        gpu_up_tiles<ROWS> tiles = {p, &choice, {}, 0, 0};
        gpu_route_nothing(&choice);
        if (real) gpu_wait();
        switch (p.gate.type) {
            case DTYPE_FP8: gpu_fill_up<format_fp8, ROWS>(p, dynamic, tiles.square); break;
            case DTYPE_BF16: gpu_fill_up<format_bf16, ROWS>(p, dynamic, tiles.square); break;
            case DTYPE_F16: gpu_fill_up<format_f16, ROWS>(p, dynamic, tiles.square); break;
            default: gpu_fill_up<format_f32, ROWS>(p, dynamic, tiles.square);
        }
        gpu_route<ROWS>(p, &choice, &tiles.chosen, &tiles.listed);
        if (real && threadIdx.x < 32) gpu_publish(p, choice);
        ahead.nothing(p.gate);
        if (real) ahead.begin(tiles, tile, p.gate);
        switch (p.gate.type) {
            case DTYPE_FP8: gpu_run_tiles<format_fp8, ROWS>(tiles, tile, p.gate, p.T, dynamic, &parts, ahead, real, real); break;
            case DTYPE_BF16: gpu_run_tiles<format_bf16, ROWS>(tiles, tile, p.gate, p.T, dynamic, &parts, ahead, real, real); break;
            case DTYPE_F16: gpu_run_tiles<format_f16, ROWS>(tiles, tile, p.gate, p.T, dynamic, &parts, ahead, real, real); break;
            default: gpu_run_tiles<format_f32, ROWS>(tiles, tile, p.gate, p.T, dynamic, &parts, ahead, real, real);
        }
    }
}

/* The same for eight experts a row, of at most 256, and 2,048 columns of FP8, in straight lines like the quick projections.
   Every warp knows the routing in its registers: lane 8 t + r has the r-th best expert of row t. A rehearsal goes as far as
   that. No weights are on their way before, so the logits are watched for. Who has them knows that x is complete; the warps
   that do not choose are told by those that do, at a barrier, as all that watch slow down what they watch for. */
enum { GPU_EIGHT = 8, GPU_UP_GROUPS = 4 };                  /* experts of a row; a warp's groups of 2,048 columns */

struct gpu_picked {
    int is, expert, listed;      /* is there a row t; its r-th best expert; the place of that in the list */
    int count;                   /* of the list */
    float weight;
};

/* key: in warp t row t's logits; shared: room for the experts of all rows. */
template <int ROWS>
__device__ __forceinline__ gpu_picked gpu_pick_experts(const gpu_moe &p, uint32_t (*key)[8], int (*shared)[GPU_EIGHT]) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, t = lane / GPU_EIGHT;
    gpu_picked is = {t < ROWS, 0, 0, 0, 0};
    if (warp < ROWS) {
        int expert = gpu_choose<1, GPU_EIGHT>(p, key);
        if (lane < GPU_EIGHT) shared[warp][lane] = expert;
    }
    __syncthreads();
    is.expert = is.is ? shared[t][lane % GPU_EIGHT] : 0;
    if constexpr (ROWS == 1) {                              /* all are different */
        is.count = GPU_EIGHT;
#pragma unroll
        for (int i = 0; i < GPU_EIGHT; i++) is.listed += shared[0][i] < is.expert;
    } else {
#pragma unroll
        for (int w = 0; w < 256 / 32; w++) {                /* bit set of the experts */
            uint32_t bit = 1u << is.expert % 32, set = __reduce_or_sync(~0u, is.is && is.expert / 32 == w ? bit : 0);
            is.listed += w > is.expert / 32 ? 0 : __popc(w < is.expert / 32 ? set : set & (bit - 1));
            is.count += __popc(set);
        }
    }
    return is;
}

/* The lanes that picked entry i of the list. */
__device__ __forceinline__ uint32_t gpu_who_picked(const gpu_picked &picked, int i) {
    return __ballot_sync(~0u, picked.is && picked.listed == i);
}

/* Softmax over the eight of a row. */
__device__ __forceinline__ float gpu_weigh_eight(float logit) {
    float share = __expf(logit - __shfl_sync(~0u, logit, threadIdx.x % 32 / GPU_EIGHT * GPU_EIGHT)), sum = share;
#pragma unroll
    for (int i = GPU_EIGHT / 2; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    return share / sum;
}

/* As gpu_publish. */
__device__ __forceinline__ void gpu_publish_picked(const gpu_moe &p, const gpu_picked &picked) {
    const int lane = threadIdx.x % 32;
    gpu_wait();
    if (blockIdx.x == gridDim.x - 1) {
        uint32_t who = __match_any_sync(~0u, picked.is ? picked.listed : -1);
        int rows = 0;
        for (int t = 0; t < GPU_ROWS; t++) rows |= (who >> t * GPU_EIGHT & 0xff) ? 1 << t : 0;
        if (picked.is && __ffs((int)who) - 1 == lane) {
            p.routing->expert[picked.listed] = picked.expert;
            p.routing->rows[picked.listed] = rows;
        }
        if (lane == 0) p.routing->count = *p.chosen = picked.count;
        __threadfence();
        __syncwarp();
    }
    if (lane == 0) gpu_trigger();
}

template <int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_up_quick(const __grid_constant__ gpu_moe p) {
    enum { MINE = GPU_UP_GROUPS, TURNS = GPU_THREADS / (TILE_ROWS * GPU_ROWS) };
    typedef format_fp8 F;
    typedef gpu_short<F, MINE, ROWS> sizes;
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) gpu_parts parts;
    __shared__ int experts[ROWS][GPU_EIGHT];
    const int row = threadIdx.x % TILE_ROWS, t = threadIdx.x / TILE_ROWS % GPU_ROWS;
    const int turn = threadIdx.x / (TILE_ROWS * GPU_ROWS);
    const gpu_norm_rows in = {p.x, p.norm, p.shape.hidden};
    const gpu_operand operand = gpu_operand_at<F, ROWS>(dynamic, p.gate.groups);
    const uint4 *fragments = gpu_lane_fragments<F, ROWS>(operand);
    sizes weights;
    typename sizes::template columns<gpu_norm_rows> x;
    gpu_picked picked;
    const bool chooses = threadIdx.x < 32 * ROWS;
    float square[ROWS] = {}, rms = 1;
    uint32_t key[1][8];
    int tile = (int)blockIdx.x;
    gpu_prefetch_share(p.soon);
#pragma unroll 1
    for (int real = tile >= p.rehearse; real < 2; real++) {
        const gpu_mark logits = {real ? p.logits.mask : 0, p.logits.bits};
        if (real && !logits.mask) gpu_wait();
        if (chooses) {
            gpu_hear_logits<1, ROWS>(p, threadIdx.x / 32, logits, key);
            gpu_arrive();
        } else {
            gpu_await_arrival();
        }
        x.load(in, 0);
        picked = gpu_pick_experts<ROWS>(p, key, experts);
        if (!real) __syncthreads();
    }
    const int tiles = picked.count * p.gate.octets;
    auto entry = [&](int tile) { return p.gate.octets == 1 ? tile : (int)__umulhi((uint32_t)tile, p.per_tile); };
    auto begin = [&](int tile) {
        int i = entry(tile), octet = tile - i * p.gate.octets;
        int64_t shift = __shfl_sync(~0u, picked.expert, __ffs((int)gpu_who_picked(picked, i)) - 1) * p.stride;
        weights.place = gpu_place_of(p.gate, octet, p.up, octet);
        weights.place.data[0] += shift;
        weights.place.data[1] += shift;
        weights.place.scale = (const float *)((const char *)weights.place.scale + shift);
        weights.load_scale(p.gate);
    };
    begin(min(tile, tiles - 1));
#pragma unroll
    for (int j = 0; j < MINE; j++) weights.load(j);
    x.fill(in, operand, square);
    gpu_put_squares<ROWS>(&parts, square);
    if (threadIdx.x < 32) gpu_publish_picked(p, picked);
    picked.weight = gpu_weigh_eight(__ldcg(gpu_logit<ROWS>(p, picked.is ? threadIdx.x % 32 / GPU_EIGHT : 0, picked.expert)));
    const float unit = weights.unit(operand, 0);
#pragma unroll 1
    for (int n = 0; tile < tiles; n++) {
        const int next = tile + (int)gridDim.x, i = entry(tile);
        const bool more = next < tiles;
        const float factor = weights.scale[0] * unit;
        float sum[4] = {0, 0, 0, 0};
        if (more) begin(next);
#pragma unroll
        for (int j = 0; j < MINE; j++) {
            weights.multiply(j, fragments, &factor, sum);
            if (more) weights.load(j);
        }
        gpu_put_part<ROWS>(parts.tile[n % 2], sum);
        __syncthreads();
        if (n == 0) {
            gpu_wait();
            rms = gpu_rms_factor(&parts, t, 1.0f / (float)p.shape.hidden, p.shape.eps);
        }
        if (n % TURNS == turn) {
            const uint32_t who = gpu_who_picked(picked, i) >> t * GPU_EIGHT & 0xff;
            const float weight = __shfl_sync(~0u, picked.weight, t * GPU_EIGHT + __ffs((int)who) - 1);
            const int at = (tile - i * p.gate.octets) * OCTET + row;
            if (who && row < OCTET && at < p.gate.rows)
                p.h[((i + 1) * GPU_ROWS + t) * p.h_row + at] = gpu_up_times(parts.tile[n % 2], row, t, rms) * weight;
        }
        tile = next;
    }
}

/* The kernel of experts_up that is made for these sizes, and its shared memory; NULL: there is none. */
static void (*gpu_quick_up(const gpu_moe *p, size_t *shared))(gpu_moe) {
    const gpu_matrix *w = &p->gate;
    const bool alike = p->up.type == w->type && p->up.cols == w->cols && w->type == DTYPE_FP8;
    *shared = gpu_operand_size(w->type, p->T, w->groups);
    if (!alike || p->shape.top_k != GPU_EIGHT || p->shape.experts > 256 || w->groups != GPU_UP_GROUPS * GPU_WARPS ||
        w->cols != w->groups * GROUP_BYTES) return NULL;
    return p->T == 1 ? gpu_experts_up_quick<1> : p->T == 2 ? gpu_experts_up_quick<2>
         : p->T == 3 ? gpu_experts_up_quick<3> : gpu_experts_up_quick<GPU_ROWS>;
}

/* experts_down sums over entries: 0 is the shared expert, 1 + i the list's i-th. A warp has the same groups of each; an
   entry's group is an item. The weights of DEEP items are in flight. Most entries are used by one token row only, so the
   operand has a slot for each use of an item, by one row, and one slot of zeros for all other rows. It is filled in for a
   batch of items: as many as there are slots for. */
template <int ROWS> struct gpu_down_sizes {
    enum {
        DEEP = ROWS == 4 ? 8 : ROWS == 2 ? 9 : 6, SLOTS = ROWS == 1 ? 12 : 36,
        OCTETS = ROWS == 1 ? 2 : 1                          /* of output rows, to a block; two leave norm_in_proj room */
    };
};

typedef struct gpu_uses {
    int32_t count;               /* of entries */
    uint32_t shift[1 + GPU_CHOSEN];  /* from expert 0's weights to the entry's, in 16 bytes */
    int32_t rows[1 + GPU_CHOSEN];    /* bit set of those that use it */
    int32_t first[2 + GPU_CHOSEN];   /* its first use */
    uint16_t use[(1 + GPU_TOP) * GPU_ROWS];  /* entry * GPU_ROWS + row, ascending */
    int16_t number[(1 + GPU_CHOSEN) * GPU_ROWS];  /* of an entry's use by a row; -1: none */
    float gate[GPU_ROWS];        /* sigmoid of shared_gate */
} gpu_uses;

/* Lists the uses: each thread those of an entry. */
__device__ __forceinline__ void gpu_list_uses(gpu_uses *uses) {
    int entry = threadIdx.x, at = 0;
    if (entry > uses->count) return;
    for (int i = 0; i < entry; i++) at += __popc(uses->rows[i]);
    uses->first[entry] = at;
    for (int t = 0; t < GPU_ROWS && entry < uses->count; t++) {
        bool is = uses->rows[entry] >> t & 1;
        uses->number[entry * GPU_ROWS + t] = (int16_t)(is ? at : -1);
        if (is) uses->use[at++] = (uint16_t)(entry * GPU_ROWS + t);
    }
}

/* The items of a warp, and their uses by ROWS rows, in the order of the items. */
template <int ROWS> struct gpu_down_items {
    const gpu_uses *uses;
    int first, mine;             /* groups: of each entry `mine`, from group `first` on */
    uint32_t per_mine;           /* 2^32 / mine, rounded up */
    __device__ __forceinline__ int divide(int n) const { return mine == 1 ? n : (int)__umulhi((uint32_t)n, per_mine); }
    __device__ __forceinline__ int entry(int item) const { return divide(item); }
    __device__ __forceinline__ int group(int item) const { return item - entry(item) * mine; }
    /* Uses of the items before this one. */
    __device__ __forceinline__ int uses_before(int item) const {
        int i = entry(item), n = uses->first[i];
        return ROWS == 1 ? item : n * mine + (mine == 1 ? 0 : (item - i * mine) * (uses->first[i + 1] - n));
    }
    /* The use of an item by a row; -1: it is not used by that. */
    __device__ __forceinline__ int use_of(int item, int row) const {
        if (ROWS == 1) return item;
        int i = entry(item), number = uses->number[i * GPU_ROWS + row];
        return mine == 1 || number < 0 ? number : uses_before(item) + number - uses->first[i];
    }
    /* The entry, group and row of a use; *use: entry * GPU_ROWS + row. */
    __device__ __forceinline__ int find(int number, int *use) const {
        int at = divide(number);
        *use = ROWS == 1 ? at * GPU_ROWS : uses->use[at];
        if (mine == 1 || ROWS == 1) return number - at * mine;
        int i = *use / GPU_ROWS, begin = uses->first[i], of = uses->first[i + 1] - begin, rest = number - begin * mine;
        *use = uses->use[begin + rest % of];
        return rest / of;
    }
    /* Items from `base` on whose uses fit into `slots`: whole rounds of `deep`, up to `end`. */
    __device__ __forceinline__ int batch(int base, int end, int deep, int slots) const {
        int count = 0, before = uses_before(base);
        while (base + count < end) {
            int next = min(count + deep, end - base);
            if (uses_before(base + next) - before > slots) break;
            count = next;
        }
        return count;
    }
};

/* A warp's operand for `count` items from `base` on: h, weighted already, in its slots. */
template <class F, int ROWS>
__device__ __forceinline__ void gpu_fill_down(const gpu_moe &p, const gpu_down_items<ROWS> &items, int base, int count,
                                              const gpu_operand &to) {
    enum { COLS = 4 * F::per_load, LANES = COLS / 8, AT_ONCE = 3 };
    const int lane = threadIdx.x % 32, before = items.uses_before(base);
    const int parts = (items.uses_before(base + count) - before) * LANES;
#pragma unroll 1
    for (int begin = 0; begin < parts; begin += 32 * AT_ONCE) {
        float v[AT_ONCE][8];
        int use[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            int part = begin + n * 32 + lane, group = 0;
            use[n] = 0;
            if (part < parts) group = items.find(before + part / LANES, &use[n]);
            int col = (items.first + group) * COLS + part % LANES * 8;
            gpu_load8(v[n], p.h + use[n] * p.h_row, col, part < parts ? col + 8 : 0);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            int part = begin + n * 32 + lane;
            float factor = use[n] < GPU_ROWS ? items.uses->gate[use[n]] : 1;
#pragma unroll
            for (int c = 0; c < 8; c++) v[n][c] *= factor;
            float unit = gpu_unit<F>(v[n]);
            if (part < parts) gpu_put_columns<F, 1>(to, part / LANES, part % LANES, 0, v[n], unit);
        }
    }
    __syncwarp();
}

/* Bytes of a warp's operand in any format: FP8's are most. */
template <int ROWS> __host__ __device__ constexpr int gpu_down_bytes() {
    return ((gpu_down_sizes<ROWS>::SLOTS + 1) * (256 + (int)sizeof(float)) + 15) / 16 * 16;
}

/* sum += entries low .. high - 1 of a tile, all of one format. Which warp adds what, and in which order, does not depend
   on who else is in the list; who does not use an entry adds an exact zero. */
template <class F, int ROWS>
__device__ __forceinline__ void gpu_down_entries(const gpu_moe &p, const gpu_uses *uses, int tile, int low, int high,
                                                 void *memory, float *sum) {
    enum { SLOTS = gpu_down_sizes<ROWS>::SLOTS, DEEP = gpu_down_sizes<ROWS>::DEEP, OCTETS = gpu_down_sizes<ROWS>::OCTETS };
    const int pairs = gpu_step_pairs<F>(), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int piece = lane / ROWS % DEEP;                   /* of those in flight, the item whose factor this lane knows */
    const gpu_matrix &w = low ? p.down : p.shared_down;
    const gpu_place shared = gpu_place_of(p.shared_down, OCTETS * tile, p.shared_down, OCTETS * (tile + 1) - 1);
    const gpu_place routed = gpu_place_of(p.down, OCTETS * tile, p.down, OCTETS * (tile + 1) - 1);
    const int octet = (int)(low ? routed.data[1] - routed.data[0] : shared.data[1] - shared.data[0]) / 16;
    const gpu_operand operand = gpu_operand_at<F, 1>((char *)memory + warp * gpu_down_bytes<ROWS>(), SLOTS + 1);
    gpu_down_items<ROWS> items = {uses};
    items.first = gpu_share(w.groups, warp, GPU_WARPS, &items.mine);
    items.per_mine = items.mine ? 0xffffffffu / (uint32_t)items.mine + 1 : 0;
    const int end = high * items.mine;
    uint4 raw[DEEP][OCTETS] = {};
    float scale = 1;
    auto load = [&](int j, int item) {
        if (item >= end) return;
        int i = items.entry(item);
        const uint4 *at = (const uint4 *)(i ? routed.data[0] : shared.data[0]);
        at += uses->shift[i] + (items.first + items.group(item)) * (PIECE / 16);
        for (int o = 0; o < OCTETS; o++) raw[j][o] = __ldcs(at + o * octet);
    };
    auto load_scale = [&](int item) {                       /* the octets share it */
        if (!F::scaled || item >= end) return;
        int i = items.entry(item);
        const float *at = (i ? routed.scale : shared.scale) + (size_t)uses->shift[i] * 4;
        scale = __ldg(at + (items.first + items.group(item) >> w.group_shift));
    };
    int base = low * items.mine;
#pragma unroll
    for (int j = 0; j < DEEP; j++) load(j, base + j);
    load_scale(base + piece);
    if (lane < pairs * 8) operand.x[SLOTS * pairs * 8 + lane] = make_uint4(0, 0, 0, 0);
    if (F::half && lane == 0) operand.unit[SLOTS] = 0;
    gpu_wait();
#pragma unroll 1
    for (int count; base < end; base += count) {
        count = items.batch(base, end, DEEP, SLOTS);
        int before = items.uses_before(base);
        auto slot = [&](int item, int row) {
            int use = items.use_of(item, row);
            return use < 0 ? (int)SLOTS : use - before;
        };
        __syncwarp();
        gpu_fill_down<F, ROWS>(p, items, base, count, operand);
#pragma unroll 1
        for (int from = base; from < base + count; from += DEEP) {
            float factor = 0;
            if (F::half && from + piece < base + count) factor = scale * operand.unit[slot(from + piece, lane % ROWS)];
            load_scale(from + DEEP + piece);
#pragma unroll
            for (int j = 0; j < DEEP; j++) {
                uint4 x[pairs];
                if (from + j >= base + count) break;
                const uint4 *at = operand.x + slot(from + j, lane / 4 % ROWS) * pairs * 8 + lane / 16 * 4 + lane % 4;
#pragma unroll
                for (int pair = 0; pair < pairs; pair++) x[pair] = at[pair * 8];
                gpu_multiply<F, ROWS, OCTETS>(sum, raw[j], x, factor, j * ROWS, 0, true);
                load(j, from + DEEP + j);
            }
        }
    }
}

/* All entries, those of one format together. */
template <int ROWS>
__device__ __forceinline__ void gpu_down_all(const gpu_moe &p, const gpu_uses *uses, int tile, void *memory, float *sum) {
    const bool alike = p.down.type == p.shared_down.type && p.down.groups == p.shared_down.groups;
#pragma unroll 1
    for (int low = 0, high; low < uses->count; low = high) {
        high = alike || low ? uses->count : 1;
        switch (low ? p.down.type : p.shared_down.type) {
            case DTYPE_FP8: gpu_down_entries<format_fp8, ROWS>(p, uses, tile, low, high, memory, sum); break;
            case DTYPE_BF16: gpu_down_entries<format_bf16, ROWS>(p, uses, tile, low, high, memory, sum); break;
            case DTYPE_F16: gpu_down_entries<format_f16, ROWS>(p, uses, tile, low, high, memory, sum); break;
            default: gpu_down_entries<format_f32, ROWS>(p, uses, tile, low, high, memory, sum);
        }
    }
}

/* experts_down: x += the experts' down projections of h, and that of the shared expert times its gate. A block has one or
   two octets of output rows, alone. What it reads before its wait, the routing, the residual and the shared expert's gate,
   was complete before experts_up triggered. */
template <int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down(const __grid_constant__ gpu_moe p) {
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) gpu_parts parts;
    __shared__ gpu_uses uses;
    enum { OCTETS = gpu_down_sizes<ROWS>::OCTETS, TILE_OUT = OCTETS * OCTET };
    const int out = (int)threadIdx.x, tile = (int)blockIdx.x, row = tile * TILE_OUT + out % TILE_OUT, t = out / TILE_OUT;
    const int log_block = tile - ((int)gridDim.x - p.log_blocks);
    float *x = t < p.T && row < p.shape.hidden ? p.x + (size_t)t * p.shape.hidden + row : NULL;
    float sum[4] = {0, 0, 0, 0}, old = 0;
    gpu_trigger();
    if (log_block >= 0) {
        gpu_wait();
        gpu_delta_log(&p.log, log_block, p.log_blocks);
        return;
    }
    if (out < GPU_CHOSEN) {
        uses.shift[1 + out] = (uint32_t)__ldcg(&p.routing->expert[out]) * (uint32_t)(p.stride / 16);
        uses.rows[1 + out] = __ldcg(&p.routing->rows[out]);
    }
    if (out == GPU_CHOSEN) {
        uses.count = 1 + __ldcg(&p.routing->count);
        uses.shift[0] = 0;
        uses.rows[0] = (1 << p.T) - 1;
    }
    if (out / 32 == GPU_WARPS - 1 && out % 32 < p.T) uses.gate[out % 32] = gpu_sigmoid(__ldcg(p.shared_gate + out % 32));
    if (x) old = __ldcg(x);
    __syncthreads();
    if (ROWS > 1) {
        gpu_list_uses(&uses);
        __syncthreads();
    }
    gpu_down_all<ROWS>(p, &uses, tile, dynamic, sum);
    gpu_put_part<ROWS>(parts.tile[0], sum);
    __syncthreads();
    if (x) gpu_tell(x, old + gpu_add_parts(parts.tile[0][out % TILE_OUT][t]), p.after);
}

/* The same for one row and eight experts of GPU_WIDE columns, all of one format: a quicker way to the same sums in the same
   order. A warp has 64 columns of every entry. As in gpu_run_one_tile, what a block does once has neither loops nor branches,
   and not all of its weights are asked for before its wait. */
enum { GPU_NINE = 9, GPU_WIDE = 512 };                      /* entries; columns */

template <class F> struct gpu_row_sizes {
    enum {
        COLS = 4 * F::per_load, LANES = COLS / 8, MINE = GPU_WIDE / GPU_WARPS / COLS,     /* a warp's groups of an entry */
        ITEMS = GPU_NINE * MINE, EIGHTS = MINE * LANES,     /* and of all; eights of its columns */
        ROUND = MINE > 1 ? 6 : 9, EARLY = 5,                /* items in flight, and before the wait */
        BYTES = (ITEMS * (gpu_step_pairs<F>() * 128 + (int)sizeof(float)) + 15) / 16 * 16     /* of a warp's operand */
    };
};

template <class F>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down_row(const __grid_constant__ gpu_moe p) {
    typedef gpu_row_sizes<F> sizes;
    enum { pairs = gpu_step_pairs<F>(), MINE = sizes::MINE, ROUND = sizes::ROUND, ROUNDS = sizes::ITEMS / ROUND };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[TILE_ROWS][GPU_ROWS][GPU_WARPS];
    __shared__ const char *data[GPU_NINE];                  /* the tile's of each entry, and the scales of its rows */
    __shared__ const float *scales[GPU_NINE];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = (int)blockIdx.x, row = tile * TILE_ROWS + threadIdx.x;
    const int log_block = tile - ((int)gridDim.x - p.log_blocks);
    const int octet = 2 * tile + 1 < p.down.octets ? p.down.groups * PIECE : 0;            /* from the first to the second */
    const gpu_operand operand = gpu_operand_at<F, 1>((char *)dynamic + warp * sizes::BYTES, sizes::ITEMS);
    const uint4 *fragments = gpu_lane_fragments<F, 1>(operand);
    float shared[8], now[8], later[8], scale = 1, sum[4] = {0, 0, 0, 0};
    uint4 raw[ROUND][2];
    gpu_trigger();
    if (log_block >= 0) {
        gpu_wait();
        gpu_delta_log(&p.log, log_block, p.log_blocks);
        return;
    }
    auto get = [&](float *to, int part) {                   /* eight columns: number `part` of all entries */
        const float *h = p.h + part / sizes::EIGHTS * GPU_ROWS * p.h_row + (warp * sizes::EIGHTS + part % sizes::EIGHTS) * 8;
        *(float4 *)to = __ldcg((const float4 *)h);
        *(float4 *)(to + 4) = __ldcg((const float4 *)(h + 4));
    };
    auto put = [&](float *from, int part, bool there) {
        float unit = gpu_unit<F>(from);
        if (there) gpu_put_columns<F, 1>(operand, part / sizes::LANES, part % sizes::LANES, 0, from, unit);
    };
    auto load_group = [&](int j, const char *entry, int group) {
        const char *at = entry + ((warp * MINE + group) * PIECE + lane * 16);
        raw[j][0] = __ldcs((const uint4 *)at);
        raw[j][1] = __ldcs((const uint4 *)(at + octet));
    };
    auto load = [&](int j, int round) {
        int item = round * ROUND + j;
        load_group(j, data[item / MINE], item % MINE);
    };
    auto load_scale = [&](int round) {                      /* lane j: of item j of a round; the octets share it */
        int item = round * ROUND + lane;
        if (F::scaled && lane < ROUND) scale = __ldg(scales[item / MINE] + (warp * MINE + item % MINE >> p.down.group_shift));
    };
    const int64_t shift = threadIdx.x && threadIdx.x < GPU_NINE ? __ldcg(&p.routing->expert[threadIdx.x - 1]) * p.stride : 0;
    const size_t before = (size_t)(2 * tile) * (uint32_t)(p.down.groups * PIECE);          /* bytes of an entry before the tile */
#pragma unroll
    for (int j = 0; j < MINE; j++) load_group(j, p.shared_down.data + before, j);          /* before the routing is there */
    const float gate = gpu_sigmoid(__ldcg(p.shared_gate));
    get(shared, lane % sizes::EIGHTS);
    const bool stores = threadIdx.x < TILE_ROWS && row < p.shape.hidden;
    const float old = stores ? __ldcg(p.x + row) : 0;
    if (threadIdx.x < GPU_NINE) {
        const gpu_matrix &w = threadIdx.x ? p.down : p.shared_down;
        data[threadIdx.x] = w.data + shift + before;
        scales[threadIdx.x] = (const float *)((const char *)w.scale + shift) + (tile * TILE_ROWS >> w.row_shift) * w.scale_cols;
    }
    __syncthreads();
#pragma unroll
    for (int j = MINE; j < sizes::EARLY; j++) load(j, 0);
    load_scale(0);
    gpu_wait();
    get(now, 8 + lane);
    get(later, 40 + lane);
#pragma unroll
    for (int j = sizes::EARLY; j < ROUND; j++) load(j, 0);
#pragma unroll
    for (int c = 0; c < 8; c++) shared[c] *= gate;
    put(shared, lane, lane < sizes::EIGHTS);
    put(now, 8 + lane, true);
    put(later, 40 + lane, true);
    __syncwarp();
#pragma unroll 1
    for (int round = 0; round < ROUNDS; round++, fragments += ROUND * pairs * 8) {
        float factor = F::half && lane < ROUND ? scale * operand.unit[round * ROUND + lane] : 0;
        if (round + 1 < ROUNDS) load_scale(round + 1);
#pragma unroll
        for (int j = 0; j < ROUND; j++) {
            uint4 x[pairs];
#pragma unroll
            for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[(j * pairs + pair) * 8];
            gpu_multiply<F, 1>(sum, raw[j], x, factor, j, 0, true);
            if (round + 1 < ROUNDS) load(j, round + 1);
        }
    }
    gpu_put_part<1>(parts, sum);
    __syncthreads();
    if (stores) gpu_tell(&p.x[row], old + gpu_add_parts(parts[threadIdx.x][0]), p.after);
}

/* The same for two, three or four rows, in FP8. A warp has one group of every entry, and a slot of its operand for each
   of a row's nine uses of one; slot NONE is all zeros. DEEP entries are in flight. */
template <int ROWS> struct gpu_rows_sizes {
    enum { ENTRIES = 1 + (GPU_NINE - 1) * ROWS, USES = GPU_NINE * ROWS, NONE = USES, DEEP = 6, AT_ONCE = ROWS == 3 ? 4 : 5 };
    enum { BYTES = ((USES + 1) * (256 + (int)sizeof(float)) + 15) / 16 * 16 };            /* of a warp's operand */
};

/* What a block knows of the entries: their weights' part of its tile, and which slot is whose. */
template <int ROWS> struct gpu_entries {
    int32_t count;
    const char *data[gpu_rows_sizes<ROWS>::ENTRIES];
    const float *scales[gpu_rows_sizes<ROWS>::ENTRIES];
    uint8_t slot[gpu_rows_sizes<ROWS>::ENTRIES + gpu_rows_sizes<ROWS>::DEEP][GPU_ROWS];     /* of an entry's use by a row */
    uint8_t use[gpu_rows_sizes<ROWS>::USES];                /* of a slot: entry * GPU_ROWS + row */
    float gate[GPU_ROWS];
};

/* Lists the entries: a thread of warp 0 each of the routed, the next thread the shared one, which has the first slots. */
template <int ROWS> __device__ __forceinline__ void gpu_list_entries(const gpu_moe &p, int tile, gpu_entries<ROWS> *to) {
    typedef gpu_rows_sizes<ROWS> sizes;
    const int i = threadIdx.x, entry = i < 32 ? 1 + i : 0;
    if (i > 32) {
        if (i < 64 && i - 33 < sizes::DEEP) *(uint32_t *)to->slot[sizes::ENTRIES + i - 33] = sizes::NONE * 0x01010101u;
        if (i >= 64 && i - 64 < ROWS) to->gate[i - 64] = gpu_sigmoid(__ldcg(p.shared_gate + i - 64));
        return;
    }
    const int count = min(__ldcg(&p.routing->count), (int)sizes::ENTRIES - 1), all_rows = (1 << ROWS) - 1;
    const int listed = __ldcg(&p.routing->rows[i % 32]), expert = __ldcg(&p.routing->expert[i % 32]);
    const int rows = entry == 0 ? all_rows : i < count ? listed & all_rows : 0;
    const gpu_matrix &w = entry ? p.down : p.shared_down;
    int before = 0;
    if (entry) {
        int all = __popc(rows);
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            int up = __shfl_up_sync(~0u, all, step);
            all += i >= step ? up : 0;
        }
        before = ROWS + all - __popc(rows);
    } else {
        to->count = 1 + count;
    }
    if (entry >= sizes::ENTRIES) return;
    const int64_t shift = rows && entry ? expert * p.stride : 0;
    to->data[entry] = w.data + shift + (size_t)(2 * tile) * (uint32_t)(w.groups * PIECE);
    to->scales[entry] = (const float *)((const char *)w.scale + shift) + (tile * TILE_ROWS >> w.row_shift) * w.scale_cols;
#pragma unroll
    for (int t = 0; t < GPU_ROWS; t++) {
        bool is = (rows >> t & 1) && before < sizes::USES;
        to->slot[entry][t] = (uint8_t)(is ? before : sizes::NONE);
        if (is) to->use[before++] = (uint8_t)(entry * GPU_ROWS + t);
    }
}

template <int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, 2) gpu_experts_down_rows(const __grid_constant__ gpu_moe p) {
    typedef gpu_rows_sizes<ROWS> sizes;
    typedef format_fp8 F;
    enum { pairs = gpu_step_pairs<F>(), LANES = F::per_load / 2, DEEP = sizes::DEEP };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) float parts[TILE_ROWS][GPU_ROWS][GPU_WARPS];
    __shared__ __align__(16) gpu_entries<ROWS> entries;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, tile = (int)blockIdx.x, piece = lane / ROWS;
    const int t = threadIdx.x / TILE_ROWS, row = tile * TILE_ROWS + threadIdx.x % TILE_ROWS;
    const int log_block = tile - ((int)gridDim.x - p.log_blocks);
    const int octet = 2 * tile + 1 < p.down.octets ? p.down.groups * PIECE : 0;            /* from the first to the second */
    const int mine = warp * PIECE + lane * 16, eights = GPU_NINE * ROWS * LANES;
    const gpu_operand operand = gpu_operand_at<F, 1>((char *)dynamic + warp * sizes::BYTES, sizes::USES + 1);
    const uint4 *fragments = operand.x + lane / 16 * 4 + lane % 4;
    const bool stores = t < ROWS && row < p.shape.hidden;
    uint4 raw[DEEP][2] = {};
    float sum[4] = {0, 0, 0, 0}, scale = 0;
    gpu_trigger();
    if (log_block >= 0) {
        gpu_wait();
        gpu_delta_log(&p.log, log_block, p.log_blocks);
        return;
    }
    auto load = [&](int j, int entry) {
        if (entry >= entries.count) return;
        const char *at = entries.data[entry] + mine;
        raw[j][0] = __ldcs((const uint4 *)at);
        raw[j][1] = __ldcs((const uint4 *)(at + octet));
    };
    auto load_scale = [&](int entry) {                      /* lane ROWS j + t: of entry j of a round; the octets share it */
        if (piece < DEEP && entry < entries.count) scale = __ldg(entries.scales[entry] + (warp >> p.down.group_shift));
    };
    const float old = stores ? __ldcg(p.x + t * p.shape.hidden + row) : 0;
    gpu_list_entries<ROWS>(p, tile, &entries);
    if (lane < pairs * 8) operand.x[sizes::NONE * pairs * 8 + lane] = make_uint4(0, 0, 0, 0);
    if (lane == 0) operand.unit[sizes::NONE] = 0;
    __syncthreads();
#pragma unroll
    for (int j = 0; j < DEEP; j++) load(j, j);
    load_scale(piece);
    gpu_wait();
#pragma unroll
    for (int from = 0; from < sizes::USES * LANES; from += 32 * sizes::AT_ONCE) {
        float v[sizes::AT_ONCE][8];
        int use[sizes::AT_ONCE];
#pragma unroll
        for (int n = 0; n < sizes::AT_ONCE; n++) {
            int part = from + n * 32 + lane;
            use[n] = part < eights ? entries.use[part / LANES] : 0;
            gpu_load8(v[n], p.h + use[n] * p.h_row + warp * LANES * 8, part % LANES * 8, LANES * 8);
        }
#pragma unroll
        for (int n = 0; n < sizes::AT_ONCE; n++) {
            int part = from + n * 32 + lane;
            float gate = use[n] < GPU_ROWS ? entries.gate[use[n]] : 1;
#pragma unroll
            for (int c = 0; c < 8; c++) v[n][c] *= gate;
            float unit = gpu_unit<F>(v[n]);
            if (part < eights) gpu_put_columns<F, 1>(operand, part / LANES, part % LANES, 0, v[n], unit);
        }
    }
    __syncwarp();
#pragma unroll 1
    for (int from = 0; from < entries.count; from += DEEP) {
        float factor = piece < DEEP ? scale * operand.unit[entries.slot[from + piece][lane % ROWS]] : 0;
        load_scale(from + DEEP + piece);
#pragma unroll
        for (int j = 0; j < DEEP; j++) {
            uint4 x[pairs];
            const uint4 *at = fragments + entries.slot[from + j][lane % 16 / 4 % ROWS] * (pairs * 8);
#pragma unroll
            for (int pair = 0; pair < pairs; pair++) x[pair] = at[pair * 8];
            gpu_multiply<F, ROWS>(sum, raw[j], x, factor, j * ROWS, 0, true);
            load(j, from + DEEP + j);
        }
    }
    gpu_put_part<ROWS>(parts, sum);
    __syncthreads();
    if (stores) gpu_tell(&p.x[t * p.shape.hidden + row], old + gpu_add_parts(parts[threadIdx.x % TILE_ROWS][t]), p.after);
}

/* The kernel of experts_down that is made for these sizes, and its shared memory; NULL: there is none. */
template <int ROWS> static void (*gpu_down_of_rows(size_t *shared))(gpu_moe) {
    *shared = GPU_WARPS * (size_t)gpu_rows_sizes<ROWS>::BYTES;
    return gpu_experts_down_rows<ROWS>;
}

template <class F> static void (*gpu_down_of_row(size_t *shared))(gpu_moe) {
    *shared = GPU_WARPS * (size_t)gpu_row_sizes<F>::BYTES;
    return gpu_experts_down_row<F>;
}

static void (*gpu_quick_down(const gpu_moe *p, size_t *shared))(gpu_moe) {
    bool alike = p->down.type == p->shared_down.type && p->down.cols == p->shared_down.cols;
    bool fits = p->shape.top_k == GPU_NINE - 1 && alike && p->down.cols == GPU_WIDE, fp8 = p->down.type == DTYPE_FP8;
    if (!fits || (fp8 && 1 << p->down.row_shift < TILE_ROWS)) return NULL;
    if (!fp8) return p->down.type == DTYPE_BF16 && p->T == 1 ? gpu_down_of_row<format_bf16>(shared) : NULL;
    switch (p->T) {
        case 1: return gpu_down_of_row<format_fp8>(shared);
        case 2: return gpu_down_of_rows<2>(shared);
        case 3: return gpu_down_of_rows<3>(shared);
        default: return gpu_down_of_rows<GPU_ROWS>(shared);
    }
}

/* routing, chosen, router, shared_gate, h and x are the caller's to fill in. */
static gpu_moe gpu_moe_of(const moe_shape *s, const moe_weights *w, int T) {
    gpu_moe p;
    memset(&p, 0, sizeof p);
    p.shape = *s;
    p.T = T;
    p.gate = gpu_matrix_of(&w->gate_proj[0]);
    p.up = gpu_matrix_of(&w->up_proj[0]);
    p.down = gpu_matrix_of(&w->down_proj[0]);
    p.per_tile = (uint32_t)((((uint64_t)1 << 32) + (uint64_t)p.gate.octets - 1) / (uint64_t)p.gate.octets);
    p.stride = s->experts > 1 ? (const char *)w->gate_proj[1].data - p.gate.data : 0;
    p.shared_down = gpu_matrix_of(&w->down_proj[s->experts]);
    p.norm = w->norm;
    p.h_row = (int)gpu_h_row(s);
    return p;
}

static void gpu_run_experts(gpu_queue *q, gpu_moe *p) {
    const moe_shape *s = &p->shape;
    int side = TILE_ROWS / OCTET, most = p->T * s->top_k < s->experts ? p->T * s->top_k : s->experts;
    size_t up_bytes, down_bytes;
    void (*up)(gpu_moe) = gpu_quick_up(p, &up_bytes), (*down)(gpu_moe) = gpu_quick_down(p, &down_bytes);
    if (!up) {
        up = p->T == 1 ? gpu_experts_up<1> : gpu_experts_up<GPU_ROWS>;
        up_bytes = gpu_operand_size(p->gate.type, p->T == 1 ? 1 : GPU_ROWS, p->gate.groups);
    }
    if (!down) {
        side = p->T > 1 ? (int)gpu_down_sizes<GPU_ROWS>::OCTETS : (int)gpu_down_sizes<1>::OCTETS;
        down = p->T == 1 ? gpu_experts_down<1> : p->T == 2 ? gpu_experts_down<2> : gpu_experts_down<GPU_ROWS>;
        down_bytes = (size_t)GPU_WARPS * (p->T == 1 ? gpu_down_bytes<1>() : gpu_down_bytes<GPU_ROWS>());
    }
    int blocks = gpu_blocks(q, up, up_bytes, (int64_t)most * p->gate.octets);
    p->rehearse = gpu_rehearse(q, GPU_UP, p->T);
    p->logits = gpu_last_mark(q, GPU_MARKED_ROUTER);
    p->after = gpu_next_mark(q, GPU_DOWN, GPU_MARKED_X);
    gpu_share_soon(&p->soon, blocks);
    gpu_launch(q, GPU_UP, dtype_names[p->gate.type], up, blocks, 1, up_bytes, p);
    gpu_launch(q, GPU_DOWN, dtype_names[p->down.type], down, (gpu_octets(s->hidden) - 1) / side + 1 + p->log_blocks, 1,
               down_bytes, p);
}
#endif

/* ---- 11. Stage head -----------------------------------------------------------------------------------------------
   logits[t] = lm_head h[t], where h = rms(x)(1 + norm). h itself is what the MTP layer takes in. */

static void stage_head(pool *p, const matrix *lm_head, const float *h, int T, float *logits) {
    linear(p, lm_head, h, logits, T, 0);
}

#ifdef __CUDACC__

/* logits = lm_head rms(x)(1 + norm): the norm is a prologue here. */
static void gpu_head(gpu_queue *q, const matrix *lm_head, const float *norm, const float *x, int T, float eps,
                     float *logits) {
    gpu_projection<gpu_norm_rows> p = gpu_norm_projection<gpu_norm_rows>(q, x, norm, lm_head->cols, T, eps);
    gpu_add_segment(&p, lm_head, logits);
    gpu_launch_projection(q, GPU_HEAD, &p);
}

/* What goes into the MTP layer's fc, and the final rows that the next block will ask for. Row t is for the position before
   the block's row t: its token is the block's, its hidden row that of the row before. */
typedef struct gpu_mtp_input {
    gpu_matrix embed_tokens;
    const gpu_step *step;
    const float *x, *norm;       /* [T][cols] residual after the last layer, the final norm; see gpu_draft_row */
    float *hidden;               /* [T][cols] rms(x)(1 + norm) */
    const float *last_hidden;    /* [cols] that of the row before the block */
    const float *norm_embedding, *norm_hidden;
    float *in;                   /* [T][2 cols] */
    float eps;
    int draft;                   /* only gpu_draft_row's: from 0 on */
} gpu_mtp_input;

/* to = rms(from)(1 + norm) for one row of `cols` floats in shared or device memory; whole block. */
__device__ __forceinline__ void gpu_norm_row(float *to, const float *from, const float *norm, int cols, float eps,
                                             float *shared) {
    float sum = 0, all = 0;
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) sum = fmaf(from[i], from[i], sum);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = sum;
    __syncthreads();
    for (int w = 0; w < GPU_WARPS; w++) all += shared[w];
    float factor = rsqrtf(all / (float)cols + eps);
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) to[i] = from[i] * factor * (1.0f + norm[i]);
    __syncthreads();
}

/* Grid: T blocks. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_mtp_rows(const __grid_constant__ gpu_mtp_input p) {
    extern __shared__ float row[];                          /* [cols] */
    __shared__ float shared[GPU_WARPS];
    int t = blockIdx.x, cols = p.embed_tokens.cols;
    float *in = p.in + (size_t)t * 2 * cols;
    gpu_trigger();
    gpu_wait();
    gpu_norm_row(p.hidden + (size_t)t * cols, p.x + (size_t)t * cols, p.norm, cols, p.eps, shared);
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) row[i] = gpu_weight(&p.embed_tokens, p.step->ids[t], i);
    __syncthreads();
    gpu_norm_row(in, row, p.norm_embedding, cols, p.eps, shared);
    if (t) gpu_norm_row(row, p.x + (size_t)(t - 1) * cols, p.norm, cols, p.eps, shared);
    gpu_norm_row(in + cols, t ? row : p.last_hidden, p.norm_hidden, cols, p.eps, shared);
}

static void gpu_mtp_start(gpu_queue *q, const gpu_mtp_input *p, int T) {
    gpu_launch(q, GPU_MTP, dtype_names[p->embed_tokens.type], gpu_mtp_rows, T, 1,
               (size_t)p->embed_tokens.cols * sizeof(float), p);
}

/* What goes into fc for draft number p.draft: the token chosen last and the final row of the token before it (the last one
   kept of the block that was verified, p.hidden, or else p.last_hidden); then the draft before and what the MTP layer made
   of it: p.x [cols] and p.norm are that layer's. One block. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_draft_row(const __grid_constant__ gpu_mtp_input p) {
    extern __shared__ float row[];                          /* [cols] */
    __shared__ float shared[GPU_WARPS];
    int cols = p.embed_tokens.cols;
    gpu_trigger();
    gpu_wait();
    for (int i = threadIdx.x; i < cols; i += GPU_THREADS) row[i] = gpu_weight(&p.embed_tokens, p.step->ids[p.draft], i);
    __syncthreads();
    gpu_norm_row(p.in, row, p.norm_embedding, cols, p.eps, shared);
    const int kept = p.step->replay;
    const float *final_row = kept ? p.hidden + (size_t)(kept - 1) * cols : p.last_hidden;
    if (p.draft) gpu_norm_row(row, p.x, p.norm, cols, p.eps, shared);
    gpu_norm_row(p.in + cols, p.draft ? row : final_row, p.norm_hidden, cols, p.eps, shared);
}

static void gpu_draft_start(gpu_queue *q, const gpu_mtp_input *p) {
    gpu_launch(q, GPU_MTP, dtype_names[p->embed_tokens.type], gpu_draft_row, 1, 1,
               (size_t)p->embed_tokens.cols * sizeof(float), p);
}
#endif

/* ---- 12. Sampling ------------------------------------------------------------------------------------------------
   The next token, chosen on the device, so that the next step can start before the host knows it. What is to be computed
   is sample() of engine.cu: the best top_k of the logits, best first; of these the best until their weights sum to a share
   top_p, and none lighter than min_p times the best; one of them by a uniform number.

   A logit and its id make a 64-bit key: in front the logit's bits, rearranged so that unsigned order is the order of
   floats, then the complement of the id. Of equal logits the lowest id is greatest, and no two keys are equal. The best k
   of many keys, by a block: each thread finds the best of its own; the k-th best of these 256 is a bound that k keys reach
   for certain and few others do; whatever reaches it is collected, and each key finds its place by counting those above
   it. gpu_pick does that to a slice of the logits in each block, gpu_draw in one block to what gpu_pick found. */

#ifdef __CUDACC__
enum {
    GPU_TOP_K = 64,              /* most candidates */
    GPU_PICKS = GPU_THREADS,     /* most blocks of gpu_pick: gpu_draw has a thread for each */
    GPU_PICK_KEYS = 16           /* most logits a thread looks at */
};

#define GPU_NAN (~(uint64_t)0)   /* key of a NaN: above all others; 0 is the key of nothing */

/* How to choose; in device memory, because a captured graph reads it. */
typedef struct gpu_how {
    float temperature;           /* 0: greedy */
    int32_t k;                   /* candidates: 1..GPU_TOP_K; greedy: 1 */
    float top_p, min_p;          /* as in mote_sampling */
    uint64_t seed;
    int32_t simulate;            /* 1: tokens are random, drafts are accepted at the rates `accept` */
    float accept[GPU_ROWS - 1];
} gpu_how;

/* What the device tells a waiting host, in its memory: `told`, written last, is sequence << 32 | number of ids. */
typedef struct gpu_answer { uint64_t told; int32_t ids[GPU_ROWS]; } gpu_answer;

typedef struct gpu_sampling {
    const gpu_how *how;          /* device */
    const float *logits;         /* device: [T][stride] */
    size_t stride;
    int T;                       /* rows: 1 unless gpu_accept */
    int n;                       /* ids that may be chosen */
    uint64_t *picks;             /* device scratch: [GPU_ROWS][GPU_PICKS][GPU_TOP_K] */
    gpu_step *step;              /* device: the step that was computed and then the next */
    volatile gpu_answer *answer; /* in the host's memory; NULL: it need not know */
    int32_t position, replay;    /* gpu_draw with an answer: of the step that runs the token */
    int draft;                   /* gpu_draw without: place of the token in the step */
    int blocks;                  /* set by the launcher: of gpu_pick, for a row */
} gpu_sampling;

typedef struct gpu_put_step { gpu_step *to, value; } gpu_put_step;
typedef struct gpu_put_how { gpu_how *to, value; } gpu_put_how;

/* Whether gpu_sample chooses as sample() would. Else the logits go to the host. */
static int gpu_can_sample(int n, float temperature, int top_k) {
    return n >= 1 && n <= GPU_PICKS * GPU_THREADS * GPU_PICK_KEYS &&
           (!(temperature > 0) || (top_k >= 1 && top_k <= GPU_TOP_K && top_k < n));
}

/* The bits of uniform() in engine.cu. */
__host__ __device__ static inline double gpu_uniform(uint64_t seed, uint64_t position) {
    uint64_t z = seed * 0x9e3779b97f4a7c15u + (position + 1) * 0xd1342543de82ef95u;
    for (int i = 0; i < 2; i++) {
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
        z ^= z >> 31;
    }
    return (double)(z >> 11) * 0x1p-53;
}

__device__ __forceinline__ uint64_t gpu_key(float logit, int id) {
    uint32_t bits = __float_as_uint(logit + 0.0f);          /* -0 becomes 0: they are equal */
    bits ^= bits >> 31 ? ~0u : 0x80000000u;
    return logit != logit ? GPU_NAN : (uint64_t)bits << 32 | ~(uint32_t)id;
}

__device__ __forceinline__ float gpu_key_logit(uint64_t key) {
    uint32_t bits = (uint32_t)(key >> 32);
    return __uint_as_float(bits >> 31 ? bits ^ 0x80000000u : ~bits);
}

__device__ __forceinline__ uint64_t gpu_better(uint64_t a, uint64_t b) {
    return a > b ? a : b;
}

/* The k-th best of the block's keys, one of each thread: 1 when there are fewer, GPU_NAN when one is that. */
__device__ uint64_t gpu_kth_best(uint64_t key, int k) {
    __shared__ __align__(16) uint64_t keys[GPU_THREADS];
    __shared__ uint64_t kth;
    if (k == 1) {
        uint32_t high = (uint32_t)(key >> 32), most = __reduce_max_sync(~0u, high);
        uint32_t low = __reduce_max_sync(~0u, high == most ? (uint32_t)key : 0);
        if (threadIdx.x % 32 == 0) keys[threadIdx.x / 32] = (uint64_t)most << 32 | low;
        __syncthreads();
        uint64_t best = 1;
#pragma unroll
        for (int i = 0; i < GPU_WARPS; i++) best = gpu_better(best, keys[i]);
        return best;
    }
    keys[threadIdx.x] = key;
    if (threadIdx.x == 0) kth = 1;
    if (__syncthreads_or(key == GPU_NAN)) return GPU_NAN;
    int above = 0;
#pragma unroll 8
    for (int i = 0; i < GPU_THREADS; i += 2) {
        ulonglong2 two = *(const ulonglong2 *)(keys + i);
        above += (two.x > key) + (two.y > key);
    }
    if (key && above == k - 1) kth = key;
    __syncthreads();
    return kth;
}

/* best[0..k-1] = the best of the `count` keys in shared memory, best first, 0 where there are fewer. */
__device__ __forceinline__ void gpu_order(const uint64_t *keys, int count, int k, uint64_t *best) {
    for (int i = threadIdx.x; i < count; i += GPU_THREADS) {
        int above = 0;
        for (int other = 0; other < count; other++) above += keys[other] > keys[i];
        if (above < k) best[above] = keys[i];
    }
    for (int i = count + threadIdx.x; i < k; i += GPU_THREADS) best[i] = 0;
}

/* picks[row][block] = the best k of the block's logits. Warps of all blocks take groups of 32 in turn, so that good
   neighbours fall to different blocks. Grid: (blocks, rows). */
__global__ void __launch_bounds__(GPU_THREADS) gpu_pick(const __grid_constant__ gpu_sampling p) {
    __shared__ uint64_t keys[GPU_TOP_K * GPU_PICK_KEYS];    /* k threads reach the bound, with all their keys at most */
    __shared__ int count;
    const float *logits = p.logits + blockIdx.y * p.stride;
    const int k = p.how->k;
    uint64_t head = 0, *best = p.picks + (size_t)(blockIdx.y * GPU_PICKS + blockIdx.x) * GPU_TOP_K;
    int first = ((threadIdx.x / 32) * p.blocks + blockIdx.x) * 32 + threadIdx.x % 32, step = p.blocks * GPU_THREADS;
    gpu_trigger();
    gpu_wait();
#pragma unroll 8
    for (int i = first; i < p.n; i += step) head = gpu_better(head, gpu_key(logits[i], i));
    if (threadIdx.x == 0) count = 0;
    uint64_t bound = gpu_kth_best(head, k);
    if (bound == GPU_NAN || k == 1) {
        if (threadIdx.x == 0) best[0] = bound;
        return;
    }
    if (head >= bound)
        for (int i = first; i < p.n; i += step) {
            uint64_t key = gpu_key(logits[i], i);
            if (key >= bound) keys[atomicAdd(&count, 1)] = key;
        }
    __syncthreads();
    gpu_order(keys, count, k, best);
}

/* sample(), from the candidates best first: each thread weighs one, one thread adds. position: of the token. */
__device__ __forceinline__ int32_t gpu_draw_one(const gpu_how *how, const uint64_t *top, double *weight, uint64_t position) {
    int taken = 0, most = how->k;
    float best = gpu_key_logit(top[0]);
    if (threadIdx.x < most)
        weight[threadIdx.x] = exp((double)(gpu_key_logit(top[threadIdx.x]) - best) / how->temperature);
    __syncthreads();
    if (threadIdx.x) return 0;
    double total = 0, limit = INFINITY, sum = 0, mass = 0;
    if (how->top_p > 0 && how->top_p < 1) {
        for (int i = 0; i < most; i++) total += weight[i];
        limit = how->top_p * total;
    }
    while (taken < most && sum < limit && !(taken && weight[taken] < how->min_p)) sum += weight[taken++];
    double draw = gpu_uniform(how->seed, position) * sum;
    for (int i = 0; i < taken; i++) {
        mass += weight[i];
        if (draw < mass) return (int32_t)~(uint32_t)top[i];
    }
    return (int32_t)~(uint32_t)top[taken - 1];
}

/* The token of a row, from what gpu_pick found; -1: a logit is NaN. For thread 0 of the only block. */
__device__ __forceinline__ int32_t gpu_token(const gpu_sampling &p, int row, uint64_t position) {
    __shared__ uint64_t keys[GPU_TOP_K * GPU_TOP_K], top[GPU_TOP_K];
    __shared__ double weight[GPU_TOP_K];
    __shared__ int count;
    const uint64_t *mine = p.picks + (size_t)(row * GPU_PICKS + threadIdx.x) * GPU_TOP_K;
    const int k = p.how->k;
    uint64_t head = threadIdx.x < p.blocks ? mine[0] : 0;
    if (threadIdx.x == 0) count = 0;
    uint64_t bound = gpu_kth_best(head, k);
    if (bound == GPU_NAN) return -1;
    if (k == 1) return (int32_t)~(uint32_t)bound;
    uint64_t key = head;
    for (int i = 0; i < k && key >= bound; i += 4)          /* its keys come best first */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            key = i + j < k ? mine[i + j] : 0;
            if (key >= bound) keys[atomicAdd(&count, 1)] = key;
        }
    __syncthreads();
    gpu_order(keys, count, k, top);
    __syncthreads();
    return isfinite(gpu_key_logit(top[0])) ? gpu_draw_one(p.how, top, weight, position) : (int32_t)~(uint32_t)top[0];
}

/* A random token, for simulations; place: in the step. */
__device__ __forceinline__ int32_t gpu_random_token(const gpu_sampling &p, int place) {
    return (int32_t)(gpu_uniform(p.step->sequence, (uint64_t)(GPU_ROWS + place)) * p.n);
}

/* Tells the host `count` ids. */
__device__ __forceinline__ void gpu_tell(const gpu_sampling &p, const int32_t *ids, int count) {
    for (int i = 0; i < count; i++) p.answer->ids[i] = ids[i];
    __threadfence_system();
    p.answer->told = (uint64_t)++p.step->sequence << 32 | (uint32_t)count;
    __threadfence_system();
}

/* One token, in one block: the first of the next step, told to the host, or a draft. An id that does not exist is told,
   but not run. This kernel and the next do not trigger: those after them may read gpu_step before their wait. */
__global__ void __launch_bounds__(GPU_THREADS) gpu_draw(const __grid_constant__ gpu_sampling p) {
    gpu_wait();
    int32_t id = gpu_token(p, 0, (uint64_t)p.position);
    if (threadIdx.x) return;
    if (p.how->simulate) id = gpu_random_token(p, p.draft);
    p.step->ids[p.draft] = id < 0 ? 0 : id;
    if (!p.answer) return;
    p.step->position = p.position;
    p.step->replay = p.replay;
    gpu_tell(p, &id, 1);
}

/* Verification. Row t of the block that was computed says which token comes at position + t + 1, chosen as always for that
   position. As long as that is the block's next token, a draft, its row was computed for the right text, and counts. So
   the next step keeps the rows up to the first surprise, and that begins it. One block. */
__global__ void __launch_bounds__(GPU_THREADS) gpu_accept(const __grid_constant__ gpu_sampling p) {
    __shared__ int32_t ids[GPU_ROWS];
    __shared__ int kept, go_on;
    gpu_wait();
    const int position = p.step->position;
    for (int t = 0; t < p.T; t++) {
        int32_t id = gpu_token(p, t, (uint64_t)(position + t + 1));
        if (threadIdx.x == 0) {
            go_on = t + 1 < p.T && id == p.step->ids[t + 1];
            if (p.how->simulate) {
                go_on = t + 1 < p.T && gpu_uniform(p.step->sequence, (uint64_t)t) < p.how->accept[t];
                id = go_on ? p.step->ids[t + 1] : gpu_random_token(p, 0);
            }
            ids[t] = id;
            kept = t + 1;
        }
        __syncthreads();
        if (!go_on) break;
    }
    if (threadIdx.x) return;
    p.step->position = position + kept;
    p.step->replay = kept;
    p.step->ids[0] = ids[kept - 1] < 0 ? 0 : ids[kept - 1];
    gpu_tell(p, ids, kept);
}

__global__ void gpu_put_step_kernel(const __grid_constant__ gpu_put_step p) {
    *p.to = p.value;
}

__global__ void gpu_put_how_kernel(const __grid_constant__ gpu_put_how p) {
    *p.to = p.value;
}

/* Chooses tokens by `choose`, gpu_draw or gpu_accept; gpu_can_sample has been asked. Counts as the stage `as`. */
static void gpu_sample(gpu_queue *q, enum gpu_stage as, const gpu_sampling *sampling, void (*choose)(gpu_sampling)) {
    gpu_sampling p = *sampling;
    int fewest = (p.n - 1) / (GPU_THREADS * GPU_PICK_KEYS) + 1, most = (p.n - 1) / GPU_THREADS + 1;
    p.blocks = q->sms < most ? q->sms : most;
    if (p.blocks > GPU_PICKS) p.blocks = GPU_PICKS;
    if (p.blocks < fewest) p.blocks = fewest;
    gpu_launch(q, as, "", gpu_pick, p.blocks, p.T, 0, &p);
    gpu_launch(q, as, "", choose, 1, 1, 0, &p);
}

/* *to = value, behind all that was queued and before all that will be: a launch that neither overlaps. */
template <class P, class V> static void gpu_put(gpu_queue *q, void (*kernel)(P), V *to, const V *value) {
    P p;
    cudaLaunchConfig_t c = {};
    if (q->status != cudaSuccess) return;
    c.gridDim = dim3(1);
    c.blockDim = dim3(1);
    c.stream = q->stream;
    p.to = to;
    p.value = *value;
    gpu_check(q, cudaLaunchKernelEx(&c, kernel, p), "writing a step");
}
#endif
