/* layers/deltanet/prefill.cu: the delta rule of many token rows on a GPU, a chunk of 32 rows at a time, on tensor cores: what
   a prompt needs between in_proj and the gated norm.

   Reads in_proj's output, conv1d and the gates' parameters; reads and writes S and the window of a layer. Uses
   cuda/numbers.cu and the activations of layers/deltanet/decode.cu. Knows no session, no matrices and no schedule: plain launches
   on a stream. tests/deltanet_chunk.h is the definition and derives the formulas. Per value head and chunk, with
   G_i = g_1 + ... + g_i, decay_ij = e^{G_i - G_j} for j <= i, else 0:

       A  = strictly lower (b_i k_i . k_j)         T = (I + A)^-1          no gates in them; |T_ij| <= 1
       T~ = T_ij decay_ij b_j                       P = (q_i . k_j) decay_ij
       X  = V - e^{G_i} (S k_i)                    U = T~ X
       O  = e^{G_i} (S q_i) + P U                  S = e^{G_32} S + sum over j of e^{G_32 - G_j} u_j k_j^T

   Two kernels, for up to DELTA_SLICE rows at a time. gpu_delta_prep knows no S, so that all chunks run at once: conv1d, SiLU,
   norms, T~ and P. gpu_delta_scan walks the chunks of a head one after the other.

   Chunks lie on absolute multiples of 32 tokens; a call that begins within one runs a shorter first chunk. What is computed
   for a chunk depends on its rows and on S alone, and S is in memory what it was in registers. So the bits do not depend on
   how many rows a call or a launch has, if it ends on a multiple of 32. Rows that a chunk lacks have q = k = v = b = g = 0:
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
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 900
    DELTA_PREP_BLOCKS = 5,       /* on an SM */
#else
    DELTA_PREP_BLOCKS = 3,       /* more do not fit in 100 KB of shared memory */
#endif
    DELTA_SLICE = 2048,          /* most rows of a launch, a multiple of 32: their scratch is 26 MB for 35B-A3B */
    DELTA_SMALL_L2 = 32 << 20,   /* bytes: below them a launch has so few rows that the scratch stays in the L2 for scan */
    DELTA_SHORT_SLICE = 1024,
    DELTA_VALUES = 32,           /* elements of v that lie together: a block of scan has one such group or two */
    DELTA_PIECES = DELTA_DIM / 8,                           /* 16-byte pieces of a row of 128 F16 */
    DELTA_STAGES = 3,            /* chunks in shared memory, the present one included */
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
    float decay[DELTA_CHUNK];    /* e^{G_i} */
    float rest[DELTA_CHUNK];     /* e^{G_32 - G_i} */
    float v_scale[DELTA_GROUPS];  /* powers of two: v of each group of rows is stored divided by it */
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

/* x / (1 + e^-x) in five instructions: gpu_silu without its care for denormal numbers. prep computes 8,192 of them a row. */
__device__ __forceinline__ float gpu_delta_silu(float x) {
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + gpu_exp2(x * -1.44269504f)));
    return x * y;
}

/* The power of two of which x >= 0 is at least 2^DELTA_HEADROOM and less than twice that, kept between 2^-100 and 2^100 so
   that it and its reciprocal are normal numbers. */
__device__ __forceinline__ float gpu_delta_scale(float x) {
    int bits = (__float_as_int(x) & 0x7f800000) - (DELTA_HEADROOM << 23);
    return __int_as_float(min(max(bits, 27 << 23), 227 << 23));
}

__device__ __forceinline__ float gpu_delta_reciprocal(float scale) {
    return __int_as_float((254 << 23) - __float_as_int(scale));
}

/* ---- prep: all that needs no S --------------------------------------------------------------------------------------

   Grid: (key heads, chunks) blocks of four warps, several on an SM: while one waits for memory another computes.
   1. conv1d and SiLU of q, k and the value heads' v, a warp per group of eight rows of 128 channels and a lane per four
      channels, so that a row's sum of squares, or its largest element, is one reduction of a warp. q and k go to
      shared memory, v to p->o.
   2. q and k to the scratch; K K^T and Q K^T by mma, once for all value heads of the key head.
   3. A warp per value head and T~ or P, a lane per column j: forward substitution of T in registers, gates.
   Limited by memory bandwidth: raw is read once, in F32, and v, q and k are written in F16. The code of step 3 is long and its
   chain of 32 rows deep: small blocks, so that others load meanwhile. */

struct gpu_delta_block {
    delta_keys keys;
    float kk[DELTA_CHUNK][40], qk[DELTA_CHUNK][40];         /* 40: four lanes' float2 of two rows in different banks */
    float v_scale[DELTA_RATIO][DELTA_GROUPS];
    float4 gate[DELTA_RATIO][DELTA_CHUNK / 4];              /* of the rows: log2 of decay */
    float4 beta[DELTA_RATIO][DELTA_CHUNK / 4];
};

/* x[i] = SiLU(conv1d) of row + i for the lane's four channels from `channel` on; 0 from row n on, which may be none or
   negative. x has space for the three raw rows before. */
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
    float factor = gpu_delta_factor(gpu_warp_sums<DELTA_GROUP>(sums)) * scale;
#pragma unroll
    for (int i = 0; i < DELTA_GROUP; i++) {
        int row = first + i;
        float f = __shfl_sync(~0u, factor, 32 / DELTA_GROUP * i);
        uint2 four = make_uint2(f16_pair(x[i][0] * f, x[i][1] * f), f16_pair(x[i][2] * f, x[i][3] * f));
        ((uint2 *)&tile[row][lane / 2 ^ row % 8])[lane % 2] = four;
    }
}

/* Stores v of value head h, divided by its scale, where scan will store o: the F16 of each DELTA_VALUES elements in the first
   half of their place, so that no block of scan overwrites what another has still to read. Returns the scale. */
__device__ __forceinline__ float gpu_delta_put_values(const delta_prefill *p, int row, int n, int h, float (*x)[4]) {
    const int element = threadIdx.x % 32 * 4;
    float most = 0;
#pragma unroll
    for (int i = 0; i < DELTA_GROUP; i++)
#pragma unroll
        for (int c = 0; c < 4; c++) most = fmaxf(most, fabsf(x[i][c]));
    float v_scale = gpu_delta_scale(__uint_as_float(__reduce_max_sync(~0u, __float_as_uint(most))));
    float f = gpu_delta_reciprocal(v_scale);
    float *to = p->o + ((size_t)row * p->shape.value_heads + h) * DELTA_DIM + element / DELTA_VALUES * DELTA_VALUES +
                element % DELTA_VALUES / 2;
#pragma unroll
    for (int i = 0; i < DELTA_GROUP; i++)
        if (i < n)
            *(uint2 *)(to + (size_t)i * p->shape.value_heads * DELTA_DIM) =
                make_uint2(f16_pair(x[i][0] * f, x[i][1] * f), f16_pair(x[i][2] * f, x[i][3] * f));
    return v_scale;
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
            float v_scale = gpu_delta_put_values(p, row, n, h, x);
            if (!lane) block->v_scale[what - 2][group] = v_scale;
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
        load_matrices<false>(a, shared_address(&left[row][(2 * step + lane / 16) ^ row % 8]));
#pragma unroll
        for (int half = 0; half < 2; half++) {
            load_matrices<false>(b, shared_address(&block->keys.k[16 * half + of][(2 * step + lane / 8 % 2) ^ of % 8]));
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

/* Lane j: decay_ij for rows i, i + 1, i + 2, i + 3 on or below j (above: 1); *since is the sum of the gates after row j so far.
   It is a sum, not a difference of two longer ones, so that a gate of minus a great deal costs those after it nothing. */
__device__ __forceinline__ void gpu_delta_decays(const float4 *gates, int i, float *since, float *decay) {
    const int j = threadIdx.x % 32;
    float4 four = gates[i / 4];
    const float gate[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int e = 0; e < 4; e++) {
        *since += i + e > j ? gate[e] : 0;
        decay[e] = gpu_exp2(*since);
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
    float t[DELTA_CHUNK], decay[4], since = 0, own = beta[threadIdx.x % 32];
    gpu_delta_substitute(kk, beta, t);
#pragma unroll
    for (int i = 0; i < DELTA_CHUNK; i++) {
        if (i % 4 == 0) gpu_delta_decays(gates, i, &since, decay);
        gpu_delta_put(to->inverse, i, t[i] * own * decay[i % 4]);
    }
}

/* Lane j: column j of P, and the gates of row j. */
__device__ __forceinline__ void gpu_delta_put_scores(delta_head *to, const float (*qk)[40], const float4 *gates) {
    const int j = threadIdx.x % 32;
    float decay[4], since = 0, all = 0;
#pragma unroll
    for (int i = 0; i < DELTA_CHUNK; i++) {
        if (i % 4 == 0) gpu_delta_decays(gates, i, &since, decay);
        all += i <= j ? ((const float *)gates)[i] : 0;
        gpu_delta_put(to->scores, i, i < j ? 0 : qk[i][j] * decay[i % 4]);
    }
    to->decay[j] = gpu_exp2(all);
    to->rest[j] = gpu_exp2(since);
}

/* The gates of a value head, for lane i of row i; 0 without a row. log2 of decay is -1e30 at least, which no sum of a
   chunk makes infinite, also where exp(A_log) is infinite and the product not a number. */
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
            if (lane < DELTA_GROUPS) head->v_scale[lane] = block.v_scale[r][lane];
        }
    }
}
