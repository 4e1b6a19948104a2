/* cuda/batch_rows.cu: the token rows of a pass of many, prepared for its projections: once, by a kernel of its own, instead of in every
   block of theirs. Knows prologues IN (cuda/projection.cu) and operand orders; must not know matrices.

   batch_rows, in device memory: what activation_fragments has for ROWS = 4, for each n-tile of four rows
     x          [n-tile][k block][pair of steps][high, low][4 rows][4 lanes], each a uint4: b0, b1 of the pair's first step, b0, b1 of
                the second. An n-tile of a k block is gpu_step_pairs<F>() * 32 uint4; a lane's B registers of a pair of steps, all
                eight columns, are one of them: x[(n_tile * k_blocks + k_block) * pairs + pair][lane]
     act_scale  [n-tile][k block][4 rows], for formats with `half`
     rms        [row]: 1 / root mean square, which the products are yet to be multiplied with; 1 where there is no norm
   The rows after the last of the last n-tile are not written: they only reach sums that nobody stores.

   Two formats have the same fragments if their operand order is the same: columns of a k block, order of columns in it, type of the
   terms. A projection with matrices of two orders (FP8 and BF16) has a batch_rows for each, and with it its own rms: a row's sum of
   squares is that of lanes, then of warps, and which columns a lane has depends on the k blocks.

   A row has the bits that it has alone in cuda/tiles.cu: a block is a row, and its warps have the columns that they have there. */

typedef struct batch_rows {
    uint4 *x;
    float *act_scale, *rms;
} batch_rows;

enum {
    BATCH_ROWS_MAX = 64,         /* token rows of a pass */
    N_TILE_ROWS = 4,             /* of an n-tile: eight columns of B, high and low terms */
    BATCH_ORDERS = 2             /* operand orders that there is scratch for at a time */
};

/* Scratch of a runner's passes, for the widest rows. */
typedef struct gpu_batch {
    batch_rows rows[BATCH_ORDERS];
} gpu_batch;

/* Floats of x and of act_scale for `rows` rows of `cols` columns, in the operand order that takes most: F32's for x. */
static size_t gpu_batch_x_floats(int cols, int rows) {
    const size_t n_tiles = (size_t)(rows + N_TILE_ROWS - 1) / N_TILE_ROWS, k_blocks = (size_t)(cols + 63) / 64 * 4;
    return n_tiles * k_blocks * 32 * sizeof(uint4) / sizeof(float);
}

static size_t gpu_batch_scale_floats(int cols, int rows) {
    const size_t n_tiles = (size_t)(rows + N_TILE_ROWS - 1) / N_TILE_ROWS;
    return n_tiles * N_TILE_ROWS * (size_t)((cols + 63) / 64 * 2);
}

/* Lays out the scratch for projections of `rows` rows of at most `cols` columns. */
static void gpu_batch_layout(layout *l, int cols, int rows, gpu_batch *to) {
    for (int i = 0; i < BATCH_ORDERS; i++) {
        to->rows[i].x = (uint4 *)(void *)layout_alloc(l, gpu_batch_x_floats(cols, rows));
        to->rows[i].act_scale = layout_alloc(l, gpu_batch_scale_floats(cols, rows));
        to->rows[i].rms = layout_alloc(l, (size_t)rows);
    }
}

/* A format's operand order as a number. On SM12x NVFP4 has FP8's; the host does not know, and prepares both. */
static int gpu_operand_order(enum format f) {
    int order = 0;
    with_format(f, [&](auto format) {
        typedef decltype(format) F;
        order = (int)F::per_load * 32 + (gpu_block_parts<F>() - 1) * 16 + (int)F::apart * 2 + (int)F::half;
    });
    return order;
}

/* One operand order of the rows: of this format, of so many k blocks. */
typedef struct gpu_batch_order {
    enum format format;
    int k_blocks;
    batch_rows to;
} gpu_batch_order;

template <class IN> struct gpu_preparation {
    handoff link;
    int cols, T, extra;          /* extra: blocks after the rows', which run IN::extra_block */
    int late;                    /* gpu_projection's */
    float eps;
    gpu_batch_order order[BATCH_ORDERS];
    IN in;
};

/* A warp stores what x.load(begin) has loaded of a token row as fragments of row `slot` of an n-tile, in which k block x.first is number `at`,
   and adds up its squares; there: the row is to be stored. */
template <class F, int ROWS, class COLUMNS>
__device__ __forceinline__ void gpu_put_row(COLUMNS *x, int begin, const activation_fragments &to, int at, int slot, float *square, bool there) {
#pragma unroll
    for (int n = 0; n < (int)COLUMNS::ITEMS; n++) {
        x->in.template finish<1>(x->v[n], &x->more[n], square, false);
        const float act_scale = activation_scale<F>(x->v[n][0]);
        const int item = x->item(begin, n);
        if (!there || !x->there(begin, n)) continue;
        gpu_put_columns<F, ROWS>(to, at + item / COLUMNS::LANES, item % COLUMNS::LANES, slot, x->v[n][0], act_scale);
    }
}

/* A block prepares token row t, which is the first of `in`; a warp the k blocks that it has in gpu_run_tiles. */
template <class F, class IN>
__device__ __forceinline__ void gpu_prepare_row(const IN &in, const gpu_batch_order &of, int t, float *square) {
    enum { AT_ONCE = 4, TILE = gpu_step_pairs<F>() * 8 * N_TILE_ROWS };
    typedef row_columns<F, 1, AT_ONCE, IN> columns;
    const activation_fragments to = {of.to.x + (size_t)(t / N_TILE_ROWS) * (uint32_t)(of.k_blocks * TILE),
                                     of.to.act_scale + t / N_TILE_ROWS * of.k_blocks * N_TILE_ROWS};
    int count;
    const int first = gpu_share(of.k_blocks, threadIdx.x / 32, GPU_WARPS, &count);
    columns x(in, 1, first, count);
#pragma unroll 1
    for (int begin = 0; begin < count * columns::LANES; begin += 32 * AT_ONCE) {
        x.load(begin);
        gpu_put_row<F, N_TILE_ROWS>(&x, begin, to, first, t % N_TILE_ROWS, square, true);
    }
}

template <class IN>
__global__ void __launch_bounds__(GPU_THREADS) gpu_prepare_rows(const __grid_constant__ gpu_preparation<IN> p) {
    __shared__ __align__(16) float squares[GPU_WARPS];
    const gpu_batch_order &of = p.order[blockIdx.y];
    const int t = (int)blockIdx.x;
    float square[1] = {};
    IN in = p.in;
    in.select(t);
    if (!p.late) pdl_launch_dependents();
    pdl_wait();
    if (p.late) pdl_launch_dependents();
    if constexpr (IN::extra) {
        if (t >= p.T) {
            if (blockIdx.y == 0) p.in.extra_block(t - p.T, p.extra);
            return;
        }
    }
    with_format(of.format, [&](auto format) { gpu_prepare_row<decltype(format)>(in, of, t, square); });
    if constexpr (IN::normed) {
        const float sum = warp_sum(square[0]);
        if (threadIdx.x % 32 == 0) squares[threadIdx.x / 32] = sum;
        __syncthreads();
    }
    if (threadIdx.x) return;
    of.to.rms[t] = IN::normed ? rsqrtf(fmaf(sum_warp_partials(squares), 1.0f / (float)p.cols, p.eps)) : 1;
}

/* Records the preparation of T rows of in.cols columns for `orders` operand orders, as a launch of kind `kind`; eps: of the norm;
   extra: blocks of other work that is due then; late: gpu_projection's. */
template <class IN>
static node *gpu_record_preparation(gpu_queue *q, enum kernel_kind kind, const IN &in, int T, float eps, int orders,
                                    const gpu_batch_order *order, int extra, int late) {
    gpu_preparation<IN> p;
    memset(&p, 0, sizeof p);
    p.cols = in.cols;
    p.T = T;
    p.extra = extra;
    p.late = late;
    p.eps = eps;
    memcpy(p.order, order, (size_t)orders * sizeof *order);
    p.in = in;
    return gpu_record(q, kind, formats[order->format]->name, gpu_prepare_rows<IN>, T + extra, orders, 0, &p);
}
