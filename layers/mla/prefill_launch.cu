/* layers/mla/prefill_launch.cu: a layer of multi-head latent attention for the many token rows of a prompt. Knows no session. The definition
   is definition.c; what the kernels are: prefill.cu, layers/attention/prefill_attend.cu.

   Queries of all heads are made first. Then, for a group of heads after the other, keys and values of all positions that the rows see, and
   attention. As many heads are a group as MLA_PAIRS allow; of more positions than that allows for MLA_GROUP heads there are tiles, between which
   attention is carried on. Neither changes a row's bits. */

enum {
    MLA_PAIRS = 65536,           /* of a position and a head, whose keys and values are there at a time */
    MLA_MADE = 16384,            /* of these, that are made at a time: what is between their products and them stays in the L2 */
    MLA_GROUP = 4,               /* heads of a group, unless it has more */
    MLA_TILE = 64                /* positions of a tile are a multiple of it */
};

/* Scratch of a call of T rows. */
typedef struct mla_prefill_job {
    float *c_new, *a, *q_new, *k_new, *v_new;
    uint16_t *a16, *q, *c, *k, *v, *out;                     /* a16, out: F16, as products take them */
    float *a_scale, *c_scale, *out_scale;
    float4 *carry;
} mla_prefill_job;

static size_t mla_prefill_layout(const mla_shape *s, int T, char *scratch, mla_prefill_job *p) {
    const size_t rows = (size_t)T, heads = (size_t)s->heads, key = (size_t)mla_key_dim(s), value = (size_t)s->value_dim, rank = (size_t)s->kv_rank;
    const size_t pairs = max_size(MLA_PAIRS, MLA_TILE * heads), made = max_size(MLA_MADE, MLA_TILE * heads);
    const size_t asked = max_size(pairs, MLA_GROUP * rows);
    size_t used = 0;
    p->c_new = (float *)prefill_take(scratch, &used, rows * (size_t)mla_row_size(s) * sizeof(float));
    p->a = (float *)prefill_take(scratch, &used, rows * (size_t)s->q_rank * sizeof(float));
    p->a16 = (uint16_t *)prefill_take(scratch, &used, rows * (size_t)s->q_rank * 2);
    p->a_scale = (float *)prefill_take(scratch, &used, rows * sizeof(float));
    p->q_new = (float *)prefill_take(scratch, &used, (rows * heads < asked ? rows * heads : asked) * key * sizeof(float));
    p->q = (uint16_t *)prefill_take(scratch, &used, rows * heads * key * 2);
    p->c = (uint16_t *)prefill_take(scratch, &used, made * rank * 2);
    p->c_scale = (float *)prefill_take(scratch, &used, made * sizeof(float));
    p->k_new = (float *)prefill_take(scratch, &used, made * (size_t)s->nope_dim * sizeof(float));
    p->v_new = (float *)prefill_take(scratch, &used, made * value * sizeof(float));
    p->k = (uint16_t *)prefill_take(scratch, &used, pairs * key * 2);
    p->v = (uint16_t *)prefill_take(scratch, &used, pairs * value * 2);
    p->carry = (float4 *)prefill_take(scratch, &used, prefill_carry_bytes(T, min_int(s->heads, MLA_GROUP), s->value_dim));
    p->out = (uint16_t *)prefill_take(scratch, &used, rows * heads * value * 2);
    p->out_scale = (float *)prefill_take(scratch, &used, rows * heads * value / GEMM_COLS * sizeof(float));
    return prefill_take_rest(used, 0, T, s->hidden);         /* queries are made of u, too, where there is no q_rank */
}

/* Heads of a group where rows see so many positions. */
static int mla_prefill_group(const mla_shape *s, int positions) {
    const int fit = MLA_PAIRS / ((positions + MLA_TILE - 1) / MLA_TILE * MLA_TILE);
    return fit >= s->heads ? s->heads : min_int(s->heads, max_int(fit / MLA_GROUP * MLA_GROUP, MLA_GROUP));
}

/* Of so many pairs, positions for a group's heads. */
static int mla_prefill_tile(int pairs, int heads) {
    return max_int(pairs / heads / MLA_TILE * MLA_TILE, MLA_TILE);
}

/* Whether a matrix can be multiplied with group by group, of `each` rows a head: no block of rows under one scale is cut. */
static int mla_prefill_takes(const matrix *w, int each) {
    return prefill_takes(w) && each % 32 == 0 && (w->block_rows <= 1 || w->block_rows >= w->rows || MLA_GROUP * each % w->block_rows == 0);
}

/* The implementation of layers/kinds.cu for prefill. */

static int mla_can_prefill(const mla_weights *w, dtype kv) {
    const mla_shape *s = &w->shape;
    const int of_u = s->q_rank == 0 || (prefill_takes(&w->q_a_proj) && s->q_rank <= 8192);
    return (kv == DTYPE_BF16 || kv == DTYPE_FP8) && prefill_attend_fits(mla_key_dim(s), s->value_dim, DTYPE_BF16) && s->hidden % GEMM_COLS == 0 &&
           of_u && prefill_takes(&w->kv_a_proj) && mla_prefill_takes(&w->q_b_proj, mla_key_dim(s)) &&
           mla_prefill_takes(&w->k_b_proj, s->nope_dim) && mla_prefill_takes(&w->v_b_proj, s->value_dim) && prefill_takes(&w->o_proj);
}

static size_t mla_prefill_bytes(const mla_shape *s, int T, dtype) {
    mla_prefill_job p;
    return mla_prefill_layout(s, T, NULL, &p);
}

/* Adds the product with rows first .. first + rows - 1 of a matrix. */
static void mla_prefill_product(gpu_gemm *p, const matrix *w, int first, int rows, float *y) {
    gemm_product *o = prefill_product(p, w, GEMM_STORE, y);
    o->w = gpu_matrix_rows(o->w, first, rows);
    o->stride = rows;
}

/* norm_latents: c_new, a, and queries of all heads. */
static void mla_prefill_in(const prefill_rows *r, const mla_weights *w, const mla_prefill_job *job, mla_prefill p) {
    const mla_shape *s = &w->shape;
    gpu_gemm of_u = prefill_gemm(r, prefill_normed(r), r->T);
    prefill_product(&of_u, &w->kv_a_proj, GEMM_STORE, job->c_new);
    if (!r->state_only && s->q_rank) prefill_product(&of_u, &w->q_a_proj, GEMM_STORE, job->a);
    prefill_launch(r, &of_u);
    if (r->state_only) return;
    const prefill_norm norm = {.x = job->a, .norm = w->q_norm, .u = job->a16, .act_scale = job->a_scale, .cols = s->q_rank, .eps = s->eps};
    if (s->q_rank) prefill_norm_rows<<<r->T, GPU_THREADS, (size_t)s->q_rank * sizeof(float), r->stream>>>(norm);
    const gemm_rows a = {job->a16, job->a_scale, 1};
    const int group = mla_prefill_group(s, r->index + r->T);
    for (p.head = 0; p.head < s->heads; p.head += group) {
        gpu_gemm of_a = prefill_gemm(r, s->q_rank ? a : prefill_normed(r), r->T);
        p.heads = min_int(group, s->heads - p.head);
        mla_prefill_product(&of_a, &w->q_b_proj, p.head * mla_key_dim(s), p.heads * mla_key_dim(s), job->q_new);
        prefill_launch(r, &of_a);
        mla_prefill_queries<<<r->T, GPU_THREADS, (size_t)s->rope_dim * sizeof(float), r->stream>>>(p);
    }
}

/* Keys and values of the group p, of so many positions from `first` on. */
static void mla_prefill_make(const prefill_rows *r, const mla_weights *w, const mla_prefill_job *job, mla_prefill p, int first, int positions) {
    const mla_shape *s = &w->shape;
    const int most = mla_prefill_tile(MLA_MADE, p.heads), end = first + positions;
    const gemm_rows c = {job->c, job->c_scale, 1};
    for (p.first = first; p.first < end; p.first += most) {
        const size_t at = (size_t)(p.first - first) * (size_t)p.heads;
        p.positions = min_int(most, end - p.first);
        p.k = job->k + at * (size_t)mla_key_dim(s);
        p.v = job->v + at * (size_t)s->value_dim;
        mla_prefill_latents<<<(p.positions - 1) / GPU_WARPS + 1, GPU_THREADS, 0, r->stream>>>(p);
        gpu_gemm of_c = prefill_gemm(r, c, p.positions);
        mla_prefill_product(&of_c, &w->k_b_proj, p.head * s->nope_dim, p.heads * s->nope_dim, job->k_new);
        mla_prefill_product(&of_c, &w->v_b_proj, p.head * s->value_dim, p.heads * s->value_dim, job->v_new);
        prefill_launch(r, &of_c);
        mla_prefill_keys<<<p.positions, GPU_THREADS, 0, r->stream>>>(p);
    }
}

/* latent_attend, without the new rows of the cache. */
static cudaError_t mla_prefill_attend(const prefill_rows *r, const mla_weights *w, const mla_prefill_job *job, int warps, mla_prefill p) {
    const mla_shape *s = &w->shape;
    const int end = r->index + r->T, group = mla_prefill_group(s, end);
    cudaError_t status = cudaSuccess;
    prefill_attend a;
    memset(&a, 0, sizeof a);
    a.T = r->T;
    a.index = r->index;
    a.heads = s->heads;
    a.q_per_kv = 1;
    a.key_dim = mla_key_dim(s);
    a.value_dim = s->value_dim;
    a.window = attend_window(0);
    a.warps = warps;
    a.kv = DTYPE_BF16;
    a.q = job->q;
    a.k = job->k;
    a.v = job->v;
    a.ring = INT_MAX;
    a.k_scale = a.v_scale = 1;
    a.out = job->out;
    a.out_scale = job->out_scale;
    for (p.head = 0; p.head < s->heads && status == cudaSuccess; p.head += group) {
        p.heads = a.kv_heads = min_int(group, s->heads - p.head);
        a.first_head = p.head;
        const int tile = mla_prefill_tile(MLA_PAIRS, p.heads);
        a.carry = tile < end ? job->carry : NULL;
        for (a.first = 0; a.first < end && status == cudaSuccess; a.first = a.end) {
            a.end = min_int(end, a.first + tile);
            mla_prefill_make(r, w, job, p, a.first, a.end - a.first);
            status = prefill_attend_run(&a, r->stream);
        }
    }
    return status;
}

static cudaError_t mla_run_prefill(const prefill_rows *r, const mla_weights *w, const mla_gpu *scratch, const mla_state *state) {
    const mla_shape *s = &w->shape;
    mla_prefill_job job;
    mla_prefill_layout(s, r->T, r->scratch, &job);
    const mla_prefill p = {.shape = *s, .T = r->T, .index = r->index, .head = 0, .heads = 0, .first = 0, .positions = 0, .table = r->table,
                           .frequencies = scratch->frequencies + (size_t)(r->layer * scratch->frequencies_size), .kv_norm = w->kv_norm,
                           .kv = scratch->kv, .kv_scale = kv_scale(scratch->kv, w->kv_scale), .latents = (char *)state->latents,
                           .c_new = job.c_new, .q_new = job.q_new, .q = job.q, .c = job.c, .c_scale = job.c_scale, .k_new = job.k_new,
                           .v_new = job.v_new, .k = job.k, .v = job.v};
    const size_t shared = (size_t)(mla_row_size(s) + s->rope_dim) * sizeof(float);
    const gemm_rows out = {job.out, job.out_scale, s->heads * s->value_dim / GEMM_COLS};
    cudaError_t status = cudaSuccess;
    if (stage_in(r->stages, STAGE_LATENTS)) mla_prefill_in(r, w, &job, p);
    if (stage_in(r->stages, STAGE_LATENT_ATTEND)) mla_prefill_append<<<r->T, GPU_THREADS, shared, r->stream>>>(p);
    if (r->state_only) return cudaGetLastError();
    if (stage_in(r->stages, STAGE_LATENT_ATTEND)) status = mla_prefill_attend(r, w, &job, scratch->prefill_warps, p);
    if (stage_in(r->stages, STAGE_LATENT_OUT)) prefill_output(r, &w->o_proj, out, NULL);
    return status == cudaSuccess ? cudaGetLastError() : status;
}
