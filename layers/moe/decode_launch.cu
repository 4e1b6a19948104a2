/* layers/moe/decode_launch.cu: a mixture of experts in a step on a GPU: which kernel runs when, the sizes of grids, how they are recorded.
   Host code.

     token rows     shape, format                          experts_up             experts_down                      files
     1              of the table below                     gpu_experts_up_fixed   gpu_experts_down_row              up.cu, down_fixed.cu
                    FP8 blocks, few enough items           gpu_experts_up         gpu_experts_down_lone             up.cu, down_row.cu
                    NVFP4, MXFP4, likewise                 gpu_experts_up_lone    gpu_experts_down_lone             up_lone.cu, down_row.cu
                    NVFP4, more items, evenly dealt        the same               gpu_experts_down_dealt            down_dealt.cu
                    NVFP4, a shared expert of another size the same               gpu_experts_down_own              down_own.cu
                    FP8 by row, the shared expert apart    gpu_experts_up_lone    gpu_experts_down_lone             up_lone.cu, down_row.cu
                    FP8 by row                             gpu_experts_up_lone    gpu_experts_down<1>               up_lone.cu, down.cu
                    any                                    gpu_experts_up<1>      gpu_experts_down<1>               up.cu, down.cu
     2 to 4         of the table                           gpu_experts_up_fixed   gpu_experts_down_rows, _parts     up.cu, down_fixed.cu
                    any; a shared expert unlike the others gpu_experts_up<4>      gpu_experts_down<4>               up.cu, down.cu
     2 to 64        any; up to 4 where the table has no    gpu_batch_up           gpu_batch_down                    batch_route.cu, batch_up.cu,
                    experts_down                                                                                    batch_down.cu
     a prompt       those of moe_can_prefill               gemm_kernel            gemm_kernel                       prefill.cu, cuda/gemm.cu

   Both are chosen by themselves: 30B-A3B has 35B's experts_up, and gpu_experts_down_lone. Before them runs norm_router (decode.cu), then
   experts_place, where the layer has slots of experts (place.cu), and route where experts run by units. */

typedef void (*gpu_moe_kernel)(moe_gpu);

/* A kernel of experts_down, if there is one: its bytes of dynamic shared memory, and row panels of a block's tile; whether a tile has a block more,
   for the shared expert. */
typedef struct gpu_down_kernel {
    gpu_moe_kernel kernel;
    size_t shared;
    int panels, apart;
} gpu_down_kernel;

/* The kernels for shapes of cuda/tiles.cu: most token rows of experts_up, of experts_down; there are kernels for fewer, too,
   but three run through that of four. */
#define MOE_FIXED(X)                             \
    X(NVFP4,     nvfp4,     35b_a3b,    4, 4)    \
    X(FP8_BLOCK, fp8_block, 35b_a3b,    4, 4)    \
    X(BF16,      bf16,      35b_a3b,    4, 4)    \
    X(FP8_ROW,   fp8_row,   35b_a3b,    4, 4)    \
    X(INT4,      int4,      35b_a3b,    4, 4)    \
    X(NVFP4,     nvfp4,     122b_a10b,  4, 4)    \
    X(FP8_BLOCK, fp8_block, 122b_a10b,  2, 2)    \
    X(NVFP4,     nvfp4,     coder_next, 1, 0)    \
    X(FP8_BLOCK, fp8_block, coder_next, 1, 0)    \
    X(NVFP4,     nvfp4,     flash_next, 1, 0)

/* A line of it. */
typedef struct moe_fixed {
    enum format format;
    int hidden, expert_size, top_k, experts;                /* experts: at most */
    gpu_moe_kernel up[STEP_ROWS];
    gpu_down_kernel down[STEP_ROWS];
} moe_fixed;

template <class F, class SHAPE, int ROWS, int MOST> static constexpr gpu_moe_kernel moe_fixed_up() {
    if constexpr (ROWS <= MOST) return gpu_experts_up_fixed<F, SHAPE, ROWS>;
    else return NULL;
}

template <class F, class SHAPE, int ROWS, int MOST> static constexpr gpu_down_kernel moe_fixed_down() {
    if constexpr (ROWS > MOST) {
        return {};
    } else if constexpr (ROWS == 1) {
        return {gpu_experts_down_row<F, SHAPE>, GPU_WARPS * (size_t)down_row_sizes<F, SHAPE>::BYTES, 2, 0};
    } else if constexpr (GPU_WARPS * (int)down_rows_sizes<F, SHAPE, ROWS>::BYTES + 4096 <= GPU_SHARED) {      /* 4096: static shared memory */
        return {gpu_experts_down_rows<F, SHAPE, ROWS>, GPU_WARPS * (size_t)down_rows_sizes<F, SHAPE, ROWS>::BYTES, 2, 0};
    } else {
        typedef down_parts_sizes<F, SHAPE, ROWS> sizes;
        return {gpu_experts_down_parts<F, SHAPE, ROWS>, GPU_WARPS * (size_t)sizes::BYTES, sizes::PANELS, 0};
    }
}

template <class F, class SHAPE, int UP, int DOWN> static constexpr moe_fixed moe_fixed_of(enum format format) {
    return {format, SHAPE::HIDDEN, SHAPE::EXPERT, SHAPE::TOP_K, 256 * SHAPE::LISTS,
            {moe_fixed_up<F, SHAPE, 1, UP>(), moe_fixed_up<F, SHAPE, 2, UP>(), moe_fixed_up<F, SHAPE, 4, UP>(), moe_fixed_up<F, SHAPE, 4, UP>()},
            {moe_fixed_down<F, SHAPE, 1, DOWN>(), moe_fixed_down<F, SHAPE, 2, DOWN>(), moe_fixed_down<F, SHAPE, 4, DOWN>(),
             moe_fixed_down<F, SHAPE, 4, DOWN>()}};
}

static const moe_fixed moe_fixed_kernels[] = {
#define MOE_FIXED_LINE(FORMAT, format, shape, up, down) moe_fixed_of<format_##format, shape_##shape, up, down>(FORMAT_##FORMAT),
    MOE_FIXED(MOE_FIXED_LINE)
#undef MOE_FIXED_LINE
};

enum { MOE_FIXED_COUNT = sizeof moe_fixed_kernels / sizeof *moe_fixed_kernels };

/* The kernels by units that have a format, and its k blocks in flight, as constants: of experts_up whole sets of so many k blocks, which each
   warp of gpu_run_tiles has an even number of; of experts_down four. Others run through gpu_batch_up_any and gpu_batch_down_any. */
#define MOE_BATCH_UP(X) X(NVFP4, nvfp4, 4) X(NVFP4, nvfp4, 3) X(INT4, int4, 4) X(INT4, int4, 3) \
    X(FP8_BLOCK, fp8_block, 2) X(FP8_ROW, fp8_row, 2) X(BF16, bf16, 2)
#define MOE_BATCH_DOWN(X) X(NVFP4, nvfp4) X(MXFP4, mxfp4) X(INT4, int4) X(FP8_BLOCK, fp8_block) X(FP8_ROW, fp8_row) X(BF16, bf16)

/* Where a layer's experts are: in a runner's slots, or all at their home. */
static const int64_t *moe_expert_table(const moe_gpu *scratch, const moe_weights *w, int layer) {
    return scratch->slots && scratch->slots[layer].count ? scratch->slots[layer].at : w->expert_at;
}

/* The arguments for a layer's weights and token rows. */
static moe_gpu moe_gpu_of(const moe_gpu *scratch, const moe_weights *w, const gpu_rows *rows) {
    moe_gpu p = *scratch;
    p.shape = w->shape;
    p.h_row = (int)gpu_h_row(&w->shape);
    p.T = rows->T;
    p.x = rows->x;
    p.norm = rows->norm;
    p.eps = rows->eps;
    p.to = rows->to;
    p.branches = rows->branches;
    p.gate = gpu_matrix_of(&w->gate_proj[0]);
    p.up = gpu_matrix_of(&w->up_proj[0]);
    p.down = gpu_matrix_of(&w->down_proj[0]);
    p.tile_panels = w->shape.squared_relu ? 2 : 1;
    p.tiles = (p.gate.panels - 1) / p.tile_panels + 1;
    p.per_tile = reciprocal_of(p.tiles);
    p.to_second = w->shape.squared_relu ? (int64_t)p.up.k_blocks * p.up.panel_bytes : p.up.data - p.gate.data;
    p.placed = scratch->slots && scratch->slots[rows->layer].count && (!scratch->slots[rows->layer].resident || scratch->locality);
    p.expert_at = moe_expert_table(scratch, w, rows->layer);
    p.correction = w->correction;
    p.expert_scale = w->expert_scale;
    p.ahead = w->host_at ? 0 : (uint32_t)(p.down.panels * p.down.k_blocks * p.down.panel_bytes);
    p.ranks = moe_ranks_scores(&w->shape);
    p.shared_down = p.shape.shared_size ? gpu_matrix_of(&w->down_proj[p.shape.experts]) : p.down;
    p.end = epilogue_of_output(rows, gpu_has_down_bias(p));
    p.end.act = moe_activation(&w->shape);
    const int shared = gpu_shared_units(p) * p.shared_down.k_blocks;
    with_format(p.shared_down.format, [&](auto format) {
        p.batch.routed.x = p.batch.shared.x + (size_t)(shared * gpu_unit_block<decltype(format)>());
    });
    p.batch.routed.act_scale = p.batch.shared.act_scale + shared * N_TILE_ROWS;
    return p;
}

/* Whether no expert has a bias, or another activation: fixed-shape kernels, and those of whole sets, ask for neither. */
static bool gpu_up_is_plain(const moe_gpu *p) {
    return epilogue_is_plain(p->end, p->gate, p->up) && !gpu_has_down_bias(*p);
}

/* The fixed-shape kernel of experts_up; NULL: there is none. */
static gpu_moe_kernel gpu_fixed_up(const moe_gpu *p) {
    if (!gpu_up_is_plain(p) || (!p->shape.sigmoid && (p->shape.of_all || p->shape.corrected)) || p->up.format != p->gate.format ||
        p->up.cols != p->gate.cols) return NULL;
    for (const moe_fixed *f = moe_fixed_kernels; f < moe_fixed_kernels + MOE_FIXED_COUNT; f++)
        if (f->format == p->gate.format && f->hidden == p->gate.cols && f->top_k == p->shape.top_k && p->shape.experts <= f->experts)
            return f->up[p->T - 1];
    return NULL;
}

/* Whether the shared expert, if there is one, has the format and the size of the routed ones, and its output is not apart from theirs. */
static bool gpu_down_alike(const moe_gpu *p) {
    return p->down.format == p->shared_down.format && p->down.cols == p->shared_down.cols && !p->branches.shared_to;
}

/* Whether both panels of a tile of down_proj have one scale, where a scale is a block's. */
static bool gpu_down_scale_by_tile(const moe_gpu *p) {
    bool by_block = false;
    with_format(p->down.format, [&](auto format) { by_block = gpu_scales_by_block<decltype(format)>(); });
    return !by_block || 1 << p->down.row_shift >= TILE_ROWS;
}

/* The fixed-shape kernel of experts_down, if there is one. It has whole tiles only. */
static gpu_down_kernel gpu_fixed_down(const moe_gpu *p) {
    if (gpu_has_down_bias(*p) || !p->shape.shared_size || !gpu_down_alike(p) || !gpu_down_scale_by_tile(p)) return {};
    for (const moe_fixed *f = moe_fixed_kernels; f < moe_fixed_kernels + MOE_FIXED_COUNT; f++) {
        const gpu_down_kernel down = f->down[p->T - 1];
        if (f->format == p->down.format && f->expert_size == p->down.cols && f->top_k == p->shape.top_k && down.kernel &&
            p->down.panels % down.panels == 0)
            return down;
    }
    return {};
}

enum { LONE_DEEP = 6 };          /* k blocks of a share in gpu_experts_up_lone */

/* That kernel, if it takes these sizes; NULL: it does not. */
static gpu_moe_kernel gpu_lone_up(const moe_gpu *p) {
    gpu_moe_kernel lone = NULL;
    if (p->T > 1 || p->shape.experts > 256 || p->gate.k_blocks > LONE_DEEP * GPU_WARPS || p->up.format != p->gate.format ||
        p->gate.panels % p->tile_panels) return NULL;
    with_format(p->gate.format, [&](auto format) {
        typedef decltype(format) F;
        if constexpr (gpu_has_lone_up<F>()) lone = gpu_lone_panels<F>(*p) == p->tile_panels ? gpu_experts_up_lone<F, LONE_DEEP> : NULL;
    });
    return lone;
}

/* gpu_experts_down_lone, if it takes these sizes: all items of a shared expert are in a warp's first part, where its gate is applied, and
   tiles are whole. With biases after gpu_experts_up_lone alone. */
template <class F, bool APART> static gpu_down_kernel gpu_lone_down_of(const moe_gpu *p) {
    enum { PARTS = gpu_lone_form<F>::PARTS, ROUND = gpu_lone_form<F>::ROUND, ANY = gpu_lone_form<F>::ANY };
    typedef down_lone_sizes<F, PARTS, ROUND> sizes;
    if (gpu_lone_items<ROUND, APART>(*p) - (ROUND - 1) > (int)sizes::ITEMS) return {};
    if (!APART && p->shape.shared_size && gpu_lone_share(p->shared_down) * (int)sizes::LANES > 32) return {};
    if (gpu_has_down_bias(*p) && (!ANY || APART || !gpu_lone_up(p))) return {};
    return {gpu_experts_down_lone<F, PARTS, ROUND, ANY, APART>, (size_t)(GPU_WARPS * gpu_lone_bytes<F, PARTS, ROUND, APART>(*p)), 2, APART};
}

static gpu_down_kernel gpu_lone_down(const moe_gpu *p) {
    const bool apart = p->shape.shared_size && p->branches.shared_to && p->down.format == p->shared_down.format;
    gpu_down_kernel lone = {};
    if (p->T > 1 || p->down.panels % 2 || !(apart || gpu_down_alike(p)) || !gpu_down_scale_by_tile(p)) return lone;
    with_format(p->down.format, [&](auto format) {
        typedef decltype(format) F;
        if constexpr (gpu_has_lone<F>()) {
            if constexpr (gpu_lone_form<F>::ALIKE) lone = apart ? lone : gpu_lone_down_of<F, false>(p);
            if constexpr (gpu_lone_form<F>::APART) lone = apart ? gpu_lone_down_of<F, true>(p) : lone;
        }
    });
    return lone;
}

/* Row panels of the SM that has most, in tiles of so many. */
static int gpu_dealt_panels(const gpu_queue *q, const moe_gpu *p, int panels) {
    const int blocks = (gpu_row_panels(p->shape.hidden) - 1) / panels + 1;
    return ((blocks - 1) / q->sms + 1) * panels;
}

/* gpu_experts_down_dealt, if it takes these sizes. */
static gpu_down_kernel gpu_dealt_down(const gpu_queue *q, const moe_gpu *p) {
    typedef format_nvfp4 F;
    const size_t bytes = (size_t)(GPU_WARPS * gpu_dealt_bytes<F>(*p));
    if (p->T > 1 || p->down.format != FORMAT_NVFP4 || p->down.panels % 2 || gpu_has_down_bias(*p) || p->branches.shared_to) return {};
    if ((p->shape.shared_size && !gpu_down_alike(p)) || gpu_dealt_share(*p) > (int)down_dealt_sizes<F, 2>::ITEMS) return {};
    if (gpu_dealt_panels(q, p, 3) < gpu_dealt_panels(q, p, 2)) return {gpu_experts_down_dealt<F, 3>, bytes, 3, 0};
    return {gpu_experts_down_dealt<F, 2>, bytes, 2, 0};
}

/* gpu_experts_down_own, if it takes these sizes. */
static gpu_down_kernel gpu_own_down(const moe_gpu *p) {
    typedef format_nvfp4 F;
    typedef down_own_sizes<F> sizes;
    const int own = p->shared_down.k_blocks, routed = p->shape.top_k * p->down.k_blocks;
    if (p->T > 1 || !p->shape.shared_size || p->down.format != FORMAT_NVFP4 || p->shared_down.format != FORMAT_NVFP4 || p->branches.shared_to ||
        gpu_has_down_bias(*p) || p->down.panels % sizes::PANELS) return {};
    if (own < GPU_WARPS || own > sizes::OWN_ITEMS * GPU_WARPS || routed < GPU_WARPS || routed > sizes::ITEMS * GPU_WARPS) return {};
    return {gpu_experts_down_own<F>, (size_t)(GPU_WARPS * gpu_own_bytes<F>(*p)), sizes::PANELS, 0};
}

/* gpu_experts_down for one row, or for several. */
static gpu_down_kernel gpu_down_of_any(const moe_gpu *p) {
    if (p->T == 1) return {gpu_experts_down<1>, GPU_WARPS * (size_t)gpu_down_bytes<1>(), gpu_down_sizes<1>::PANELS, 0};
    return {gpu_experts_down<STEP_ROWS>, GPU_WARPS * (size_t)gpu_down_bytes<STEP_ROWS>(), gpu_down_sizes<STEP_ROWS>::PANELS, 0};
}

static void gpu_record_up(gpu_queue *q, const moe_gpu *p) {
    const int distinct = p->T * p->shape.top_k < p->shape.experts ? p->T * p->shape.top_k : p->shape.experts;
    const gpu_moe_kernel fixed = gpu_fixed_up(p), lone = fixed ? NULL : gpu_lone_up(p);
    const gpu_moe_kernel kernel = fixed ? fixed : lone ? lone : p->T == 1 ? gpu_experts_up<1> : gpu_experts_up<STEP_ROWS>;
    const int rows = fixed ? gpu_fixed_rows(p->T) : p->T == 1 ? 1 : STEP_ROWS;
    const size_t bytes = activation_fragments_size(p->gate.format, rows, lone ? LONE_DEEP * GPU_WARPS : p->gate.k_blocks);
    int blocks = gpu_blocks(q, kernel, bytes, (int64_t)distinct * p->tiles);
    node *n = gpu_record(q, KERNEL_UP, formats[p->gate.format]->name, kernel, blocks, 1, bytes, p);
    n->can_poll = (fixed || lone) && !p->locality;          /* simulated logits have no tags */
    n->late_reads = p->placed ? BUFFER_EXPERTS : 0;
}

static void gpu_record_down(gpu_queue *q, const moe_gpu *p) {
    gpu_down_kernel down = gpu_fixed_down(p);
    if (!down.kernel) down = gpu_lone_down(p);
    if (!down.kernel) down = gpu_dealt_down(q, p);
    const bool own = !down.kernel && gpu_own_down(p).kernel;
    if (!down.kernel) down = own ? gpu_own_down(p) : gpu_down_of_any(p);
    const int blocks = ((gpu_row_panels(p->shape.hidden) - 1) / down.panels + 1) * (1 + down.apart);
    node *n = gpu_record(q, KERNEL_DOWN, formats[p->down.format]->name, down.kernel, blocks, 1, down.shared, p);
    if (p->branches.shared_to || own) gpu_first_weights(n, &p->shared_down);
}

/* Whether the rows of a unit, or of a step of several, fit shared memory with all their columns; for how many k blocks of them gpu_batch_up_any
   has space, whole rounds of its own: all, or as many as leave an SM of 100 KB a second block. */
static bool gpu_up_fits(const moe_gpu *p) {
    enum { OWN = 10 * 1024 };    /* static shared memory of experts_up, at most */
    return activation_fragments_size(p->gate.format, N_TILE_ROWS, p->gate.k_blocks) + OWN <= GPU_SHARED;
}

static int gpu_up_space(const moe_gpu *p) {
    enum { ROUND = 4, MOST = GPU_SHARED / 2 - 4096 };
    const int fitting = MOST / (int)activation_fragments_size(p->gate.format, N_TILE_ROWS, ROUND) * ROUND;
    return gpu_up_fits(p) ? p->gate.k_blocks : fitting;
}

static void gpu_record_batch_up(gpu_queue *q, const moe_gpu *p) {
    static const struct { enum format format; int depth; gpu_moe_kernel kernel; } kernels[] = {
#define MOE_BATCH_LINE(FORMAT, format, depth) {FORMAT_##FORMAT, depth, gpu_batch_up<format_##format, depth>},
        MOE_BATCH_UP(MOE_BATCH_LINE)
#undef MOE_BATCH_LINE
    };
    const int64_t items = (int64_t)gpu_most_units(&p->shape, p->T) * ((p->tiles + GPU_WARPS - 1) / GPU_WARPS);
    moe_gpu of = *p;
    of.batch.space = gpu_up_space(p);
    const size_t bytes = activation_fragments_size(p->gate.format, N_TILE_ROWS, of.batch.space);
    gpu_moe_kernel kernel = NULL;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels && !kernel; i++)
        if (kernels[i].format == p->gate.format && p->gate.k_blocks % (GPU_WARPS * kernels[i].depth) == 0 && gpu_up_is_plain(p) && gpu_up_fits(p))
            kernel = kernels[i].kernel;
    if (!kernel) kernel = gpu_batch_up_any;
    gpu_record(q, KERNEL_UP, formats[p->gate.format]->name, kernel, gpu_blocks(q, kernel, bytes, items), 1, bytes, &of)->late_reads =
        BUFFER_EXPERTS;
}

template <int PANELS> static size_t gpu_batch_down_bytes(const moe_gpu *p, int rows) {
    const size_t units = (size_t)(gpu_shared_units(*p) + gpu_most_units(&p->shape, p->T) + 1);
    return gpu_batch_sums<PANELS>(rows) * sizeof(float) + units * sizeof(gpu_down_unit);
}

static void gpu_record_batch_down(gpu_queue *q, const moe_gpu *p) {
    enum { PANELS = 2, SIDE = 2 };
    static const struct { enum format format; gpu_moe_kernel one, two; } kernels[] = {
#define MOE_BATCH_LINE(FORMAT, format) \
    {FORMAT_##FORMAT, gpu_batch_down<format_##format, PANELS, 4, SIDE, 1>, gpu_batch_down<format_##format, PANELS, 2, SIDE, 2>},
        MOE_BATCH_DOWN(MOE_BATCH_LINE)
#undef MOE_BATCH_LINE
    };
    const int two = p->T <= BATCH_EARLY, rows = two ? (p->T + 1) / 2 : p->T;
    gpu_down_kernel down = {gpu_batch_down_any, gpu_batch_down_bytes<1>(p, p->T), 1, 0};
    int halves = 1;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        if (kernels[i].format == p->down.format && gpu_down_alike(p) && gpu_batch_down_bytes<PANELS>(p, rows) <= GPU_SHARED) {
            down = {two ? kernels[i].two : kernels[i].one, gpu_batch_down_bytes<PANELS>(p, rows), PANELS, 0};
            halves = 1 + two;
        }
    const int blocks = (gpu_row_panels(p->shape.hidden) - 1) / down.panels + 1;
    gpu_record(q, KERNEL_DOWN, formats[p->down.format]->name, down.kernel, blocks, halves, down.shared, p);
}

/* The rows that norm_router's projection of more than STEP_ROWS rows, the last that was recorded, has prepared in the operand order of
   gate_proj; NULL: none are left of it, or it has prepared none by a kernel of its own. */
static const batch_rows *gpu_prepared_rows(const gpu_queue *q, const moe_weights *w, const moe_gpu *p) {
    const matrix *shared = p->shape.shared_size ? &w->gate_proj[p->shape.experts] : NULL;
    const matrix *segments[] = {shared, &w->router, moe_is_gated(&p->shape) ? &w->shared_expert_gate : NULL};
    const int wanted = gpu_operand_order(p->gate.format);
    int orders[BATCH_ORDERS], count = 0, found = -1;
    if (p->branches.shared_to) return NULL;                 /* it has another norm */
    if (!q->count || q->nodes[q->count - 1].pieces == 1) return NULL;
    for (int i = 0; i < 3 && p->T > STEP_ROWS; i++) {
        int k = 0;
        if (!segments[i]) continue;
        while (k < count && orders[k] != gpu_operand_order(segments[i]->format)) k++;
        if (k == BATCH_ORDERS) return NULL;                 /* the projection has run in two parts */
        if (k == count) orders[count++] = gpu_operand_order(segments[i]->format);
        if (orders[k] == wanted) found = k;
    }
    return found < 0 ? NULL : &q->batch->rows[found];
}

static void gpu_take_prepared_rows(const gpu_queue *q, const moe_weights *w, moe_gpu *p) {
    const batch_rows *prepared = p->in_units ? gpu_prepared_rows(q, w, p) : NULL;
    if (prepared) p->batch.x = *prepared;
    p->batch.prepared = prepared != NULL;
}

/* Records experts_place. A batch's router need not tag its logits. */
static void gpu_record_place(gpu_queue *q, const moe_gpu *p, const moe_slots *slots) {
    const moe_place place = {.link = {}, .moe = *p, .slots = *slots};
    gpu_record(q, KERNEL_PLACE, "", p->locality ? gpu_experts_place<true> : gpu_experts_place<false>, PLACE_BLOCKS, 1, 0, &place)->can_poll =
        !p->in_units && !p->locality;
}

static void gpu_record_in_units(gpu_queue *q, const moe_gpu *p) {
    gpu_record_route(q, p);
    gpu_record_batch_up(q, p);
    gpu_record_batch_down(q, p);
}

static void gpu_record_experts(gpu_queue *q, const moe_gpu *p) {
    gpu_record_up(q, p);
    gpu_record_down(q, p);
}

/* Whether experts run by units: with many rows; and with several, if their columns do not fit shared memory, or where there is no experts_down
   for the shape: then this takes less time than the kernels for any shape do, unless the shared expert differs from the routed ones. */
static int gpu_runs_in_units(const moe_gpu *p) {
    return p->T > STEP_ROWS || (p->T > 1 && (!gpu_up_fits(p) || (gpu_down_alike(p) && !gpu_fixed_down(p).kernel)));
}

/* The implementation of layers/kinds.c on a GPU. `chosen` is for all layers: the caller of this fills it in. */

/* Of a pass of many rows. h: in the format that takes most, F32, and with as many scales as 32 columns a k block need. */
static void moe_layout_batch(layout *l, const moe_shape *s, moe_batch *to) {
    enum { T = BATCH_ROWS_MAX };
    const size_t units = (size_t)(T / N_TILE_ROWS + gpu_most_units(s, T)), uses = T * (size_t)s->top_k, blocks = gpu_h_row(s) / 64;
    to->x.x = (uint4 *)(void *)layout_alloc(l, gpu_batch_x_floats(s->hidden, T));
    to->x.act_scale = layout_alloc(l, gpu_batch_scale_floats(s->hidden, T));
    to->x.rms = layout_alloc(l, T);
    to->shared_h = layout_alloc(l, T * gpu_h_row(s));
    to->choice = (int32_t *)(void *)layout_alloc(l, uses);
    to->choice_weight = layout_alloc(l, uses);
    to->ready = (uint32_t *)(void *)layout_alloc(l, 1);
    to->count = (int32_t *)(void *)layout_alloc(l, 1);
    to->unit = (gpu_unit *)(void *)layout_alloc(l, units * sizeof(gpu_unit) / sizeof(float));
    to->weight = layout_alloc(l, units * N_TILE_ROWS);
    to->shared.x = (uint4 *)(void *)layout_alloc(l, units * blocks * 64 * N_TILE_ROWS * 2);
    to->shared.act_scale = layout_alloc(l, units * blocks * 2 * N_TILE_ROWS);
}

static void moe_layout_gpu(layout *l, const moe_shape *s, const capacity *, const gpu_queue *, moe_gpu *to) {
    memset(to, 0, sizeof *to);
    to->shape = *s;
    to->router = layout_alloc(l, BATCH_ROWS_MAX * (size_t)s->experts);
    to->shared_gate = layout_alloc(l, BATCH_ROWS_MAX);
    to->routing = (gpu_routing *)(void *)layout_alloc(l, sizeof(gpu_routing) / sizeof(float));
    to->h = layout_alloc(l, gpu_h_size(s));
    moe_layout_batch(l, s, &to->batch);
}

static void moe_record(const gpu_rows *rows, const moe_weights *w, const moe_gpu *scratch) {
    moe_gpu p = moe_gpu_of(scratch, w, rows);
    p.chosen = scratch->chosen + rows->q->layer;
    p.in_units = gpu_runs_in_units(&p);
    gpu_norm_router(rows->q, w, &p);
    gpu_take_prepared_rows(rows->q, w, &p);
    if (p.placed) gpu_record_place(rows->q, &p, &scratch->slots[rows->layer]);
    if (p.in_units) gpu_record_in_units(rows->q, &p);
    else gpu_record_experts(rows->q, &p);
}
