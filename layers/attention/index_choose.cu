/* layers/attention/index_choose.cu: index_choose: the groups that a row attends to, on a GPU: the index_kept ones of the highest scores, of equal
   ones the first. The definition is index_select (layers/attention/index.c). It knows scores alone.

   Scores are not negative, so their bits are in their order. A block has a row:
     1. With many scores it finds a bound, which at least `kept` scores reach: of every 1,024th four from a thread's on the largest, and of
        these 1,024 the one of rank `kept`.
     2. Scores that reach it, mostly not many more than that, are candidates, in shared memory in any order. Are there too many, as where most
        are equal, all that follows goes through the scores themselves.
     3. Of the candidates the score of rank `kept`, eight bits at a time; and, if not all that are equal to it are kept, the last of these.
     4. What is chosen is marked, one bit a group; marks are the list in its order.

   Integers alone are counted by atomics: the result does not depend on their order. */

enum { INDEX_CANDIDATES = 3072, INDEX_TOPS = 4 * GPU_THREADS };

typedef struct index_search {
    int histogram[256];
    int sums[GPU_WARPS];
    int digit, equal, alike;     /* found: a digit; of those that have it so many are kept, of so many */
    int count;                   /* candidates, or more than there is space for */
    uint32_t key[INDEX_CANDIDATES];                          /* bits of scores */
    int group[INDEX_CANDIDATES];
} index_search;

/* The sum of v over the threads up to this one. All threads of the block call it. */
__device__ __forceinline__ int index_block_prefix(int v, int *sums) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = warp_prefix_sum(v);
    __syncthreads();
    if (lane == 31) sums[warp] = sum;
    __syncthreads();
    for (int w = 0; w < warp; w++) sum += sums[w];
    return sum;
}

/* The key of rank `kept` among at least so many, the greatest first; sh->equal: how many of those that are equal to it are kept, of sh->alike. each(f)
   calls f(key) in some thread for each. All threads of the block call it. */
template <class EACH> __device__ __forceinline__ uint32_t index_of_rank(index_search *sh, int kept, const EACH &each) {
    uint32_t last = 0, mask = 0;
#pragma unroll 1
    for (int shift = 24; shift >= 0; shift -= 8) {
        sh->histogram[threadIdx.x] = 0;
        __syncthreads();
        each([&](uint32_t key) {
            if ((key & mask) == last) atomicAdd(&sh->histogram[key >> shift & 255], 1);
        });
        __syncthreads();
        const int digit = 255 - (int)threadIdx.x, own = sh->histogram[digit], up_to = index_block_prefix(own, sh->sums);
        if (up_to >= kept && up_to - own < kept) {
            sh->digit = digit;
            sh->equal = kept - (up_to - own);
            sh->alike = own;
        }
        __syncthreads();
        last |= (uint32_t)sh->digit << shift;
        mask |= 255u << shift;
        kept = sh->equal;
    }
    return last;
}

/* Calls f(bits, group, k) for each of n scores, in some thread, k = group % 4; bits after them are 0. */
template <class F> __device__ __forceinline__ void index_each_score(const float *score, int n, const F &f) {
#pragma unroll 2
    for (int i = 4 * threadIdx.x; i < n; i += 4 * GPU_THREADS) {
        const float4 four = __ldcg((const float4 *)(score + i));
        f(__float_as_uint(four.x), i, 0);
        f(i + 1 < n ? __float_as_uint(four.y) : 0, i + 1, 1);
        f(i + 2 < n ? __float_as_uint(four.z) : 0, i + 2, 2);
        f(i + 3 < n ? __float_as_uint(four.w) : 0, i + 3, 3);
    }
}

/* What at least `kept` scores reach. */
__device__ __forceinline__ uint32_t index_bound(index_search *sh, const float *score, int n, int kept) {
    uint32_t top[4] = {0, 0, 0, 0};
    if (n <= INDEX_CANDIDATES || kept > INDEX_TOPS) return 0;
    index_each_score(score, n, [&](uint32_t bits, int, int k) { top[k] = max(top[k], bits); });
    return index_of_rank(sh, kept, [&](auto f) {
#pragma unroll
        for (int k = 0; k < 4; k++) f(top[k]);
    });
}

/* Marks the chosen ones of n > kept scores. The block calls it together. */
__device__ __forceinline__ void index_mark(index_search *sh, const float *score, int n, int kept, uint32_t *marks) {
    const uint32_t bound = index_bound(sh, score, n, kept);
    __syncthreads();
    if (threadIdx.x == 0) sh->count = 0;
    for (int i = threadIdx.x; i <= n / 32; i += GPU_THREADS) marks[i] = 0;
    __syncthreads();
    index_each_score(score, n, [&](uint32_t bits, int group, int) {
        if (group >= n || bits < bound || *(volatile int *)&sh->count > INDEX_CANDIDATES) return;
        const int at = atomicAdd(&sh->count, 1);
        if (at >= INDEX_CANDIDATES) return;
        sh->key[at] = bits;
        sh->group[at] = group;
    });
    __syncthreads();
    const int count = sh->count;
    auto each = [&](auto f) {
        for (int i = threadIdx.x; count <= INDEX_CANDIDATES && i < count; i += GPU_THREADS) f(sh->key[i], sh->group[i]);
        if (count <= INDEX_CANDIDATES) return;
        index_each_score(score, n, [&](uint32_t bits, int group, int) {
            if (group < n && bits >= bound) f(bits, group);
        });
    };
    const uint32_t last = index_of_rank(sh, kept, [&](auto f) { each([&](uint32_t bits, int) { f(bits); }); });
    uint32_t before = 0;
    if (sh->equal < sh->alike) {                             /* of those that are equal to it the last one, in the order of groups */
        before = index_of_rank(sh, sh->equal, [&](auto f) {
            each([&](uint32_t bits, int group) {
                if (bits == last) f(~(uint32_t)group);
            });
        });
    }
    each([&](uint32_t bits, int group) {
        if (bits > last || (bits == last && ~(uint32_t)group >= before)) atomicOr(&marks[group / 32], 1u << group % 32);
    });
    __syncthreads();
}

/* The list of what is marked, of n groups. */
__device__ __forceinline__ void index_list(index_search *sh, const uint32_t *marks, int n, int32_t *to) {
    const int words = (n + 31) / 32, each = (words + GPU_THREADS - 1) / GPU_THREADS, from = (int)threadIdx.x * each;
    int count = 0;
    for (int i = from; i < min(from + each, words); i++) count += __popc(__ldcg(marks + i));
    int at = index_block_prefix(count, sh->sums) - count;
    for (int i = from; i < min(from + each, words); i++)
        for (uint32_t bits = __ldcg(marks + i); bits; bits &= bits - 1) to[at++] = i * 32 + __ffs((int)bits) - 1;
}

/* The kernel. Grid: (1, 1, rows), see index_row_of. */
static __global__ void __launch_bounds__(GPU_THREADS) index_choose(const __grid_constant__ attention_gpu p) {
    __shared__ index_search sh;
    pdl_launch_dependents();
    const index_row r = index_row_of(p, blockIdx.z);
    const int kept = index_kept(&p.shape), n = r.visible / p.shape.index_group;
    pdl_wait();
    if (r.row < 0 || !index_leaves_out(&p.shape, r.visible - 1)) return;
    uint32_t *marks = p.index.marks + (size_t)r.row * (p.index.stride / 32);
    index_mark(&sh, p.index.scores + (size_t)r.row * p.index.stride, n, kept, marks);
    index_list(&sh, marks, n, p.index.chosen + (size_t)r.row * kept);
    __syncthreads();
    if (threadIdx.x == 0) atomicOr(&marks[n / 32], 1u << n % 32);
}
