/* layers/mlp/decode.cu: a dense FFN in a step on a GPU, for any number of token rows of a pass: two projections (cuda/projection.cu). Knows
   no session and no other kind of layer. The definition is definition.c.

     norm_gate_up   h = SiLU(gate u) * (up u), or GELU, u = rms(x) norm: a tile has a panel of either matrix, which meet where it is stored
     down           x += down h. Rows of h are long: of a few, a block has the shared memory, more are cuda/batch_tile.cu's

   The implementation of layers/kinds.c on a GPU. */

typedef struct mlp_gpu {
    float *h;                    /* [T][size] */
} mlp_gpu;

static activation mlp_activation(const mlp_shape *s) {
    const activation a = {.limit = 0, .alpha = 0, .function = s->squared_relu ? ACTIVATION_RELU : s->gelu ? ACTIVATION_GELU : ACTIVATION_SILU};
    return a;
}

static void mlp_layout_gpu(layout *l, const mlp_shape *s, const capacity *, const gpu_queue *q, mlp_gpu *to) {
    to->h = layout_alloc(l, (size_t)q->rows * (size_t)s->size);
}

static void mlp_record(const gpu_rows *rows, const mlp_weights *w, const mlp_gpu *scratch) {
    const mlp_shape *s = &w->shape;
    gpu_projection<gpu_norm_rows> p = gpu_norm_projection(rows->x, rows->norm, s->hidden, rows->T, rows->eps);
    gpu_add_segment(&p, mlp_gate(w), NULL);
    p.segment[0].up = gpu_matrix_of(&w->up_proj);
    p.segment[0].h = scratch->h;
    p.h_row = (size_t)s->size;
    p.end.act = mlp_activation(s);
    p.late = 1;
    gpu_record_projection(rows->q, KERNEL_GATE_UP, &p);
    gpu_output_linear(rows, KERNEL_MLP_DOWN, &w->down_proj, scratch->h);
}
