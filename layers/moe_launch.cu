/* layers/moe_launch.cu: launches experts_up and experts_down: picks the kernels for the shape, sizes their grids, links
   their tags and prefetch. Host code; norm_router must have been launched before, as its tag is the one that experts_up
   polls. */

/* Parameters of a layer's kernels. The caller fills in routing, chosen, router, shared_gate, h and x. */
static gpu_moe gpu_moe_of(const moe_shape *s, const moe_weights *w, int T) {
    gpu_moe p;
    memset(&p, 0, sizeof p);
    p.shape = *s;
    p.T = T;
    p.gate = gpu_matrix_of(&w->gate_proj[0]);
    p.up = gpu_matrix_of(&w->up_proj[0]);
    p.down = gpu_matrix_of(&w->down_proj[0]);
    p.per_tile = (uint32_t)((((uint64_t)1 << 32) + (uint64_t)p.gate.panels - 1) / (uint64_t)p.gate.panels);
    p.stride = s->experts > 1 ? (const char *)w->gate_proj[1].data - p.gate.data : 0;
    p.shared_down = gpu_matrix_of(&w->down_proj[s->experts]);
    p.norm = w->norm;
    p.h_row = (int)gpu_h_row(s);
    return p;
}

static void gpu_run_experts(gpu_queue *q, gpu_moe *p) {
    const moe_shape *s = &p->shape;
    int side = TILE_ROWS / PANEL_ROWS, most = p->T * s->top_k < s->experts ? p->T * s->top_k : s->experts;
    size_t up_bytes, down_bytes;
    gpu_moe_kernel up = gpu_fixed_up(p, &up_bytes), down = gpu_fixed_down(p, &down_bytes);
    if (!up) {
        up = p->T == 1 ? gpu_experts_up<1> : gpu_experts_up<GPU_ROWS>;
        up_bytes = activation_fragments_size(p->gate.type, p->T == 1 ? 1 : GPU_ROWS, p->gate.k_blocks);
    }
    if (!down) {
        side = p->T > 1 ? (int)gpu_down_sizes<GPU_ROWS>::PANELS : (int)gpu_down_sizes<1>::PANELS;
        down = p->T == 1 ? gpu_experts_down<1> : p->T == 2 ? gpu_experts_down<2> : gpu_experts_down<GPU_ROWS>;
        down_bytes = (size_t)GPU_WARPS * (p->T == 1 ? gpu_down_bytes<1>() : gpu_down_bytes<GPU_ROWS>());
    }
    int blocks = gpu_blocks(q, up, up_bytes, (int64_t)most * p->gate.panels);
    p->logits = gpu_last_tag(q, GPU_TAGGED_ROUTER);
    p->after = gpu_next_tag(q, GPU_DOWN, GPU_TAGGED_X);
    prefetch_span_divide(&p->prefetch, blocks);
    gpu_launch(q, GPU_UP, dtype_names[p->gate.type], up, blocks, 1, up_bytes, p);
    gpu_launch(q, GPU_DOWN, dtype_names[p->down.type], down, (gpu_row_panels(s->hidden) - 1) / side + 1 + p->log_blocks, 1,
               down_bytes, p);
}
