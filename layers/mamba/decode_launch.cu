/* layers/mamba/decode_launch.cu: a Mamba-2 layer in a step on a GPU: the projections before and after conv_scan, and what records the kernels.
   Host code. */

/* norm_mamba_in: RMSNorm, then the three input projections in one launch. */
static void gpu_norm_mamba_in(const gpu_rows *rows, const mamba_weights *w, const mamba_gpu *to) {
    gpu_projection<gpu_norm_rows> p = gpu_norm_projection(rows->x, rows->norm, w->shape.hidden, to->delta.T, rows->eps);
    gpu_queue *q = rows->q;
    const bool follows = q->count && q->nodes[q->count - 1].kind == KERNEL_MAMBA_OUT;
    p.waits_last = to->delta.T == 1;
    gpu_add_segment(&p, &w->in_proj_cbx, to->delta.raw);
    gpu_add_segment(&p, &w->in_proj_z, to->delta.z);
    gpu_add_segment(&p, &w->in_proj_dt, to->delta.a);
    gpu_record_projection(q, KERNEL_MAMBA_IN, &p);
    if (follows) q->nodes[q->count - 1].can_poll = 0;
}

typedef void (*mamba_kernel)(mamba_gpu);

static mamba_kernel gpu_mamba_kernel_for(const mamba_gpu *p) {
    const deltanet_gpu *d = &p->delta;
    const int one = d->T == max_int(d->sequences, 1);
    if (d->in_turn) return gpu_mamba_kernel<STEP_ROWS, SLOT_RESIDENT, true>;
    if (d->sequences) return one ? gpu_mamba_kernel<1, SLOT_EACH, false> : gpu_mamba_kernel<STEP_ROWS, SLOT_EACH, false>;
    if (d->slot.step) return one ? gpu_mamba_kernel<1, SLOT_RESIDENT, false> : gpu_mamba_kernel<STEP_ROWS, SLOT_RESIDENT, false>;
    return one ? gpu_mamba_kernel<1, SLOT_CAPTURED, false> : gpu_mamba_kernel<STEP_ROWS, SLOT_CAPTURED, false>;
}

static void gpu_conv_scan(gpu_queue *q, const mamba_gpu *p) {
    const deltanet_gpu *d = &p->delta;
    const unsigned sequences = d->in_turn ? 1 : (unsigned)max_int(d->sequences, 1);
    const dim3 grid((unsigned)d->shape.value_heads, (unsigned)gpu_delta_parts(&d->shape), sequences);
    gpu_record_grid(q, KERNEL_SCAN, "", gpu_mamba_kernel_for(p), grid, 0, p);
}

/* Prologue of out_proj for one row, where a group has up to SUMS sums of squares and its columns are whole eights: all that a lane needs is loaded
   at once. Same bits as gpu_gated_rows, as what is not there adds 0. */
struct gpu_grouped_rows : gpu_gated_rows {
    enum { all_early = 1, prefetches = 1, SUMS = 16 };      /* conv_scan, before it, reads little */
    template <int ROWS> struct more { float sum; };
    template <int ROWS> __device__ __forceinline__ void load(float (*v)[8], more<ROWS> *of, int, int col) const {
        static_assert(ROWS == 1, "for one row");
        const float *own = squares + min((int)__umulhi((uint32_t)col, per_head), heads - 1) * stride;
        float s[SUMS];
        gpu_load8(v[0], o, col, cols);
#pragma unroll
        for (int i = 0; i < SUMS; i += 4) gpu_load4(s + i, own + i, i < stride);
        of->sum = s[0];
#pragma unroll
        for (int i = 1; i < SUMS; i++) of->sum += s[i];
    }
    template <int ROWS> __device__ __forceinline__ void finish(float (*v)[8], const more<ROWS> *of, float *, bool) const {
        const float factor = rms_factor(of->sum, scale, eps);
#pragma unroll
        for (int c = 0; c < 8; c++) v[0][c] *= factor;
    }
    bool is_short() const { return stride <= SUMS && cols / heads % 8 == 0; }
};

/* mamba_out: out_proj (y SiLU(z) norm, divided by the root mean squares of the groups), the sublayer's output; the prologue is DeltaNet's, whose heads
   are groups here. */
template <class IN> static gpu_projection<IN> gpu_mamba_out_of(const gpu_rows *rows, const mamba_weights *w, const mamba_gpu *block) {
    const mamba_shape *s = &w->shape;
    const deltanet_gpu *d = &block->delta;
    gpu_projection<IN> p = gpu_projection_of<IN>(d->T, mamba_inner(s));
    p.end = epilogue_of_output(rows, w->out_proj.bias != NULL);
    p.in.o = d->o;
    p.in.squares = d->squares;
    p.in.per_head = reciprocal_of(mamba_inner(s) / s->groups);
    p.in.scale = 1.0f / (float)(mamba_inner(s) / s->groups);
    p.in.heads = s->groups;
    p.in.stride = gpu_squares_stride(block->of_group);
    p.in.eps = s->eps;
    p.in.log = *d;
    p.extra = gpu_delta_log_blocks(d) * (d->in_turn ? 1 : max_int(d->sequences, 1));
    gpu_add_segment(&p, &w->out_proj, rows->to);
    return p;
}

/* Records the fixed-shape kernel of one row, if it takes this. */
template <class SHAPE> static bool gpu_record_grouped(gpu_queue *q, gpu_projection<gpu_grouped_rows> *p) {
    if (p->T > 1 || p->cols != SHAPE::OUT || !p->in.is_short() || !gpu_fixed_takes<gpu_grouped_rows, SHAPE>(p, &p->segment[0])) return false;
    return gpu_record_fixed<gpu_grouped_rows>(q, KERNEL_MAMBA_OUT, p, gpu_project_fixed<gpu_grouped_rows, SHAPE, 1>, activation_fragments_bytes(p, 1));
}

static void gpu_mamba_out(const gpu_rows *rows, const mamba_weights *w, const mamba_gpu *block) {
    gpu_projection<gpu_grouped_rows> one = gpu_mamba_out_of<gpu_grouped_rows>(rows, w, block);
    if (gpu_record_grouped<shape_35b_a3b>(rows->q, &one)) return;
    gpu_projection<gpu_gated_rows> p = gpu_mamba_out_of<gpu_gated_rows>(rows, w, block);
    gpu_record_projection(rows->q, KERNEL_MAMBA_OUT, &p);
}

/* The implementation of layers/kinds.c on a GPU. */

static void mamba_layout_gpu(layout *l, const mamba_shape *s, const capacity *, const gpu_queue *q, mamba_gpu *to) {
    const size_t T = (size_t)q->rows, heads = T * (size_t)s->heads, values = heads * (size_t)s->head_dim;
    deltanet_gpu *d = &to->delta;
    memset(to, 0, sizeof *to);
    d->raw = layout_alloc(l, T * (size_t)mamba_channels(s));
    d->z = layout_alloc(l, values);
    d->o = layout_alloc(l, values);
    d->a = layout_alloc(l, heads);
    d->decay = layout_alloc(l, heads);
    d->k = layout_alloc(l, T * (size_t)(s->groups * s->state_dim));
    d->squares = layout_alloc(l, T * (size_t)(s->groups * gpu_squares_stride(mamba_of_group(s))));
}

static void mamba_record(const gpu_rows *rows, const mamba_weights *w, const mamba_gpu *scratch, const mamba_state *state, const mamba_state *) {
    mamba_gpu p = *scratch;
    deltanet_gpu *d = &p.delta;
    p.conv_bias = w->conv_bias;
    p.D = w->D;
    p.of_group = mamba_of_group(&w->shape);
    d->shape = mamba_memory(&w->shape);
    d->ratio = w->shape.heads / w->shape.groups;
    d->per_key = reciprocal_of(d->ratio);
    d->state = *state;
    d->conv1d = w->conv1d;
    d->A_log = w->A_log;
    d->dt_bias = w->dt_bias;
    d->norm = w->norm;
    d->step = rows->step;
    d->slot = rows->slot;
    d->sequences = rows->sequences;
    d->in_turn = rows->in_turn;
    d->T = rows->T;
    gpu_norm_mamba_in(rows, w, &p);
    gpu_conv_scan(rows->q, &p);
    gpu_mamba_out(rows, w, &p);
}

static cudaError_t mamba_shorten_log(cudaStream_t stream, const mamba_shape *s, const mamba_state *state) {
    const deltanet_shape memory = mamba_memory(s);
    return deltanet_shorten_log(stream, &memory, state);
}
