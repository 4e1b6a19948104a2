/* cuda/product_launch.cu: how projections are recorded in a step or a pass, and a prompt's products launched: by the kernel that
   cuda/launch_table.cu says, whose blocks are dealt to the matrices. Host code. Knows matrices and queues; must not know layers. */

/* ---- Projections of a step --------------------------------------------------------------------------------------------- */

/* Deals the blocks of a kernel, as many as are resident at once, to the segments of p, in proportion to the bytes of their turns: a block
   takes `block_tiles` tiles in one. Returns how many blocks there are. A segment of few turns has a block for each, as all have if they fit:
   gpu_project_fixed wants that of BF16 ones. None has more, as that kernel's blocks have a tile each: of few turns of many bytes. */
template <class P> static int gpu_deal_blocks(gpu_queue *q, P *p, void (*kernel)(P), size_t shared, int block_tiles) {
    enum { FEW = 16 };                                      /* a router of 256 experts */
    int64_t turns[PROJECTIONS] = {}, bytes[PROJECTIONS] = {}, all = 0, few = 0, shared_out = 0;
    for (int i = 0; i < p->count; i++) {
        const gpu_matrix *w = &p->segment[i].w;
        turns[i] = (gpu_tiles(p->segment[i]) - 1) / block_tiles + 1;
        bytes[i] = turns[i] * w->k_blocks * w->panel_bytes;
        all += turns[i];
        few += turns[i] > FEW ? 0 : turns[i];
        shared_out += turns[i] > FEW ? bytes[i] : 0;
    }
    const int64_t blocks = gpu_blocks(q, kernel, shared, all), left = blocks - few;
    int used = 0;
    for (int i = 0; i < p->count; i++) {
        gpu_segment *s = &p->segment[i];
        s->blocks = (int)(turns[i] > FEW && blocks < all ? min(bytes[i] * left / shared_out, turns[i]) : turns[i]);
        if (s->blocks < 1) s->blocks = 1;
        s->first_block = used;
        used += s->blocks;
    }
    return used;
}

/* What a kernel reads first, for who prefetches it; if one of this kind is worth it. */
static void gpu_first_weights(node *n, const gpu_matrix *w) {
    n->first_weights.from = w->data;
    n->first_weights.bytes = (uint32_t)min((int64_t)w->panels * w->k_blocks * w->panel_bytes, (int64_t)1 << 30);
}

static void gpu_note_weights(node *n, enum kernel_kind kind, const gpu_matrix *w) {
    if (kernels[kind].prefetched) gpu_first_weights(n, w);
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

/* The kernel for SHAPE and T rows; NULL: there is none. */
template <class IN, class SHAPE> static gpu_project_kernel<IN> gpu_fixed_of_rows(int T) {
    constexpr int cols = IN::normed ? SHAPE::HIDDEN : SHAPE::OUT, most = most_projects_fixed<SHAPE>(IN::normed);
    static_assert(most == gpu_fixed_rows(most), "no kernel for three rows");
    static_assert(most * cols / 32 * (128 + sizeof(float)) + sizeof(warp_partials) + 16 <= GPU_SHARED, "of BF16, which needs most");
    static const gpu_project_kernel<IN> kernels[STEP_ROWS] = {
        gpu_project_fixed<IN, SHAPE, 1>, gpu_project_fixed<IN, SHAPE, (most < 2 ? most : 2)>, gpu_project_fixed<IN, SHAPE, most>,
        gpu_project_fixed<IN, SHAPE, most>};
    return T <= most ? kernels[T - 1] : NULL;
}

/* Whether a segment's rows are those of the projection, and nothing else than the fixed-shape kernels have becomes of their sums; alone: they may
   have h of a matrix alone. */
template <class IN> static bool gpu_segment_is_plain(const gpu_projection<IN> *p, const gpu_segment *s, bool alone) {
    bool own = false;
    if constexpr (IN::normed) own = s->norm != p->in.norm;
    const bool takes_h = s->up.data ? activation_is_plain(p->end.act) : !s->h || alone;
    return !own && s->w.cols == p->cols && takes_h && !s->w.bias && !s->up.bias;
}

/* Whether T rows of a segment run through it; whether a block may then have several tiles. */
template <class IN, class SHAPE> static bool gpu_fixed_takes(const gpu_projection<IN> *p, const gpu_segment *s) {
    int rows = 0;
    with_format(s->w.format, [&](auto format) { rows = projects_fixed<decltype(format), SHAPE>(IN::normed); });
    return p->T <= rows && gpu_segment_is_plain(p, s, gpu_fixed_alone<SHAPE>());
}

template <class IN> static bool gpu_fixed_takes_several(enum format f, int cols) {
    bool loops = false;
    with_format(f, [&](auto format) { loops = gpu_fixed_loops<IN, decltype(format)>(cols); });
    return loops;
}

/* The kernel for these columns, if it takes each segment; NULL: there is none. */
template <class IN, class SHAPE> static gpu_project_kernel<IN> gpu_fixed_projection_of(const gpu_projection<IN> *p) {
    if (p->cols != (IN::normed ? SHAPE::HIDDEN : SHAPE::OUT) || !p->in.is_short()) return NULL;
    for (int i = 0; i < p->count; i++)
        if (!gpu_fixed_takes<IN, SHAPE>(p, &p->segment[i])) return NULL;
    return gpu_fixed_of_rows<IN, SHAPE>(p->T);
}

template <class IN> static gpu_project_kernel<IN> gpu_fixed_projection(const gpu_projection<IN> *p) {
    gpu_project_kernel<IN> kernel = gpu_fixed_projection_of<IN, shape_35b_a3b>(p);
    if (!kernel) kernel = gpu_fixed_projection_of<IN, shape_122b_a10b>(p);
    if constexpr (IN::normed) kernel = kernel ? kernel : gpu_fixed_projection_of<IN, shape_nemotron>(p);
    return kernel ? kernel : gpu_fixed_projection_of<IN, shape_flash_next>(p);
}

/* The slim kernel for one row, if it takes these columns and formats and all blocks, of one tile each, are resident at once; NULL:
   not. It has `bytes` of dynamic shared memory. */
static gpu_project_kernel<gpu_norm_rows> gpu_slim_projection(gpu_queue *q, const gpu_projection<gpu_norm_rows> *p, size_t bytes) {
    const gpu_project_kernel<gpu_norm_rows> kernel = gpu_project_fixed<gpu_norm_rows, shape_35b_a3b, 1, true>;
    int64_t tiles = 0;
    if (p->T > 1 || p->cols != shape_35b_a3b::HIDDEN) return NULL;
    for (int i = 0; i < p->count; i++) {
        if (p->segment[i].w.format != FORMAT_FP8_BLOCK || !gpu_segment_is_plain(p, &p->segment[i], false)) return NULL;
        tiles += gpu_tiles(p->segment[i]);
    }
    return gpu_blocks(q, kernel, bytes, tiles) == tiles ? kernel : NULL;
}

/* Whether no block has more tiles than gpu_project_fixed takes. */
template <class IN> static bool gpu_one_tile_each(const gpu_projection<IN> *p) {
    bool one = true;
    for (int i = 0; i < p->count; i++) {
        const gpu_segment *s = &p->segment[i];
        one = one && (gpu_fixed_takes_several<IN>(s->w.format, p->cols) || s->blocks >= gpu_tiles(*s));
    }
    return one;
}

/* ---- Projections of a pass of many rows -------------------------------------------------------------------------------- */

typedef void (*gpu_batch_kernel)(gpu_batch_projection);

typedef struct gpu_batch_choice {
    gpu_batch_kernel kernel;
    int bytes, block_tiles;      /* of shared memory; that a block has at a time */
} gpu_batch_choice;

template <int NT> static gpu_batch_choice gpu_batch_choose(int narrow) {
    const gpu_batch_choice of_narrow = {gpu_batch_narrow<NT>, batch_narrow<NT>::BYTES, 1};
    const gpu_batch_choice of_wide = {gpu_batch_wide<NT>, batch_sizes<NT>::BYTES, batch_sizes<NT>::BLOCK_TILES};
    return narrow ? of_narrow : of_wide;
}

static gpu_batch_choice gpu_batch_choice_of(int T, int narrow) {
    return T <= 8 ? gpu_batch_choose<2>(narrow) : T <= 16 ? gpu_batch_choose<4>(narrow) : T <= 32 ? gpu_batch_choose<8>(narrow) :
                                                                                                     gpu_batch_choose<16>(narrow);
}

static void gpu_record_product(gpu_queue *q, enum kernel_kind kind, gpu_batch_projection *p) {
    int tiles = 0;
    for (int i = 0; i < p->count; i++) tiles += gpu_tiles(p->segment[i]);
    const gpu_batch_choice c = gpu_batch_choice_of(p->T, tiles < BATCH_WIDE_TILES * q->sms);
    const int blocks = gpu_deal_blocks(q, p, c.kernel, (size_t)c.bytes, c.block_tiles);
    const gpu_matrix *w = &p->segment[0].w;
    gpu_note_weights(gpu_record(q, kind, formats[w->format]->name, c.kernel, blocks, 1, (size_t)c.bytes, p), kind, w);
}

/* The number of a format's operand order in `order`, where there are *count; it is added if there is space for it. -1: there is none. */
static int gpu_batch_order_of(const gpu_matrix *w, const batch_rows *rows, int *count, gpu_batch_order *order) {
    for (int i = 0; i < *count; i++)
        if (gpu_operand_order(order[i].format) == gpu_operand_order(w->format)) return i;
    if (*count == BATCH_ORDERS) return -1;
    order[*count].format = w->format;
    order[*count].k_blocks = w->k_blocks;
    order[*count].to = rows[*count];
    return (*count)++;
}

/* Deals out whole clusters of so many octets; returns a block's bytes of shared memory. */
template <class IN> static size_t gpu_deal_clusters(gpu_projection<IN> *p, int octets) {
    size_t bytes = 0;
    p->octets = octets;
    p->blocks = 0;
    for (int i = 0; i < p->count; i++) {
        gpu_segment *s = &p->segment[i];
        bytes = max_size(bytes, activation_fragments_size(s->w.format, SPLIT_ROWS, gpu_split_k_blocks(s->w.k_blocks)));
        s->blocks = ((gpu_tiles(*s) - 1) / (BATCH_SPLIT * octets) + 1) * BATCH_SPLIT;
        s->first_block = p->blocks;
        p->blocks += s->blocks;
    }
    return bytes + sizeof(batch_split_shared) + (size_t)(octets - 1) * sizeof(batch_split_octet);
}

/* Records a projection of 5 to 8 rows whose blocks split K in clusters; 0: they do not, as there are no clusters, not all would be resident at
   once, or their shared memory is too little. */
template <class IN> static int gpu_record_split(gpu_queue *q, enum kernel_kind kind, const gpu_projection<IN> *of) {
    gpu_projection<IN> p = *of;
    size_t bytes = 0;
    int fits = 0;
    if (!q->dependent || p.T > SPLIT_ROWS) return 0;
    for (int octets = 1; octets <= SPLIT_OCTETS && !fits; octets++) {
        bytes = gpu_deal_clusters(&p, octets);
        if (bytes > GPU_SHARED) return 0;
        fits = p.blocks <= gpu_blocks(q, gpu_batch_split<IN>, bytes, INT_MAX) / 8 * 7;
    }
    if (!fits) return 0;
    p.end = epilogue_kept(q, &of->end);
    const gpu_matrix *w = &p.segment[0].w;
    const int extra = (p.extra + BATCH_SPLIT - 1) / BATCH_SPLIT * BATCH_SPLIT;
    node *n = gpu_record(q, kind, formats[w->format]->name, gpu_batch_split<IN>, p.blocks + extra, 1, bytes, &p);
    n->in_clusters = 1;
    gpu_note_weights(n, kind, w);
    return 1;
}

/* Records a projection of the rows in q->batch: their preparation, then the products of all segments that have the same norm and whose operand
   orders there is scratch for, and so on. To the schedule these are pieces of one kernel. */
template <class IN> static void gpu_record_batch(gpu_queue *q, enum kernel_kind kind, const gpu_projection<IN> *p) {
    const int from = q->count;
    if (gpu_record_split(q, kind, p)) return;
    for (int i = 0, extra = p->extra; i < p->count; extra = 0) {
        gpu_batch_projection part;
        gpu_batch_order order[BATCH_ORDERS];
        int orders = 0;
        IN in = p->in;
        if constexpr (IN::normed) in.norm = p->segment[i].norm;
        memset(&part, 0, sizeof part);
        part.T = p->T;
        part.end = epilogue_kept(q, &p->end);
        part.late = p->late;
        part.h_row = p->h_row;
        memcpy(part.rows, q->batch->rows, sizeof part.rows);
        for (const float *norm = p->segment[i].norm; i < p->count && p->segment[i].norm == norm; i++) {
            const int of = gpu_batch_order_of(&p->segment[i].w, part.rows, &orders, order);
            if (of < 0) break;
            part.order[part.count] = of;
            part.segment[part.count] = p->segment[i];
            if (p->segment[i].h && !p->segment[i].up.data) part.segment[part.count].up = p->segment[i].w;       /* ReLU(w x) (w x) */
            part.count++;
        }
        gpu_record_preparation(q, kind, in, p->T, p->eps, orders, order, extra, p->late);
        gpu_record_product(q, kind, &part);
    }
    for (int i = from; i < q->count; i++) {
        q->nodes[i].piece = i - from;
        q->nodes[i].pieces = q->count - from;
    }
}

/* ---- Recording a projection -------------------------------------------------------------------------------------------- */

/* Records a kernel for a fixed shape; returns whether it takes all tiles. */
template <class IN>
static bool gpu_record_fixed(gpu_queue *q, enum kernel_kind kind, gpu_projection<IN> *p, gpu_project_kernel<IN> kernel, size_t bytes) {
    const gpu_matrix *w = &p->segment[0].w;
    p->blocks = gpu_deal_blocks(q, p, kernel, bytes, 1);
    if (!gpu_one_tile_each(p)) return false;
    node *n = gpu_record(q, kind, formats[w->format]->name, kernel, p->blocks + p->extra, 1, bytes, p);
    n->can_poll = 1;
    gpu_note_weights(n, kind, w);
    return true;
}

/* Deals the blocks to the segments and records the kernel. More rows than STEP_ROWS are cuda/batch_tile.cu's, and those that a block
   does not have the shared memory for: no weight is to be read twice. */
template <class IN> static void gpu_record_projection(gpu_queue *q, enum kernel_kind kind, gpu_projection<IN> *p) {
    if (p->T > STEP_ROWS) {
        gpu_record_batch(q, kind, p);
        return;
    }
    gpu_project_kernel<IN> kernel = gpu_fixed_projection(p);
    size_t bytes = activation_fragments_bytes(p, gpu_fixed_rows(p->T));
    if constexpr (std::is_same<IN, gpu_norm_rows>::value) {
        const gpu_project_kernel<IN> slim = gpu_slim_projection(q, p, bytes);
        if (slim) kernel = slim;
    }
    if (kernel && gpu_record_fixed(q, kind, p, kernel, bytes)) return;
    kernel = p->T == 1 ? gpu_project<IN, 1> : gpu_project<IN, STEP_ROWS>;
    bytes = activation_fragments_bytes(p, p->T == 1 ? 1 : STEP_ROWS);
    if (bytes + sizeof(warp_partials) > GPU_SHARED) {
        gpu_record_batch(q, kind, p);
        return;
    }
    p->blocks = gpu_deal_blocks(q, p, kernel, bytes, 1);
    const gpu_matrix *w = &p->segment[0].w;
    gpu_note_weights(gpu_record(q, kind, formats[w->format]->name, kernel, p->blocks + p->extra, 1, bytes, p), kind, w);
}

/* A projection without segments yet. */
template <class IN> static gpu_projection<IN> gpu_projection_of(int T, int cols) {
    gpu_projection<IN> p;
    memset(&p, 0, sizeof p);
    p.T = T;
    p.cols = p.in.cols = cols;
    p.in.last = T - 1;
    return p;
}

template <class IN> static void gpu_add_segment(gpu_projection<IN> *p, const matrix *w, float *y) {
    gpu_segment *s = &p->segment[p->count++];
    s->w = gpu_matrix_of(w);
    s->y = y;
    if constexpr (IN::normed) s->norm = p->in.norm;
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
    p.end = epilogue_of_output(rows, w->bias != NULL);
    p.in.x = x;
    gpu_add_segment(&p, w, rows->to);
    gpu_record_projection(rows->q, kind, &p);
}

/* ---- Products of a prompt ---------------------------------------------------------------------------------------------- */

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

/* Token rows of a tile of products of which none is grouped: narrow tiles for few rows, and where wide ones would leave SMs idle. */
static int gemm_width(gpu_gemm *p, int sms) {
    enum { FEW = 128 };          /* token rows whose tiles of 16 are few enough: each reads the weights anew, from the L2 */
    const int tokens = (p->T + 127) / 128;
    if (p->T <= FEW && gemm_deal_tiles<32>(p) * ((p->T + 31) / 32) < 2 * sms) return 16;
    return p->T <= 32 || gemm_deal_tiles<128>(p) * tokens < sms ? 32 : p->T <= 64 ? 64 : 128;
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

/* Launches the products, all of one kernel, with tiles of 128, 64, 32 or 16 tokens. Grouped: at most `token_tiles` tiles. A failure is
   cudaGetLastError's. */
static void gemm_launch(gpu_gemm *p, int width, int token_tiles, cudaStream_t stream) {
    if (width == 128) gemm_launch_as<128>(p, token_tiles, stream);
    else if (width == 64) gemm_launch_as<64>(p, token_tiles, stream);
    else if (width == 32) gemm_launch_as<32>(p, token_tiles, stream);
    else gemm_launch_as<16>(p, token_tiles, stream);
}
