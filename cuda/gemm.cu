/* cuda/gemm.cu: many token rows times a packed weight matrix: the product of a prompt, on tensor cores. Knows matrices,
   formats and rows of F16; must not know layers. Projections of one to four rows are cuda/projection.cu's.

     y[t] = W x[t]                                     GEMM_STORE
     y[t] += weight[t] W x[t]                          GEMM_ADD
     h[t] = SiLU(W x[t]) * (up x[t])                   GEMM_SWIGLU: two matrices of one shape
     part[t] = weight[t] W x[t]                        GEMM_PART: BF16, to be summed by who knows which rows belong together

   Grouped: for a mixture of experts the rows are sorted by expert ("slots"), and a list of tiles says which expert's matrix
   the slots first .. first + count - 1 want. Otherwise all rows want the same matrix.

   Operands of mma.m16n8k16. A is the weights, from global memory or the L2 straight into registers, as they lie packed
   (cuda/panels.cu) and as decode reads them: no second copy, no shared memory. They become F16 there: FP8 exactly, BF16
   times a power of two that is the whole model's (gemm_factor). B is the tokens, F16 in shared memory. C is float.

   Token rows (gemm_rows) are F16, one term: its relative error of 2^-12 is less than BF16's 2^-9. A row, or each 64 columns
   of a row, has been multiplied with the power of two that brings its largest value into [2^14, 2^15); the inverse is its
   `unit`.

   Scales without a second set of sums. The sums of k block kb are in units of scale[kb] and unit[kb]. Before the next k
   block is added, they are multiplied with scale[kb] / scale[kb + 1] and likewise with the units, and at the end with the
   last of each. Powers of two do not round.

   A tile: 8 warps, each 32 weight rows (four row panels; for GEMM_SWIGLU two of each matrix, so that gate and up of an
   element meet in one lane) x up to 64 tokens: 64 sums a lane. WIDTH tokens: 128, then four warps share 128 rows and two
   share the tokens; or 64 or 32, then 256 rows. Columns do not mix and k goes upward in any tile, so a row's bits depend
   neither on WIDTH nor on the rows beside it.

   Shared memory: three stages of 64 k, filled by cp.async: 16 KB each with 128 tokens, so that two blocks fit an SM of 100
   KB. Row r's eight 16-byte chunks lie at chunk ^ 5 (r % 2): then the eight lanes that a load serves at a time, two rows of
   them, take eight different bank groups, for the chunks 2i + p that FP8 wants and for the chunks 4p + i of BF16. */

enum gemm_out { GEMM_STORE, GEMM_ADD, GEMM_SWIGLU, GEMM_PART };

enum { GEMM_STAGES = 3, GEMM_COLS = 64, GEMM_ROW_BYTES = 2 * GEMM_COLS, GEMM_GROUP = 8 };

/* Token rows as the product takes them. */
typedef struct gemm_rows {
    const void *x;               /* F16 [rows][cols] */
    const float *unit;           /* [rows][units], powers of two */
    int units;                   /* of a row: cols / 64, or 1 */
} gemm_rows;

/* Slots that want the same expert. */
typedef struct gemm_tile { int expert, first, count; } gemm_tile;

typedef struct gpu_gemm {
    gpu_matrix w, up;            /* up: of GEMM_SWIGLU; grouped: of expert 0 */
    gemm_rows in;
    int T;                       /* rows; grouped: slots */
    enum gemm_out out;
    float factor;                /* of formats without scales: the weights' power of two */
    const gemm_tile *tiles;      /* grouped, in device memory; NULL: not grouped */
    const int *tile_count;
    int64_t stride;              /* bytes from one expert's matrices to the next one's */
    const int32_t *row;          /* [slots] the row of x that a slot has; NULL: its own number */
    const float *weight;         /* [T] of GEMM_ADD and GEMM_PART; NULL: 1 */
    float *y;                    /* [T][y_stride] */
    int y_stride;
    uint16_t *to;                /* [T][y_stride] h as F16, part as BF16 */
    float *to_unit;              /* [T][y_stride / 64] units of h */
} gpu_gemm;

__device__ __forceinline__ uint32_t shared_address(const void *at) {
    return (uint32_t)__cvta_generic_to_shared(at);
}

/* Copies 16 bytes to shared memory in the background; zeros if not `there`. */
__device__ __forceinline__ void cp_async16(uint32_t shared, const void *from, bool there) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(from), "r"(there ? 16 : 0) : "memory");
}

__device__ __forceinline__ void cp_async4(uint32_t shared, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared), "l"(from) : "memory");
}

__device__ __forceinline__ void cp_async_commit() {
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most LEFT of this thread's groups are under way. */
template <int LEFT> __device__ __forceinline__ void cp_async_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(LEFT) : "memory");
}

__device__ __forceinline__ uint4 load_shared16(uint32_t at) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "r"(at));
    return v;
}

/* The unit of values whose largest magnitude is `top`, and in *factor its inverse, which brings that into [2^14, 2^15). Units
   are at least 2^-40, so that the ratio of two cannot overflow a sum; for NaN and infinity the largest. */
__device__ __forceinline__ float gemm_unit(float top, float *factor) {
    int exponent = min(268 - (__float_as_int(top) >> 23), 127 + 40);
    *factor = __int_as_float(exponent << 23);
    return __int_as_float((254 - exponent) << 23);
}

/* x / y for two powers of two. */
__device__ __forceinline__ float gemm_ratio(float x, float y) {
    return __int_as_float(__float_as_int(x) - __float_as_int(y) + (127 << 23));
}

/* What a block works on. */
struct gemm_place {
    int row;                     /* first weight row (GEMM_SWIGLU: of either matrix) */
    int first, count;            /* rows or slots */
    int64_t offset;              /* bytes from expert 0's matrices */
};

/* Token tiles in groups of GEMM_GROUP, within a group weight tile by weight tile: what runs at a time shares both in the L2. */
template <int WIDTH> __device__ __forceinline__ bool gemm_place_of(const gpu_gemm &p, int row_tiles, int tile_rows,
                                                                   gemm_place *at) {
    const int b = blockIdx.x;
    if (p.tiles) {
        const int tile = b / row_tiles;
        if (tile >= *p.tile_count) return false;
        const gemm_tile t = p.tiles[tile];
        *at = {b % row_tiles * tile_rows, t.first, t.count, t.expert * p.stride};
        return true;
    }
    const int tiles = (p.T + WIDTH - 1) / WIDTH, group = b / (GEMM_GROUP * row_tiles), from = group * GEMM_GROUP;
    const int wide = min(GEMM_GROUP, tiles - from), rest = b - from * row_tiles, first = (from + rest % wide) * WIDTH;
    *at = {rest / wide * tile_rows, first, min(WIDTH, p.T - first), 0};
    return true;
}

/* ratios[i] = what the sums are multiplied with before the first k block of scale i: scale[i - 1] / scale[i], but for scales
   that are zero, whose k blocks add nothing: 0. ratios[0] is 1 or 0; ratios[cols] = the last scale that is not zero. */
__device__ __forceinline__ void gemm_scales(float *ratios, const float *scale, int cols) {
    for (int i = threadIdx.x % 32; i <= cols; i += 32) {
        const float now = i < cols ? __ldg(scale + i) : 1;
        int last = i - 1;
        while (last >= 0 && __ldg(scale + last) == 0) last--;
        const float before = last >= 0 ? __ldg(scale + last) : now;
        ratios[i] = i == cols ? before : now != 0 ? before / now : 0;
    }
}

/* A warp's weights: two m16 tiles, each of a panel `low` and a panel `high`. All rows of its low panels share their scales, and
   so do those of its high ones. */
template <class F> struct gemm_weights {
    enum { LOADS = F::prefill_loads };                      /* of 16 bytes, for 64 columns of a row */
    const char *low, *high;      /* this lane's 16 bytes of the next k block of m tile 0 */
    uint32_t step[2];            /* bytes from m tile 0 to m tile 1, for low and high */
    uint32_t ratios;             /* the warp's two rows of gemm_scales, in shared memory */

    __device__ __forceinline__ void begin(const gpu_gemm &p, const gemm_place &at, int warp_row, float *scales) {
        const bool pairs = p.out == GEMM_SWIGLU;
        const gpu_matrix &high_of = pairs ? p.up : p.w;
        const uint32_t panel_bytes = (uint32_t)p.w.k_blocks * PANEL_BYTES, lane = threadIdx.x % 32;
        const int row = at.row + warp_row, last = p.w.panels - 1, panel = min(row / PANEL_ROWS, last);
        const int panel_high = pairs ? panel : min(panel + 1, last), apart = pairs ? 1 : 2;
        low = p.w.data + at.offset + (size_t)panel * panel_bytes + lane * 16;
        high = high_of.data + at.offset + (size_t)panel_high * panel_bytes + lane * 16;
        step[0] = (min(panel + apart, last) - panel) * panel_bytes;
        step[1] = (min(panel_high + apart, last) - panel_high) * panel_bytes;
        if (!F::scaled) return;
        const int cols = p.w.scale_cols;
        const size_t in = (size_t)(panel * PANEL_ROWS >> p.w.row_shift) * cols;
        scales += threadIdx.x / 32 * 2 * (cols + 1);
        ratios = shared_address(scales);
        gemm_scales(scales, (const float *)((const char *)p.w.scale + at.offset) + in, cols);
        gemm_scales(scales + cols + 1, (const float *)((const char *)high_of.scale + at.offset) + in, cols);
        __syncwarp();
    }
    /* The 16 bytes of all four panels; then on to the next. */
    __device__ __forceinline__ void load(uint4 (*raw)[2]) {
#pragma unroll
        for (int m = 0; m < 2; m++) {
            raw[m][0] = __ldg((const uint4 *)(low + m * step[0]));
            raw[m][1] = __ldg((const uint4 *)(high + m * step[1]));
        }
        low += PANEL_BYTES;
        high += PANEL_BYTES;
    }
};

/* What a block has in shared memory: the stages of token rows, then their units, then the ratios of scales. */
template <int WIDTH> struct gemm_stages {
    enum { BYTES = WIDTH * GEMM_ROW_BYTES, UNITS = GEMM_STAGES + 1, PER_THREAD = WIDTH * 8 / GPU_THREADS };
    uint32_t base, to;
    uint32_t from[PER_THREAD];   /* of p.in.x, in 16 bytes; ~0: no row */
    uint32_t unit;               /* index of the thread's first unit */

    static __host__ __device__ constexpr size_t size() {
        return (size_t)GEMM_STAGES * BYTES + UNITS * WIDTH * sizeof(float);
    }
    __device__ __forceinline__ uint32_t units_at(int kb) const {
        return base + GEMM_STAGES * BYTES + kb % UNITS * WIDTH * (uint32_t)sizeof(float);
    }
    /* A thread copies one chunk of each of PER_THREAD rows, 32 apart. */
    __device__ __forceinline__ void begin(const gpu_gemm &p, const gemm_place &at, void *memory) {
        const int t = threadIdx.x, chunk = t % 8, r = t / 8;
        base = shared_address(memory);
        to = base + r * GEMM_ROW_BYTES + (chunk ^ 5 * (r % 2)) * 16;
#pragma unroll
        for (int n = 0; n < PER_THREAD; n++) {
            const int slot = at.first + r + 32 * n;
            if (r + 32 * n >= at.count) from[n] = ~0u;
            else from[n] = (uint32_t)(p.row ? p.row[slot] : slot) * (uint32_t)(p.w.cols / 8) + chunk;
        }
        const int slot = at.first + min(t, at.count - 1);
        unit = (uint32_t)(p.row ? p.row[slot] : slot) * (uint32_t)p.in.units;
    }
    __device__ __forceinline__ void fill(const gpu_gemm &p, int kb, int k_blocks) {
        if (kb < k_blocks) {
#pragma unroll
            for (int n = 0; n < PER_THREAD; n++)
                cp_async16(to + kb % GEMM_STAGES * BYTES + n * 32 * GEMM_ROW_BYTES,
                           (const uint4 *)p.in.x + (from[n] == ~0u ? 0 : from[n] + (uint32_t)kb * 8), from[n] != ~0u);
            if (p.in.units > 1 && threadIdx.x < WIDTH) cp_async4(units_at(kb) + threadIdx.x * 4, p.in.unit + unit + kb);
        }
        cp_async_commit();
    }
};

__device__ __forceinline__ float load_shared(uint32_t at) {
    float v;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v) : "r"(at));
    return v;
}

__device__ __forceinline__ float2 load_shared8(uint32_t at) {
    float2 v;
    asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(at));
    return v;
}

/* Multiplies the sums of rows that change their scale. */
template <int NT> __device__ __forceinline__ void gemm_change_scale(float (*sum)[NT][4], float low, float high) {
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            sum[m][j][0] *= low;
            sum[m][j][1] *= low;
            sum[m][j][2] *= high;
            sum[m][j][3] *= high;
        }
}

/* Multiplies the sums of columns that change their unit; before, now: where this lane's first two units are. */
template <int NT> __device__ __forceinline__ void gemm_change_unit(float (*sum)[NT][4], uint32_t before, uint32_t now) {
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const float2 a = load_shared8(before + j * 32), b = load_shared8(now + j * 32);
        const float x = gemm_ratio(a.x, b.x), y = gemm_ratio(a.y, b.y);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            sum[m][j][0] *= x;
            sum[m][j][1] *= y;
            sum[m][j][2] *= x;
            sum[m][j][3] *= y;
        }
    }
}

/* sum += 64 columns of the warp's 32 weight rows times NT * 8 tokens. raw: the first load; the others are made here. */
template <class F, int NT>
__device__ __forceinline__ void gemm_k_block(float (*sum)[NT][4], const uint4 (*raw)[2], int half, float factor,
                                             uint32_t tokens) {
    const int lane = threadIdx.x % 32, i = lane % 4, odd = 5 * (lane / 4 % 2);
    enum { PER = F::prefill_loads == 1 ? 2 : 1 };           /* chunks of 16 bytes of a token for one load of weights */
#pragma unroll
    for (int c = 0; c < PER; c++) {
        uint32_t a[2][2][4];                                /* [step][m tile] */
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int m = 0; m < 2; m++) {
                F::prefill(raw[m][0], 2 * c + s, factor, &a[s][m][0], &a[s][m][2]);
                F::prefill(raw[m][1], 2 * c + s, factor, &a[s][m][1], &a[s][m][3]);
            }
        const int chunk = PER == 2 ? 2 * i + c : 4 * half + i;
        const uint32_t at = tokens + (uint32_t)((chunk ^ odd) * 16);
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const uint4 b = load_shared16(at + j * 8 * GEMM_ROW_BYTES);
#pragma unroll
            for (int m = 0; m < 2; m++) mma_m16n8k16<true>(sum[m][j], a[0][m], b.x, b.y);
#pragma unroll
            for (int m = 0; m < 2; m++) mma_m16n8k16<true>(sum[m][j], a[1][m], b.z, b.w);
        }
    }
}

/* The sums of a warp's rows and NT * 8 tokens, without the rows' last unit. */
template <class F, int WIDTH, int NT>
__device__ __forceinline__ void gemm_sums(const gpu_gemm &p, gemm_stages<WIDTH> &stages, gemm_weights<F> &w, int token,
                                          float (*sum)[NT][4]) {
    const int k_blocks = p.w.cols / GEMM_COLS, lane = threadIdx.x % 32;
    const uint32_t column = (uint32_t)(token + 2 * (lane % 4)) * 4, row = (uint32_t)(token + lane / 4) * GEMM_ROW_BYTES;
    const uint32_t high_ratios = w.ratios + (uint32_t)(p.w.scale_cols + 1) * 4;
    float low = 1, high = 1;                                /* ratios; 0: these rows' k blocks add nothing */
    uint4 raw[2][2], next[2][2];
    w.load(raw);
#pragma unroll 1
    for (int kb = 0; kb < k_blocks; kb++) {
        cp_async_wait<GEMM_STAGES - 2>();
        __syncthreads();
        stages.fill(p, kb + GEMM_STAGES - 1, k_blocks);
        if (F::scaled && (kb & ((1 << p.w.k_block_shift) - 1)) == 0) {
            low = load_shared(w.ratios + (kb >> p.w.k_block_shift) * 4);
            high = load_shared(high_ratios + (kb >> p.w.k_block_shift) * 4);
            if (kb) gemm_change_scale<NT>(sum, low != 0 ? low : 1, high != 0 ? high : 1);
        }
        if (p.in.units > 1 && kb) gemm_change_unit<NT>(sum, stages.units_at(kb - 1) + column, stages.units_at(kb) + column);
        const uint32_t tokens = stages.base + kb % GEMM_STAGES * gemm_stages<WIDTH>::BYTES + row;
#pragma unroll
        for (int half = 0; half < F::prefill_loads; half++) {
            if (half + 1 < F::prefill_loads || kb + 1 < k_blocks) w.load(next);
            if (F::scaled && (low == 0 || high == 0)) {
#pragma unroll
                for (int m = 0; m < 2; m++) {
                    if (low == 0) raw[m][0] = make_uint4(0, 0, 0, 0);
                    if (high == 0) raw[m][1] = make_uint4(0, 0, 0, 0);
                }
            }
            gemm_k_block<F, NT>(sum, raw, half, p.factor, tokens);
#pragma unroll
            for (int m = 0; m < 2; m++) raw[m][0] = next[m][0], raw[m][1] = next[m][1];
        }
    }
    const float last_low = F::scaled ? load_shared(w.ratios + p.w.scale_cols * 4) : 1 / p.factor;
    gemm_change_scale<NT>(sum, last_low, F::scaled ? load_shared(high_ratios + p.w.scale_cols * 4) : last_low);
}

/* The unit of the last 64 columns, or of the row, of token `t` of the tile. */
template <int WIDTH>
__device__ __forceinline__ float gemm_last_unit(const gpu_gemm &p, const gemm_place &at, int t) {
    if (t >= at.count) return 0;
    const int slot = at.first + t;
    return __ldg(p.in.unit + (size_t)((p.row ? p.row[slot] : slot) + 1) * p.in.units - 1);
}

/* Of two neighbouring tokens' values (v0, v1) of row g, lanes g and g ^ 1 make two neighbouring rows' of one token: lanes of
   even g get token 0's, those of odd g token 1's. */
__device__ __forceinline__ float2 gemm_pair_rows(float v0, float v1) {
    const bool odd = threadIdx.x / 4 % 2;
    const float other = __shfl_xor_sync(~0u, odd ? v0 : v1, 4);
    return odd ? make_float2(other, v1) : make_float2(v0, other);
}

/* Stores the sums: y, or part. */
template <int WIDTH, int NT>
__device__ __forceinline__ void gemm_store(const gpu_gemm &p, const gemm_place &at, int row, int token, float (*sum)[NT][4]) {
    const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int t = token + 8 * j + 2 * i + c;
            float unit = gemm_last_unit<WIDTH>(p, at, t);
            if (p.weight && t < at.count) unit *= p.weight[at.first + t];
#pragma unroll
            for (int m = 0; m < 2; m++) {
                sum[m][j][c] *= unit;
                sum[m][j][2 + c] *= unit;
            }
        }
    if (p.out == GEMM_PART) {
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int n = 0; n < 4; n++) {                   /* panels */
                const float2 v = gemm_pair_rows(sum[n / 2][j][n % 2 * 2], sum[n / 2][j][n % 2 * 2 + 1]);
                const int t = token + 8 * j + 2 * i + g % 2, r = row + 8 * n + g / 2 * 2;
                if (t < at.count && r < p.w.rows)
                    *(uint32_t *)(p.to + (size_t)(at.first + t) * p.y_stride + r) = bf16_pair(v.x, v.y);
            }
        return;
    }
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const int t = token + 8 * j + 2 * i + c;
            if (t >= at.count) continue;
            float *y = p.y + (size_t)(at.first + t) * p.y_stride + row + g;
#pragma unroll
            for (int n = 0; n < 4; n++)
                if (row + 8 * n + g < p.w.rows) {
                    const float v = sum[n / 2][j][n % 2 * 2 + c];
                    y[8 * n] = p.out == GEMM_ADD ? y[8 * n] + v : v;
                }
        }
}

/* h = SiLU(gate) * up as F16 with a unit for each 64 elements: four warps' share, whose largest values meet in `tops`,
   [8 warps][64 tokens] in shared memory. */
template <int WIDTH, int NT>
__device__ __forceinline__ void gemm_store_swiglu(const gpu_gemm &p, const gemm_place &at, int row, int token,
                                                  float (*sum)[NT][4], float *tops) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, i = lane % 4;
#pragma unroll
    for (int j = 0; j < NT; j++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float unit = gemm_last_unit<WIDTH>(p, at, token + 8 * j + 2 * i + c);
            float top = 0;
#pragma unroll
            for (int m = 0; m < 2; m++) {
                const float gate = sum[m][j][c] * unit, h = gate * gpu_sigmoid(gate) * (sum[m][j][2 + c] * unit);
                sum[m][j][c] = h;
                if (row + 8 * m + g < p.w.rows) top = fmaxf(top, fabsf(h));
            }
#pragma unroll
            for (int n = 4; n < 32; n *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, n));
            if (g == 0) tops[warp * 64 + 8 * j + 2 * i + c] = top;
        }
    __syncthreads();
    const int first_of = WIDTH == 128 ? warp % 2 : warp / 4 * 4, apart = WIDTH == 128 ? 2 : 1;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const int t = token + 8 * j + 2 * i + g % 2;
        float top = 0, factor;
#pragma unroll
        for (int n = 0; n < 4; n++) top = fmaxf(top, tops[(first_of + n * apart) * 64 + 8 * j + 2 * i + g % 2]);
        const float unit = gemm_unit(top, &factor);
#pragma unroll
        for (int m = 0; m < 2; m++) {
            const float2 v = gemm_pair_rows(sum[m][j][0], sum[m][j][1]);
            const int r = row + 8 * m + g / 2 * 2;
            if (t < at.count && r < p.w.rows)
                *(uint32_t *)(p.to + (size_t)(at.first + t) * p.y_stride + r) = f16_pair(v.x * factor, v.y * factor);
        }
        if (t < at.count && g < 2 && row % 64 == 0 && row < p.w.rows)
            p.to_unit[(size_t)(at.first + t) * (p.y_stride / 64) + row / 64] = unit;
    }
}

/* A tile whose tokens need NT * 8 columns of each warp. */
template <class F, int WIDTH, int NT>
__device__ __forceinline__ void gemm_tile_of(const gpu_gemm &p, const gemm_place &at, void *memory) {
    const int warp = threadIdx.x / 32, across = WIDTH == 128 ? 2 : 1;
    const int rows = p.out == GEMM_SWIGLU ? 16 : 32, row = warp / across * rows, token = warp % across * 64;
    gemm_stages<WIDTH> stages;
    gemm_weights<F> w;
    float sum[2][NT][4] = {};
    stages.begin(p, at, memory);
    for (int kb = 0; kb < GEMM_STAGES - 1; kb++) stages.fill(p, kb, p.w.cols / GEMM_COLS);
    w.begin(p, at, row, (float *)((char *)memory + gemm_stages<WIDTH>::size()));
    gemm_sums<F, WIDTH, NT>(p, stages, w, token, sum);
    if (p.out != GEMM_SWIGLU) {
        gemm_store<WIDTH, NT>(p, at, at.row + row, token, sum);
        return;
    }
    cp_async_wait<0>();
    __syncthreads();
    gemm_store_swiglu<WIDTH, NT>(p, at, at.row + row, token, sum, (float *)memory);
}

/* Grid: row tiles x token tiles. Tiles of half the tokens or fewer skip the other half. */
template <class F, int WIDTH> __global__ void __launch_bounds__(GPU_THREADS, 2) gemm_kernel(const __grid_constant__ gpu_gemm p) {
    extern __shared__ uint4 dynamic[];
    enum { NT = WIDTH == 128 ? 8 : WIDTH / 8 };
    const int tile_rows = (WIDTH == 128 ? 128 : 256) / (p.out == GEMM_SWIGLU ? 2 : 1);
    gemm_place at;
    if (!gemm_place_of<WIDTH>(p, (p.w.rows + tile_rows - 1) / tile_rows, tile_rows, &at)) return;
    if (WIDTH < 128 && at.count <= WIDTH / 2) gemm_tile_of<F, WIDTH, (WIDTH < 128 ? NT / 2 : NT)>(p, at, dynamic);
    else gemm_tile_of<F, WIDTH, NT>(p, at, dynamic);
}

template <class F> static void gemm_launch_as(const gpu_gemm *p, int width, int token_tiles, cudaStream_t stream) {
    void (*kernel)(gpu_gemm) = width == 128 ? gemm_kernel<F, 128> : width == 64 ? gemm_kernel<F, 64> : gemm_kernel<F, 32>;
    const size_t shared = width == 128 ? gemm_stages<128>::size() : width == 64 ? gemm_stages<64>::size() : gemm_stages<32>::size();
    const size_t scales = F::scaled ? (size_t)GPU_WARPS * 2 * (size_t)(p->w.scale_cols + 1) * sizeof(float) : 0;
    const int tile_rows = (width == 128 ? 128 : 256) / (p->out == GEMM_SWIGLU ? 2 : 1);
    const int row_tiles = (p->w.rows + tile_rows - 1) / tile_rows;
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, GPU_SHARED);
    kernel<<<(unsigned)(row_tiles * token_tiles), GPU_THREADS, shared + scales, stream>>>(*p);
}

/* Launches the product with tiles of `width` tokens. Grouped: at most `token_tiles` tiles. */
static void gemm_launch(const gpu_gemm *p, int width, int token_tiles, cudaStream_t stream) {
    switch (p->w.format) {
        case FORMAT_FP8_BLOCK: gemm_launch_as<format_fp8_block>(p, width, token_tiles, stream); break;
        case FORMAT_BF16: gemm_launch_as<format_bf16>(p, width, token_tiles, stream); break;
        default: break;
    }
}
