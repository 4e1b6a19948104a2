/* cuda/gemm.cu: many token rows times a packed weight matrix: the product of a prompt, on tensor cores. Knows matrices,
   formats and rows of F16; must not know layers. Projections of one to four rows are cuda/projection.cu's.

     y[t] = W x[t]                                     GEMM_STORE
     y[t] += weight[t] W x[t]                          GEMM_ADD
     h[t] = SiLU(W x[t]) * (up x[t])                   GEMM_SWIGLU: two matrices of one shape
     part[t] = weight[t] W x[t]                        GEMM_PART: BF16, to be summed by who knows which rows belong together

   Grouped: for a mixture of experts the rows are sorted by expert ("slots"), and a list of tiles says which expert's matrix
   the slots first .. first + count - 1 want. Otherwise all rows want the same matrix.

   Operands of mma.m16n8k16. A is the weights, from global memory or the L2 straight into registers, as they lie packed
   (cuda/panels.cu) and as decode reads them: no second copy, no shared memory. They become F16 there: FP8, NVFP4
   with its groups' scales and INT4 less its zero points exactly, BF16 times a power of two that is the whole model's
   (mote_model.bf16_factor). A launch has matrices of one format, a constant of its kernel, and of BF16: with a branch for every format in
   one kernel ptxas spilled several times as much, and a launch for each format left SMs idle. B is the tokens, F16 in shared memory. C is float.

   Token rows (gemm_rows) are F16, one term: its relative error of 2^-12 is less than BF16's 2^-9. A row, or each 64 columns
   of a row, has been multiplied with a power of two that brings its largest value into [2^7, 2^15); the inverse is its
   activation scale, `act_scale`.

   Scales without a second set of sums. The sums of k block kb are in units of scale[kb] and act_scale[kb]. Before the next k
   block is added, they are multiplied with scale[kb] / scale[kb + 1] and likewise with the activation scales, where these change,
   and at the end with the last of each. Powers of two do not round. Where each row has scales of its own (FP8 by row, INT4),
   a lane does so for its four or eight rows: gemm_change_rows.

   A tile of WIDTH tokens, gemm_form. 128 tokens: 4 warps, each 64 of 128 weight rows (eight row panels; for GEMM_SWIGLU four of
   each matrix, so that gate and up of an element meet in one lane) x 64 tokens: 128 sums a lane. What a warp reads of the tokens
   serves twice the rows that 32 would, and reading them is what the memory path of an SM has most to do with. 64 or 32 tokens: 8
   warps, each 32 of 256 rows: there the weights are most of what is read, and more warps have more of them on their way. Columns
   do not mix and k goes upward in any tile, so a row's bits depend neither on WIDTH nor on the rows beside it.

   Shared memory: stages of 64 k, filled by cp.async. Of 128 tokens, 16 KB, there are two, so that two blocks fit an SM of 100
   KB: one computes while the other waits at its barrier; of fewer, three. Row r's eight 16-byte chunks lie at chunk ^ 5 (r % 2):
   then the eight lanes that a load serves at a time, two rows of them, take eight different bank groups, for the chunks 2i + p
   that FP8 wants and for the chunks 4p + i of BF16. */

enum gemm_out { GEMM_STORE, GEMM_ADD, GEMM_SWIGLU, GEMM_PART };

enum { GEMM_COLS = 64, GEMM_ROW_BYTES = 2 * GEMM_COLS, GEMM_GROUP = 8,
       GEMM_COLS_MAX = 65536 };   /* for more, ratios of scales would not fit in shared memory */

/* A block for tiles of WIDTH tokens. */
template <int WIDTH> struct gemm_form {
    enum { WIDE = WIDTH == 128, WARPS = WIDE ? 4 : 8, THREADS = 32 * WARPS, STAGES = WIDE ? 2 : 3,
           ACROSS = WIDE ? 2 : 1,                                   /* warps that share weight rows, 64 tokens each */
           TILES = WIDE ? 4 : 2, WARP_ROWS = 2 * TILES * PANEL_ROWS };          /* of a warp: m16 tiles, each of two panels */
};

/* Token rows as the product takes them. */
typedef struct gemm_rows {
    const void *x;               /* F16 [rows][cols] */
    const float *act_scale;      /* [act_scales][rows], powers of two */
    int act_scales;              /* of a row: cols / 64, or 1, as all rows have that are gathered */
} gemm_rows;

/* Slots that want the same expert. */
typedef struct gemm_tile { int expert, first, count; } gemm_tile;

/* A matrix, and where its products go. */
typedef struct gemm_product {
    gpu_matrix w, up;            /* up: of GEMM_SWIGLU; grouped: of expert 0 */
    enum gemm_out out;
    const float *weight;         /* [T] of GEMM_ADD and GEMM_PART; NULL: 1 */
    float *y;                    /* [T][stride] */
    uint16_t *to;                /* [T][stride] h as F16, part as BF16 */
    float *to_scale;             /* [stride / 64][T] activation scales of h */
    int stride;
    int first_tile, end_tile;    /* of the weight tiles of all products: gemm_launch */
} gemm_product;

enum { GEMM_PRODUCTS = 4 };

typedef struct gpu_gemm {
    gemm_product product[GEMM_PRODUCTS];                    /* of the same rows; their matrices have the same columns and, when they
                                                               are launched, one kernel: gemm_take */
    gemm_rows in;
    int count, cols, T;          /* products; rows, or, grouped, slots */
    float factor;                /* of formats without scales: the weights' power of two */
    const gemm_tile *tiles;      /* grouped, in device memory; NULL: not grouped */
    const int *tile_count;
    int64_t expert_stride;       /* bytes from one expert's matrices to the next one's */
    const int32_t *row;          /* [slots] the row of x that a slot has; NULL: its own number */
} gpu_gemm;

/* The activation scale of values whose largest magnitude is `top`, and in *factor its inverse, which brings that into [2^7,
   2^15): F16 has its eleven bits from 2^-14 on. Every eighth power of two will do, so that neighbouring k blocks mostly share
   theirs, and sums need not be multiplied. Scales are at least 2^-40: the ratio of two cannot overflow a sum. */
__device__ __forceinline__ float gemm_act_scale(float top, float *factor) {
    const int size = __float_as_int(top) >> 23 & 0xff, least = (size + 1) / 8 * 8 - 1;      /* exponents, biased by 127 */
    const int exponent = max(1, min(127 + 7 - (least - 127), 127 + 40));
    *factor = __int_as_float(exponent << 23);
    return __int_as_float((254 - exponent) << 23);
}

/* x / y for two powers of two. */
__device__ __forceinline__ float gemm_ratio(float x, float y) {
    return __int_as_float(__float_as_int(x) - __float_as_int(y) + (127 << 23));
}

/* The tile of a block; in shared memory, as registers are short. */
struct gemm_place {
    int product;
    int row;                     /* first weight row (GEMM_SWIGLU: of either matrix) */
    int first, count;            /* rows or slots */
    int64_t offset;              /* bytes from expert 0's matrices */
};

/* Weight rows of a tile. */
template <int WIDTH> __host__ __device__ constexpr int gemm_tile_rows(enum gemm_out out) {
    typedef gemm_form<WIDTH> form;
    return form::WARPS / form::ACROSS * form::WARP_ROWS / (out == GEMM_SWIGLU ? 2 : 1);
}

/* Token tiles in groups of GEMM_GROUP, within a group weight tile by weight tile: what runs at a time shares both in the L2. */
template <int WIDTH> __device__ __forceinline__ bool gemm_place_of(const gpu_gemm &p, gemm_place *at) {
    const int b = blockIdx.x, row_tiles = p.product[p.count - 1].end_tile;
    int tile;
    at->offset = 0;
    if (p.tiles) {
        if (b / row_tiles >= *p.tile_count) return false;
        const gemm_tile t = p.tiles[b / row_tiles];
        tile = b % row_tiles;
        at->first = t.first;
        at->count = t.count;
        at->offset = t.expert * p.expert_stride;
    } else {
        const int tiles = (p.T + WIDTH - 1) / WIDTH, from = b / (GEMM_GROUP * row_tiles) * GEMM_GROUP;
        const int wide = min(GEMM_GROUP, tiles - from), rest = b - from * row_tiles;
        tile = rest / wide;
        at->first = (from + rest % wide) * WIDTH;
        at->count = min(WIDTH, p.T - at->first);
    }
    for (at->product = 0; tile >= p.product[at->product].end_tile; at->product++) continue;
    const gemm_product &o = p.product[at->product];
    at->row = (tile - o.first_tile) * gemm_tile_rows<WIDTH>(o.out);
    return true;
}

/* A scale that sums can be divided by: the scale itself, unless it is zero or far below the one before, `before`, which has
   been chosen so itself. What such k blocks add, 2^-60 of the others at most, is far below a float's last bit. */
__device__ __forceinline__ float gemm_usable_scale(float scale, float before) {
    const float least = fabsf(before) * 0x1p-60f;
    return fabsf(scale) >= least && scale != 0 ? scale : least;
}

/* ratios[i] = what the sums are multiplied with before the first k block of scale i: scale i - 1 / scale i; ratios[0] = 1;
   ratios[cols] = the last scale. A warp calls it. Nearly always all scales are usable, and used as they are. */
__device__ __forceinline__ void gemm_scales(float *ratios, const float *scale, int cols) {
    for (int first = 0; first <= cols; first += 32) {
        const int i = first + (int)threadIdx.x % 32;
        float before = i > 0 && i <= cols ? __ldg(scale + i - 1) : 1, now = i < cols ? __ldg(scale + i) : 1;
        const bool fit = now != 0 && before != 0 && (i == 0 || i >= cols || fabsf(now) >= fabsf(before) * 0x1p-60f);
        if (!__all_sync(~0u, fit) || first) {
            now = 1;
            for (int k = 0; k <= min(i, cols - 1); k++) {
                const float own = __ldg(scale + k);
                before = now;
                now = k ? gemm_usable_scale(own, now) : own != 0 ? own : 0x1p-100f;
            }
            before = i >= cols ? now : before;
        }
        if (i <= cols) ratios[i] = i == cols ? before : i ? before / now : 1;
    }
}

/* A warp's weights: TILES m16 tiles, each of a panel `low` and a panel `high`. All rows of its low panels share their scales,
   and so do those of its high ones. Panels after the last are not loaded: their rows are zeros, which are not stored. */
template <class F, int TILES> struct gemm_weights {
    const char *low;             /* this lane's part of the next k block of m tile 0 */
    int64_t to_high;             /* bytes from there to the panel `high` */
    uint32_t step;               /* bytes from m tile to m tile */
    int panels;                  /* of the warp that are there */
    const float *row;            /* by_row: this lane's row's scale of the first panel */
    int to_high_row, step_row;   /* floats from there */
    uint32_t ratios;             /* the warp's two rows of gemm_scales, in shared memory */

    __device__ __forceinline__ void begin(const gemm_product &p, const gemm_place &at, int warp_row, float *scales) {
        const bool pairs = p.out == GEMM_SWIGLU;
        const uint32_t panel_bytes = (uint32_t)p.w.k_blocks * F::panel, lane = threadIdx.x % 32;
        const int first = (at.row + warp_row) / PANEL_ROWS, panel = min(first, p.w.panels - 1);
        panels = (p.w.panels - first) * (pairs ? 2 : 1);
        low = p.w.data + at.offset + (size_t)panel * panel_bytes + lane * F::lane;
        to_high = pairs ? p.up.data - p.w.data : panel_bytes;
        step = pairs ? panel_bytes : 2 * panel_bytes;
        if (F::by_row) {
            row = (const float *)((const char *)p.w.scale + at.offset) + panel * PANEL_ROWS + lane / 4;
            to_high_row = pairs ? (int)(p.up.scale - p.w.scale) : PANEL_ROWS;
            step_row = pairs ? PANEL_ROWS : 2 * PANEL_ROWS;
        }
        if (!F::scaled) return;
        const int cols = p.w.scale_cols;
        const float *scale = (const float *)((const char *)p.w.scale + at.offset);
        scale += (panel * PANEL_ROWS >> p.w.row_shift) * cols;
        scales += threadIdx.x / 32 * 2 * (cols + 1);
        ratios = shared_address(scales);
        gemm_scales(scales, scale, cols);
        gemm_scales(scales + cols + 1, pairs ? scale + (p.up.scale - p.w.scale) : scale, cols);
        __syncwarp();
    }
    /* Of all panels; then on to the next k block. */
    __device__ __forceinline__ void load(typename F::raw (&raw)[TILES][2]) {
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            if (2 * m < panels) raw[m][0] = F::load(low + m * step, row + m * step_row);
            if (2 * m + 1 < panels) raw[m][1] = F::load(low + to_high + m * step, row + to_high_row + m * step_row);
        }
        low += F::panel;
    }
};

/* A block's shared memory: the stages of token rows, then their activation scales, then the ratios of scales. Rows after the last
   are zeros, or copies of that: their columns are computed and not stored. */
template <int WIDTH> struct gemm_stages {
    enum { COUNT = gemm_form<WIDTH>::STAGES, BYTES = WIDTH * GEMM_ROW_BYTES, SCALE_STAGES = COUNT + 1,
           APART = gemm_form<WIDTH>::THREADS / 8, PER_THREAD = WIDTH / APART,   /* rows, of those that a thread copies a chunk of */
           GATHERS = WIDTH < 128 };                         /* the rows of grouped tiles, which are no wider, are gathered */
    const gpu_gemm &p;
    const gemm_place &at;
    const uint32_t base;
    const uint4 *from;                                      /* this thread's chunk, in the next k block, of row 0 or its first row */
    const int rows;                                         /* from its first row on, of the tile */
    uint32_t row[GATHERS ? PER_THREAD : 1];                 /* those that this thread copies, if they are gathered */

    static __host__ __device__ constexpr size_t size() {
        return (size_t)COUNT * BYTES + (SCALE_STAGES + 1) * WIDTH * sizeof(float);
    }
    __device__ __forceinline__ uint32_t act_scales_at(int kb) const {
        return base + COUNT * BYTES + kb % SCALE_STAGES * WIDTH * (uint32_t)sizeof(float);
    }
    /* The factor of a token's sums at the end: its last activation scale, times its weight. */
    __device__ __forceinline__ uint32_t finish() const {
        return base + COUNT * BYTES + SCALE_STAGES * WIDTH * (uint32_t)sizeof(float);
    }
    __device__ __forceinline__ uint32_t row_of(int t) const {
        const int slot = at.first + min(t, at.count - 1);
        return p.row ? p.row[slot] : slot;
    }
    __device__ __forceinline__ gemm_stages(const gpu_gemm &p, const gemm_place &at, const float *weight, void *memory)
        : p(p), at(at), base(shared_address(memory)),
          from((const uint4 *)p.in.x + (GATHERS ? 0 : (size_t)(at.first + threadIdx.x / 8) * (p.cols / 8)) + threadIdx.x % 8),
          rows(at.count - (int)threadIdx.x / 8) {
#pragma unroll
        for (int n = 0; GATHERS && n < PER_THREAD; n++) row[n] = row_of(threadIdx.x / 8 + APART * n);
        if (threadIdx.x >= WIDTH) return;
        const float scale = __ldg(p.in.act_scale + (size_t)(p.in.act_scales - 1) * p.T + row_of(threadIdx.x));
        ((float *)((char *)memory + (finish() - base)))[threadIdx.x] =
            weight ? scale * __ldg(weight + at.first + min((int)threadIdx.x, at.count - 1)) : scale;
    }
    /* Of k block kb; they are filled one after the other. */
    __device__ __forceinline__ void fill(int kb, int k_blocks) {
        if (kb < k_blocks) {
            const int r = threadIdx.x / 8, chunk = threadIdx.x % 8;
            const uint32_t to = base + kb % COUNT * BYTES + r * GEMM_ROW_BYTES + (chunk ^ 5 * (r % 2)) * 16;
#pragma unroll
            for (int n = 0; n < PER_THREAD; n++)
                cp_async16(to + n * APART * GEMM_ROW_BYTES,
                           from + (GATHERS ? row[GATHERS ? n : 0] : n * APART) * (uint32_t)(p.cols / 8),
                           GATHERS || n * APART < rows);
            from += 8;
            if (p.in.act_scales > 1 && threadIdx.x < WIDTH)
                cp_async4(act_scales_at(kb) + threadIdx.x * 4, p.in.act_scale + (size_t)kb * p.T + row_of(threadIdx.x));
        }
        cp_async_commit();
    }
};

/* Multiplies the sums of rows that change their scale. */
template <int TILES, int NT>
__device__ __forceinline__ void gemm_change_scale(float (&sum)[TILES][NT][4], float low, float high) {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            sum[m][j][0] *= low;
            sum[m][j][1] *= low;
            sum[m][j][2] *= high;
            sum[m][j][3] *= high;
        }
}

/* Multiplies the sums of this lane's rows: of panel o of m tile m by by[m][o]. */
template <int TILES, int NT>
__device__ __forceinline__ void gemm_scale_rows(float (&sum)[TILES][NT][4], const float (&by)[TILES][2]) {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int n = 0; n < 4; n++) sum[m][j][n] *= by[m][n / 2];
}

/* Formats whose rows have scales of their own: in *before those of the last k block become those of this one, and the sums with
   them. first: there are no sums yet. */
template <class F, int TILES, int NT>
__device__ __forceinline__ void gemm_change_rows(float (&sum)[TILES][NT][4], const typename F::raw (&raw)[TILES][2],
                                                 float (&before)[TILES][2], bool first) {
    float by[TILES][2];
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int o = 0; o < 2; o++) {
            const float scale = F::row_scale(raw[m][o]);
            const float now = first ? scale != 0 ? scale : 0x1p-100f : gemm_usable_scale(scale, before[m][o]);
            by[m][o] = first ? 1 : before[m][o] / now;
            before[m][o] = now;
        }
    if (!first) gemm_scale_rows(sum, by);
}

/* Multiplies the sums of columns that change their activation scale; before, now: where the scales of the warp's tokens are. */
template <int TILES, int NT>
__device__ __forceinline__ void gemm_change_act_scale(float (&sum)[TILES][NT][4], uint32_t before, uint32_t now) {
    const int lane = threadIdx.x % 32;
    const float2 was = load_shared8(before + lane % (4 * NT) * 8), is = load_shared8(now + lane % (4 * NT) * 8);
    if (!__any_sync(~0u, was.x != is.x || was.y != is.y)) return;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const float2 a = load_shared8(before + lane % 4 * 8 + j * 32), b = load_shared8(now + lane % 4 * 8 + j * 32);
        const float x = gemm_ratio(a.x, b.x), y = gemm_ratio(a.y, b.y);
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            sum[m][j][0] *= x;
            sum[m][j][1] *= y;
            sum[m][j][2] *= x;
            sum[m][j][3] *= y;
        }
    }
}

/* sum += the columns of one load of weights, 64 or, of BF16, half of them, times NT * 8 tokens. Once raw has become
   fragments it is loaded anew if there is `more`: that is on its way while the tensor cores work. */
template <class F, int TILES, int NT>
__device__ __forceinline__ void gemm_k_block(float (&sum)[TILES][NT][4], gemm_weights<F, TILES> &w,
                                             typename F::raw (&raw)[TILES][2], bool more, int half, float factor, uint32_t tokens) {
    const int lane = threadIdx.x % 32, i = lane % 4, odd = 5 * (lane / 4 % 2);
    enum { CHUNKS = F::prefill_loads == 1 ? 2 : 1 };        /* of 16 bytes of a token, for one load of weights */
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        uint32_t a[2][TILES][4];                            /* [step][m tile] */
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                F::prefill(raw[m][0], 2 * c + s, factor, &a[s][m][0], &a[s][m][2]);
                F::prefill(raw[m][1], 2 * c + s, factor, &a[s][m][1], &a[s][m][3]);
            }
        if (c == CHUNKS - 1 && more) w.load(raw);
        const int chunk = CHUNKS == 2 ? 2 * i + c : 4 * half + i;
        const uint32_t at = tokens + (uint32_t)((chunk ^ odd) * 16);
#pragma unroll
        for (int j = 0; j < NT; j += 2) {
            const uint4 b[2] = {load_shared16(at + j * 8 * GEMM_ROW_BYTES), load_shared16(at + (j + 1) * 8 * GEMM_ROW_BYTES)};
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int m = 0; m < TILES; m++) mma_m16n8k16<true>(sum[m][j + k], a[0][m], b[k].x, b[k].y);
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int m = 0; m < TILES; m++) mma_m16n8k16<true>(sum[m][j + k], a[1][m], b[k].z, b[k].w);
        }
    }
}

/* The sums of a warp's rows and NT * 8 tokens, without the rows' last scale. */
template <class F, int WIDTH, int TILES, int NT>
__device__ __forceinline__ void gemm_sums(const gpu_gemm &p, const gpu_matrix &of, gemm_stages<WIDTH> &stages,
                                          gemm_weights<F, TILES> &w, int token, float (&sum)[TILES][NT][4]) {
    const int k_blocks = p.cols / GEMM_COLS, lane = threadIdx.x % 32;
    const uint32_t row = (uint32_t)(token + lane / 4) * GEMM_ROW_BYTES;
    typedef gemm_stages<WIDTH> stage;
    typename F::raw raw[TILES][2] = {};
    float row_scale[TILES][2];
    w.load(raw);
#pragma unroll 1
    for (int kb = 0; kb < k_blocks; kb++) {
        cp_async_wait<stage::COUNT - 2>();
        __syncthreads();
        stages.fill(kb + stage::COUNT - 1, k_blocks);
        if (F::scaled && (kb & ((1 << of.k_block_shift) - 1)) == 0) {
            const uint32_t ratio = w.ratios + (kb >> of.k_block_shift) * 4;
            gemm_change_scale(sum, load_shared(ratio), load_shared(ratio + (of.scale_cols + 1) * 4));
        }
        if (p.in.act_scales > 1 && kb)
            gemm_change_act_scale(sum, stages.act_scales_at(kb - 1) + token * 4, stages.act_scales_at(kb) + token * 4);
        const uint32_t tokens = stages.base + kb % stage::COUNT * stage::BYTES + row;
#pragma unroll
        for (int half = 0; half < F::prefill_loads; half++) {
            const bool begins = (kb & ((1 << of.k_block_shift) - 1)) == 0;         /* a group; halves are groups themselves */
            if (F::by_row && (F::groups ? begins : kb == 0)) gemm_change_rows<F>(sum, raw, row_scale, kb + half == 0);
            gemm_k_block(sum, w, raw, half + 1 < F::prefill_loads || kb + 1 < k_blocks, half, p.factor, tokens);
        }
    }
    if (F::by_row) {
        gemm_scale_rows(sum, row_scale);
        return;
    }
    const float last_low = F::scaled ? F::post_scale * load_shared(w.ratios + of.scale_cols * 4) : 1 / p.factor;
    const float last_high = F::scaled ? F::post_scale * load_shared(w.ratios + (2 * of.scale_cols + 1) * 4) : last_low;
    gemm_change_scale(sum, last_low, last_high);
}

/* Of two neighbouring tokens' values (v0, v1) of row g, lanes g and g ^ 1 make two neighbouring rows' of one token: lanes of
   even g get token 0's, those of odd g token 1's. */
__device__ __forceinline__ float2 gemm_pair_rows(float v0, float v1) {
    const bool odd = threadIdx.x / 4 % 2;
    const float other = __shfl_xor_sync(~0u, odd ? v0 : v1, 4);
    return odd ? make_float2(other, v1) : make_float2(v0, other);
}

/* Stores a column of sums, of token t: y = or y += them. */
template <int TILES, int NT>
__device__ __forceinline__ void gemm_store_column(const gemm_product &o, int t, int row, const float (&sum)[TILES][NT][4],
                                                  int j, int c, float factor) {
    row += threadIdx.x % 32 / 4;
    float *y = o.y + (size_t)t * o.stride + row, residual[2 * TILES] = {};
#pragma unroll
    for (int n = 0; n < 2 * TILES; n++)
        if (o.out == GEMM_ADD && row + 8 * n < o.w.rows) residual[n] = y[8 * n];
#pragma unroll
    for (int n = 0; n < 2 * TILES; n++)
        if (row + 8 * n < o.w.rows) y[8 * n] = fmaf(sum[n / 2][j][n % 2 * 2 + c], factor, residual[n]);
}

/* Stores the sums: y, or part. */
template <int WIDTH, int TILES, int NT>
__device__ __forceinline__ void gemm_store(const gemm_product &o, const gemm_place &at, const gemm_stages<WIDTH> &stages,
                                           int row, int token, float (&sum)[TILES][NT][4]) {
    const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const int t = token + 8 * j + 2 * i;
        const float2 factor = load_shared8(stages.finish() + t * 4);
        if (WIDTH < 128 && o.out == GEMM_PART) {            /* of slots, whose tiles are narrower */
#pragma unroll
            for (int n = 0; n < 2 * TILES; n++) {           /* panels */
                const float *of = &sum[n / 2][j][n % 2 * 2];
                const float2 v = gemm_pair_rows(of[0] * factor.x, of[1] * factor.y);
                uint16_t *to = o.to + (size_t)(at.first + t + g % 2) * o.stride + row + 8 * n + g / 2 * 2;
                if (t + g % 2 < at.count && row + 8 * n < o.w.rows) *(uint32_t *)to = bf16_pair(v.x, v.y);
            }
        } else {
            if (t < at.count) gemm_store_column(o, at.first + t, row, sum, j, 0, factor.x);
            if (t + 1 < at.count) gemm_store_column(o, at.first + t + 1, row, sum, j, 1, factor.y);
        }
    }
}

/* h = SiLU(gate) * up as F16 with an activation scale for each 64 elements: the share of SHARERS warps, whose largest values
   meet in `tops`, [warps][64 tokens] in shared memory. */
template <int WIDTH, int TILES, int NT>
__device__ __forceinline__ void gemm_store_swiglu(const gemm_product &o, const gemm_place &at, const gemm_stages<WIDTH> &stages,
                                                  int row, int token, float (&sum)[TILES][NT][4], float *tops, int T) {
    enum { ACROSS = gemm_form<WIDTH>::ACROSS, SHARERS = 64 / (gemm_form<WIDTH>::WARP_ROWS / 2) };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, i = lane % 4;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const float2 scale = load_shared8(stages.finish() + (token + 8 * j + 2 * i) * 4);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float top = 0;
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                const float gate = sum[m][j][c] * (c ? scale.y : scale.x), up = sum[m][j][2 + c] * (c ? scale.y : scale.x);
                sum[m][j][c] = gpu_silu(gate) * up;
                top = fmaxf(top, fabsf(sum[m][j][c]));
            }
#pragma unroll
            for (int n = 4; n < 32; n *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, n));
            if (g == 0) tops[warp * 64 + 8 * j + 2 * i + c] = top;
        }
    }
    __syncthreads();
    const int first_of = warp / ACROSS / SHARERS * SHARERS * ACROSS + warp % ACROSS;
    if (row >= o.w.rows) return;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const int t = token + 8 * j + 2 * i + g % 2;
        float top = 0, factor;
#pragma unroll
        for (int n = 0; n < SHARERS; n++) top = fmaxf(top, tops[(first_of + n * ACROSS) * 64 + 8 * j + 2 * i + g % 2]);
        const float act_scale = gemm_act_scale(top, &factor);
        uint16_t *to = o.to + (size_t)(at.first + t) * o.stride + row + g / 2 * 2;
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            const float2 v = gemm_pair_rows(sum[m][j][0], sum[m][j][1]);
            if (t < at.count) *(uint32_t *)(to + 8 * m) = f16_pair(v.x * factor, v.y * factor);
        }
        if (t < at.count && g < 2 && row % 64 == 0) o.to_scale[(size_t)(row / 64) * T + at.first + t] = act_scale;
    }
}

/* A tile whose tokens need NT * 8 columns of each warp. */
template <class F, int WIDTH, int NT>
__device__ __forceinline__ void gemm_tile_of(const gpu_gemm &p, const gemm_place &at, void *memory) {
    const gemm_product &o = p.product[at.product];
    typedef gemm_form<WIDTH> form;
    const int warp = threadIdx.x / 32, token = warp % form::ACROSS * 64;
    const int row = warp / form::ACROSS * (form::WARP_ROWS / (o.out == GEMM_SWIGLU ? 2 : 1));
    gemm_stages<WIDTH> stages(p, at, o.weight, memory);
    float sum[form::TILES][NT][4] = {};
    for (int kb = 0; kb < form::STAGES - 1; kb++) stages.fill(kb, p.cols / GEMM_COLS);
    const auto multiply = [&](auto format) {
        gemm_weights<decltype(format), form::TILES> w;
        w.begin(o, at, row, (float *)((char *)memory + gemm_stages<WIDTH>::size()));
        gemm_sums(p, o.w, stages, w, token, sum);
    };
    if (std::is_same<F, format_bf16>::value || o.w.format != FORMAT_BF16) multiply(F());
    else multiply(format_bf16());
    if (o.out != GEMM_SWIGLU) {
        gemm_store(o, at, stages, at.row + row, token, sum);
        return;
    }
    __syncthreads();                                        /* the stages are done with */
    gemm_store_swiglu(o, at, stages, at.row + row, token, sum, (float *)memory, p.T);
}

/* Products of matrices of format F and, beside them, of BF16. Grid: weight tiles x token tiles. Tiles of half the tokens or fewer skip
   the other half. */
template <class F, int WIDTH>
__global__ void __launch_bounds__(gemm_form<WIDTH>::THREADS, 2) gemm_kernel(const __grid_constant__ gpu_gemm p) {
    enum { NT = WIDTH == 128 ? 8 : WIDTH / 8, HALF = WIDTH < 128 ? NT / 2 : NT };
    extern __shared__ uint4 dynamic[];
    __shared__ gemm_place at;
    if (threadIdx.x == 0 && !gemm_place_of<WIDTH>(p, &at)) at.count = 0;
    __syncthreads();
    if (!at.count) return;
    if ((int)HALF < (int)NT && at.count <= WIDTH / 2) gemm_tile_of<F, WIDTH, HALF>(p, at, dynamic);
    else gemm_tile_of<F, WIDTH, NT>(p, at, dynamic);
}

/* Deals weight tiles of this width to the products; returns how many there are. */
template <int WIDTH> static int gemm_deal_tiles(gpu_gemm *p) {
    int tiles = 0;
    for (int i = 0; i < p->count; i++) {
        gemm_product *o = &p->product[i];
        const int rows = gemm_tile_rows<WIDTH>(o->out);
        o->first_tile = tiles;
        o->end_tile = tiles += (o->w.rows + rows - 1) / rows;
    }
    return tiles;
}

/* The format that chooses the kernel: the first that is not BF16. */
static enum format gemm_format(const gpu_gemm *p) {
    for (int i = 0; i < p->count; i++)
        if (p->product[i].w.format != FORMAT_BF16) return p->product[i].w.format;
    return FORMAT_BF16;
}

/* The kernel for products of this format; NULL: there is none, which launching it reports. */
template <int WIDTH> static const void *gemm_kernel_of(enum format format) {
    const void *kernel = NULL;
    with_format(format, [&](auto of) {
        if constexpr (decltype(of)::gemm) kernel = (const void *)gemm_kernel<decltype(of), WIDTH>;
    });
    return kernel;
}

template <int WIDTH> static void gemm_launch_as(gpu_gemm *p, int token_tiles, cudaStream_t stream) {
    const void *kernel = gemm_kernel_of<WIDTH>(gemm_format(p));
    void *arguments[1] = {p};
    const int row_tiles = gemm_deal_tiles<WIDTH>(p);
    size_t scales = 0;
    for (int i = 0; i < p->count; i++)
        if (p->product[i].w.scale) scales = max_size(scales, (size_t)p->product[i].w.scale_cols + 1);
    (void)cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, GPU_SHARED);
    (void)cudaLaunchKernel(kernel, dim3((unsigned)(row_tiles * token_tiles)), dim3(gemm_form<WIDTH>::THREADS), arguments,
                           gemm_stages<WIDTH>::size() + gemm_form<WIDTH>::WARPS * 2 * scales * sizeof(float), stream);
}

/* Takes the products that one kernel computes out of *p. */
static gpu_gemm gemm_take(gpu_gemm *p) {
    const enum format format = gemm_format(p);
    const int count = p->count;
    gpu_gemm taken = *p;
    taken.count = p->count = 0;
    for (int i = 0; i < count; i++) {
        const gemm_product o = p->product[i];
        gpu_gemm *to = o.w.format == format || o.w.format == FORMAT_BF16 ? &taken : p;
        to->product[to->count++] = o;
    }
    return taken;
}

/* Launches the products, all of one kernel, with tiles of 128, 64 or 32 tokens. Grouped: at most `token_tiles` tiles. A failure is
   cudaGetLastError's. */
static void gemm_launch(gpu_gemm *p, int width, int token_tiles, cudaStream_t stream) {
    if (width == 128) gemm_launch_as<128>(p, token_tiles, stream);
    else if (width == 64) gemm_launch_as<64>(p, token_tiles, stream);
    else gemm_launch_as<32>(p, token_tiles, stream);
}
