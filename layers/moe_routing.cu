/* layers/moe_routing.cu: the choice of experts from the router's logits, and the list of the distinct ones. */

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
__device__ __forceinline__ void load_logits(const gpu_moe &p, int t, const gpu_tag &tag, uint32_t (*key)[8]) {
    const int one = ROWS == 1 ? 0 : min((int)blockIdx.x % 8 * 32, p.shape.experts - 1);
    uint32_t other = 0;
#pragma unroll 1
    do {
        if (other) spin_until_tagged(gpu_logit<ROWS>(p, t, one), tag);
        other = 0;
#pragma unroll
        for (int i = 0; i < 8 * LISTS; i++) {
            const int expert = i * 32 + (int)threadIdx.x % 32;
            key[i / 8][i % 8] = ~0u;
            if (expert >= p.shape.experts) continue;
            key[i / 8][i % 8] = __float_as_uint(load_relaxed(gpu_logit<ROWS>(p, t, expert)));
            other |= key[i / 8][i % 8] ^ tag.bits;
        }
        other = __any_sync(~0u, other & tag.mask);
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
    const gpu_tag none = {0, 0};
    uint32_t key[LISTS][8];
    load_logits<LISTS, ROWS>(p, t, none, key);
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
    if (threadIdx.x % 32 == 0) pdl_launch_dependents();
}
