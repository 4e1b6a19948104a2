/* layers/moe/routing.cu: routing on a GPU: from router logits to the top_k experts of each row, their weights, and the list
   of the distinct ones. Device functions of experts_up; they read the logits and write gpu_routing. They know nothing of
   the experts' weights.

   Every block computes the same routing for itself: a hand-off from one block to all others would take longer. */

/* Sorts eight keys, greatest first: an optimal network of 19 comparators in six rounds, those of a round independent of
   each other. */
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

/* Address of row t's logit of an expert. */
template <int ROWS> __device__ __forceinline__ const float *gpu_logit(const moe_gpu &p, int t, int expert) {
    return p.router + (size_t)(ROWS > 1 ? simulated_row(p.overlap, t, expert) : t) * p.shape.experts + expert;
}

/* Loads row t's router logits into key: lane l holds experts l, l + 32, ...; slots past the last expert get the smallest
   key.

   All logits are loaded first: in a block that starts after norm_router has stored them all, nothing else remains to be
   done. Only if a tag does not match does the warp spin, on a single logit, so that polling does not compete with
   norm_router for the same L2 lines; with several rows each block polls one of eight cache lines, by blockIdx.

   Deadlock: only experts_place and experts_up poll, and by the time they start all blocks of norm_router are resident.
   With an empty tag (mask 0) it never spins. */
template <int LISTS, int ROWS>
__device__ __forceinline__ void load_logits(const moe_gpu &p, int t, const gpu_tag &tag, uint32_t (*key)[8]) {
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

/* The bits of a float as an unsigned integer in the order of the floats; and back. */
__device__ __forceinline__ uint32_t gpu_ordered(uint32_t bits) {
    return bits ^ ((uint32_t)((int32_t)bits >> 31) | 0x80000000u);
}

__device__ __forceinline__ float gpu_of_ordered(uint32_t ordered) {
    return __uint_as_float(ordered >> 31 ? ordered ^ 0x80000000u : ~ordered);
}

/* What experts are chosen by where it is not their logits: ranks, as moe_ranks has them, ordered, in the places of the logits; 0: there is no expert.
   No bits of a rank are left out: scores near 1 differ in their last ones. */

enum : uint32_t { GPU_NO_RANK = 0x007fffff };               /* -infinity, ordered */

/* The sum of the two best ranks of group g, in all lanes. A group of one has -infinity. */
template <int LISTS> __device__ __forceinline__ float gpu_group_sum(const moe_gpu &p, const uint32_t (*key)[8], int g) {
    const int size = p.shape.experts / p.shape.groups, lane = threadIdx.x % 32;
    uint32_t best = GPU_NO_RANK, second = GPU_NO_RANK;
#pragma unroll
    for (int i = 0; i < 8 * LISTS; i++) {
        const int of = i * 32 + lane - g * size;
        const uint32_t rank = of >= 0 && of < size ? key[i / 8][i % 8] : GPU_NO_RANK;
        second = max(second, min(best, rank));
        best = max(best, rank);
    }
    const uint32_t top = __reduce_max_sync(~0u, best), lanes = __ballot_sync(~0u, best == top);
    const uint32_t next = __reduce_max_sync(~0u, lane == __ffs((int)lanes) - 1 ? second : best);
    return __fadd_rn(gpu_of_ordered(top), gpu_of_ordered(next));
}

/* -infinity becomes the rank of the experts of all but the groups_kept best groups, as in moe_keep_groups. */
template <int LISTS> __device__ __forceinline__ void gpu_keep_groups(const moe_gpu &p, uint32_t (*key)[8]) {
    const int groups = p.shape.groups, size = p.shape.experts / groups, lane = threadIdx.x % 32;
    float own = -INFINITY;       /* of group `lane` */
    int before = 0;
#pragma unroll 1
    for (int g = 0; g < groups; g++) {
        const float sum = gpu_group_sum<LISTS>(p, key, g);
        if (lane == g) own = sum;
    }
#pragma unroll 1
    for (int g = 0; g < groups; g++) {
        const float other = __shfl_sync(~0u, own, g);
        before += other > own || (other == own && g < lane);
    }
    const uint32_t kept = __ballot_sync(~0u, before < p.shape.groups_kept);
#pragma unroll
    for (int i = 0; i < 8 * LISTS; i++) {
        const int e = i * 32 + lane;
        if (e < p.shape.experts && !(kept >> e / size & 1)) key[i / 8][i % 8] = GPU_NO_RANK;
    }
}

/* Logits become ranks. One loop after the other: with all in one ptxas spills. */
template <int LISTS> __device__ __forceinline__ void gpu_rank(const moe_gpu &p, uint32_t (*key)[8]) {
    const int lane = threadIdx.x % 32;
    if (p.shape.sigmoid) {
#pragma unroll
        for (int i = 0; i < 8 * LISTS; i++) key[i / 8][i % 8] = __float_as_uint(gpu_sigmoid(__uint_as_float(key[i / 8][i % 8])));
    }
    if (p.shape.corrected) {
#pragma unroll
        for (int i = 0; i < 8 * LISTS; i++) {
            const float by = i * 32 + lane < p.shape.experts ? __ldg(p.correction + i * 32 + lane) : 0;
            key[i / 8][i % 8] = __float_as_uint(__fadd_rn(__uint_as_float(key[i / 8][i % 8]), by));
        }
    }
#pragma unroll
    for (int i = 0; i < 8 * LISTS; i++) {
        const float rank = __fadd_rn(__uint_as_float(key[i / 8][i % 8]), 0);            /* -0 becomes 0: they are equal */
        key[i / 8][i % 8] = i * 32 + lane < p.shape.experts ? gpu_ordered(__float_as_uint(rank)) : 0;
    }
    if (p.shape.groups) gpu_keep_groups<LISTS>(p, key);
}

/* Top-k of one row by ranks, as gpu_choose: the lower index first among equals. key: logits on entry. */
template <int LISTS> __device__ __forceinline__ int gpu_choose_by_rank(const moe_gpu &p, uint32_t (*key)[8]) {
    const int lane = threadIdx.x % 32;
    int chosen = 0;
    gpu_rank<LISTS>(p, key);
#pragma unroll 1
    for (int r = 0; r < p.shape.top_k; r++) {
        uint32_t best = key[0][0];
        int at = 0;
#pragma unroll
        for (int i = 1; i < 8 * LISTS; i++)
            if (key[i / 8][i % 8] > best) best = key[i / 8][i % 8], at = i;
        const uint32_t top = __reduce_max_sync(~0u, best);
        const int expert = (int)__reduce_min_sync(~0u, best == top ? (uint32_t)(at * 32 + lane) : ~0u);
        if (lane == r) chosen = expert;
#pragma unroll
        for (int i = 0; i < 8 * LISTS; i++)
            if (expert == i * 32 + lane) key[i / 8][i % 8] = 0;
    }
    return min(chosen, p.shape.experts - 1);
}

/* Top-k of one row, by one warp: lane r returns the r-th best expert. top_k is TOP, or p.shape.top_k if TOP is 0. It is on
   the critical path of every block, so a round is kept short: one __reduce_max_sync, one ballot, one shift of a sorted
   list.

   Each lane keeps its experts lane, lane + 32, ... in LISTS sorted lists of eight; its best is at the head of one of them.
   key: logits on entry, mapped to unsigned integers in the order of the floats. The lowest bits of a key are replaced by
   the number of the expert within the lane, so that no two keys of a lane are equal. Logits that differ by less than 2^-18
   of their value may count as equal, which is finer than the sums resolve; among equals the lower expert index wins. The
   result is below shape.experts whatever key holds. */
template <int LISTS, int TOP = 0> __device__ __forceinline__ int gpu_choose(const moe_gpu &p, uint32_t (*key)[8]) {
    enum { LANE_KEYS = LISTS == 1 ? 8 : GPU_EXPERTS / 32 };  /* bits for it; two lists choose as four do */
    const int lane = threadIdx.x % 32;
    uint32_t chosen = 0, lanes_with_it = 1;
    if (p.ranks) return gpu_choose_by_rank<LISTS>(p, key);
#pragma unroll
    for (int i = 0; i < 8 * LISTS; i++)
        key[i / 8][i % 8] = gpu_ordered(key[i / 8][i % 8]) / LANE_KEYS * LANE_KEYS + (LANE_KEYS - 1 - i);
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
    return min((LANE_KEYS - 1 - (int)(chosen % LANE_KEYS)) * 32 + __ffs((int)lanes_with_it) - 1, p.shape.experts - 1);
}

/* Softmax over the top_k logits of a row, on each LANES neighbouring lanes: number r holds the r-th best and returns its
   weight. */
template <int LANES> __device__ __forceinline__ float gpu_softmax(float logit, int top_k) {
    const int lane = threadIdx.x % 32, r = lane % LANES;
    float best = __shfl_sync(~0u, logit, lane - r), share = r < top_k ? __expf(logit - best) : 0, sum = share;
#pragma unroll
    for (int i = LANES / 2; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    return share / sum;
}

/* The same with sigmoids: each divided by their sum, or, of_all, as it is. */
template <int LANES> __device__ __forceinline__ float gpu_share_of_sigmoids(float logit, int top_k, int of_all) {
    const float score = (int)threadIdx.x % LANES < top_k ? gpu_sigmoid(logit) : 0;
    float sum = score;
#pragma unroll
    for (int i = LANES / 2; i; i /= 2) sum += __shfl_xor_sync(~0u, sum, i);
    return of_all ? score : score / (sum + 1e-20f);         /* as the models have it: no quotient of zeros */
}

/* A weight, of an expert's share. */
__device__ __forceinline__ float gpu_weight_of_share(const moe_gpu &p, float share, int expert) {
    if (p.shape.routed_scale != 0) share *= p.shape.routed_scale;
    if (p.shape.expert_scaled) share *= __ldg(p.expert_scale + expert);
    return share;
}

/* The weight of row t's assignment to the r-th best expert, on lane r < top_k of a warp that has chosen for it: of the softmax over the chosen
   experts or, of_all, over all; or of sigmoids, as above. With a correction the first one's logit need not be the largest. */
template <int ROWS> __device__ __forceinline__ float gpu_choice_weight(const moe_gpu &p, int t, int expert) {
    const int r = threadIdx.x % 32, sigmoid = p.shape.sigmoid, all = p.shape.of_all;
    const bool chosen = r < p.shape.top_k;
    const float logit = __ldcg(gpu_logit<ROWS>(p, t, expert));
    const float best = p.shape.corrected ? warp_max(chosen ? logit : -INFINITY) : __shfl_sync(~0u, logit, 0);
    const float own = sigmoid ? gpu_sigmoid(logit) : __expf(logit - best);
    float sum = chosen ? own : 0;
    if (all && !sigmoid) {
        sum = 0;
        for (int e = r; e < p.shape.experts; e += 32) sum += __expf(__ldcg(gpu_logit<ROWS>(p, t, e)) - best);
    }
    sum = warp_sum(sum);
    if (sigmoid) sum = all ? 1 : sum + 1e-20f;
    return gpu_weight_of_share(p, own / sum, expert);
}

/* The weight of the shared expert for row t. */
__device__ __forceinline__ float gpu_shared_weight(const moe_gpu &p, int t) {
    return p.shape.shared_ungated ? 1 : gpu_sigmoid(__ldcg(p.shared_gate + t));
}

/* Where an expert is, from the L2: experts_place may have changed it. */
__device__ __forceinline__ int64_t gpu_expert_at(const moe_gpu &p, int expert) {
    return __ldcg((const long long *)p.expert_at + expert);
}

/* Whether a bias of down_proj is to be added. */
__host__ __device__ __forceinline__ bool gpu_has_down_bias(const moe_gpu &p) {
    return p.down.bias || p.shared_down.bias;
}

/* What a lane's expert is to row t: its r-th best, and its weight. */
__device__ __forceinline__ void gpu_put_choice(const moe_gpu &p, int t, int expert, float weight) {
    p.batch.choice[t * p.shape.top_k + threadIdx.x % 32] = expert;
    p.batch.choice_weight[t * p.shape.top_k + threadIdx.x % 32] = weight;
}

/* The sum of the biases of row t's down projections, each times its weight: of its experts, best first, then of the shared one. h holds the
   weights already, a bias does not. The same order in all kernels. After the wait for experts_up or route, which put the choice. */
__device__ __forceinline__ float gpu_down_bias(const moe_gpu &p, int t, int row) {
    const int top_k = p.shape.top_k;
    float sum = 0;
#pragma unroll 4
    for (int i = t * top_k; p.down.bias && i < (t + 1) * top_k; i++)
        sum = __fmaf_rn(__ldcg(p.batch.choice_weight + i), epilogue_bias<true>(p.down, gpu_expert_at(p, __ldcg(p.batch.choice + i)), row),
                        sum);
    if (p.shape.shared_size && p.shared_down.bias)
        sum = __fmaf_rn(gpu_shared_weight(p, t), epilogue_bias<true>(p.shared_down, 0, row), sum);
    return sum;
}

/* The routing as a block of gpu_experts_up holds it in shared memory. */
struct gpu_block_routing {
    gpu_routing list;
    float weight[GPU_CHOSEN][STEP_ROWS];                /* of an assignment, by place in the list and token row */
    uint32_t mask[GPU_EXPERTS / 32];                        /* bit set of the distinct experts */
};

/* Prefetches where the experts are into the L2: what loads it when the routing is known does not wait for memory. Its last 16 bytes are the
   table's, too. */
__device__ __forceinline__ void gpu_prefetch_table(const moe_gpu &p) {
    if (blockIdx.x == 0 && threadIdx.x == 0) l2_prefetch(p.expert_at, (uint32_t)((p.shape.experts + 1) / 2 * 16));
}

/* Clears what gpu_route sets bits in. Ends with a barrier. */
__device__ __forceinline__ void gpu_route_nothing(gpu_block_routing *to) {
    if (threadIdx.x < GPU_EXPERTS / 32) to->mask[threadIdx.x] = 0;
    if (threadIdx.x < GPU_CHOSEN) to->list.rows[threadIdx.x] = 0;
    __syncthreads();
}

/* Top-k of row t where norm_router is already complete. */
template <int LISTS, int ROWS> __device__ __forceinline__ int gpu_choose_of(const moe_gpu &p, int t) {
    const gpu_tag none = {0, 0};
    uint32_t key[LISTS][8];
    load_logits<LISTS, ROWS>(p, t, none, key);
    return gpu_choose<LISTS>(p, key);
}

/* Computes the routing of all rows; warp t chooses for row t. A lane r < top_k learns the expert it has chosen and its
   place in the list; gpu_up_tiles::prepare computes the weights later, off the critical path. Where the expert is has been prefetched into
   the L2, and comes while the lane looks for that place.

   Place in the list = number of distinct experts with a lower index: a prefix sum of population counts over the bit set.
   The integer atomics on shared memory set bits; their order does not matter. */
template <int ROWS>
__device__ __forceinline__ void gpu_route(const moe_gpu &p, gpu_block_routing *to, int *chosen, int *place) {
    int t = threadIdx.x / 32, lane = threadIdx.x % 32, words = (p.shape.experts + 31) / 32, expert = 0;
    int64_t at = 0;
    if (t < p.T) {
        expert = p.shape.experts <= 256 ? gpu_choose_of<1, ROWS>(p, t) : gpu_choose_of<GPU_EXPERTS / 256, ROWS>(p, t);
        at = gpu_expert_at(p, expert);
        if (lane < p.shape.top_k) atomicOr(&to->mask[expert / 32], 1u << expert % 32);
    }
    __syncthreads();
    if (t < p.T) {                                          /* place in the list: distinct experts before this one */
        uint32_t word = lane < words ? to->mask[lane] : 0;
        int all = warp_prefix_sum(__popc(word)), before = __shfl_sync(~0u, all - __popc(word), expert / 32);
        before += __popc(__shfl_sync(~0u, word, expert / 32) & ((1u << expert % 32) - 1));
        if (lane < p.shape.top_k) {
            to->list.at[before] = at;
            atomicOr(&to->list.rows[before], 1 << t);
        }
        if (threadIdx.x == 31) to->list.count = all;
        *place = before;
    }
    *chosen = expert;
    __syncthreads();
}

/* Publishes the routing for experts_down, then lets it launch. Called by one warp of every block, after its pdl_wait;
   write() stores the distinct experts and their rows.

   The last block writes the routing, as it has the fewest tiles. Memory order: it writes, __threadfence, then triggers;
   experts_down can start only when every block has triggered, and reads the routing from L2. Since each block triggers
   after its pdl_wait, experts_down may also read, before its own wait, all that norm_router and the kernels before it
   wrote. */
template <class WRITE> __device__ __forceinline__ void gpu_publish(const moe_gpu &p, int count, const WRITE &write) {
    if (blockIdx.x == gridDim.x - 1) {
        write();
        if (threadIdx.x % 32 == 0) p.routing->count = *p.chosen = count;
        __threadfence();
        __syncwarp();
    }
    if (threadIdx.x % 32 == 0) pdl_launch_dependents();
}
