/* cuda/projection.cu: a projection: every stage that multiplies token rows by one or more matrices (its segments), as a
   kernel and as a launch. Knows matrices, tiles and tags; must not know layers.

   The prologue, by which a stage prepares the rows (IN: a norm, a gate), is computed again by every block, which is
   cheaper than a kernel of its own. A block works on one segment. */

typedef struct gpu_segment {     /* one matrix of a projection */
    gpu_matrix w, up;            /* with up.data: h = SiLU(w x) * (up x) instead of y = w x; a tile has a panel of each; with h alone: ReLU(w x)^2 */
    float *y;                    /* [T][rows] */
    float *h;                    /* [T][h_row] */
    const float *norm;           /* [cols] if rows are normalised: what with */
    int first_block, blocks;
} gpu_segment;

template <class IN> struct gpu_projection {
    handoff link;
    int count, T, cols;          /* cols, eps: used after the wait, so in the first line of the constant cache */
    float eps;
    epilogue end;
    int waits_last;              /* norm_router, norm_in_proj: if it polls for x, it stores y and h before its pdl_wait */
    int late;                    /* norm_gate_up: it releases its successor after its pdl_wait; never with waits_last */
    int blocks, extra;           /* blocks with tiles; those after them, which run IN::extra_block */
    int octets;                  /* of a cluster, at most: cuda/batch_split.cu */
    size_t h_row;                /* elements of a row of h */
    gpu_segment segment[PROJECTIONS];
    IN in;
};

/* A prologue IN has
     normed     the rows are normalised; the division by the root mean square is left to the end
     at_once    items of eight columns that a lane has in flight, in a kernel for fixed shapes
     blocks     that fit an SM with several rows
     is_short   load loads all that finish needs, which finish(.., whole = true) relies on
     last       the last token row
     extra      there may be p.extra blocks more, which run extra_block(block, of) after their pdl_wait: other work that is
                due then
     all_early  a block that has one tile and one row loads all of it before its wait: before these rows the bus is idle
     prefetches such a block then prefetches its share of what a later kernel reads first */

/* Prologue: the token rows as they are. */
struct gpu_plain_rows {
    enum { normed = 0, blocks = 2, extra = 0, all_early = 1, prefetches = 0 };
    template <int ROWS> __host__ __device__ static constexpr int at_once() { return ROWS > 2 ? 1 : 2; }
    const float *x;              /* [T][cols] */
    int cols, last;
    template <int ROWS> struct more {};
    template <int ROWS> __device__ __forceinline__ void load(float (*v)[8], more<ROWS> *, int T, int col) const {
#pragma unroll
        for (int t = 0; t < ROWS; t++) gpu_load8(v[t], x + (size_t)gpu_row_there<ROWS>(t, last) * cols, col, t < T ? cols : 0);
    }
    template <int ROWS> __device__ __forceinline__ void finish(float (*)[8], const more<ROWS> *, float *, bool) const {}
    bool is_short() const { return true; }
    __host__ __device__ void select(int t) { x += (size_t)t * cols; }           /* the rows from t on */
};

/* Prologue: rms(x) norm. The division by the root mean square is left to the end, when all warps know the sum of
   squares: so staging needs no barrier. */
struct gpu_norm_rows {
    enum { normed = 1, blocks = 2, extra = 0, all_early = 0, prefetches = 0 };
    template <int ROWS> __host__ __device__ static constexpr int at_once() { return ROWS > 2 ? 1 : 2; }
    const float *x, *norm;       /* [T][cols], [cols] */
    int cols, last;
    template <int ROWS> struct more { float w[8]; };
    template <int ROWS> __device__ __forceinline__ void load(float (*v)[8], more<ROWS> *of, int T, int col) const {
        gpu_load8_constants(of->w, norm, col, cols);
#pragma unroll
        for (int t = 0; t < ROWS; t++) load_row<ROWS>(v[t], T, t, col);
    }
    template <int ROWS> __device__ __forceinline__ void load_row(float *v, int T, int t, int col) const {
        gpu_load8(v, x + (size_t)gpu_row_there<ROWS>(t, last) * cols, col, t < T ? cols : 0);
    }
    template <int ROWS>
    __device__ __forceinline__ void finish(float (*v)[8], const more<ROWS> *of, float *square, bool) const {
#pragma unroll
        for (int t = 0; t < ROWS; t++)
#pragma unroll
            for (int i = 0; i < 8; i++) {
                square[t] = fmaf(v[t][i], v[t][i], square[t]);
                v[t][i] *= of->w[i];
            }
    }
    bool is_short() const { return true; }
    __host__ __device__ void select(int t) { x += (size_t)t * cols; }
};

/* TILES of tiles.cu: the tiles of one segment that this block has. ANY: with biases and other activations; see cuda/epilogue.cu. ALONE: there may be
   h of w alone. */
template <class IN, bool ANY, bool ALONE> struct gpu_segment_tiles {
    enum { normed = IN::normed };
    const gpu_projection<IN> &p;
    const gpu_segment &s;
    const bool pairs;            /* a tile is a panel of w and the same of up, not two of w */
    __device__ __forceinline__ int first() const { return (int)blockIdx.x - s.first_block; }
    __device__ __forceinline__ float per_col() const { return 1.0f / (float)p.cols; }
    __device__ __forceinline__ float eps() const { return p.eps; }
    __device__ __forceinline__ int step() const { return s.blocks; }
    __device__ __forceinline__ int next(int tile) const { return tile + s.blocks; }
    __device__ __forceinline__ bool valid(int tile) const { return (pairs ? tile : 2 * tile) < s.w.panels; }
    template <class F> __device__ __forceinline__ gpu_place place(int tile) const {
        return pairs ? gpu_place_of<F>(s.w, tile, s.up, tile) : gpu_place_of<F>(s.w, 2 * tile, s.w, 2 * tile + 1);
    }
    /* Is it y = W x with enough tiles for gpu_run_tiles_by_warp? */
    __device__ __forceinline__ bool many() const { return !pairs && s.w.panels % 2 == 0 && s.w.panels / 2 >= 4 * GPU_WARPS * s.blocks; }
    __device__ __forceinline__ bool waits_last() const { return p.waits_last && p.link.await.mask; }
    __device__ __forceinline__ void wait() const {
        if (!p.late) pdl_launch_dependents();
        pdl_wait();
        if (p.late) pdl_launch_dependents();
    }
    template <class F, int ROWS>
    __device__ __forceinline__ void prepare(int first, int warp_k_blocks, const activation_fragments &act, float *square) const {
        wait();
        if constexpr (normed) {
            IN in = p.in;
            in.norm = s.norm;
            gpu_stage_activations<F, ROWS, 1>(in, p.T, first, warp_k_blocks, act, square);
        } else {
            gpu_stage_activations<F, ROWS, ROWS == 1 ? 2 : 1>(p.in, p.T, first, warp_k_blocks, act, square);
        }
    }
    __device__ __forceinline__ float before(int tile, int row, int t) const {
        row += tile * TILE_ROWS;                            /* after a norm there is no residual, and a bias is loaded late: registers */
        return !normed && row < s.w.rows ? epilogue_before<ANY>(p.end, s.w, row, &s.y[(size_t)t * s.w.rows + row]) : 0;
    }
    __device__ __forceinline__ void put(int row, int t, float sum, float rms, float before) const {
        float *y = &s.y[(size_t)t * s.w.rows + row];
        if (row >= s.w.rows) return;
        if (ALONE && s.h) s.h[t * p.h_row + row] = squared_relu(epilogue_sum(sum, rms, before));
        else if (normed) epilogue_store(y, sum, rms, before, p.link.publish);
        else epilogue_output(p.end, y, row, sum, rms, before, p.link.publish);
    }
    __device__ __forceinline__ void store(int tile, int row, int t, const float (*part)[STEP_ROWS][GPU_WARPS], float before,
                                          float rms) const {
        if (normed && !pairs && tile * TILE_ROWS + row < s.w.rows) before = epilogue_bias<ANY>(s.w, 0, tile * TILE_ROWS + row);
        const float sum = sum_warp_partials(part[row][t]);
        if (!pairs) {
            put(tile * TILE_ROWS + row, t, sum, rms, before);
        } else if (row < PANEL_ROWS) {
            const float up = sum_warp_partials(part[row + PANEL_ROWS][t]);
            row += tile * PANEL_ROWS;
            if (row < s.w.rows) s.h[t * p.h_row + row] = epilogue_pair<ANY>(p.end.act, s.w, s.up, 0, row, sum, up, rms);
        }
    }
};

/* The tiles of the segment that this block works on. */
template <bool ANY, bool ALONE, class IN> __device__ __forceinline__ gpu_segment_tiles<IN, ANY, ALONE> gpu_tiles_of(const gpu_projection<IN> &p) {
    int i = 0;
    while (i + 1 < p.count && (int)blockIdx.x >= p.segment[i + 1].first_block) i++;
    return {p, p.segment[i], p.segment[i].up.data != NULL};
}

/* Runs this block's extra work, if it is one of the extra blocks. */
template <class IN> __device__ __forceinline__ bool gpu_is_extra(const gpu_projection<IN> &p) {
    if constexpr (IN::extra) {
        if ((int)blockIdx.x < p.blocks) return false;
        pdl_launch_dependents();
        pdl_wait();
        p.in.extra_block((int)blockIdx.x - p.blocks, p.extra);
        return true;
    }
    return false;
}

template <class IN, int ROWS>
__global__ void __launch_bounds__(GPU_THREADS, ROWS == 1 ? 2 : IN::blocks)
gpu_project(const __grid_constant__ gpu_projection<IN> p) {
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) warp_partials partials;
    if (gpu_is_extra(p)) return;
    const gpu_segment_tiles<IN, true, IN::normed> tiles = gpu_tiles_of<true, IN::normed>(p);
    const gpu_matrix &w = tiles.s.w;
    const int tile = tiles.first();
    if (IN::normed && tile == 0 && threadIdx.x == 0) l2_prefetch(tiles.s.norm, (uint32_t)(p.cols / 4 * 16));   /* for after the wait */
    with_format(w.format, [&](auto format) {
        gpu_ahead<decltype(format), ROWS> ahead;
        ahead.nothing(w);
        ahead.begin(tiles, tile, w);
        gpu_run_tiles<decltype(format), ROWS>(tiles, tile, w, p.T, dynamic, &partials, ahead);
    });
}

/* Registers of a normed projection of one row on compute capability 9.0, where ptxas fits it into 96: occupancy then
   leaves space for a block of conv_delta, with 64, beside two of its blocks (2 * 256 * 96 + 256 * 64 = 65,536). */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ / 100 == 9
#define GPU_FEW_REGISTERS 96
#define GPU_SLIM_REGISTERS 64
#else
#define GPU_FEW_REGISTERS 128
#define GPU_SLIM_REGISTERS 128
#endif

/* Whether a block may have several tiles. Flash-Next's index_qk_proj has more tiles of BF16, beside q_proj's, than there are blocks for. */
template <class IN, class F> __host__ __device__ constexpr bool gpu_fixed_loops(int cols) {
    return IN::normed && (F::half || cols == shape_flash_next::HIDDEN);
}

/* Whether there may be h of a matrix alone: Nemotron's shared experts have no gate. */
template <class SHAPE> __host__ __device__ constexpr bool gpu_fixed_alone() {
    return std::is_same<SHAPE, shape_nemotron>::value;
}

/* gpu_project for one of the shapes of tiles.cu: segments of the formats of PROJECT_FIXED; one tile a block, but for
   gpu_fixed_loops. Same bits as gpu_project.

   SLIM: all segments are FP8 blocks. Two k blocks in flight, in so few registers that two blocks of it start early beside one of
   experts_down, and a block of rope_attend beside these. With four k blocks in flight it is slower (an H100, norm_qkv of 30B): they
   hold up experts_down. */
template <class IN, class SHAPE, int ROWS, bool SLIM = false>
__global__ void __maxnreg__(SLIM ? GPU_SLIM_REGISTERS : IN::normed && SHAPE::HIDDEN < 3072 && ROWS == 1 ? GPU_FEW_REGISTERS : 128)
gpu_project_fixed(const __grid_constant__ gpu_projection<IN> p) {
    enum { COLS = IN::normed ? SHAPE::HIDDEN : SHAPE::OUT };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) warp_partials partials;
    if (gpu_is_extra(p)) return;
    const gpu_segment_tiles<IN, false, gpu_fixed_alone<SHAPE>()> tiles = gpu_tiles_of<false, gpu_fixed_alone<SHAPE>()>(p);
    const gpu_matrix &w = tiles.s.w;
    const int tile = tiles.first();
    with_format(w.format, [&](auto format) {
        typedef decltype(format) F;
        if constexpr (ROWS > projects_fixed<F, SHAPE>(IN::normed) || (SLIM && !gpu_scales_by_block<F>())) {
            __builtin_unreachable();                        /* who launches it has said no */
        } else {
            if constexpr (IN::normed && F::whole && ROWS == 1 && GPU_TILES_BY_WARP && !fixed_tile<F, COLS, 1, 6>::RAGGED) {
                if (tiles.many()) {
                    gpu_run_tiles_by_warp<F, COLS>(tiles, p.in, tile, w, dynamic, &partials);
                    return;
                }
            }
            if constexpr (gpu_fixed_loops<IN, F>(COLS))
                gpu_run_short_tiles<F, COLS, ROWS, (SLIM ? 2 : 6)>(tiles, p.in, tile, w, dynamic, &partials);
            else gpu_run_one_tile<F, COLS, ROWS>(tiles, p.in, tile, w, dynamic, &partials);
        }
    });
}
