/* layers/attention/decode_record.cu: an attention layer in a step on a GPU: its scratch, and its kernels in their order. The implementation of
   layers/kinds.c on a GPU; the launches are decode_launch.cu's and, of an indexed layer, index_launch.cu's. */

static void attention_layout_gpu(layout *l, const attention_shape *s, const capacity *r, const gpu_queue *q,
                                 attention_gpu *to) {
    size_t T = (size_t)q->rows, d = (size_t)s->head_dim;
    memset(to, 0, sizeof *to);
    to->shape = *s;
    to->kv = r->kv;
    to->parts_size = gpu_attention_parts(s, gpu_attention_most_splits(q, s));
    to->ring = attention_ring(r);
    to->frequencies_size = s->rotary_dim / 2;
    to->frequencies = layout_alloc(l, (size_t)(r->layers * to->frequencies_size) + 1);
    to->qg = layout_alloc(l, T * (size_t)s->heads * (size_t)attention_q_size(s));
    to->k_new = layout_alloc(l, T * (size_t)s->kv_heads * d);
    to->v_new = layout_alloc(l, T * (size_t)s->kv_heads * d);
    to->o = layout_alloc(l, T * (size_t)s->heads * d);
    to->parts = layout_alloc(l, T * to->parts_size);
    to->tickets = (int *)(void *)layout_alloc(l, T * gpu_attention_tickets(s));
    to->g_new = layout_alloc(l, T * (size_t)s->heads * (size_t)s->gate_size);
    index_layout_gpu(l, s, r, T, &to->index);
}

static void attention_record(const gpu_rows *rows, const attention_weights *w, const attention_gpu *scratch,
                             const attention_state *state, const attention_state *grown) {
    attention_gpu p = *scratch;
    p.shape = w->shape;
    p.q_per_kv = p.shape.heads / p.shape.kv_heads;
    p.q_norm = w->q_norm;
    p.k_norm = w->k_norm;
    p.sinks = w->sinks;
    p.window = attend_window(p.shape.window);
    p.splits = attend_splits(index_window(&p.shape), p.layer_splits[rows->layer]);
    p.partials = attend_partials(rows->q, &p.shape, p.splits);
    p.step = rows->step;
    p.slot = rows->slot;
    p.sequences = rows->sequences;
    p.one_each = rows->one_each;
    p.both_ways = rows->both_ways;
    p.blocks = min_int(rows->splits, p.splits);
    p.offset = rows->offset;
    p.T = rows->T;
    p.frequencies += (size_t)(rows->layer * p.frequencies_size);
    if (p.shape.v_of_k) p.v_new = p.k_new;
    p.query_scale = p.shape.scale != 0 ? 1.44269504f * p.shape.scale : 1.44269504f / sqrtf((float)p.shape.head_dim);
    p.k = (char *)state->k;
    p.v = (char *)state->v;
    p.k_growth = (char *)grown->k - p.k;
    p.v_growth = (char *)grown->v - p.v;
    p.k_past = rows->past[0];
    p.v_past = rows->past[1];
    p.ring = p.shape.window ? p.ring : INT_MAX;
    p.k_scale = kv_scale(p.kv, w->k_scale);
    p.v_scale = kv_scale(p.kv, w->v_scale);
    p.kv_only = rows->state_only;
    if (p.shape.index_heads) index_place(&p, scratch, w, state, grown, rows);
    gpu_norm_qkv(rows, w, &p);
    if (p.shape.index_heads) {
        index_record(rows->q, &p);
    } else {
        if (rows->in_turn && !p.kv_only) gpu_append(rows->q, &p);
        gpu_rope_attend(rows->q, &p);
    }
    if (!p.kv_only) gpu_output_linear(rows, KERNEL_O_PROJ, &w->o_proj, p.o);
}

/* Keys and values after the end are overwritten: there is no log. */
static cudaError_t attention_shorten_log(cudaStream_t, const attention_shape *, const attention_state *) {
    return cudaSuccess;
}
