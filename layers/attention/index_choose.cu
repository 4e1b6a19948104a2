/* layers/attention/index_choose.cu: index_choose: the groups that a row attends to, on a GPU: the index_kept ones of the highest scores, of
   equal ones the first. The definition is index_select (layers/attention/index.c). It knows scores, and the highest of each octet, eight
   neighbours.

   Scores are not negative, so their bits are in their order. A block has a row:
     1. With many scores it finds a bound, which at least `kept` scores reach: the highest scores of octets are dealt to 1,024 numbers, each of
        which keeps the largest; the bound is the one of rank `kept` of these, or a little less.
     2. Octets that reach it are listed, in their order, and read: mostly not many more than `kept`, whatever the context.
     3. Scores that reach it are candidates, in shared memory, in their order. Are there too many, as where most are equal, what follows goes
        through the scores themselves.
     4. The score of rank `kept` of the candidates is found eight bits at a time, until all that are still alike are kept.
     5. What is above it, and of what is equal to it the first, is the list.

   Integers alone are counted by atomics: the result does not depend on their order.

   Why it is fast: a block runs on one SM, and of all scores of a long context, 256 KB of 262,144 tokens, it would wait for many rounds of
   loads. Instead it loads 32 KB of octets' highest scores twice, and some 700 octets, each in one round. Histograms are of what is above the
   least key, in the bits that there are: the first bits of floats are alike, and atomics on one counter queue. */

enum {
    INDEX_NUMBERS = 4 * GPU_THREADS,
    INDEX_OCTETS = 32768,        /* most octets that have a bit of index_search.reaches */
    INDEX_LISTED = 2048,         /* most of them that are read */
    INDEX_CANDIDATES = 4096
};

typedef struct index_search {
    int histogram[256];
    int sums[GPU_WARPS];
    uint32_t low[GPU_WARPS], high[GPU_WARPS];
    int digit, equal, alike;     /* found: a digit; of those that have it so many are kept, of so many */
    uint32_t reaches[INDEX_OCTETS / 32];                     /* one bit an octet */
    int octet[INDEX_LISTED];
    alignas(16) uint32_t key[INDEX_CANDIDATES];              /* bits of scores; four are stored at a time, as of the groups */
    alignas(16) int group[INDEX_CANDIDATES];
} index_search;

/* The sum of v over the threads before this one; *all: over the block, whose threads all call it. */
__device__ __forceinline__ int index_block_prefix(int v, int *sums, int *all) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int sum = warp_prefix_sum(v) - v;
    __syncthreads();
    if (lane == 31) sums[warp] = sum + v;
    __syncthreads();
    *all = 0;
#pragma unroll
    for (int w = 0; w < GPU_WARPS; w++) {
        sum += w < warp ? sums[w] : 0;
        *all += sums[w];
    }
    return sum;
}

/* The least and the greatest over the threads of the block, which all call it. */
__device__ __forceinline__ void index_block_range(index_search *sh, uint32_t *low, uint32_t *high) {
    *low = __reduce_min_sync(~0u, *low);
    *high = __reduce_max_sync(~0u, *high);
    if (threadIdx.x % 32 == 0) {
        sh->low[threadIdx.x / 32] = *low;
        sh->high[threadIdx.x / 32] = *high;
    }
    __syncthreads();
#pragma unroll
    for (int w = 0; w < GPU_WARPS; w++) {
        *low = min(*low, sh->low[w]);
        *high = max(*high, sh->high[w]);
    }
}

/* The key of rank `kept` among at least so many, the greatest first; sh->equal: how many of those that are equal to it are kept, of sh->alike.
   each(f) calls f(key) in some thread for each. Where all that have its first bits are kept, it is the least key of these bits, and all that
   reach it are kept; after `digits` digits it is such a key in any case. All threads of the block call it. */
template <class EACH> __device__ __forceinline__ uint32_t index_of_rank(index_search *sh, int kept, int digits, const EACH &each) {
    uint32_t low = ~0u, high = 0, last = 0;
    each([&](uint32_t key) {
        low = key ? min(low, key) : low;
        high = max(high, key);
    });
    index_block_range(sh, &low, &high);
    const uint32_t base = high ? low - 1 : 0;                /* 0 stays 0, all others are more */
    int shift = 32 - __clz((int)(high - base));
#pragma unroll 1
    do {
        const int bits = min(shift, 8), end = shift;
        shift -= bits;
        sh->histogram[threadIdx.x] = 0;
        __syncthreads();
        each([&](uint32_t key) {
            const uint32_t above = max(key, base) - base;
            if (above >> end == last >> end) atomicAdd(&sh->histogram[above >> shift & ((1u << bits) - 1)], 1);
        });
        __syncthreads();
        int all;
        const int digit = 255 - (int)threadIdx.x, own = sh->histogram[digit], before = index_block_prefix(own, sh->sums, &all);
        if (before < kept && before + own >= kept) {
            sh->digit = digit;
            sh->equal = kept - before;
            sh->alike = own;
        }
        __syncthreads();
        last |= (uint32_t)sh->digit << shift;
        kept = sh->equal;
    } while (shift && kept < sh->alike && --digits);
    return last ? base + last : 0;
}

/* Calls f(four, i) for each four of n numbers, i the number of the first; what is not there is 0. All threads of the block call it, and those
   of a warp call f together. AT_ONCE fours of a thread are in flight. */
template <class F> __device__ __forceinline__ void index_each_four(const float *numbers, int n, const F &f) {
    enum { AT_ONCE = 8, STEP = 4 * GPU_THREADS };
#pragma unroll 1
    for (int first = 0; first < n; first += AT_ONCE * STEP) {
        uint4 four[AT_ONCE];
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int i = first + j * STEP + 4 * (int)threadIdx.x;
            four[j] = i < n ? __ldcg((const uint4 *)(numbers + i)) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < AT_ONCE; j++) {
            const int i = first + j * STEP + 4 * (int)threadIdx.x;
            if (first + j * STEP >= n) break;
            four[j].y = i + 1 < n ? four[j].y : 0;
            four[j].z = i + 2 < n ? four[j].z : 0;
            four[j].w = i + 3 < n ? four[j].w : 0;
            f(four[j], i);
        }
    }
}

/* What at least `kept` scores reach, from the highest scores of octets; 0: any. */
__device__ __forceinline__ uint32_t index_bound(index_search *sh, const float *highest, int octets, int kept) {
    uint32_t most[4] = {0, 0, 0, 0};
    if (octets > INDEX_OCTETS || kept > INDEX_NUMBERS) return 0;
    index_each_four(highest, octets, [&](uint4 v, int) {
        most[0] = max(most[0], v.x);
        most[1] = max(most[1], v.y);
        most[2] = max(most[2], v.z);
        most[3] = max(most[3], v.w);
    });
    return index_of_rank(sh, kept, 2, [&](auto f) {
#pragma unroll
        for (int k = 0; k < 4; k++) f(most[k]);
    });
}

/* Lists the octets that reach the bound, which is not 0; returns how many, or more than there is space for. */
__device__ __forceinline__ int index_list_octets(index_search *sh, const float *highest, int octets, uint32_t bound) {
    const int words = (octets + 31) / 32, each = (words + GPU_THREADS - 1) / GPU_THREADS;
    const int from = (int)threadIdx.x * each, end = min(from + each, words);
    int own = 0, count;
    index_each_four(highest, octets, [&](uint4 v, int i) {
        uint32_t word = (v.x >= bound) | (v.y >= bound) << 1 | (v.z >= bound) << 2 | (v.w >= bound) << 3;
        word <<= threadIdx.x % 8 * 4;
#pragma unroll
        for (int k = 1; k < 8; k *= 2) word |= __shfl_xor_sync(~0u, word, k);
        if (threadIdx.x % 8 == 0 && i < octets) sh->reaches[i / 32] = word;
    });
    __syncthreads();
    for (int i = from; i < end; i++) own += __popc(sh->reaches[i]);
    int at = index_block_prefix(own, sh->sums, &count);
    for (int i = from; count <= INDEX_LISTED && i < end; i++)
        for (uint32_t bits = sh->reaches[i]; bits; bits &= bits - 1) sh->octet[at++] = i * 32 + __ffs((int)bits) - 1;
    __syncthreads();
    return count;
}

/* Makes candidates of the scores of `listed` octets that reach the bound; returns how many, or more than there is space for. */
__device__ __forceinline__ int index_gather(index_search *sh, const float *score, int n, int listed, uint32_t bound) {
    enum { EACH = 4 };           /* octets of a thread */
    int count = 0;
#pragma unroll 1
    for (int first = 0; first < listed; first += EACH * GPU_THREADS) {
        uint4 four[2 * EACH];
        int group[EACH];
        uint32_t reaches = 0;
#pragma unroll
        for (int j = 0; j < EACH; j++) {
            const int i = first + (int)threadIdx.x * EACH + j;
            group[j] = i < listed ? sh->octet[i] * INDEX_OCTET : n;
#pragma unroll
            for (int half = 0; half < 2; half++)
                four[2 * j + half] = group[j] + 4 * half < n ? __ldcg((const uint4 *)(score + group[j]) + half) : make_uint4(0, 0, 0, 0);
        }
#pragma unroll
        for (int j = 0; j < 2 * EACH; j++) {
            const uint4 v = four[j];
            const uint32_t bits = (v.x >= bound) | (v.y >= bound) << 1 | (v.z >= bound) << 2 | (v.w >= bound) << 3;
            reaches |= (bits & ((1u << max(0, min(4, n - group[j / 2] - j % 2 * 4))) - 1)) << 4 * j;
        }
        int all, at = count + index_block_prefix(__popc(reaches), sh->sums, &all);
        count += all;
#pragma unroll
        for (int j = 0; j < 8 * EACH; j++) {
            const uint4 v = four[j / 4];
            if (!(reaches >> j & 1) || at >= INDEX_CANDIDATES) continue;
            sh->key[at] = j % 4 == 0 ? v.x : j % 4 == 1 ? v.y : j % 4 == 2 ? v.z : v.w;
            sh->group[at++] = group[j / 8] + j % 8;
        }
    }
    __syncthreads();
    return count;
}

/* The number of candidates, of n > kept scores; more than there is space for: there are none. */
__device__ __forceinline__ int index_find_candidates(index_search *sh, const float *score, const float *highest, int n, int kept) {
    const int octets = (n + INDEX_OCTET - 1) / INDEX_OCTET;
    if (n <= INDEX_CANDIDATES) {
        index_each_four(score, n, [&](uint4 v, int i) {
            if (i >= n) return;
            *(uint4 *)(sh->key + i) = v;
            *(int4 *)(sh->group + i) = make_int4(i, i + 1, i + 2, i + 3);
        });
        __syncthreads();
        return n;
    }
    const uint32_t bound = index_bound(sh, highest, octets, kept);
    const int listed = bound ? index_list_octets(sh, highest, octets, bound) : INDEX_LISTED + 1;
    return listed > INDEX_LISTED ? INDEX_CANDIDATES + 1 : index_gather(sh, score, n, listed, bound);
}

/* The list of what is above `last`, and of the first sh->equal ones that are equal to it, or of all. key_of(i), group_of(i): of `count` in their
   order. */
template <class KEY, class GROUP>
__device__ __forceinline__ void index_list(index_search *sh, int count, uint32_t last, const KEY &key_of, const GROUP &group_of, int32_t *to) {
    const int each = (count + GPU_THREADS - 1) / GPU_THREADS | 1;       /* odd, for the banks */
    const int from = (int)threadIdx.x * each, end = min(from + each, count), kept = sh->equal < sh->alike ? sh->equal : INT_MAX;
    int above = 0, equal = 0, all;
#pragma unroll 4
    for (int i = from; i < end; i++) {
        above += key_of(i) > last;
        equal += key_of(i) == last;
    }
    above = index_block_prefix(above, sh->sums, &all);
    equal = index_block_prefix(equal, sh->sums, &all);
#pragma unroll 4
    for (int i = from; i < end; i++) {
        const uint32_t key = key_of(i);
        if (key > last || (key == last && equal < kept)) to[above + min(equal, kept)] = group_of(i);
        above += key > last;
        equal += key == last;
    }
}

/* The list as bits, with that of the group that is not whole yet. */
__device__ __forceinline__ void index_mark(const int32_t *list, int kept, int n, uint32_t *marks) {
    for (int i = threadIdx.x; i <= n / 32; i += GPU_THREADS) marks[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i <= kept; i += GPU_THREADS) {
        const int group = i < kept ? list[i] : n;
        atomicOr(&marks[group / 32], 1u << group % 32);
    }
}

/* The kernel. Grid: (1, 1, rows), see index_row_of. */
static __global__ void __launch_bounds__(GPU_THREADS) index_choose(const __grid_constant__ attention_gpu p) {
    __shared__ __align__(16) index_search sh;
    pdl_launch_dependents();
    const index_row r = index_row_of(p, blockIdx.z);
    const int kept = index_kept(&p.shape), n = r.visible / p.shape.index_group;
    pdl_wait();
    if (r.row < 0 || !index_leaves_out(&p.shape, r.visible - 1)) return;
    const float *score = p.index.scores + (size_t)r.row * p.index.stride;
    const float *highest = p.index.highest + (size_t)r.row * (p.index.stride / INDEX_OCTET);
    int32_t *to = p.index.chosen + (size_t)r.row * kept;
    const int count = index_find_candidates(&sh, score, highest, n, kept);
    if (count <= INDEX_CANDIDATES) {
        const uint32_t last = index_of_rank(&sh, kept, 4, [&](auto f) {
            for (int i = threadIdx.x; i < count; i += GPU_THREADS) f(sh.key[i]);
        });
        index_list(&sh, count, last, [&](int i) { return sh.key[i]; }, [&](int i) { return sh.group[i]; }, to);
    } else {
        const uint32_t last = index_of_rank(&sh, kept, 4, [&](auto f) {
            index_each_four(score, n, [&](uint4 v, int) {
                f(v.x);
                f(v.y);
                f(v.z);
                f(v.w);
            });
        });
        index_list(&sh, n, last, [&](int i) { return __float_as_uint(__ldcg(score + i)); }, [&](int i) { return i; }, to);
    }
    if (p.step) return;
    __syncthreads();
    index_mark(to, kept, n, p.index.marks + (size_t)r.row * (p.index.stride / 32));
}
