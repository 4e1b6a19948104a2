/* layers/moe/decode_launch.cu: a mixture of experts in a step on a GPU: picks the kernels for the shape, sizes their grids, records
   them. Host code. */

/* The arguments for a layer's weights and T token rows. */
static moe_gpu moe_gpu_of(const moe_gpu *scratch, const moe_weights *w, int T) {
    moe_gpu p = *scratch;
    p.shape = w->shape;
    p.h_row = (int)gpu_h_row(&w->shape);
    p.T = T;
    p.gate = gpu_matrix_of(&w->gate_proj[0]);
    p.up = gpu_matrix_of(&w->up_proj[0]);
    p.down = gpu_matrix_of(&w->down_proj[0]);
    p.per_tile = reciprocal_of(p.gate.panels);
    p.stride = p.shape.experts > 1 ? (const char *)w->gate_proj[1].component[CODES] - p.gate.data : 0;
    p.shared_down = p.shape.shared_size ? gpu_matrix_of(&w->down_proj[p.shape.experts]) : p.down;
    p.norm = w->norm;
    return p;
}

static void gpu_record_up(gpu_queue *q, const moe_gpu *p) {
    const int distinct = p->T * p->shape.top_k < p->shape.experts ? p->T * p->shape.top_k : p->shape.experts;
    size_t bytes;
    gpu_moe_kernel fixed = gpu_fixed_up(p, &bytes), kernel = fixed;
    if (!fixed) {
        kernel = p->T == 1 ? gpu_experts_up<1> : gpu_experts_up<MOTE_ROWS_MAX>;
        bytes = activation_fragments_size(p->gate.format, p->T == 1 ? 1 : MOTE_ROWS_MAX, p->gate.k_blocks);
    }
    int blocks = gpu_blocks(q, kernel, bytes, (int64_t)distinct * p->gate.panels);
    gpu_record(q, KERNEL_UP, formats[p->gate.format]->name, kernel, blocks, 1, bytes, p)->can_poll = fixed != NULL;
}

static void gpu_record_down(gpu_queue *q, const moe_gpu *p) {
    int side = TILE_ROWS / PANEL_ROWS;
    size_t bytes;
    gpu_moe_kernel kernel = gpu_fixed_down(p, &bytes);
    if (!kernel) {
        side = p->T > 1 ? (int)gpu_down_sizes<MOTE_ROWS_MAX>::PANELS : (int)gpu_down_sizes<1>::PANELS;
        kernel = p->T == 1 ? gpu_experts_down<1> : gpu_experts_down<MOTE_ROWS_MAX>;
        bytes = (size_t)GPU_WARPS * (p->T == 1 ? gpu_down_bytes<1>() : gpu_down_bytes<MOTE_ROWS_MAX>());
    }
    int blocks = (gpu_row_panels(p->shape.hidden) - 1) / side + 1;
    gpu_record(q, KERNEL_DOWN, formats[p->down.format]->name, kernel, blocks, 1, bytes, p);
}

static void gpu_record_experts(gpu_queue *q, const moe_gpu *p) {
    gpu_record_up(q, p);
    gpu_record_down(q, p);
}

/* The implementation of layers/kinds.c on a GPU. `chosen` is for all layers: the caller of this fills it in. */

static void moe_layout_gpu(layout *l, const moe_shape *s, const capacity *r, const gpu_queue *q, moe_gpu *to) {
    (void)r;
    (void)q;
    memset(to, 0, sizeof *to);
    to->shape = *s;
    to->router = layout_alloc(l, MOTE_ROWS_MAX * (size_t)s->experts);
    to->shared_gate = layout_alloc(l, MOTE_ROWS_MAX);
    to->routing = (gpu_routing *)(void *)layout_alloc(l, sizeof(gpu_routing) / sizeof(float));
    to->h = layout_alloc(l, gpu_h_size(s));
}

static void moe_record(const gpu_rows *rows, const moe_weights *w, const moe_gpu *scratch) {
    moe_gpu p = moe_gpu_of(scratch, w, rows->T);
    p.x = rows->x;
    p.chosen = scratch->chosen + rows->q->layer;
    gpu_norm_router(rows->q, w, &p);
    gpu_record_experts(rows->q, &p);
}
