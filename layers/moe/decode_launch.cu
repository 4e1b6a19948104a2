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
    p.expert_at = w->expert_at;
    p.shared_down = p.shape.shared_size ? gpu_matrix_of(&w->down_proj[p.shape.experts]) : p.down;
    const int shared = gpu_shared_units(p) * p.shared_down.k_blocks;
    with_format(p.shared_down.format, [&](auto format) {
        p.batch.routed.x = p.batch.shared.x + (size_t)(shared * gpu_unit_block<decltype(format)>());
    });
    p.batch.routed.act_scale = p.batch.shared.act_scale + shared * N_TILE_ROWS;
    return p;
}

static void gpu_record_up(gpu_queue *q, const moe_gpu *p) {
    const int distinct = p->T * p->shape.top_k < p->shape.experts ? p->T * p->shape.top_k : p->shape.experts;
    size_t bytes;
    gpu_moe_kernel fixed = gpu_fixed_up(p, &bytes), kernel = fixed;
    if (!fixed) {
        kernel = p->T == 1 ? gpu_experts_up<1> : gpu_experts_up<STEP_ROWS>;
        bytes = activation_fragments_size(p->gate.format, p->T == 1 ? 1 : STEP_ROWS, p->gate.k_blocks);
    }
    int blocks = gpu_blocks(q, kernel, bytes, (int64_t)distinct * p->gate.panels);
    gpu_record(q, KERNEL_UP, formats[p->gate.format]->name, kernel, blocks, 1, bytes, p)->can_poll = fixed != NULL;
}

static void gpu_record_down(gpu_queue *q, const moe_gpu *p) {
    gpu_down_kernel down = gpu_fixed_down(p);
    if (!down.kernel) down = gpu_lone_down(p);
    if (!down.kernel) down = p->T == 1 ? gpu_down_of_any<1>() : gpu_down_of_any<STEP_ROWS>();
    const int blocks = (gpu_row_panels(p->shape.hidden) - 1) / down.panels + 1;
    gpu_record(q, KERNEL_DOWN, formats[p->down.format]->name, down.kernel, blocks, 1, down.shared, p);
}

/* The rows that norm_router's projection of more than STEP_ROWS rows has prepared in the operand order of gate_proj; NULL: none are
   left of it. */
static const batch_rows *gpu_prepared_rows(const gpu_queue *q, const moe_weights *w, const moe_gpu *p) {
    const matrix *shared = p->shape.shared_size ? &w->gate_proj[p->shape.experts] : NULL;
    const matrix *segments[] = {shared, &w->router, shared ? &w->shared_expert_gate : NULL};
    const int wanted = gpu_operand_order(p->gate.format);
    int orders[BATCH_ORDERS], count = 0, found = -1;
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

static void gpu_record_in_units(gpu_queue *q, const moe_weights *w, const moe_gpu *of) {
    moe_gpu p = *of;
    const batch_rows *prepared = gpu_prepared_rows(q, w, of);
    if (prepared) p.batch.x = *prepared;
    p.batch.prepared = prepared != NULL;
    gpu_record_route(q, &p);
    gpu_record_batch_up(q, &p);
    gpu_record_batch_down(q, &p);
}

static void gpu_record_experts(gpu_queue *q, const moe_gpu *p) {
    gpu_record_up(q, p);
    gpu_record_down(q, p);
}

/* Whether experts run by units: with many rows, and with several, where there is no experts_down for the shape: then this takes less time
   than the kernels for any shape do, unless the shared expert differs from the routed ones. */
static int gpu_runs_in_units(const moe_gpu *p) {
    return p->T > STEP_ROWS || (p->T > 1 && gpu_down_alike(p) && !gpu_fixed_down(p).kernel);
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

static void moe_layout_gpu(layout *l, const moe_shape *s, const capacity *r, const gpu_queue *q, moe_gpu *to) {
    (void)r;
    (void)q;
    memset(to, 0, sizeof *to);
    to->shape = *s;
    to->router = layout_alloc(l, BATCH_ROWS_MAX * (size_t)s->experts);
    to->shared_gate = layout_alloc(l, BATCH_ROWS_MAX);
    to->routing = (gpu_routing *)(void *)layout_alloc(l, sizeof(gpu_routing) / sizeof(float));
    to->h = layout_alloc(l, gpu_h_size(s));
    moe_layout_batch(l, s, &to->batch);
}

static void moe_record(const gpu_rows *rows, const moe_weights *w, const moe_gpu *scratch) {
    moe_gpu p = moe_gpu_of(scratch, w, rows->T);
    p.x = rows->x;
    p.norm = rows->norm;
    p.eps = rows->eps;
    p.chosen = scratch->chosen + rows->q->layer;
    p.in_units = gpu_runs_in_units(&p);
    gpu_norm_router(rows->q, w, &p);
    if (p.in_units) gpu_record_in_units(rows->q, w, &p);
    else gpu_record_experts(rows->q, &p);
}
