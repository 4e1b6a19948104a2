/* layers/mla/decode.cu: multi-head latent attention in a step on a GPU: what its kernels share. The formulas are definition.c's, the
   absorbed form is cpu.c's.

     norm_latents      c, r = kv_a_proj u;  a = q_a_proj u, or without q_rank q, t = q_b_proj u      cuda/projection.cu
     latent_queries    q, t = q_b_proj norm(a), with q_rank                                          the same
     absorb            l = [k_b_proj^T q, rotate(t)] of each head; norm(c) and rotate(r) become a row of the cache     absorb.cu
     latent_attend     m = softmax(l . row scale) c over the rows of the cache, in parts             attend_fast.cu, attend_any.cu
     latent_values     o = v_b_proj m of each head, m from its parts                                 values.cu
     latent_out        x += o_proj o                                                                 cuda/projection.cu

   Flash decoding, as layers/attention/decode.cu has it: positions are dealt in chunks of MLA_CHUNK, chunk c to split c % splits, and a part
   is what the softmax is made of, over a few splits: the largest score m, l = sum exp2(s - m), and the undivided sum of latents; log2(e) is
   folded into the query. Who makes values joins a head's parts, in their order. So nobody waits for a last block.

   Why a row's bits do not depend on the rows beside it: which positions form a part depends on the position alone, and a position that the
   row does not see has weight 0.

   The cache's new rows are there before latent_attend runs: of all rows, and so of all blocks of one slot, each of which sees those of the
   blocks before it. Before its wait latent_attend copies, of one sequence, chunks whose rows all come before row 0. They were written before this
   graph was launched or, in a cycle of speculation, before its latest sample_token, which never releases. Others it prefetches into the L2. */

enum {
    MLA_CHUNK = 16,              /* positions */
    MLA_PARTS = 16,              /* most parts of a row */
    MLA_RANK = 512, MLA_ROPE = 64,                           /* kv_rank and rope_dim of every published model: attend_fast.cu's */
    MLA_ROWS = 24                /* query rows, of a token row and a head, of a block there */
};

typedef struct mla_gpu {
    handoff link;
    mla_shape shape;
    gpu_matrix w;                /* k_b_proj or v_b_proj */
    const float *kv_norm;        /* [kv_rank] */
    const step_parameters *step;
    int sequences;               /* of a pass, whose rows are the steps'; 0: one */
    int offset;                  /* index of row 0 minus step->index; a row before index 0 yields zeros */
    int T;                       /* token rows of all sequences */
    float *frequencies;          /* [rope_dim / 2] of the layer; in scratch [layers][frequencies_size] */
    int frequencies_size;
    float *a;                    /* [T][q_rank] */
    float *q;                    /* [T][heads][nope_dim + rope_dim] */
    float *c_new;                /* [T][kv_rank + rope_dim] */
    float *l;                    /* [T][heads][kv_rank + rope_dim] queries of latents */
    dtype kv;                    /* BF16 or FP8 */
    slot_view slot;
    char *latents;               /* cache [context][kv_rank + rope_dim] of the captured slot: see mla_cache */
    int64_t growth;              /* bytes by which it lies further on in a slot of KV_GRANULE more tokens of context */
    int64_t past;                /* and less far where these are past a ring: gpu_rows.past */
    float kv_scale;              /* factor of its numbers; 1 but for FP8 */
    int splits;                  /* gpu_mla_splits */
    float *parts;                /* [T][heads][MLA_PARTS][kv_rank] sums of latents, then [T][heads][MLA_PARTS] of m, l */
    int *part_count;             /* [T] */
    int rows;                    /* of the scratch: where m and l begin */
    float *o;                    /* [T][heads][value_dim] */
    int blocks;                  /* latent_values: blocks of a head */
    int kv_only;                 /* only rows of the cache */
    int prefill_warps;           /* attention_prefill_warps */
} mla_gpu;

/* A row's part of the sums of latents. */
__device__ __forceinline__ float *mla_part_sum(const mla_gpu &p, int t, int head, int part) {
    return p.parts + (((size_t)t * p.shape.heads + head) * MLA_PARTS + part) * p.shape.kv_rank;
}

/* Its m and l. */
__device__ __forceinline__ float2 *mla_part_ml(const mla_gpu &p, int t, int head, int part) {
    float *ml = p.parts + (size_t)p.rows * p.shape.heads * MLA_PARTS * p.shape.kv_rank;
    return (float2 *)ml + ((size_t)t * p.shape.heads + head) * MLA_PARTS + part;
}

/* Floats of scratch for the parts of so many token rows. */
static size_t gpu_mla_parts(const mla_shape *s, int rows) {
    return (size_t)rows * (size_t)s->heads * MLA_PARTS * ((size_t)s->kv_rank + 2);
}

/* The rows of a sequence, and where they stand. */
typedef struct mla_range {
    const step_parameters *step;
    int row, T;                  /* the first of the token rows; how many */
    int first;                   /* its index */
    int end;                     /* rows in the cache after this step */
    int chunks;                  /* that hold those */
} mla_range;

/* The slot that sequence z's step is of. */
__device__ __forceinline__ slot_view mla_slot(const mla_gpu &p, const step_parameters *step) {
    return gpu_slot_of(&p.slot, step);
}

__device__ __forceinline__ mla_range mla_range_of(const mla_gpu &p, int z) {
    mla_range s;
    s.step = p.step + z;
    const slot_view slot = mla_slot(p, s.step);
    s.row = p.sequences ? s.step->first : 0;
    s.T = p.sequences ? s.step->rows : p.T;
    s.first = s.step->index + p.offset;
    s.end = min(s.first + s.T, gpu_slot_context(&slot));
    s.chunks = (s.end + MLA_CHUNK - 1) / MLA_CHUNK;
    return s;
}

/* The cache of the slot that is resident, or whose step this is. */
__device__ __forceinline__ char *mla_cache(const mla_gpu &p, const mla_range &s) {
    const slot_view slot = mla_slot(p, s.step);
    char *at = gpu_in_slot(&slot, p.latents);
    return slot.step ? at + p.growth * __ldg(&slot.step->kv_granules) - p.past * __ldg(&slot.step->past_ring) : at;
}

/* What a query of latents is multiplied with: scores are for exp2. They are yet to be multiplied with kv_scale. */
__device__ __forceinline__ float mla_query_scale(const mla_gpu &p) {
    return p.shape.scale * 1.44269504f;
}
