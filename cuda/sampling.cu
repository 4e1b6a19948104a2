/* cuda/sampling.cu: the choice of the next token on a GPU. Knows logits, and nothing of layers.

   The next token, chosen on the device, so that the next step can start before the host knows it. What is to be computed
   is sample() of session/sampling.c: the best top_k of the logits, best first; of these the best until their weights sum to
   a share top_p, and none lighter than min_p times the best; one of them by a uniform number.

   A logit and its id make a 64-bit key: in front the logit's bits, rearranged so that unsigned order is the order of
   floats, then the complement of the id. Of equal logits the lowest id is greatest, and no two keys are equal. The best k
   of many keys, by a block: each thread finds the best of its own; the k-th best of these 256 is a bound that k keys reach
   for certain and few others do; whatever reaches it is collected, and each key finds its place by counting those above
   it. gpu_pick does that to a slice of the logits in each block, gpu_draw in one block to what gpu_pick found. */

enum {
    GPU_TOP_K = 64,              /* most candidates */
    GPU_PICKS = GPU_THREADS,     /* most blocks of gpu_pick: gpu_draw has a thread for each */
    GPU_PICK_KEYS = 16           /* most logits a thread looks at */
};

#define GPU_NAN (~(uint64_t)0)   /* key of a NaN: above all others; 0 is the key of nothing */

/* How to choose; in device memory, because a captured graph reads it. */
typedef struct sampling_parameters {
    float temperature;           /* 0: greedy */
    int32_t k;                   /* candidates: 1..GPU_TOP_K; greedy: 1 */
    float top_p, min_p;          /* as in mote_sampling */
    uint64_t seed;
    int32_t simulate;            /* 1: tokens are random, drafts are accepted at the rates `accept` */
    float accept[GPU_ROWS - 1];
} sampling_parameters;

/* What the device tells a waiting host, in its memory: `posted`, written last, is sequence << 32 | number of ids. */
typedef struct gpu_mailbox { uint64_t posted; int32_t ids[GPU_ROWS]; } gpu_mailbox;

typedef struct gpu_sampling {
    const sampling_parameters *parameters;          /* device */
    const float *logits;         /* device: [T][stride] */
    size_t stride;
    int T;                       /* rows: 1 unless gpu_accept */
    int n;                       /* ids that may be chosen */
    uint64_t *picks;             /* device scratch: [GPU_ROWS][GPU_PICKS][GPU_TOP_K] */
    step_parameters *step;              /* device: the step that was computed and then the next */
    volatile gpu_mailbox *mailbox; /* in the host's memory; NULL: it need not know */
    int32_t position, replay;    /* gpu_draw with an answer: of the step that runs the token */
    int draft;                   /* gpu_draw without: place of the token in the step */
    int blocks;                  /* set by the launcher: of gpu_pick, for a row */
} gpu_sampling;

typedef struct gpu_put_step { step_parameters *to, value; } gpu_put_step;
typedef struct gpu_put_sampling { sampling_parameters *to, value; } gpu_put_sampling;

/* Whether gpu_sample chooses as sample() would. Else the logits go to the host. */
static int gpu_can_sample(int n, float temperature, int top_k) {
    return n >= 1 && n <= GPU_PICKS * GPU_THREADS * GPU_PICK_KEYS &&
           (!(temperature > 0) || (top_k >= 1 && top_k <= GPU_TOP_K && top_k < n));
}

/* The bits of uniform() in session/sampling.c. */
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
    const int k = p.parameters->k;
    uint64_t head = 0, *best = p.picks + (size_t)(blockIdx.y * GPU_PICKS + blockIdx.x) * GPU_TOP_K;
    int first = ((threadIdx.x / 32) * p.blocks + blockIdx.x) * 32 + threadIdx.x % 32, step = p.blocks * GPU_THREADS;
    pdl_launch_dependents();
    pdl_wait();
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
__device__ __forceinline__ int32_t gpu_draw_one(const sampling_parameters *parameters, const uint64_t *top, double *weight, uint64_t position) {
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
    double draw = gpu_uniform(parameters->seed, position) * sum;
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
    const int k = p.parameters->k;
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
    return isfinite(gpu_key_logit(top[0])) ? gpu_draw_one(p.parameters, top, weight, position) : (int32_t)~(uint32_t)top[0];
}

/* A random token, for simulations; place: in the step. */
__device__ __forceinline__ int32_t gpu_random_token(const gpu_sampling &p, int place) {
    return (int32_t)(gpu_uniform(p.step->sequence, (uint64_t)(GPU_ROWS + place)) * p.n);
}

/* Tells the host `count` ids. */
__device__ __forceinline__ void mailbox_post(const gpu_sampling &p, const int32_t *ids, int count) {
    for (int i = 0; i < count; i++) p.mailbox->ids[i] = ids[i];
    __threadfence_system();
    p.mailbox->posted = (uint64_t)++p.step->sequence << 32 | (uint32_t)count;
    __threadfence_system();
}

/* One token, in one block: the first of the next step, posted to the host, or a draft. An id that does not exist is posted,
   but not run. This kernel and the next do not trigger: those after them may read step_parameters before their wait. */
__global__ void __launch_bounds__(GPU_THREADS) gpu_draw(const __grid_constant__ gpu_sampling p) {
    pdl_wait();
    int32_t id = gpu_token(p, 0, (uint64_t)p.position);
    if (threadIdx.x) return;
    if (p.parameters->simulate) id = gpu_random_token(p, p.draft);
    p.step->ids[p.draft] = id < 0 ? 0 : id;
    if (!p.mailbox) return;
    p.step->position = p.position;
    p.step->replay = p.replay;
    mailbox_post(p, &id, 1);
}

/* Verification. Row t of the block that was computed says which token comes at position + t + 1, chosen as always for that
   position. As long as that is the block's next token, a draft, its row was computed for the right text, and counts. So
   the next step keeps the rows up to the first surprise, and that begins it. One block. */
__global__ void __launch_bounds__(GPU_THREADS) gpu_accept(const __grid_constant__ gpu_sampling p) {
    __shared__ int32_t ids[GPU_ROWS];
    __shared__ int kept, go_on;
    pdl_wait();
    const int position = p.step->position;
    for (int t = 0; t < p.T; t++) {
        int32_t id = gpu_token(p, t, (uint64_t)(position + t + 1));
        if (threadIdx.x == 0) {
            go_on = t + 1 < p.T && id == p.step->ids[t + 1];
            if (p.parameters->simulate) {
                go_on = t + 1 < p.T && gpu_uniform(p.step->sequence, (uint64_t)t) < p.parameters->accept[t];
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
    mailbox_post(p, ids, kept);
}

__global__ void gpu_put_step_kernel(const __grid_constant__ gpu_put_step p) {
    *p.to = p.value;
}

__global__ void gpu_put_sampling_kernel(const __grid_constant__ gpu_put_sampling p) {
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
