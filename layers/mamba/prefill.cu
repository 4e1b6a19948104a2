/* layers/mamba/prefill.cu: the rule of a Mamba-2 layer for many token rows on a GPU, a chunk of 32 rows at a time, on tensor cores: what a prompt
   needs between in_proj and the gated norm. Reads in_proj's output, conv1d and the parameters of the steps; reads and writes S and the window of a
   layer. Uses what layers/deltanet/prefill.cu, whose chunks these are, has of tiles and powers of two. Knows no session and no matrices: plain launches on
   a stream. The formula, row by row, is in definition.c; this is its form for chunks (state space duality: Dao and Gu 2024).

   With g the logarithm of decay, G_i = g_1 + ... + g_i and S as it is before the chunk, per head and chunk:

       P_ij = (C_i . B_j) e^{G_i - G_j} dt_j for j <= i, else 0; P_ii + D
       y_i  = e^{G_i} (S C_i) + sum over j of P_ij x_j
       S    = e^{G_32} S + sum over j of e^{G_32 - G_j} dt_j x_j B_j^T

   Two kernels, for up to DELTA_SLICE rows at a time. mamba_prep knows no S, so that all chunks run at once: conv1d, SiLU, C . B, P. mamba_scan
   (prefill_scan.cu) walks the chunks of a head one after the other.

   Chunks lie on absolute multiples of 32 tokens, as the delta rule's; a call that begins within one runs a shorter first chunk. What is computed for a
   chunk depends on its rows and on S alone, and S is in memory what it was in registers. So the bits do not depend on how many rows a call or a
   launch has, if it ends on a multiple of 32. Rows that a chunk lacks have C = B = x = dt = g = 0: they write nothing.

   Numbers. In F32: steps, decays, S and all sums. In F16, as operands of mma.m16n8k16: C, B, x, P, S, and x times what it is written with. All is linear
   in each of these, so powers of two are taken out, exactly: of each row of C, B, x (of a head), P, and of S in each chunk. What multiplies a column
   of P is in P before it is rounded: dt, D, and the powers of two of B and x.

   Where S has fewer than 128 columns the others are zero; rows of S beyond head_dim are computed, of zeros, and not stored. */

typedef struct mamba_head {
    uint32_t scores[4][32][4];   /* P as operand b of mma, as in delta_head */
    float out[DELTA_CHUNK];      /* what row i of P is in units of */
    float entry[DELTA_CHUNK];    /* e^{G_i}, times what C_i is in units of */
    float write[DELTA_CHUNK];    /* e^{G_32 - G_j} dt_j, times what B_j and x_j are in units of, in units of `unit` */
    float decay, unit;           /* e^{G_32} */
    float unused[2];
} mamba_head;

typedef struct mamba_prefill {
    mamba_shape shape;
    int T, position;             /* rows, from 1 on; absolute position of row 0 */
    const float *raw, *dt;       /* [T][channels], [T][heads] of in_proj */
    const float *conv1d, *conv_bias, *A_log, *D, *dt_bias, *norm;
    float *S, *window;           /* of the layer's state: read, and updated */
    float *y;                    /* [T][heads][head_dim]; until scan has them, x lies here */
    const float *z;              /* the same shape */
    delta_keys *keys;            /* [chunks of a slice][groups] k: B, q: C */
    mamba_head *heads;           /* [chunks of a slice][heads] */
    uint16_t *gated;             /* F16 [T][heads head_dim] the gated rows, in raw's place */
    float *act_scale;            /* [T] of these */
} mamba_prefill;

/* A launch of either kernel: chunks first..end-1 of the call. */
typedef struct mamba_slice {
    mamba_prefill p;
    int first, end;
} mamba_slice;

struct mamba_prep_block {
    delta_keys keys;
    float cb[DELTA_CHUNK][36];                              /* C_i . B_j; 36: eight lanes' float4 of eight rows in different banks */
    float C_scale[DELTA_CHUNK], B_scale[DELTA_CHUNK];
    float x_scale[DELTA_PREP_WARPS][DELTA_CHUNK];           /* of the head that a warp has, as the rest */
    float4 gate[DELTA_PREP_WARPS][DELTA_CHUNK / 4];         /* log2 of decay */
    float4 column[DELTA_PREP_WARPS][DELTA_CHUNK / 4];       /* what a column of P has besides C . B and decays */
};

__host__ __device__ __forceinline__ int mamba_prefill_channels(const mamba_shape &s) {
    return 2 * s.groups * s.state_dim + s.heads * s.head_dim;
}

__device__ __forceinline__ delta_rows mamba_rows_of_chunk(const mamba_prefill &p, int c) {
    delta_rows r;
    const int begin = c * DELTA_CHUNK - p.position % DELTA_CHUNK;
    r.row = max(begin, 0);
    r.n = min(begin + DELTA_CHUNK, p.T) - r.row;
    return r;
}

/* x[i] = SiLU(conv1d + bias) of row + i for four channels from `channel` on; 0 from row n on, which may be none or negative, and if channel is. x has
   space for the three raw rows before. */
__device__ __forceinline__ void mamba_conv_rows(const mamba_prefill &p, int row, int n, int channel, float (*x)[4]) {
    const int channels = mamba_prefill_channels(p.shape), from_channel = max(channel, 0);
    n = channel < 0 ? 1 - DELTA_TAPS : n;
#pragma unroll
    for (int i = 0; i < DELTA_GROUP + DELTA_TAPS - 1; i++) {
        const int at = row + i - (DELTA_TAPS - 1);
        const float *from = at < 0 ? p.window + (size_t)(at + DELTA_TAPS - 1) * channels : p.raw + (size_t)at * channels;
        *(float4 *)x[i] = i - (DELTA_TAPS - 1) < n ? *(const float4 *)(from + from_channel) : make_float4(0, 0, 0, 0);
    }
    const float4 four = *(const float4 *)(p.conv_bias + from_channel);
    const float bias[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int c = 0; c < 4; c++) {
        const float4 w = *(const float4 *)(p.conv1d + (from_channel + c) * DELTA_TAPS);
#pragma unroll
        for (int i = 0; i < DELTA_GROUP; i++) {
            const float sum = fmaf(w.w, x[i + 3][c], fmaf(w.z, x[i + 2][c], fmaf(w.y, x[i + 1][c], fmaf(w.x, x[i][c], bias[c]))));
            x[i][c] = i < n ? gpu_delta_silu(sum) : 0;
        }
    }
}

/* Divides eight rows, of this lane and its neighbours, 16 or 32, by powers of two, which go to `scale`. */
__device__ __forceinline__ void mamba_scale_rows(float (*x)[4], int lanes, float *scale) {
#pragma unroll
    for (int i = 0; i < DELTA_GROUP; i++) {
        float most = fmaxf(fmaxf(fabsf(x[i][0]), fabsf(x[i][1])), fmaxf(fabsf(x[i][2]), fabsf(x[i][3])));
#pragma unroll
        for (int m = 1; m < 16; m *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, m));
        if (lanes == 32) most = fmaxf(most, __shfl_xor_sync(~0u, most, 16));
        const float of = gpu_delta_scale(most), f = gpu_delta_reciprocal(of);
        if (threadIdx.x % lanes == 0) scale[i] = of;
#pragma unroll
        for (int c = 0; c < 4; c++) x[i][c] *= f;
    }
}

/* C and B to shared memory, a warp for eight rows of one of them and a lane for four columns. */
__device__ __forceinline__ void mamba_prep_keys(const mamba_prefill &p, delta_rows rows, int group, mamba_prep_block *block) {
    const int lane = threadIdx.x % 32, state_dim = p.shape.state_dim;
#pragma unroll 1
    for (int item = threadIdx.x / 32; item < 2 * DELTA_GROUPS; item += DELTA_PREP_WARPS) {
        float x[DELTA_GROUP + DELTA_TAPS - 1][4];
        const int first = item % DELTA_GROUPS * DELTA_GROUP, is_B = item / DELTA_GROUPS;
        const int channel = 4 * lane < state_dim ? (is_B * p.shape.groups + group) * state_dim + 4 * lane : -1;
        mamba_conv_rows(p, rows.row + first, rows.n - first, channel, x);
        mamba_scale_rows(x, 32, (is_B ? block->B_scale : block->C_scale) + first);
        uint4 (*tile)[DELTA_PIECES] = is_B ? block->keys.k : block->keys.q;
#pragma unroll
        for (int i = 0; i < DELTA_GROUP; i++)
            ((uint2 *)&tile[first + i][lane / 2 ^ (first + i) % 8])[lane % 2] =
                make_uint2(f16_pair(x[i][0], x[i][1]), f16_pair(x[i][2], x[i][3]));
    }
}

/* cb = C B^T, in units of C_scale and B_scale: a warp has 16 rows and 16 columns. */
__device__ __forceinline__ void mamba_prep_products(mamba_prep_block *block) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, i0 = warp % 2 * 16, j0 = warp / 2 * 16;
    const int row = i0 + lane % 16, of = j0 + lane / 16 * 8 + lane % 8;
    float c[2][4] = {};
#pragma unroll
    for (int step = 0; step < DELTA_DIM / 16; step++) {
        uint32_t a[4], b[4];
        load_matrices<false>(a, shared_address(&block->keys.q[row][(2 * step + lane / 16) ^ row % 8]));
        load_matrices<false>(b, shared_address(&block->keys.k[of][(2 * step + lane / 8 % 2) ^ of % 8]));
        mma_m16n8k16<true>(c[0], a, b[0], b[1]);
        mma_m16n8k16<true>(c[1], a, b[2], b[3]);
    }
#pragma unroll
    for (int n = 0; n < 2; n++)
#pragma unroll
        for (int low = 0; low < 2; low++)
            *(float2 *)&block->cb[i0 + lane / 4 + 8 * low][j0 + 8 * n + lane % 4 * 2] = make_float2(c[n][2 * low], c[n][2 * low + 1]);
}

/* x of head h, divided by its scales, where scan will store y: the F16 of each DELTA_VALUES elements at the beginning of their place, so that no block
   of scan overwrites what another has still to read. Up to 64 elements half a warp has eight rows, else a whole one. */
__device__ __forceinline__ void mamba_prep_x(const mamba_prefill &p, delta_rows rows, int h, float *x_scale) {
    const mamba_shape &s = p.shape;
    const int lane = threadIdx.x % 32, lanes = s.head_dim > 64 ? 32 : 16, e = lane % lanes * 4, begin = lane / lanes * DELTA_GROUP;
    const int channel = e < s.head_dim ? 2 * s.groups * s.state_dim + h * s.head_dim + e : -1;
#pragma unroll 1
    for (int first = 0; first < DELTA_CHUNK; first += 32 / lanes * DELTA_GROUP) {
        float x[DELTA_GROUP + DELTA_TAPS - 1][4];
        const int row = first + begin, n = rows.n - row;
        mamba_conv_rows(p, rows.row + row, n, channel, x);
        mamba_scale_rows(x, lanes, x_scale + row);
        float *to = p.y + ((size_t)(rows.row + row) * s.heads + h) * s.head_dim + e / DELTA_VALUES * DELTA_VALUES + e % DELTA_VALUES / 2;
#pragma unroll
        for (int i = 0; i < DELTA_GROUP; i++)               /* whole pieces of eight elements, the last one's ends in zeros */
            if (i < n && e < (s.head_dim + 7) / 8 * 8)
                *(uint2 *)(to + (size_t)i * s.heads * s.head_dim) = make_uint2(f16_pair(x[i][0], x[i][1]), f16_pair(x[i][2], x[i][3]));
    }
}

/* Lane i: row i of P, without D. Returns the sum of the gates after the chunk's first row up to row i. */
__device__ __forceinline__ float mamba_scores_row(const mamba_prep_block *block, int warp, float C_scale, float *v) {
    const int i = threadIdx.x % 32;
    const float *gate = (const float *)block->gate[warp], *column = (const float *)block->column[warp];
    float since = 0;                                        /* a sum of the gates in between, as gpu_delta_decays' */
#pragma unroll
    for (int j = DELTA_CHUNK - 1; j >= 0; j--) {
        if (j + 1 < DELTA_CHUNK) since += j < i ? gate[j + 1] : 0;
        v[j] = j <= i ? block->cb[i][j] * C_scale * (column[j] * gpu_exp2(since)) : 0;
    }
    return since;
}

/* Lane i: row i of P, divided by its scale, to where operand b has it. Returns the scale. */
__device__ __forceinline__ float mamba_put_scores(mamba_head *to, const float *v) {
    const int i = threadIdx.x % 32;
    float most = 0;
#pragma unroll
    for (int j = 0; j < DELTA_CHUNK; j++) most = fmaxf(most, fabsf(v[j]));
    const float scale = gpu_delta_scale(most), f = gpu_delta_reciprocal(scale);
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const float *two = v + 2 * n;
        *(uint4 *)to->scores[i / 8][i % 8 * 4 + n] = make_uint4(f16_pair(two[0] * f, two[1] * f), f16_pair(two[8] * f, two[9] * f),
                                                                f16_pair(two[16] * f, two[17] * f), f16_pair(two[24] * f, two[25] * f));
    }
    return scale;
}

/* P of head h and what else scan needs of its chunk, lane i for row i. log2 of decay is -1e30 at least: see gpu_delta_gates. */
__device__ __forceinline__ void mamba_prep_head(const mamba_prefill &p, delta_rows rows, int h, mamba_prep_block *block, mamba_head *to) {
    const int i = threadIdx.x % 32, warp = threadIdx.x / 32;
    const float dt = i < rows.n ? gpu_softplus(p.dt[(size_t)(rows.row + i) * p.shape.heads + h] + __ldg(p.dt_bias + h)) : 0;
    const float own = i < rows.n ? fmaxf(-expf(__ldg(p.A_log + h)) * dt * 1.44269504f, -1e30f) : 0;
    const float x_scale = block->x_scale[warp][i], column = dt * block->B_scale[i] * x_scale, C_scale = block->C_scale[i];
    float *gate = (float *)block->gate[warp], v[DELTA_CHUNK], after = 0;
    gate[i] = own;
    ((float *)block->column[warp])[i] = column;
    __syncwarp();
    const float since = mamba_scores_row(block, warp, C_scale, v), skip = __ldg(p.D + h) * x_scale;
#pragma unroll
    for (int j = 0; j < DELTA_CHUNK; j++) {
        v[j] += j == i ? skip : 0;
        after += j > i ? gate[j] : 0;
    }
    const float write = gpu_exp2(after) * column;
    const float unit = gpu_delta_scale(__uint_as_float(__reduce_max_sync(~0u, __float_as_uint(write))));
    to->out[i] = mamba_put_scores(to, v);
    to->entry[i] = gpu_exp2(since + gate[0]) * C_scale;
    to->write[i] = write * gpu_delta_reciprocal(unit);
    if (i == 0) to->decay = gpu_exp2(after + own), to->unit = unit;
}

/* Grid: (groups, chunks) blocks of four warps, several on an SM: while one waits for memory another computes. C and B by all, C . B, then a warp per
   head: its x, and P. Limited by memory bandwidth: raw is read once, in F32; C, B and x are written in F16. */
static __global__ void __launch_bounds__(DELTA_PREP_THREADS, 3) mamba_prep(const __grid_constant__ mamba_slice s) {
    __shared__ mamba_prep_block block;
    const mamba_prefill &p = s.p;
    const int group = blockIdx.x, warp = threadIdx.x / 32, ratio = p.shape.heads / p.shape.groups;
    const delta_rows rows = mamba_rows_of_chunk(p, s.first + (int)blockIdx.y);
    mamba_prep_keys(p, rows, group, &block);
    __syncthreads();
    uint4 *keys = (uint4 *)&p.keys[(size_t)blockIdx.y * p.shape.groups + group] + threadIdx.x;
#pragma unroll
    for (int i = 0; i < (int)(sizeof(delta_keys) / 16); i += DELTA_PREP_THREADS) keys[i] = ((uint4 *)&block.keys)[i + threadIdx.x];
    mamba_prep_products(&block);
    __syncthreads();
#pragma unroll 1
    for (int h = group * ratio + warp; h < (group + 1) * ratio; h += DELTA_PREP_WARPS) {
        mamba_prep_x(p, rows, h, block.x_scale[warp]);
        __syncwarp();
        mamba_prep_head(p, rows, h, &block, &p.heads[(size_t)blockIdx.y * p.shape.heads + h]);
        __syncwarp();
    }
}
