/* cuda/projection.cu: a projection: every stage that multiplies token rows by one or more matrices (its segments), as a
   kernel and as a launch. Knows matrices, tiles and tags; must not know layers.

   The prologue, by which a stage prepares the rows (IN: a norm, a gate), is computed again by every block, which is
   cheaper than a kernel of its own. A block works on one segment. */

typedef struct gpu_segment {     /* one matrix of a projection */
    gpu_matrix w, up;            /* with up.data: h = SiLU(w x) * (up x) instead of y = w x; a tile has a panel of each */
    float *y;                    /* [T][rows] */
    float *h;                    /* [T][h_row] */
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
    size_t h_row;                /* elements of a row of h */
    gpu_segment segment[PROJECTIONS];
    IN in;
};

/* A prologue IN has
     normed     the rows are normalised; the division by the root mean square is left to the end
     at_once    items of eight columns that a lane has in flight, in a kernel for fixed shapes
     blocks     that fit an SM with several rows
     is_short   load loads all that finish needs, which finish(.., whole = true) relies on
     extra      there may be p.extra blocks more, which run extra_block(block, of) after their pdl_wait: other work that is
                due then
     all_early  a block that has one tile and one row loads all of it before its wait: before these rows the bus is idle */

/* Prologue: the token rows as they are. */
struct gpu_plain_rows {
    enum { normed = 0, blocks = 2, extra = 0, all_early = 1 };
    template <int ROWS> __host__ __device__ static constexpr int at_once() { return ROWS > 2 ? 1 : 2; }
    const float *x;              /* [T][cols] */
    int cols;
    template <int ROWS> struct more {};
    template <int ROWS> __device__ __forceinline__ void load(float (*v)[8], more<ROWS> *, int T, int col) const {
#pragma unroll
        for (int t = 0; t < ROWS; t++) gpu_load8(v[t], x + (size_t)t * cols, col, t < T ? cols : 0);
    }
    template <int ROWS> __device__ __forceinline__ void finish(float (*)[8], const more<ROWS> *, float *, bool) const {}
    bool is_short() const { return true; }
    __host__ __device__ void select(int t) { x += (size_t)t * cols; }           /* the rows from t on */
};

/* Prologue: rms(x) norm. The division by the root mean square is left to the end, when all warps know the sum of
   squares: so staging needs no barrier. */
struct gpu_norm_rows {
    enum { normed = 1, blocks = 2, extra = 0, all_early = 0 };
    template <int ROWS> __host__ __device__ static constexpr int at_once() { return ROWS > 2 ? 1 : 2; }
    const float *x, *norm;       /* [T][cols], [cols] */
    int cols;
    template <int ROWS> struct more { float w[8]; };
    template <int ROWS> __device__ __forceinline__ void load(float (*v)[8], more<ROWS> *of, int T, int col) const {
        gpu_load8_constants(of->w, norm, col, cols);
#pragma unroll
        for (int t = 0; t < ROWS; t++) load_row(v[t], T, t, col);
    }
    __device__ __forceinline__ void load_row(float *v, int T, int t, int col) const {
        gpu_load8(v, x + (size_t)t * cols, col, t < T ? cols : 0);
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

/* TILES of tiles.cu: the tiles of one segment that this block has. ANY: with biases and other activations; see cuda/epilogue.cu. */
template <class IN, bool ANY> struct gpu_segment_tiles {
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
        gpu_stage_activations<F, ROWS, ROWS == 1 && !normed ? 2 : 1>(p.in, p.T, first, warp_k_blocks, act, square);
    }
    __device__ __forceinline__ float before(int tile, int row, int t) const {
        row += tile * TILE_ROWS;                            /* after a norm there is no residual, and a bias is loaded late: registers */
        return !normed && row < s.w.rows ? epilogue_before<ANY>(p.end, s.w, row, &s.y[(size_t)t * s.w.rows + row]) : 0;
    }
    __device__ __forceinline__ void put(int row, int t, float sum, float rms, float before) const {
        if (row >= s.w.rows) return;
        if (normed) before = epilogue_bias<ANY>(s.w, 0, row);
        epilogue_store(&s.y[(size_t)t * s.w.rows + row], sum, rms, before, p.link.publish);
    }
    __device__ __forceinline__ void store(int tile, int row, int t, const float (*part)[STEP_ROWS][GPU_WARPS], float before,
                                          float rms) const {
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
template <bool ANY, class IN> __device__ __forceinline__ gpu_segment_tiles<IN, ANY> gpu_tiles_of(const gpu_projection<IN> &p) {
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
    const gpu_segment_tiles<IN, true> tiles = gpu_tiles_of<true>(p);
    const gpu_matrix &w = tiles.s.w;
    const int tile = tiles.first();
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

/* Whether there is a kernel for a shape and so many rows of a segment of this format; then, whether a block may have several
   tiles. */
template <class IN, class SHAPE, class F> __host__ __device__ constexpr bool gpu_projects_fixed(int rows) {
    return (IN::normed || rows <= (int)F::fixed_plain) && gpu_has_fixed<F, SHAPE>(rows);
}

template <class IN, class F> __host__ __device__ constexpr bool gpu_fixed_loops() {
    return IN::normed && F::half;
}

/* gpu_project for one of the shapes of tiles.cu: segments of the formats of gpu_projects_fixed; one tile a block, but for
   gpu_fixed_loops. Same bits as gpu_project.

   SLIM: all segments are FP8 blocks. Two k blocks in flight, in so few registers that two blocks of it start early beside one of
   experts_down, and a block of rope_attend beside these. With four k blocks in flight it is slower (an H100, norm_qkv of 30B): they
   hold up experts_down. */
template <class IN, class SHAPE, int ROWS, bool SLIM = false>
__global__ void __maxnreg__(SLIM ? GPU_SLIM_REGISTERS : IN::normed && SHAPE::HIDDEN == 2048 && ROWS == 1 ? GPU_FEW_REGISTERS : 128)
gpu_project_fixed(const __grid_constant__ gpu_projection<IN> p) {
    enum { COLS = IN::normed ? SHAPE::HIDDEN : SHAPE::OUT };
    extern __shared__ uint4 dynamic[];
    __shared__ __align__(16) warp_partials partials;
    if (gpu_is_extra(p)) return;
    const gpu_segment_tiles<IN, false> tiles = gpu_tiles_of<false>(p);
    const gpu_matrix &w = tiles.s.w;
    const int tile = tiles.first();
    with_format(w.format, [&](auto format) {
        typedef decltype(format) F;
        if constexpr (!gpu_projects_fixed<IN, SHAPE, F>(ROWS) || (SLIM && !gpu_scales_by_block<F>())) {
            __builtin_unreachable();                        /* gpu_fixed_takes or gpu_slim_projection has said no */
        } else {
            if constexpr (IN::normed && F::whole && ROWS == 1 && GPU_TILES_BY_WARP) {
                if (tiles.many()) {
                    gpu_run_tiles_by_warp<F, COLS>(tiles, p.in, tile, w, dynamic, &partials);
                    return;
                }
            }
            if constexpr (gpu_fixed_loops<IN, F>())
                gpu_run_short_tiles<F, COLS, ROWS, (SLIM ? 2 : 6)>(tiles, p.in, tile, w, dynamic, &partials);
            else gpu_run_one_tile<F, COLS, ROWS>(tiles, p.in, tile, w, dynamic, &partials);
        }
    });
}

/* Tiles of a segment. */
static int gpu_tiles(const gpu_segment *s) {
    return s->up.data ? s->w.panels : (s->w.panels + 1) / 2;
}

/* Deals the blocks of a kernel, as many as are resident at once, to the segments, in proportion to their tiles; returns
   how many there are. A segment of few tiles has a block for each: gpu_project_fixed wants that of BF16 ones. */
template <class IN>
static int gpu_deal_blocks(gpu_queue *q, gpu_projection<IN> *p, void (*kernel)(gpu_projection<IN>), size_t shared) {
    enum { FEW = 16 };                                      /* a router of 256 experts */
    int64_t all = 0, many = 0;
    for (int i = 0; i < p->count; i++) {
        int tiles = gpu_tiles(&p->segment[i]);
        all += tiles;
        many += tiles > FEW ? tiles : 0;
    }
    int64_t left = gpu_blocks(q, kernel, shared, all) - (all - many);
    int used = 0;
    for (int i = 0; i < p->count; i++) {
        gpu_segment *s = &p->segment[i];
        s->blocks = gpu_tiles(s) > FEW ? (int)(gpu_tiles(s) * left / many) : gpu_tiles(s);
        if (s->blocks < 1) s->blocks = 1;
        s->first_block = used;
        used += s->blocks;
    }
    return used;
}

/* Bytes of the activation fragments of the segment that needs most. */
template <class IN> static size_t activation_fragments_bytes(const gpu_projection<IN> *p, int rows) {
    size_t most = 0;
    for (int i = 0; i < p->count; i++) {
        size_t bytes = activation_fragments_size(p->segment[i].w.format, rows, p->segment[i].w.k_blocks);
        if (bytes > most) most = bytes;
    }
    return most;
}

template <class IN> using gpu_project_kernel = void (*)(gpu_projection<IN>);

/* The kernel for SHAPE and T rows; NULL if so many do not fit shared memory. */
template <class IN, class SHAPE> static gpu_project_kernel<IN> gpu_fixed_of_rows(int T) {
    constexpr int fitting = (GPU_SHARED - sizeof(warp_partials) - 16) /
                         ((IN::normed ? SHAPE::HIDDEN : SHAPE::OUT) / 32 * (128 + sizeof(float)));      /* BF16 needs most */
    constexpr int most = fitting < STEP_ROWS ? fitting : STEP_ROWS;
    static const gpu_project_kernel<IN> kernels[STEP_ROWS] = {
        gpu_project_fixed<IN, SHAPE, 1>, gpu_project_fixed<IN, SHAPE, (most < 2 ? most : 2)>,
        gpu_project_fixed<IN, SHAPE, (most < 3 ? most : 3)>, gpu_project_fixed<IN, SHAPE, most>};
    return T <= most ? kernels[T - 1] : NULL;
}

/* The same of a format's number. */
template <class IN, class SHAPE> static bool gpu_fixed_takes(enum format f, int rows) {
    bool takes = false;
    with_format(f, [&](auto format) { takes = gpu_projects_fixed<IN, SHAPE, decltype(format)>(rows); });
    return takes;
}

template <class IN> static bool gpu_fixed_takes_several(enum format f) {
    bool loops = false;
    with_format(f, [&](auto format) { loops = gpu_fixed_loops<IN, decltype(format)>(); });
    return loops;
}

/* The kernel for these columns, if it takes each segment; NULL: there is none. */
template <class IN, class SHAPE> static gpu_project_kernel<IN> gpu_fixed_projection_of(const gpu_projection<IN> *p) {
    const int cols = IN::normed ? SHAPE::HIDDEN : SHAPE::OUT;
    if (p->cols != cols || !p->in.is_short()) return NULL;
    for (int i = 0; i < p->count; i++)
        if (p->segment[i].w.cols != cols || !gpu_fixed_takes<IN, SHAPE>(p->segment[i].w.format, p->T) ||
            !epilogue_is_plain(&p->end, &p->segment[i].w, &p->segment[i].up)) return NULL;
    return gpu_fixed_of_rows<IN, SHAPE>(p->T);
}

template <class IN> static gpu_project_kernel<IN> gpu_fixed_projection(const gpu_projection<IN> *p) {
    gpu_project_kernel<IN> kernel = gpu_fixed_projection_of<IN, shape_35b_a3b>(p);
    return kernel ? kernel : gpu_fixed_projection_of<IN, shape_122b_a10b>(p);
}

/* The slim kernel for one row, if it takes these columns and formats and all blocks, of one tile each, are resident at once; NULL:
   not. It has `bytes` of dynamic shared memory. */
static gpu_project_kernel<gpu_norm_rows> gpu_slim_projection(gpu_queue *q, const gpu_projection<gpu_norm_rows> *p, size_t bytes) {
    const gpu_project_kernel<gpu_norm_rows> kernel = gpu_project_fixed<gpu_norm_rows, shape_35b_a3b, 1, true>;
    int64_t tiles = 0;
    if (p->T > 1 || p->cols != shape_35b_a3b::HIDDEN) return NULL;
    for (int i = 0; i < p->count; i++) {
        if (p->segment[i].w.format != FORMAT_FP8_BLOCK || p->segment[i].w.cols != p->cols ||
            !epilogue_is_plain(&p->end, &p->segment[i].w, &p->segment[i].up)) return NULL;
        tiles += gpu_tiles(&p->segment[i]);
    }
    return gpu_blocks(q, kernel, bytes, tiles) == tiles ? kernel : NULL;
}

/* Whether no block has more tiles than gpu_project_fixed takes. */
template <class IN> static bool gpu_one_tile_each(const gpu_projection<IN> *p) {
    bool one = true;
    for (int i = 0; i < p->count; i++) {
        const gpu_segment *s = &p->segment[i];
        one = one && (gpu_fixed_takes_several<IN>(s->w.format) || s->blocks >= gpu_tiles(s));
    }
    return one;
}

template <class IN> static void gpu_record_batch(gpu_queue *q, enum kernel_kind kind, const gpu_projection<IN> *p);     /* cuda/batch.cu */

/* Deals the blocks to the segments and records the kernel. More rows than STEP_ROWS are cuda/batch.cu's, and those that a block
   does not have the shared memory for: no weight is to be read twice. */
template <class IN> static void gpu_record_projection(gpu_queue *q, enum kernel_kind kind, gpu_projection<IN> *p) {
    if (p->T > STEP_ROWS) {
        gpu_record_batch(q, kind, p);
        return;
    }
    gpu_project_kernel<IN> kernel = gpu_fixed_projection(p);
    size_t bytes = activation_fragments_bytes(p, p->T);
    if constexpr (std::is_same<IN, gpu_norm_rows>::value) {
        const gpu_project_kernel<IN> slim = gpu_slim_projection(q, p, bytes);
        if (slim) kernel = slim;
    }
    p->blocks = kernel ? gpu_deal_blocks(q, p, kernel, bytes) : 0;
    const int fixed = kernel && gpu_one_tile_each(p);
    if (!fixed) {
        kernel = p->T == 1 ? gpu_project<IN, 1> : gpu_project<IN, STEP_ROWS>;
        bytes = activation_fragments_bytes(p, p->T == 1 ? 1 : STEP_ROWS);
        if (bytes + sizeof(warp_partials) > GPU_SHARED) {
            gpu_record_batch(q, kind, p);
            return;
        }
        p->blocks = gpu_deal_blocks(q, p, kernel, bytes);
    }
    const gpu_matrix *w = &p->segment[0].w;
    node *n = gpu_record(q, kind, formats[w->format]->name, kernel, p->blocks + p->extra, 1, bytes, p);
    n->can_poll = fixed;
    if (!kernels[kind].prefetched) return;
    n->first_weights.from = w->data;
    n->first_weights.bytes = (uint32_t)min((int64_t)w->panels * w->k_blocks * w->panel_bytes, (int64_t)1 << 30);
}

/* A projection without segments yet. */
template <class IN> static gpu_projection<IN> gpu_projection_of(int T, int cols) {
    gpu_projection<IN> p;
    memset(&p, 0, sizeof p);
    p.T = T;
    p.cols = p.in.cols = cols;
    return p;
}

template <class IN> static void gpu_add_segment(gpu_projection<IN> *p, const matrix *w, float *y) {
    p->segment[p->count].w = gpu_matrix_of(w);
    p->segment[p->count++].y = y;
}

/* A projection of rms(x) norm, without segments yet. */
static gpu_projection<gpu_norm_rows> gpu_norm_projection(const float *x, const float *norm, int cols, int T, float eps) {
    gpu_projection<gpu_norm_rows> p = gpu_projection_of<gpu_norm_rows>(T, cols);
    p.eps = eps;
    p.in.x = x;
    p.in.norm = norm;
    return p;
}

/* y = W x */
static void gpu_linear(gpu_queue *q, enum kernel_kind kind, const matrix *w, const float *x, float *y, int T) {
    gpu_projection<gpu_plain_rows> p = gpu_projection_of<gpu_plain_rows>(T, w->cols);
    p.in.x = x;
    gpu_add_segment(&p, w, y);
    gpu_record_projection(q, kind, &p);
}

/* The last product of a sublayer, W x. */
static void gpu_output_linear(const gpu_rows *rows, enum kernel_kind kind, const matrix *w, const float *x) {
    gpu_projection<gpu_plain_rows> p = gpu_projection_of<gpu_plain_rows>(rows->T, w->cols);
    p.end = epilogue_of_output(rows);
    p.in.x = x;
    gpu_add_segment(&p, w, rows->to);
    gpu_record_projection(rows->q, kind, &p);
}
