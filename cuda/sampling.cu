/* cuda/sampling.cu: chooses the next token on the GPU, so that the next step can start before the host knows the token.
   Reads logits and sampling_parameters; writes step_parameters and the mailbox. Knows nothing of layers.

   The computation is sample() of generate/sampling.c: of the top_k largest logits, best first, the candidates up to a share
   top_p of their weights, and none lighter than min_p times the best; of these one, by a uniform number that depends on
   seed and index only.

   Keys. A logit and its id make a 64-bit key: the high half is the logit's bits, rearranged so that unsigned order is the
   order of floats, the low half the complement of the id. Of equal logits the lowest id has the greatest key, and no two
   keys are equal, so the result does not depend on the order in which keys are collected (by atomicAdd).

   The best k of many keys, by one block: each thread finds the best of its own keys; the k-th best of these 256 is a bound
   that k keys reach for certain and few others do; all keys that reach it are collected in shared memory, and each finds
   its place by counting the keys above it. topk_partial does this for a slice of the logits in each block, then a single block,
   of sample_token or gpu_accept, for the keys that topk_partial found. */

enum {
    GPU_TOP_K = 64,              /* most candidates */
    GPU_TOPK_BLOCKS = GPU_THREADS,  /* most blocks of topk_partial a row: gpu_token has a thread for each */
    GPU_TOPK_KEYS = 16           /* most logits of a thread of topk_partial */
};

#define GPU_NAN (~(uint64_t)0)   /* key of a NaN: above all others; key 0: no logit */

/* mote_sampling, for the GPU. In device memory, because captured graphs read it. */
typedef struct sampling_parameters {
    float temperature;           /* 0: greedy */
    int32_t k;                   /* candidates: 1..GPU_TOP_K; greedy: 1 */
    float top_p, min_p;          /* as in mote_sampling */
    uint64_t seed;
    simulation simulated;        /* for measurements */
} sampling_parameters;

/* The mailbox, in pinned host memory: the GPU writes it (mailbox_post), the host polls it (mailbox_await). `posted` and `drafted`,
   each written last, are sequence << 32 | number of ids. */
typedef struct gpu_mailbox {
    uint64_t posted, drafted;
    int32_t ids[MOTE_ROWS_MAX], drafts[MOTE_ROWS_MAX - 1];
    float confidence[MOTE_ROWS_MAX - 1];                    /* of each draft: its probability among the ids that may be chosen */
} gpu_mailbox;

typedef struct gpu_sampling {
    handoff link;
    const sampling_parameters *parameters;                   /* device */
    int parameters_step;         /* from a sequence's to the next one's: 1; 0: all have the same */
    int sequences;               /* of a pass of several; 0: one */
    int turns;                   /* gpu_accept: its rows are those of so many blocks in turn (run/cuda/turns.cu); 0: T of one step */
    const uint8_t *sequence_of;  /* device: of each row; NULL: row i is of sequence i */
    const int32_t *rows;         /* device: [T] which of the logits a row is; NULL: its own number */
    const float *logits;         /* device: [..][stride] */
    size_t stride;
    int T;                       /* rows: one a sequence unless gpu_accept */
    int n;                       /* ids that may be chosen */
    uint64_t *topk;              /* device scratch: [T][GPU_TOPK_BLOCKS][GPU_TOP_K] */
    step_parameters *step;       /* device: of the step that was computed; overwritten for the next one */
    volatile gpu_mailbox *mailbox;                           /* pinned host memory, of each sequence; NULL: drafts, not posted */
    struct { int32_t index, lag, accepted, replay; } next;  /* sample_token with a mailbox: step_parameters of the step that runs
                                                               the token; those of several sequences have them already */
    int draft;                   /* sample_token: index of the token in step->ids; 0 with a mailbox */
    int drafts;                  /* that are made, of which this is one; it is told to the host with its probability, in */
    volatile gpu_mailbox *draft_mailbox; /* pinned host memory, of each sequence; NULL: no draft */
    int blocks;                  /* of topk_partial, for a row; set by gpu_sample */
} gpu_sampling;

/* A value on its way to the GPU: the parameters of a step, or of sampling. */
enum { GPU_PUT_WORDS = 32 };
typedef struct gpu_value { uint32_t *to, word[GPU_PUT_WORDS]; } gpu_value;

/* Whether gpu_sample can choose as sample() would. If not, the logits go to the host. */
static int gpu_can_sample(int n, float temperature, int top_k) {
    return n >= 1 && n <= GPU_TOPK_BLOCKS * GPU_THREADS * GPU_TOPK_KEYS &&
           (!(temperature > 0) || (top_k >= 1 && top_k <= GPU_TOP_K && top_k < n));
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

/* The k-th best of the block's keys, one of each thread: 1 if fewer are not 0, GPU_NAN if any is. Whole block. */
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

/* best[0..k-1] = the best of `count` keys in shared memory, best first; 0 after the last. Whole block. */
__device__ __forceinline__ void gpu_order(const uint64_t *keys, int count, int k, uint64_t *best) {
    for (int i = threadIdx.x; i < count; i += GPU_THREADS) {
        int above = 0;
        for (int other = 0; other < count; other++) above += keys[other] > keys[i];
        if (above < k) best[above] = keys[i];
    }
    for (int i = count + threadIdx.x; i < k; i += GPU_THREADS) best[i] = 0;
}

/* topk[row][block] = the best k keys of the block's logits, best first (k = 1, or a NaN: only the first is written; of a draft, whose k is
   1, the second word is the sum of all weights in units of the first's).
   Grid: (blocks, rows). Groups of 32 neighbouring logits are dealt to blocks in turn, so that large logits with
   neighbouring ids fall to different blocks. A lane loads one logit of a group.
   k is read before pdl_wait: gpu_put, which wrote it, does not call pdl_launch_dependents. */
__global__ void __launch_bounds__(GPU_THREADS) topk_partial(const __grid_constant__ gpu_sampling p) {
    __shared__ uint64_t keys[GPU_TOP_K * GPU_TOPK_KEYS];    /* k threads reach the bound, at most with all their keys */
    __shared__ float shared[GPU_WARPS];
    __shared__ int count;
    const float *logits = p.logits + (p.rows ? p.rows[blockIdx.y] : (int)blockIdx.y) * p.stride;
    const int k = p.parameters[(p.sequence_of ? p.sequence_of[blockIdx.y] : (int)blockIdx.y) * p.parameters_step].k;
    uint64_t head = 0, *best = p.topk + (size_t)(blockIdx.y * GPU_TOPK_BLOCKS + blockIdx.x) * GPU_TOP_K;
    int first = ((threadIdx.x / 32) * p.blocks + blockIdx.x) * 32 + threadIdx.x % 32, step = p.blocks * GPU_THREADS;
    pdl_launch_dependents();
    pdl_wait();
#pragma unroll 8
    for (int i = first; i < p.n; i += step) head = gpu_better(head, gpu_key(logits[i], i));
    if (threadIdx.x == 0) count = 0;
    uint64_t bound = gpu_kth_best(head, k);
    if (p.draft_mailbox) {                                  /* the weights of all, over that of the best */
        float weights = 0;
        for (int i = first; i < p.n; i += step) weights += __expf(logits[i] - gpu_key_logit(bound));
        weights = block_sum(weights, shared);
        if (threadIdx.x == 0) best[1] = __float_as_uint(weights);
    }
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

/* sample(), given the k candidates, best first: thread i weighs candidate i, thread 0 adds the weights in order and draws.
   index: of the token. Whole block; thread 0 gets the token. */
__device__ __forceinline__ int32_t sample_from_top(const sampling_parameters *parameters, const uint64_t *top, double *weight,
                                                   uint64_t index) {
    int taken = 0, most = parameters->k;
    float best = gpu_key_logit(top[0]);
    if (threadIdx.x < most)
        weight[threadIdx.x] = exp((double)(gpu_key_logit(top[threadIdx.x]) - best) / parameters->temperature);
    __syncthreads();
    if (threadIdx.x) return 0;
    double total = 0, limit = INFINITY, sum = 0, mass = 0;
    if (parameters->top_p > 0 && parameters->top_p < 1) {
        for (int i = 0; i < most; i++) total += weight[i];
        limit = parameters->top_p * total;
    }
    while (taken < most && sum < limit && !(taken && weight[taken] < parameters->min_p)) sum += weight[taken++];
    double draw = uniform(parameters->seed, index) * sum;
    for (int i = 0; i < taken; i++) {
        mass += weight[i];
        if (draw < mass) return (int32_t)~(uint32_t)top[i];
    }
    return (int32_t)~(uint32_t)top[taken - 1];
}

/* The token of a row, from the keys that topk_partial found; -1: a logit is NaN. Whole block; thread 0 gets the token. At most
   k threads reach the bound, with at most k keys each: that is the size of `keys`. */
__device__ __forceinline__ int32_t gpu_token(const gpu_sampling &p, const sampling_parameters *parameters, int row, uint64_t index) {
    __shared__ uint64_t keys[GPU_TOP_K * GPU_TOP_K], top[GPU_TOP_K];
    __shared__ double weight[GPU_TOP_K];
    __shared__ int count;
    const uint64_t *sorted = p.topk + (size_t)(row * GPU_TOPK_BLOCKS + threadIdx.x) * GPU_TOP_K;
    const int k = parameters->k;
    uint64_t head = threadIdx.x < p.blocks ? sorted[0] : 0;
    if (threadIdx.x == 0) count = 0;
    uint64_t bound = gpu_kth_best(head, k);
    if (bound == GPU_NAN) return -1;
    if (k == 1) return (int32_t)~(uint32_t)bound;
    uint64_t key = head;
    for (int i = 0; i < k && key >= bound; i += 4)          /* a block's keys lie best first */
#pragma unroll
        for (int j = 0; j < 4; j++) {
            key = i + j < k ? sorted[i + j] : 0;
            if (key >= bound) keys[atomicAdd(&count, 1)] = key;
        }
    __syncthreads();
    gpu_order(keys, count, k, top);
    __syncthreads();
    return isfinite(gpu_key_logit(top[0])) ? sample_from_top(parameters, top, weight, index) : (int32_t)~(uint32_t)top[0];
}

/* Posts `count` ids of sequence z to the host. Memory order: the ids, a system-wide fence, then `posted` in one 64-bit store. So a host
   that reads this sequence number and then issues an acquire fence reads these ids. */
__device__ __forceinline__ void mailbox_post(const gpu_sampling &p, int z, const int32_t *ids, int count) {
    for (int i = 0; i < count; i++) p.mailbox[z].ids[i] = ids[i];
    __threadfence_system();
    p.mailbox[z].posted = (uint64_t)++p.step[z].sequence << 32 | (uint32_t)count;
    __threadfence_system();
}

/* The probability of the best of row z's ids. Whole block. */
__device__ __forceinline__ float gpu_confidence(const gpu_sampling &p, int z) {
    __shared__ float shared[GPU_WARPS];
    const uint64_t *sorted = p.topk + (size_t)(z * GPU_TOPK_BLOCKS + threadIdx.x) * GPU_TOP_K;
    const bool has = threadIdx.x < p.blocks && sorted[0];
    const float logit = has ? gpu_key_logit(sorted[0]) : -INFINITY, best = block_max(logit, shared);
    return 1 / block_sum(has ? __uint_as_float((uint32_t)sorted[1]) * __expf(logit - best) : 0, shared);
}

/* Tells the host of a draft; the last one is the post. */
__device__ __forceinline__ void mailbox_report(const gpu_sampling &p, int z, int32_t id, float confidence) {
    volatile gpu_mailbox *box = p.draft_mailbox + z;
    box->drafts[p.draft - 1] = id;
    box->confidence[p.draft - 1] = confidence;
    if (p.draft < p.drafts) return;
    __threadfence_system();
    box->drafted = (uint64_t)p.step[z].sequence << 32 | (uint32_t)p.drafts;
    __threadfence_system();
}

/* Draws one token: with a mailbox the first token of the next step, posted to the host; else a draft. A block a sequence. The id -1
   (a logit is NaN) is posted, and the step runs token 0 in its place.
   sample_token and gpu_accept do not call pdl_launch_dependents, so no later kernel starts before they are complete. That is
   why later kernels may read step_parameters before their own pdl_wait. */
__global__ void __launch_bounds__(GPU_THREADS) sample_token(const __grid_constant__ gpu_sampling p) {
    const int z = blockIdx.x;
    const sampling_parameters *parameters = p.parameters + z * p.parameters_step;
    step_parameters *step = p.step + z;
    pdl_wait();
    int32_t id = gpu_token(p, parameters, z, (uint64_t)(p.sequences ? step->index : p.next.index));
    const float confidence = p.draft_mailbox ? gpu_confidence(p, z) : 0;
    if (threadIdx.x) return;
    if (parameters->simulated.on) id = simulated_token(step, p.draft, p.n);
    step->ids[p.draft] = id < 0 ? 0 : id;
    if (p.draft_mailbox) mailbox_report(p, z, step->ids[p.draft], confidence);
    if (!p.mailbox) return;
    if (!p.sequences) {
        step->index = p.next.index;
        step->lag = p.next.lag;
        step->accepted = p.next.accepted;
        step->replay = p.next.replay;
    }
    mailbox_post(p, z, &id, 1);
}

/* Verifies drafts. A block a sequence. Row t's logits determine the token of index + t + 1, chosen as ever for that index.
   While that token is the draft in row t + 1, row t + 1 was computed for the right text and is accepted. The first token
   that differs (or that follows the last row) ends the loop: it begins the next step, which replays the accepted rows. */
__global__ void __launch_bounds__(GPU_THREADS) gpu_accept(const __grid_constant__ gpu_sampling p) {
    __shared__ int32_t ids[MOTE_ROWS_MAX];
    __shared__ int accepted, go_on;
    const sampling_parameters *parameters = p.parameters + blockIdx.x * p.parameters_step;
    step_parameters *step = p.step + blockIdx.x;
    pdl_wait();
    const int index = step->index, T = p.sequences ? step->rows : p.turns ? gpu_rows_of_turns(step, p.turns) : p.T;
    for (int t = 0; t < T; t++) {
        int32_t id = gpu_token(p, parameters, step->first + t, (uint64_t)(index + t + 1));
        if (threadIdx.x == 0) {
            go_on = t + 1 < T && id == step->ids[t + 1];
            if (parameters->simulated.on) {
                go_on = t + 1 < T && simulated_accept(&parameters->simulated, step, t);
                id = go_on ? step->ids[t + 1] : simulated_token(step, 0, p.n);
            }
            ids[t] = id;
            accepted = t + 1;
        }
        __syncthreads();
        if (!go_on) break;
    }
    if (threadIdx.x) return;
    step->index = index + accepted;
    step->replay = step->accepted = accepted;
    step->ids[0] = ids[accepted - 1] < 0 ? 0 : ids[accepted - 1];
    if (p.sequences) step->first = blockIdx.x, step->rows = 1;         /* of the drafts' rows, one for each sequence */
    mailbox_post(p, blockIdx.x, ids, accepted);
}

static __global__ void gpu_put_kernel(const __grid_constant__ gpu_value p) {
    p.to[threadIdx.x] = p.word[threadIdx.x];
}

/* A step's parameters, as another session's last step left them, or this one's; sequence and, unless negative, replay and accepted are these. */
static __global__ void gpu_resume_kernel(step_parameters *to, const step_parameters *from, uint32_t sequence, int replay, int accepted) {
    step_parameters step = *from;
    step.sequence = sequence;
    if (replay >= 0) step.replay = replay;
    if (accepted >= 0) step.accepted = accepted;
    *to = step;
}

static void gpu_resume(gpu_queue *q, step_parameters *to, const step_parameters *from, uint32_t sequence, int replay, int accepted) {
    if (q->status != cudaSuccess) return;
    gpu_resume_kernel<<<1, 1, 0, q->stream>>>(to, from, sequence, replay, accepted);
    gpu_check(q, cudaGetLastError(), "changing the session");
}

/* Records topk_partial, then `choose`, sample_token or gpu_accept. The caller has checked gpu_can_sample. */
static void gpu_sample(gpu_queue *q, enum kernel_kind kind, const gpu_sampling *sampling, void (*choose)(gpu_sampling)) {
    gpu_sampling p = *sampling;
    int fewest = (p.n - 1) / (GPU_THREADS * GPU_TOPK_KEYS) + 1, most = (p.n - 1) / GPU_THREADS + 1;
    p.blocks = q->sms < most ? q->sms : most;
    if (p.blocks > GPU_TOPK_BLOCKS) p.blocks = GPU_TOPK_BLOCKS;
    if (p.blocks < fewest) p.blocks = fewest;
    gpu_record(q, KERNEL_TOPK_PARTIAL, "", topk_partial, p.blocks, p.T, 0, &p);
    gpu_record(q, kind, "", choose, max_int(p.sequences, 1), 1, 0, &p);
}

/* Stores *value to *to on the GPU, in stream order. The value travels as a kernel parameter: no host buffer has to live on.
   A plain launch, without programmatic dependent launch: it starts when all earlier kernels are complete, and since it does
   not call pdl_launch_dependents, the next kernel starts when it is complete. */
template <class V> static void gpu_put(gpu_queue *q, V *to, const V *value) {
    static_assert(sizeof *value % 4 == 0 && sizeof *value <= sizeof(gpu_value::word), "a thread for each word");
    gpu_value p = {(uint32_t *)(void *)to, {}};
    cudaLaunchConfig_t c = {};
    if (q->status != cudaSuccess) return;
    c.gridDim = dim3(1);
    c.blockDim = dim3(sizeof *value / 4);
    c.stream = q->stream;
    memcpy(p.word, value, sizeof *value);
    gpu_check(q, cudaLaunchKernelEx(&c, gpu_put_kernel, p), "writing a step");
}
