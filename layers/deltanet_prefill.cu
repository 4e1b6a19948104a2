/* layers/deltanet_prefill.cu: the delta rule of many token rows on a GPU, a chunk of 32 rows at a time, on tensor cores: what
   a prompt needs between in_proj and the gated norm.

   Reads in_proj's output, conv1d and the gates' parameters; reads and writes S and the window of a layer. Uses
   cuda/numbers.cu and the activations of layers/deltanet.cu. Knows no session, no matrices and no schedule: plain launches
   on a stream. layers/deltanet_chunk.c is the definition and derives the formulas. Per value head and chunk, with
   G_i = g_1 + ... + g_i, fade_ij = e^{G_i - G_j} for j <= i, else 0:

       A  = strictly lower (b_i k_i . k_j)         T = (I + A)^-1          no gates in them; |T_ij| <= 1
       T~ = T_ij fade_ij b_j                       P = (q_i . k_j) fade_ij
       X  = V - e^{G_i} (S k_i)                    U = T~ X
       O  = e^{G_i} (S q_i) + P U                  S = e^{G_32} S + sum over j of e^{G_32 - G_j} u_j k_j^T

   Two kernels, for up to DELTA_SLICE rows at a time. gpu_delta_prep knows no S, so that all chunks run at once: conv1d, SiLU,
   norms, T~ and P. gpu_delta_scan walks the chunks of a head one after the other.

   Chunks lie on absolute multiples of 32 tokens; a call that begins within one runs a shorter first chunk. What is computed
   for a chunk depends on its rows and on S alone, and S is in memory what it was in registers. So the bits do not depend on
   how many rows a call or a slice has, if it ends on a multiple of 32. Rows that a chunk lacks have q = k = v = b = g = 0:
   they write nothing, and e^{G_32} is that of the last row there is.

   Numbers. In F32: gates, norms, T, S and all sums. In F16, as operands of mma.m16n8k16: q, k, v, T~, P, X, U, and S. The
   first two, T~ and P are at most 1. For the others F16's range is too small, its precision is not; all is linear in (v, S), so
   powers of two are taken out, exactly: of v by prep, for each group of eight rows of a head, and of each row of S by scan,
   for each chunk. A row of S means an element of value_dim: it is independent of the others. */

enum {
    DELTA_CHUNK = 32,            /* rows */
    DELTA_DIM = 128,             /* key_dim and value_dim */
    DELTA_TAPS = 4,              /* of conv1d */
    DELTA_RATIO = 8,             /* most value heads per key head */
    DELTA_GROUP = 8,             /* rows of a warp in prep */
    DELTA_GROUPS = DELTA_CHUNK / DELTA_GROUP,
    DELTA_PREP_THREADS = 128, DELTA_PREP_WARPS = DELTA_PREP_THREADS / 32,
    DELTA_PREP_BLOCKS = 5,       /* on an SM, where shared memory allows it */
    DELTA_SLICE = 2048,          /* rows of a launch, a multiple of 32: their scratch stays in the L2 between the kernels */
    DELTA_VALUES = 64,           /* elements of v of a block of scan, 16 a warp */
    DELTA_PARTS = DELTA_DIM / DELTA_VALUES,
    DELTA_SCAN_THREADS = 2 * DELTA_VALUES,
    DELTA_PIECES = DELTA_DIM / 8,                           /* 16-byte pieces of a row of 128 F16 */
    DELTA_VALUE_PIECES = DELTA_VALUES / 8,
    DELTA_STAGES = 4,            /* chunks in shared memory, that of scan included, if a block has an SM to itself; else 2 */
    DELTA_HEADROOM = 6           /* the largest F16 is 2^6 to 2^7: the sums of 32 or 128 of them stay below 2^16 */
};

/* q and k of a chunk and key head as they lie in shared memory: piece c of row r is at [r][c ^ r % 8], so that the eight rows
   which an ldmatrix reads at once, at the same c, lie in different banks. */
typedef struct delta_keys {
    uint4 k[DELTA_CHUNK][DELTA_PIECES], q[DELTA_CHUNK][DELTA_PIECES];
} delta_keys;

/* T~ and P of a chunk and value head as operands b of mma (b[j][i] = T~_ij): of rows i = 8n..8n+7, lane l has [n][l], in it b0
   and b1 of j = 0..15, then of j = 16..31. */
typedef struct delta_head {
    uint32_t inverse[4][32][4], scores[4][32][4];
    float fade[DELTA_CHUNK];     /* e^{G_i} */
    float rest[DELTA_CHUNK];     /* e^{G_32 - G_i} */
    float unit[DELTA_GROUPS];    /* powers of two: v of each group of rows is stored divided by it */
    float unused[8 - DELTA_GROUPS];
} delta_head;

typedef struct delta_prefill {
    deltanet_shape shape;        /* delta_prefill_fits */
    int T, position;             /* rows, from 1 on; absolute position of row 0 */
    const float *raw;            /* [T][channels] in_proj_qkv; as conv1d, S, window and o on a 16-byte boundary */
    const float *a, *b;          /* [T][value_heads] */
    const float *conv1d, *A_log, *dt_bias;
    float *S, *window;           /* of the layer's state: read, and updated */
    float *o;                    /* [T][value_heads][value_dim] out: before the gated norm. Until scan has them, v lies here */
    delta_keys *keys;            /* scratch: [chunks of a slice][key_heads] */
    delta_head *heads;           /* scratch: [chunks of a slice][value_heads] */
} delta_prefill;

/* A launch of either kernel: chunks first..end-1 of the call. */
typedef struct delta_slice {
    delta_prefill p;
    int first, end;
    int stages;                  /* of scan's shared memory */
    int last;                    /* of the call's slices: the window is due */
} delta_slice;

/* The rows of chunk c of a call: `row` is its first, `n` how many. */
typedef struct delta_rows {
    int row, n;
} delta_rows;

__host__ __device__ __forceinline__ int delta_chunks(int T, int position) {
    return (T + position % DELTA_CHUNK + DELTA_CHUNK - 1) / DELTA_CHUNK;
}

__device__ __forceinline__ delta_rows gpu_delta_rows_of(const delta_prefill *p, int c) {
    delta_rows r;
    int begin = c * DELTA_CHUNK - p->position % DELTA_CHUNK;
    r.row = max(begin, 0);
    r.n = min(begin + DELTA_CHUNK, p->T) - r.row;
    return r;
}

/* 2^x in one instruction; 0 below 2^-126. */
__device__ __forceinline__ float gpu_delta_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* x / (1 + e^-x) in five instructions, without the care for denormal numbers of gpu_silu. */
__device__ __forceinline__ float gpu_delta_silu(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + gpu_delta_exp2(x * -1.44269504f)));
    return x * y;
}

/* The power of two of which x >= 0 is at least 2^DELTA_HEADROOM and less than twice that, kept between 2^-100 and 2^100 so
   that it and its reciprocal are normal numbers. */
__device__ __forceinline__ float gpu_delta_unit(float x) {
    int bits = (__float_as_int(x) & 0x7f800000) - (DELTA_HEADROOM << 23);
    return __int_as_float(min(max(bits, 27 << 23), 227 << 23));
}

__device__ __forceinline__ float gpu_delta_reciprocal(float unit) {
    return __int_as_float((254 << 23) - __float_as_int(unit));
}

/* Four 8x8 matrices of F16 from shared memory: lanes 8m..8m+7 give the addresses of the rows of matrix m. Of each, lane
   (g, i) gets elements 2i and 2i + 1 of row g; TRANSPOSED: of column g. */
template <bool TRANSPOSED> __device__ __forceinline__ void gpu_delta_ldmatrix(uint32_t *to, uint32_t address) {
    if (TRANSPOSED)
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address));
    else
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(address));
}

__device__ __forceinline__ uint32_t gpu_delta_shared(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

/* ---- prep: all that needs no S --------------------------------------------------------------------------------------

   Grid: (key heads, chunks) blocks of four warps, several on an SM: while one waits for memory another computes.
   1. conv1d and SiLU of q, k and the value heads' v, a warp per group of eight rows of 128 channels and a lane per four
      channels, so that a row's sum of squares, or its largest element, is one reduction of a warp. q and k go to
      shared memory, v to p->o.
   2. q and k to the scratch; K K^T and Q K^T by mma, once for all value heads of the key head.
   3. A warp per value head and T~ or P, a lane per column j: forward substitution of T in registers, gates.
   Limited by memory bandwidth: raw is read once, in F32. */

struct gpu_delta_block {
    delta_keys keys;
    float kk[DELTA_CHUNK][40], qk[DELTA_CHUNK][40];         /* 40: four lanes' float2 of two rows in different banks */
    float unit[DELTA_RATIO][DELTA_GROUPS];
    float4 gate[DELTA_RATIO][DELTA_CHUNK / 4], beta[DELTA_RATIO][DELTA_CHUNK / 4];     /* of the rows: log2 of decay */
};

/* x[i] = SiLU(conv1d) of row + i for the lane's four channels from `channel` on; 0 from row n on, which may be none or
   negative. x has room for the three raw rows before. */
__device__ __forceinline__ void gpu_delta_conv(const delta_prefill *p, int row, int n, int channel, float (*x)[4]) {
    const int channels = gpu_channels(&p->shape);
#pragma unroll
    for (int i = 0; i < DELTA_GROUP + DELTA_TAPS - 1; i++) {
        int at = row + i - (DELTA_TAPS - 1);
        const float *from = at < 0 ? p->window + (size_t)(at + DELTA_TAPS - 1) * channels : p->raw + (size_t)at * channels;
        *(float4 *)x[i] = i - (DELTA_TAPS - 1) < n ? *(const float4 *)(from + channel) : make_float4(0, 0, 0, 0);
    }
#pragma unroll
    for (int c = 0; c < 4; c++) {
        float4 w = *(const float4 *)(p->conv1d + (channel + c) * DELTA_TAPS);
#pragma unroll
        for (int i = 0; i < DELTA_GROUP; i++) {
            float sum = fmaf(w.w, x[i + 3][c], fmaf(w.z, x[i + 2][c], fmaf(w.y, x[i + 1][c], w.x * x[i][c])));
            x[i][c] = __int_as_float(__float_as_int(gpu_delta_silu(sum)) & (i < n ? -1 : 0));
        }
    }
}

/* Divides each row by its length, times `scale`, and stores it in the tile from row `first` on. */
__device__ __forceinline__ void gpu_delta_put_keys(uint4 (*tile)[DELTA_PIECES], int first, float scale, float (*x)[4]) {
    const int lane = threadIdx.x % 32;
    float sums[DELTA_GROUP];
#pragma unroll
    for (int i = 0; i < DELTA_GROUP; i++)
        sums[i] = fmaf(x[i][0], x[i][0], fmaf(x[i][1], x[i][1], fmaf(x[i][2], x[i][2], x[i][3] * x[i][3])));
    float factor = rsqrtf(gpu_warp_sums<DELTA_GROUP>(sums) + 1e-6f) * scale;
#pragma unroll
    for (int i = 0; i < DELTA_GROUP; i++) {
        int row = first + i;
        float f = __shfl_sync(~0u, factor, 32 / DELTA_GROUP * i);
        uint2 four = make_uint2(f16_pair(x[i][0] * f, x[i][1] * f), f16_pair(x[i][2] * f, x[i][3] * f));
        ((uint2 *)&tile[row][lane / 2 ^ row % 8])[lane % 2] = four;
    }
}

/* Stores v of value head h, divided by its unit, where scan stores o of the same rows and elements: the F16 of the
   DELTA_VALUES elements of a block of scan in the first half of their room. Returns the unit. */
__device__ __forceinline__ float gpu_delta_put_values(const delta_prefill *p, int row, int n, int h, float (*x)[4]) {
    const int element = threadIdx.x % 32 * 4;
    float most = 0;
#pragma unroll
    for (int i = 0; i < DELTA_GROUP; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) most = fmaxf(most, fabsf(x[i][c]));
    float unit = gpu_delta_unit(__uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most))));
    float f = gpu_delta_reciprocal(unit);
    float *to = p->o + ((size_t)row * p->shape.value_heads + h) * DELTA_DIM + element / DELTA_VALUES * DELTA_VALUES +
                element % DELTA_VALUES / 2;
#pragma unroll
    for (int i = 0; i < DELTA_GROUP; i++)
        if (i < n)
            *(uint2 *)(to + (size_t)i * p->shape.value_heads * DELTA_DIM) =
                make_uint2(f16_pair(x[i][0] * f, x[i][1] * f), f16_pair(x[i][2] * f, x[i][3] * f));
    return unit;
}

/* Step 1. Items: the groups of rows of q, of k, then of v of each value head. */
__device__ __forceinline__ void gpu_delta_rows_to_tiles(const delta_prefill *p, delta_rows rows, int key_head, int ratio,
                                                        gpu_delta_block *block) {
    const int keys = p->shape.key_heads * DELTA_DIM, lane = threadIdx.x % 32;
#pragma unroll 1
    for (int item = threadIdx.x / 32; item < DELTA_GROUPS * (2 + ratio); item += DELTA_PREP_WARPS) {
        float x[DELTA_GROUP + DELTA_TAPS - 1][4];
        int group = item % DELTA_GROUPS, what = item / DELTA_GROUPS, h = key_head * ratio + what - 2;
        int first = group * DELTA_GROUP, row = rows.row + first, n = rows.n - first;
        int head = what < 2 ? what * keys + key_head * DELTA_DIM : 2 * keys + h * DELTA_DIM;
        gpu_delta_conv(p, row, n, head + 4 * lane, x);
        float scale = what ? 1.0f : rsqrtf((float)DELTA_DIM);
        if (what < 2) gpu_delta_put_keys(what ? block->keys.k : block->keys.q, first, scale, x);
        else {
            float unit = gpu_delta_put_values(p, row, n, h, x);
            if (!lane) block->unit[what - 2][group] = unit;
        }
    }
}

/* Step 2: kk[i][j] = k_i . k_j by warps 0 and 1, qk[i][j] = q_i . k_j by warps 2 and 3: 16 rows i each. */
__device__ __forceinline__ void gpu_delta_products(gpu_delta_block *block) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i0 = warp % 2 * 16;
    uint4 (*left)[DELTA_PIECES] = warp < 2 ? block->keys.k : block->keys.q;
    float (*to)[40] = warp < 2 ? block->kk : block->qk, c[4][4] = {};
#pragma unroll
    for (int step = 0; step < DELTA_DIM / 16; step++) {
        uint32_t a[4], b[4];
        int row = i0 + lane % 16, of = lane / 16 * 8 + lane % 8;
        gpu_delta_ldmatrix<false>(a, gpu_delta_shared(&left[row][(2 * step + lane / 16) ^ row % 8]));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            gpu_delta_ldmatrix<false>(b, gpu_delta_shared(&block->keys.k[16 * half + of][(2 * step + lane / 8 % 2) ^ of % 8]));
            mma_m16n8k16<true>(c[2 * half], a, b[0], b[1]);
            mma_m16n8k16<true>(c[2 * half + 1], a, b[2], b[3]);
        }
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int low = 0; low < 2; low++)
            *(float2 *)&to[i0 + lane / 4 + 8 * low][8 * n + lane % 4 * 2] = make_float2(c[n][2 * low], c[n][2 * low + 1]);
}

/* Lane j: t = column j of T = (I + A)^-1, A_ij = beta_i kk_ij below the diagonal. t[i] collects kk_i0 t[0] + ... until its
   turn comes; kk is symmetric, so what t[l] adds to all later ones is row l. */
__device__ __forceinline__ void gpu_delta_substitute(const float (*kk)[40], const float *beta, float *t) {
    const int j = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < DELTA_CHUNK; i++) t[i] = 0;
#pragma unroll
    for (int l = 0; l < DELTA_CHUNK; l++) {
        t[l] = fmaf(-beta[l], t[l], l == j ? 1.0f : 0.0f);
#pragma unroll
        for (int i = l / 4 * 4; i < DELTA_CHUNK; i += 4) {
            float4 of = *(const float4 *)&kk[l][i];
            if (i > l) t[i] = fmaf(of.x, t[l], t[i]);
            if (i + 1 > l) t[i + 1] = fmaf(of.y, t[l], t[i + 1]);
            if (i + 2 > l) t[i + 2] = fmaf(of.z, t[l], t[i + 2]);
            if (i + 3 > l) t[i + 3] = fmaf(of.w, t[l], t[i + 3]);
        }
    }
}

/* Lane j: fade_ij for rows i, i + 1, i + 2, i + 3 on or below j (above: 1); *since is the sum of the gates behind row j so far.
   It is a sum, not a difference of two longer ones, so that a gate of minus a great deal costs those behind it nothing. */
__device__ __forceinline__ void gpu_delta_fades(const float4 *gates, int i, float *since, float *fade) {
    const int j = threadIdx.x % 32;
    float4 four = gates[i / 4];
    const float gate[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        *since += i + e > j ? gate[e] : 0;
        fade[e] = gpu_delta_exp2(*since);
    }
}

/* Lane j: element (i, j) of T~ or P, to where operand b has it. */
__device__ __forceinline__ void gpu_delta_put(uint32_t (*to)[32][4], int i, float x) {
    const int j = threadIdx.x % 32;
    ((__half *)&to[i / 8][i % 8 * 4 + j % 8 / 2][j / 16 * 2 + j % 16 / 8])[j % 2] = __float2half_rn(x);
}

/* Lane j: column j of T~. */
__device__ __forceinline__ void gpu_delta_put_inverse(delta_head *to, const float (*kk)[40], const float4 *gates,
                                                      const float *beta) {
    float t[DELTA_CHUNK], fade[4], since = 0, own = beta[threadIdx.x % 32];
    gpu_delta_substitute(kk, beta, t);
#pragma unroll
    for (int i = 0; i < DELTA_CHUNK; i++) {
        if (i % 4 == 0) gpu_delta_fades(gates, i, &since, fade);
        gpu_delta_put(to->inverse, i, t[i] * own * fade[i % 4]);
    }
}

/* Lane j: column j of P, and the gates of row j. */
__device__ __forceinline__ void gpu_delta_put_scores(delta_head *to, const float (*qk)[40], const float4 *gates) {
    const int j = threadIdx.x % 32;
    float fade[4], since = 0, all = 0;
#pragma unroll
    for (int i = 0; i < DELTA_CHUNK; i++) {
        if (i % 4 == 0) gpu_delta_fades(gates, i, &since, fade);
        all += i <= j ? ((const float *)gates)[i] : 0;
        gpu_delta_put(to->scores, i, i < j ? 0 : qk[i][j] * fade[i % 4]);
    }
    to->fade[j] = gpu_delta_exp2(all);
    to->rest[j] = gpu_delta_exp2(since);
}

/* The gates of a value head, for lane i of row i; 0 without a row. log2 of decay is -1e30 at least, which no sum of a chunk makes
   infinite, also where exp(A_log) is infinite and the product not a number. */
__device__ __forceinline__ void gpu_delta_gates(const delta_prefill *p, delta_rows rows, int h, float *gate, float *beta) {
    const int lane = threadIdx.x % 32;
    const size_t at = (size_t)(rows.row + lane) * p->shape.value_heads + h;
    const bool there = lane < rows.n;
    float g = there ? -expf(p->A_log[h]) * gpu_softplus(p->a[at] + p->dt_bias[h]) * 1.44269504f : 0;
    gate[lane] = fmaxf(g, -1e30f);
    beta[lane] = there ? gpu_sigmoid(p->b[at]) : 0;
}

__global__ void __launch_bounds__(DELTA_PREP_THREADS, DELTA_PREP_BLOCKS) gpu_delta_prep(const __grid_constant__ delta_slice s) {
    __shared__ gpu_delta_block block;
    const delta_prefill *p = &s.p;
    const int key_head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int value_heads = p->shape.value_heads, ratio = value_heads / p->shape.key_heads;
    const delta_rows rows = gpu_delta_rows_of(p, s.first + blockIdx.y);
    for (int r = warp; r < ratio; r += DELTA_PREP_WARPS)
        gpu_delta_gates(p, rows, key_head * ratio + r, (float *)block.gate[r], (float *)block.beta[r]);
    gpu_delta_rows_to_tiles(p, rows, key_head, ratio, &block);
    __syncthreads();
    uint4 *keys = (uint4 *)&p->keys[(size_t)blockIdx.y * p->shape.key_heads + key_head] + threadIdx.x;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(delta_keys) / 16); i += DELTA_PREP_THREADS)
        keys[i] = ((uint4 *)&block.keys)[i + threadIdx.x];
    gpu_delta_products(&block);
    __syncthreads();
#pragma unroll 1
    for (int task = warp; task < 2 * ratio; task += DELTA_PREP_WARPS) {
        const int r = task / 2;
        delta_head *head = &p->heads[(size_t)blockIdx.y * value_heads + key_head * ratio + r];
        if (task % 2) gpu_delta_put_inverse(head, block.kk, block.gate[r], (const float *)block.beta[r]);
        else {
            gpu_delta_put_scores(head, block.qk, block.gate[r]);
            if (lane < DELTA_GROUPS) head->unit[lane] = block.unit[r][lane];
        }
    }
}

/* ---- scan: S from chunk to chunk ------------------------------------------------------------------------------------

   Grid: value heads x DELTA_PARTS blocks of four warps. A warp holds 16 rows of S, all 128 columns, in registers as mma
   accumulators: with g = lane / 4 and i = lane % 4, S[n] has columns 8n + 2i and 8n + 2i + 1 of row g, then of row g + 8.
   All products are transposed, rows of S first: S K^T, X^T, U^T = X^T T~^T, O^T = S Q^T + U^T P^T and S + U^T K are 16 rows
   of S x 32 tokens or 128 columns. So the accumulators of one product, rounded to F16, are operand a of the next without a
   move between lanes, and warps share nothing but what they read: K, Q, v, T~ and P, in shared memory by cp.async.

   Per chunk and warp 108 mma, 36 of them for what o alone needs; the others are a chain: S K^T (8 steps deep), T~ (2),
   S + U^T K (2), between them the conversions. At 32 value heads there are 64 blocks, and the time is that chain's, chunk
   after chunk. One barrier a chunk: all warps are past the stage that is loaded next.

   Powers of two. unit[r] makes S's row small enough for F16: from the sum of its magnitudes, which bounds S k too. X, U and O
   are in units of both[r], the larger of it and of v's. */

typedef struct alignas(128) delta_stage {
    delta_keys keys;
    uint4 v[DELTA_CHUNK][DELTA_VALUE_PIECES];               /* swizzled like keys */
    delta_head head;
} delta_stage;

static_assert(DELTA_STAGES * sizeof(delta_stage) <= GPU_SHARED && sizeof(delta_head) % 32 == 0, "stages fit");

/* 16 bytes to shared memory, asynchronously; zeros if they are not there. */
__device__ __forceinline__ void gpu_delta_copy(uint32_t to, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(there ? 16 : 0) : "memory");
}

/* What a block of scan is for: part of value head h. */
struct gpu_delta_part {
    int h, key_head, element;    /* element: the first of v */
    uint32_t ring;               /* shared memory */
};

/* Starts copying chunk c, if there is one, and closes the group in any case: one a chunk. */
__device__ __forceinline__ void gpu_delta_fetch(const delta_slice *s, const gpu_delta_part *part, int c, int stage) {
    const deltanet_shape *shape = &s->p.shape;
    if (c < s->end) {
        const delta_rows rows = gpu_delta_rows_of(&s->p, c);
        const int thread = threadIdx.x, row = thread / DELTA_VALUE_PIECES, piece = thread % DELTA_VALUE_PIECES;
        const uint4 *keys = (const uint4 *)(s->p.keys + (size_t)(c - s->first) * shape->key_heads + part->key_head) + thread;
        const uint4 *head = (const uint4 *)(s->p.heads + (size_t)(c - s->first) * shape->value_heads + part->h) + thread;
        const size_t at = (size_t)(rows.row + row) * shape->value_heads + part->h;
        const float *v = s->p.o + at * DELTA_DIM + part->element + 4 * piece;
        const uint32_t to = part->ring + stage * (uint32_t)sizeof(delta_stage) + 16 * thread;
        const uint32_t to_v = to - 16 * thread + (uint32_t)offsetof(delta_stage, v) +
                              16 * (row * DELTA_VALUE_PIECES + (piece ^ row % 8));
        enum { KEYS = sizeof(delta_keys) / 16, HEAD = sizeof(delta_head) / 16, AT_ONCE = DELTA_SCAN_THREADS,
               ROWS = AT_ONCE / DELTA_VALUE_PIECES };
#pragma unroll
        for (int i = 0; i < KEYS; i += AT_ONCE) gpu_delta_copy(to + 16 * i, keys + i, true);
#pragma unroll
        for (int i = 0; i < DELTA_CHUNK; i += ROWS) {
            bool there = row + i < rows.n;
            gpu_delta_copy(to_v + 16 * i * DELTA_VALUE_PIECES,
                           there ? v + (size_t)i * shape->value_heads * DELTA_DIM : s->p.o, there);
        }
#pragma unroll
        for (int i = 0; i < HEAD; i += AT_ONCE)
            if (i + AT_ONCE <= HEAD || thread < HEAD % AT_ONCE)
                gpu_delta_copy(to + (uint32_t)offsetof(delta_stage, head) + 16 * i, head + i, true);
    }
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Operand a of k = 16 n .. 16 n + 15 from accumulators 2n and 2n + 1. */
__device__ __forceinline__ void gpu_delta_operand(uint32_t *a, const float *low, const float *high) {
    a[0] = f16_pair(low[0], low[1]);
    a[1] = f16_pair(low[2], low[3]);
    a[2] = f16_pair(high[0], high[1]);
    a[3] = f16_pair(high[2], high[3]);
}

/* to[16][32 tokens] = a[16][128] rows^T; rows: K or Q in shared memory. */
__device__ __forceinline__ void gpu_delta_times_rows(float (*to)[4], const uint32_t (*a)[4],
                                                     const uint4 (*rows)[DELTA_PIECES]) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = gpu_delta_shared(rows[lane / 16 * 8 + lane % 8]), piece = lane / 8 % 2 ^ lane % 8;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) to[n][c] = 0;
#pragma unroll
    for (int step = 0; step < DELTA_DIM / 16; step++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            uint32_t b[4];
            gpu_delta_ldmatrix<false>(b, at + pair * 16 * 16 * DELTA_PIECES + 16 * (2 * step ^ piece));
            mma_m16n8k16<true>(to[2 * pair], a[step], b[0], b[1]);
            mma_m16n8k16<true>(to[2 * pair + 1], a[step], b[2], b[3]);
        }
}

/* to[16][32 tokens] += a[16][32] (T~ or P)^T, which is 0 above the diagonal. */
__device__ __forceinline__ void gpu_delta_times_lower(float (*to)[4], const uint32_t (*a)[4], const uint32_t (*b)[32][4]) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
        uint4 of = *(const uint4 *)b[n][threadIdx.x % 32];
        mma_m16n8k16<true>(to[n], a[0], of.x, of.y);
        if (n >= 2) mma_m16n8k16<true>(to[n], a[1], of.z, of.w);
    }
}

/* S[16][128] += a[16][32 tokens] K. */
__device__ __forceinline__ void gpu_delta_write(float (*S)[4], const uint32_t (*a)[4], const uint4 (*k)[DELTA_PIECES]) {
    const int lane = threadIdx.x % 32;
    const uint32_t at = gpu_delta_shared(k[lane % 16]), piece = lane / 16 ^ lane % 8;
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
        for (int pair = 0; pair < DELTA_DIM / 16; pair++) {
            uint32_t b[4];
            gpu_delta_ldmatrix<true>(b, at + step * 16 * 16 * DELTA_PIECES + 16 * (2 * pair ^ piece));
            mma_m16n8k16<true>(S[2 * pair], a[step], b[0], b[1]);
            mma_m16n8k16<true>(S[2 * pair + 1], a[step], b[2], b[3]);
        }
}

/* unit[r] of the lane's two rows of S. */
__device__ __forceinline__ void gpu_delta_units(const float (*S)[4], float *unit) {
    float sum[2][2] = {};
#pragma unroll
    for (int n = 0; n < DELTA_DIM / 8; n++)
#pragma unroll
        for (int c = 0; c < 4; c++) sum[c / 2][n % 2] += fabsf(S[n][c]);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float all = sum[r][0] + sum[r][1];
        all += __shfl_xor_sync(~0u, all, 1);
        all += __shfl_xor_sync(~0u, all, 2);
        unit[r] = gpu_delta_unit(all);
    }
}

/* X = V - e^{G} S K, in place of S K, as operand a. factor[n][c]: what makes products with S / unit those of e^{G} S / both. */
__device__ __forceinline__ void gpu_delta_correct(uint32_t (*a)[4], float (*x)[4], const float (*factor)[4], const float *both,
                                                  const delta_stage *stage) {
    const int lane = threadIdx.x % 32, row = lane / 16 * 8 + lane % 8, piece = threadIdx.x / 32 * 2 + lane / 8 % 2;
#pragma unroll
    for (int half = 0; half < 2; half++) {                  /* rows 16 half .. 16 half + 15: two accumulators */
        uint32_t v[4];
        gpu_delta_ldmatrix<true>(v, gpu_delta_shared(&stage->v[16 * half + row][piece ^ row % 8]));
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int n = 2 * half + i / 2, c = i % 2 * 2;
            float2 of = f16_floats(v[i]);
            float scale = stage->head.unit[8 * n / DELTA_GROUP] * gpu_delta_reciprocal(both[i % 2]);
            x[n][c] = fmaf(-factor[n][c], x[n][c], of.x * scale);
            x[n][c + 1] = fmaf(-factor[n][c + 1], x[n][c + 1], of.y * scale);
        }
        gpu_delta_operand(a[half], x[2 * half], x[2 * half + 1]);
    }
}

/* Stores o: lanes of one i hold eight neighbours of a token's row, a sector. */
__device__ __forceinline__ void gpu_delta_store(const delta_slice *s, const gpu_delta_part *part, int c, const float (*o)[4],
                                                const float *both) {
    const delta_rows rows = gpu_delta_rows_of(&s->p, c);
    const int lane = threadIdx.x % 32, first = lane % 4 * 2, row = s->p.shape.value_heads * DELTA_DIM;
    const int element = part->h * DELTA_DIM + part->element + threadIdx.x / 32 * 16 + lane / 4;
    float *to = s->p.o + (size_t)(rows.row + first) * row + element;
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float low = o[n][e] * both[0], high = o[n][e + 2] * both[1], *at = to + (size_t)((8 * n + e) * row);
            if (first + 8 * n + e < rows.n) at[0] = low, at[8] = high;
        }
}

/* S as operand a: divided by its unit. */
__device__ __forceinline__ void gpu_delta_state_operand(uint32_t (*a)[4], const float (*S)[4], const float *unit) {
    const float f[2] = {gpu_delta_reciprocal(unit[0]), gpu_delta_reciprocal(unit[1])};
#pragma unroll
    for (int n = 0; n < DELTA_DIM / 16; n++) {
        float low[4], high[4];
#pragma unroll
        for (int e = 0; e < 4; e++) low[e] = S[2 * n][e] * f[e / 2], high[e] = S[2 * n + 1][e] * f[e / 2];
        gpu_delta_operand(a[n], low, high);
    }
}

/* One chunk: S before it becomes S behind it; a and unit are S's, before and behind. The order is the chain's, and what waits
   for nothing fills its gaps: decay of S behind T~, and S Q^T behind S, while S is made an operand for the next chunk. */
__device__ __forceinline__ void gpu_delta_step(const delta_slice *s, const gpu_delta_part *part, int c,
                                               const delta_stage *stage, float (*S)[4], uint32_t (*a)[4], float *unit) {
    const int i = threadIdx.x % 4 * 2;
    uint32_t x[2][4], w[2][4];
    float both[2], ratio[2], factor[4][4], sk[4][4], u[4][4], o[4][4];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        both[r] = unit[r];
#pragma unroll
        for (int group = 0; group < DELTA_GROUPS; group++) both[r] = fmaxf(both[r], stage->head.unit[group]);
        ratio[r] = unit[r] * gpu_delta_reciprocal(both[r]);
    }
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) factor[n][e] = stage->head.fade[8 * n + i + e % 2] * ratio[e / 2], u[n][e] = 0;
    gpu_delta_times_rows(sk, a, stage->keys.k);
    gpu_delta_correct(x, sk, factor, both, stage);
    gpu_delta_times_lower(u, x, stage->head.inverse);
#pragma unroll
    for (int n = 0; n < DELTA_DIM / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) S[n][e] *= stage->head.fade[DELTA_CHUNK - 1] * gpu_delta_reciprocal(both[e / 2]);
    gpu_delta_operand(x[0], u[0], u[1]);
    gpu_delta_operand(x[1], u[2], u[3]);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) u[n][e] *= stage->head.rest[8 * n + i + e % 2];
    gpu_delta_operand(w[0], u[0], u[1]);
    gpu_delta_operand(w[1], u[2], u[3]);
    gpu_delta_write(S, w, stage->keys.k);
    gpu_delta_times_rows(o, a, stage->keys.q);
#pragma unroll
    for (int n = 0; n < DELTA_DIM / 8; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) S[n][e] *= both[e / 2];
    gpu_delta_units(S, unit);
    gpu_delta_state_operand(a, S, unit);
#pragma unroll
    for (int n = 0; n < 4; n++)
#pragma unroll
        for (int e = 0; e < 4; e++) o[n][e] *= factor[n][e];
    gpu_delta_times_lower(o, x, stage->head.scores);
    gpu_delta_store(s, part, c, o, both);
}

/* window = the last three raw rows up to the call's last. prep, which reads the old ones, is complete. */
__device__ __forceinline__ void gpu_delta_window(const delta_prefill *p) {
    const int channels = gpu_channels(&p->shape), keep = DELTA_TAPS - 1;
    for (int c = blockIdx.x * DELTA_SCAN_THREADS + threadIdx.x; c < channels; c += gridDim.x * DELTA_SCAN_THREADS) {
        float x[keep];
#pragma unroll
        for (int i = 0; i < keep; i++) {
            int row = p->T - keep + i;
            x[i] = row < 0 ? p->window[(size_t)(row + keep) * channels + c] : p->raw[(size_t)row * channels + c];
        }
#pragma unroll
        for (int i = 0; i < keep; i++) p->window[(size_t)i * channels + c] = x[i];
    }
}

__global__ void __launch_bounds__(DELTA_SCAN_THREADS, 2) gpu_delta_scan(const __grid_constant__ delta_slice s) {
    extern __shared__ delta_stage delta_ring[];
    gpu_delta_part part;
    part.h = blockIdx.x / DELTA_PARTS;
    part.key_head = part.h / (s.p.shape.value_heads / s.p.shape.key_heads);
    part.element = blockIdx.x % DELTA_PARTS * DELTA_VALUES;
    part.ring = gpu_delta_shared(delta_ring);
    for (int i = 0; i < s.stages - 1; i++) gpu_delta_fetch(&s, &part, s.first + i, i);
    float S[DELTA_DIM / 8][4], unit[2];
    uint32_t a[DELTA_DIM / 16][4];
    const size_t row = (size_t)part.h * DELTA_DIM + part.element + threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
    float2 *at = (float2 *)(s.p.S + row * DELTA_DIM) + threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < DELTA_DIM / 8; n++)
#pragma unroll
        for (int low = 0; low < 2; low++) *(float2 *)&S[n][2 * low] = at[(8 * low * DELTA_DIM + 8 * n) / 2];
    if (s.last) gpu_delta_window(&s.p);
    gpu_delta_units(S, unit);
    gpu_delta_state_operand(a, S, unit);
    int now = 0, next = s.stages - 1;
#pragma unroll 1
    for (int c = s.first; c < s.end; c++) {
        if (s.stages == 2) asm volatile("cp.async.wait_group 0;" ::: "memory");
        else asm volatile("cp.async.wait_group %0;" ::"n"(DELTA_STAGES - 2) : "memory");
        __syncthreads();
        gpu_delta_fetch(&s, &part, c + s.stages - 1, next);
        gpu_delta_step(&s, &part, c, &delta_ring[now], S, a, unit);
        next = now;
        now = now + 1 == s.stages ? 0 : now + 1;
    }
#pragma unroll
    for (int n = 0; n < DELTA_DIM / 8; n++)
#pragma unroll
        for (int low = 0; low < 2; low++) at[(8 * low * DELTA_DIM + 8 * n) / 2] = *(float2 *)&S[n][2 * low];
}

/* ---- on the host ---------------------------------------------------------------------------------------------------- */

/* Whether these kernels are for it. */
static int delta_prefill_fits(const deltanet_shape *s) {
    return s->key_dim == DELTA_DIM && s->value_dim == DELTA_DIM && s->taps == DELTA_TAPS && s->key_heads > 0 &&
           s->value_heads > 0 && s->value_heads % s->key_heads == 0 && s->value_heads / s->key_heads <= DELTA_RATIO;
}

/* Most chunks of a slice of a call with T rows, wherever it begins. */
static size_t delta_slice_chunks(int T) {
    int chunks = delta_chunks(T, DELTA_CHUNK - 1);
    return (size_t)(chunks < DELTA_SLICE / DELTA_CHUNK ? chunks : DELTA_SLICE / DELTA_CHUNK);
}

static size_t delta_keys_bytes(const deltanet_shape *s, int T) {
    return (delta_slice_chunks(T) * (size_t)s->key_heads * sizeof(delta_keys) + 255) / 256 * 256;
}

/* Bytes of scratch for up to T rows. */
static size_t delta_prefill_scratch(const deltanet_shape *s, int T) {
    return delta_keys_bytes(s, T) + (delta_slice_chunks(T) * (size_t)s->value_heads * sizeof(delta_head) + 255) / 256 * 256;
}

/* Points p into the scratch, which begins on a 256-byte boundary and was asked for with p->T rows or more. */
static void delta_prefill_place(delta_prefill *p, void *scratch) {
    p->keys = (delta_keys *)scratch;
    p->heads = (delta_head *)((char *)scratch + delta_keys_bytes(&p->shape, p->T));
}

/* Launches p on the stream: S, window and o, of p->T rows. */
static cudaError_t delta_prefill_run(const delta_prefill *p, cudaStream_t stream) {
    int chunks = delta_chunks(p->T, p->position), blocks = p->shape.value_heads * DELTA_PARTS, device = 0, sms = 0;
    cudaError_t e = cudaGetDevice(&device);
    if (e == cudaSuccess) e = cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, device);
    if (e == cudaSuccess) e = cudaFuncSetAttribute(gpu_delta_scan, cudaFuncAttributeMaxDynamicSharedMemorySize, GPU_SHARED);
    delta_slice s;
    s.p = *p;
    s.stages = blocks <= sms ? DELTA_STAGES : 2;
    for (s.first = 0; s.first < chunks && e == cudaSuccess; s.first = s.end) {
        int most = s.first + DELTA_SLICE / DELTA_CHUNK;
        s.end = chunks < most ? chunks : most;
        s.last = s.end == chunks;
        gpu_delta_prep<<<dim3((unsigned)p->shape.key_heads, (unsigned)(s.end - s.first)), DELTA_PREP_THREADS, 0, stream>>>(s);
        gpu_delta_scan<<<(unsigned)blocks, DELTA_SCAN_THREADS, (size_t)s.stages * sizeof(delta_stage), stream>>>(s);
        e = cudaGetLastError();
    }
    return e;
}
