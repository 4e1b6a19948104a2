/* layers/mlp/cpu.c: the stages of a dense FFN on the CPU. Knows matrices and threads, no session.

   Every row goes through one SwiGLU: out += down_proj (SiLU(gate_proj u) * up_proj u); or with GELU in SiLU's place; or
   out += down_proj ReLU(up_proj u)^2, where there is no gate_proj. */

typedef struct mlp_job {
    const mlp_weights *w;
    int T;
    const float *u;              /* [T][hidden] normalised rows */
    float *h;                    /* [T][size] */
    float *out;                  /* [T][hidden] to which the output is added */
    token_limbs *limbs;          /* of u, and then of h, row by row */
} mlp_job;

static inline float mlp_activate(const mlp_shape *s, float gate, float up) {
    if (s->squared_relu) return up < 0 ? 0 : up * up;
    return (s->gelu ? gelu(gate) : silu(gate)) * up;
}

/* h[t][r] = SiLU(gate_proj[r] . u[t]) * (up_proj[r] . u[t]), or another activation, for a block of rows r. */
static void mlp_up_block(const mlp_job *job, int block) {
    const mlp_shape *s = &job->w->shape;
    const int row = block * ROW_BLOCK, rows = block_rows(&job->w->up_proj, block);
    for (int first = 0; first < job->T; first += TOKEN_BATCH) {
        token_batch tokens;
        float gate[TOKEN_BATCH][ROW_BLOCK], up[TOKEN_BATCH][ROW_BLOCK];
        tokens.count = min_int(job->T - first, TOKEN_BATCH);
        for (int t = 0; t < tokens.count; t++) {
            tokens.x[t] = job->u + (size_t)(first + t) * (size_t)s->hidden;
            tokens.limbs[t] = job->limbs + (size_t)(first + t) * (size_t)col_block_count(s->hidden);
        }
        if (!s->squared_relu) matrix_block_dots(&job->w->gate_proj, row, rows, &tokens, gate);
        matrix_block_dots(&job->w->up_proj, row, rows, &tokens, up);
        for (int t = 0; t < tokens.count; t++) {
            float *h = job->h + (size_t)(first + t) * (size_t)s->size + (size_t)row;
            for (int r = 0; r < rows; r++) h[r] = mlp_activate(s, s->squared_relu ? up[t][r] : gate[t][r], up[t][r]);
        }
    }
}

/* Items: blocks of rows of gate_proj and up_proj. */
static void mlp_up_blocks(void *context, int begin, int end, int thread) {
    (void)thread;
    for (int block = begin; block < end; block++) mlp_up_block((const mlp_job *)context, block);
}

/* norm_gate_up, without the norm: h = activation(gate u) * (up u). */
static void stage_gate_up(pool *p, mlp_job *job) {
    const mlp_weights *w = job->w;
    const mlp_shape *s = &w->shape;
    const unsigned kinds = limb_kinds(mlp_gate(w)) | limb_kinds(&w->up_proj);
    limb_rows rows = {.x = job->u, .stride = (size_t)s->hidden, .rows = job->T, .cols = s->hidden, .to = job->limbs, .kinds = kinds};
    limbs_of_rows(p, &rows);
    parallel(p, row_blocks(&w->up_proj), mlp_up_blocks, job);
}

/* down: out += down_proj h. */
static void stage_down(pool *p, mlp_job *job) {
    linear(p, &job->w->down_proj, job->h, job->out, job->T, 1, job->limbs);
}

/* The implementation of layers/kinds.c. */

static void mlp_layout_scratch(layout *l, const mlp_shape *s, const capacity *r, mlp_job *to) {
    const size_t T = (size_t)r->rows;
    to->h = layout_alloc(l, T * (size_t)s->size);
    to->limbs = limbs_alloc(l, T, max_int(s->hidden, s->size));
}

static void mlp_forward(const token_rows *rows, const mlp_weights *w, mlp_job *job) {
    job->w = w;
    job->T = rows->T;
    job->u = rows->u;
    job->out = rows->out;
    stage_gate_up(rows->threads, job);
    stage_down(rows->threads, job);
}
