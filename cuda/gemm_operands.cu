/* cuda/gemm_operands.cu: what a prompt's product (cuda/gemm.cu) is given, which tile of it a block has, and how the operands come: weights
   into registers, token rows into shared memory, scales as ratios. */

enum gemm_out { GEMM_STORE, GEMM_ADD, GEMM_SWIGLU, GEMM_PART };

enum { GEMM_COLS = 64, GEMM_ROW_BYTES = 2 * GEMM_COLS, GEMM_GROUP = 8,
       GEMM_COLS_MAX = 65536 };   /* for more, ratios of scales would not fit in shared memory */

/* A block for tiles of WIDTH tokens. */
template <int WIDTH> struct gemm_form {
    enum { WIDE = WIDTH == 128, FEW = WIDTH == 16, WARPS = WIDE || FEW ? 4 : 8, THREADS = 32 * WARPS, STAGES = WIDE ? 2 : FEW ? 4 : 3,
           ACROSS = WIDE ? 2 : 1,                                   /* warps that share weight rows, 64 tokens each */
           TILES = WIDE ? 4 : 2, WARP_ROWS = 2 * TILES * PANEL_ROWS };          /* of a warp: m16 tiles, each of two panels */
};

/* Loads of weights that a warp has on their way: of few tokens, whose sums leave registers for them, several; and blocks of an SM that fit then. */
template <int WIDTH> __host__ __device__ constexpr int gemm_loads_ahead() {
    return gemm_form<WIDTH>::FEW ? 4 : 1;
}
template <class F, int WIDTH> __host__ __device__ constexpr int gemm_blocks() {
    return !gemm_form<WIDTH>::FEW ? 2 : sizeof(typename F::raw) > 12 ? 3 : 4;
}

/* Token rows as the product takes them. */
typedef struct gemm_rows {
    const void *x;               /* F16 [rows][cols] */
    const float *act_scale;      /* [act_scales][rows], powers of two */
    int act_scales;              /* of a row: cols / 64, or 1, as all rows have that are gathered */
} gemm_rows;

/* Slots that want the same expert. */
typedef struct alignas(16) gemm_tile {
    int64_t at;                  /* bytes from expert 0's matrices */
    int first, count;
} gemm_tile;

/* A matrix, and where its products go. */
typedef struct gemm_product {
    gpu_matrix w, up;            /* up: of GEMM_SWIGLU; grouped: of expert 0 */
    enum gemm_out out;
    activation act;              /* of GEMM_SWIGLU */
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
        at->offset = t.at;
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

/* Formats whose rows have a power of two in each k block: sums keep that of an earlier one as long as it fits the weights
   (F::keeps), so that they are hardly ever multiplied. */
template <class F> __host__ __device__ constexpr bool gemm_keeps_scale() {
    return std::is_same<F, format_mxfp4>::value;
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

    __device__ __forceinline__ void begin(const gemm_product &p, const gemm_place &at, int warp_row) {
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
    }
    /* The ratios of the scales, where matrices have such. */
    __device__ __forceinline__ void begin_scales(const gemm_product &p, const gemm_place &at, int warp_row, float *scales) {
        if (!F::scaled) return;
        const bool pairs = p.out == GEMM_SWIGLU;
        const int cols = p.w.scale_cols, panel = min((at.row + warp_row) / PANEL_ROWS, p.w.panels - 1);
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

/* A block's shared memory: the stages of token rows, then their activation scales, the factors of the sums, what biases are multiplied with,
   the biases, then the ratios of scales. Rows after the last are zeros, or copies of that: their columns are computed and not stored. */
template <int WIDTH> struct gemm_stages {
    enum { COUNT = gemm_form<WIDTH>::STAGES, BYTES = WIDTH * GEMM_ROW_BYTES, SCALE_STAGES = COUNT + 1,
           APART = gemm_form<WIDTH>::THREADS / 8, PER_THREAD = WIDTH / APART,   /* rows, of those that a thread copies a chunk of */
           GATHERS = WIDTH < 128,                           /* the rows of grouped tiles, which are no wider, are gathered */
           REPEATS = GATHERS && !gemm_form<WIDTH>::FEW,     /* after the last row are copies of it: fewer registers than zeros take */
           TILE_BIASES = gemm_form<WIDTH>::WARPS / gemm_form<WIDTH>::ACROSS * gemm_form<WIDTH>::WARP_ROWS };
    const gpu_gemm &p;
    const gemm_place &at;
    const uint32_t base;
    const uint4 *from;                                      /* this thread's chunk, in the next k block, of row 0 or its first row */
    const int rows;                                         /* from its first row on, of the tile */
    uint32_t row[GATHERS ? PER_THREAD : 1];                 /* those that this thread copies, if they are gathered */

    static __host__ __device__ constexpr size_t size() {
        return (size_t)COUNT * BYTES + ((SCALE_STAGES + 2) * WIDTH + TILE_BIASES) * sizeof(float);
    }
    __device__ __forceinline__ uint32_t act_scales_at(int kb) const {
        return base + COUNT * BYTES + kb % SCALE_STAGES * WIDTH * (uint32_t)sizeof(float);
    }
    /* The factor of a token's sums at the end: its last activation scale, times its weight. */
    __device__ __forceinline__ uint32_t finish() const {
        return base + COUNT * BYTES + SCALE_STAGES * WIDTH * (uint32_t)sizeof(float);
    }
    /* 1 / the last activation scale of each token, a power of two; and the biases in the order of the warps' panels. With biases alone. */
    __device__ __forceinline__ uint32_t per_scale() const { return finish() + WIDTH * (uint32_t)sizeof(float); }
    __device__ __forceinline__ uint32_t biases() const { return per_scale() + WIDTH * (uint32_t)sizeof(float); }
    __device__ __forceinline__ float *at_address(void *memory, uint32_t address) const { return (float *)((char *)memory + (address - base)); }
    __device__ __forceinline__ void load_biases(const gemm_product &o, void *memory) const {
        enum { WARP_ROWS = gemm_form<WIDTH>::WARP_ROWS };
        const bool pairs = o.out == GEMM_SWIGLU;
        for (int i = threadIdx.x; i < (int)TILE_BIASES; i += gemm_form<WIDTH>::THREADS) {
            const int panel = i % WARP_ROWS / PANEL_ROWS;
            const int in_pair = i / WARP_ROWS * (WARP_ROWS / 2) + panel / 2 * PANEL_ROWS + i % PANEL_ROWS;
            const int row = min(at.row + (pairs ? in_pair : i), o.w.rows - 1);
            at_address(memory, biases())[i] = epilogue_bias<true>(pairs && panel % 2 ? o.up : o.w, at.offset, row);
        }
    }
    __device__ __forceinline__ uint32_t row_of(int t) const {
        const int slot = at.first + min(t, at.count - 1);
        return p.row ? p.row[slot] : slot;
    }
    __device__ __forceinline__ gemm_stages(const gpu_gemm &p, const gemm_place &at, const gemm_product &o, void *memory)
        : p(p), at(at), base(shared_address(memory)),
          from((const uint4 *)p.in.x + (GATHERS ? 0 : (size_t)(at.first + threadIdx.x / 8) * (p.cols / 8)) + threadIdx.x % 8),
          rows(at.count - (int)threadIdx.x / 8) {
#pragma unroll
        for (int n = 0; GATHERS && n < PER_THREAD; n++) row[n] = row_of(threadIdx.x / 8 + APART * n);
        if (o.w.bias) load_biases(o, memory);
        if (threadIdx.x >= WIDTH) return;
        const float scale = __ldg(p.in.act_scale + (size_t)(p.in.act_scales - 1) * p.T + row_of(threadIdx.x));
        at_address(memory, finish())[threadIdx.x] =
            o.weight ? scale * __ldg(o.weight + at.first + min((int)threadIdx.x, at.count - 1)) : scale;
        if (o.w.bias) at_address(memory, per_scale())[threadIdx.x] = gemm_ratio(1, scale);
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
                           REPEATS || n * APART < rows);
            from += 8;
            if (p.in.act_scales > 1 && threadIdx.x < WIDTH)
                cp_async4(act_scales_at(kb) + threadIdx.x * 4, p.in.act_scale + (size_t)kb * p.T + row_of(threadIdx.x));
        }
        cp_async_commit();
    }
};
