/* layers/head.cu: the last stage of a step on a GPU: logits. One projection; of several ranks a kernel that gathers what all have; and, where
   logits are capped, one that does so: whoever reads them, to choose a token, to weigh it or to tell it, finds capped ones. Choosing a token
   from them is cuda/sampling.cu's. */

typedef struct gpu_cap {
    handoff link;
    float *logits;               /* [n] */
    size_t n;
    float cap;
} gpu_cap;

/* logits = cap tanh(logits / cap). */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_cap_logits(const __grid_constant__ gpu_cap p) {
    pdl_launch_dependents();
    pdl_wait();
    for (size_t i = (size_t)blockIdx.x * GPU_THREADS + threadIdx.x; i < p.n; i += (size_t)gridDim.x * GPU_THREADS)
        p.logits[i] = p.cap * tanhf(p.logits[i] / p.cap);
}

/* Blocks for n logits. */
static int gpu_cap_blocks(size_t n, int sms) {
    const size_t most = (n - 1) / GPU_THREADS + 1;
    return most < (size_t)sms * 8 ? (int)most : sms * 8;
}

/* Of several ranks: each has the logits of its rows of the vocabulary, as many as each other, but for the last ones that have any. */
typedef struct gpu_gather {
    handoff link;
    const float *own;            /* [T][this rank's] */
    float *logits;               /* [T][n] of all */
    int T, n, most;              /* most: of a rank */
    peer_ranks ranks;
} gpu_gather;

/* Logits of so many that a rank has. */
static __host__ __device__ __forceinline__ int gpu_rank_logits(int n, int most, int rank) {
    const int left = n - most * rank;
    return left < 0 ? 0 : left < most ? left : most;
}

/* A block is a lane, and has PEER_LOGIT_LANES' part of each rank's columns, row after row. Of a lane without a rank's logits its first
   element comes nevertheless: it says that the row before has been read. */
static __global__ void __launch_bounds__(GPU_THREADS) gpu_gather_logits(const __grid_constant__ gpu_gather p) {
    const int width = (p.most - 1) / PEER_LOGIT_LANES + 1, first = blockIdx.x * width, end = min(first + width, p.most);
    const int own = gpu_rank_logits(p.n, p.most, p.ranks.rank);
    pdl_launch_dependents();
    pdl_wait();
    uint32_t number = peer_number(p.ranks.count, blockIdx.x);
    for (int t = 0; t < p.T; t++, number++) {
        float *row = p.logits + (size_t)t * p.n;
        for (int i = first + threadIdx.x; i < end && (i < own || i == first); i += GPU_THREADS) {
            const float v = i < own ? __ldcg(p.own + (size_t)t * own + i) : 0;
            for (int r = 0; r < p.ranks.ranks; r++)
                if (p.ranks.to[r]) peer_put(p.ranks.to[r] + (number & 1) * p.ranks.size + i, v, number + 1);
            if (i < own) row[p.most * p.ranks.rank + i] = v;
        }
        for (int r = 0; r < p.ranks.ranks; r++) {
            const int there = gpu_rank_logits(p.n, p.most, r);
            const peer_element *from = p.ranks.from + (2 * r + (number & 1)) * p.ranks.size;
            const peer_watch watch = {p.ranks.lost, p.ranks.over, p.ranks.first + (uint32_t)r};
            for (int i = first + threadIdx.x; r != p.ranks.rank && i < end && (i < there || i == first); i += GPU_THREADS) {
                const float v = peer_get(from + i, number + 1, watch);
                if (i < there) row[p.most * r + i] = v;
            }
        }
        __syncthreads();
    }
    peer_counted(p.ranks.count, blockIdx.x, number);
}

/* n logits of each of T rows, of which own are this rank's. */
static gpu_gather gpu_gather_of(const gpu_peer *peer, const float *own, int T, int n, float *logits) {
    const gpu_gather p = {.link = {}, .own = own, .logits = logits, .T = T, .n = n, .most = (int)peer->sizes.vocab_share,
                          .ranks = peers_ranks(peer, 1)};
    return p;
}

/* logits = lm_head rms(x) norm, [T][n]; the RMSNorm is the prologue of the projection. n: rows of lm_head, those of all ranks; cap 0: they are
   not capped. */
static void gpu_head(gpu_queue *q, const matrix *lm_head, int n, const float *norm, const float *x, int T, float eps, float cap, float *logits) {
    const int divided = peers_divide(q->peer);
    const gpu_cap c = {.link = {}, .logits = logits, .n = (size_t)T * (size_t)n, .cap = cap};
    float *own = divided ? q->peer->logits : logits;
    if (lm_head->rows) {
        gpu_projection<gpu_norm_rows> p = gpu_norm_projection(x, norm, lm_head->cols, T, eps);
        gpu_add_segment(&p, lm_head, own);
        gpu_record_projection(q, KERNEL_HEAD, &p);
    }
    if (divided) {
        const gpu_gather g = gpu_gather_of(q->peer, own, T, n, logits);
        gpu_record(q, KERNEL_GATHER, "", gpu_gather_logits, PEER_LOGIT_LANES, 1, 0, &g);
    }
    if (cap != 0) gpu_record(q, KERNEL_CAP, "", gpu_cap_logits, gpu_cap_blocks(c.n, q->sms), 1, 0, &c);
}
