/* layers/attention/decode.cu: rope_attend on a GPU: what its two kernels share, and prefill's with them. Its definition is
   layers/attention/cpu.c.

   attend_fast (decode_fast.cu) runs heads of 64, 128, 256 and 512 dimensions on tensor cores, attend_any (decode_any.cu) runs every
   other shape by plain loops; decode_launch.cu chooses. The kernels touch one layer's KV cache, rows and scratch, and read
   step_parameters. They know no session and no other layer.

   Both are flash decoding: split-KV attention with an online softmax. For a query row (token row, query head):

       s[p] = q . k[p] scale                       for each position p that the row sees; scale mostly 1 / sqrt(head_dim)
       m = max s[p]    l = sum exp(s[p] - m)       computed with exp2: log2(e) is folded into q
       o = sum exp(s[p] - m) v[p] / l * gate       gate: sigmoid, of q_proj's; softplus, of a g_proj's; or none

   A head's sink is a score more, which has no value: in split 0 m and l begin with it.

   Grid (kv head, split), 256 threads a block. The positions are dealt in chunks of 64: chunk c of a kv head belongs to
   split c % splits. A block serves all query rows of its kv head; attend_fast thus reads each KV row once. The block
   appends the new KV rows that fall into its chunks, and computes a partial for each query row: m, l and the undivided o
   over its chunks. The partials are combined in the order of the splits, again by maximum and rescaled sums.

   Why a row's bits do not depend on the rows beside it: which positions form a partial depends on the position alone, and a
   position that the row does not see has weight 0 and changes neither m nor l nor o.

   A window is the last `window` positions up to the row's own. A block begins with its first chunk of those that row 0 sees a part of, so that
   a step costs no more than the window. A later row sees none of a chunk, or of a split, that begins before its own window: m stays -inf, and
   l and o 0, with which a partial joins others without a trace. So that few blocks are without work, a layer with a window has as many splits as
   that has chunks (attend_splits), in whole clusters: a number that is the layer's, as are its partials.

   What may be read before pdl_wait: step_parameters, and cached KV rows, those before the position of row 0. They were written
   before this graph was launched or, in a cycle of speculation, before its latest gpu_accept or sample_token. Neither of these
   calls pdl_launch_dependents, so when a later kernel starts they are complete, and with them all kernels before them.

   Why idle blocks may return without pdl_wait (those with no chunk, if there are fewer chunks than splits; in attend_fast a
   cluster returns only as a whole): an idle block writes nothing, takes no ticket, and nobody waits for it at a barrier.
   The blocks of split 0 are never idle and do wait, and a grid is complete only when all its blocks are. So a successor
   that waits for rope_attend still knows that everything before rope_attend is complete. Returning early frees the SM for
   the successor's blocks. */

enum { ATTEND_DIM = 256 };       /* head_dim of the fast kernels that are Qwen3.5's; others have its half, quarter or double */

/* Of an index: layers/attention/index.cu. */
typedef struct index_gpu {
    const float *q_norm, *k_norm;                            /* [index_dim] */
    float *qk;                   /* [T][index_heads + 1][index_dim] queries, and then the key, as projected; of a prompt queries that are ready */
    char *keys, *groups;         /* of the captured slot: [context][index_dim], [context / index_group][index_dim] */
    int64_t growth[2], past[2];  /* of both, as k_growth and k_past */
    float *scores;               /* [T][stride] of whole groups, as far as there are any */
    float *highest;              /* [T][stride / INDEX_OCTET] the highest score of each octet of groups */
    int stride, rows;            /* a multiple of 128, of more groups than there are; rows that there is memory for */
    int in_turn;                 /* the sequences are blocks of one slot */
    int32_t *chosen;             /* [T][index_kept] of a row that leaves tokens out, its groups in their order */
    uint32_t *marks;             /* [T][stride / 32] of a prompt the same as bits, with the group that is not whole yet */
    int lone_from;               /* of a prompt: rows from this index on are attended one by one */
    const token_row *table;      /* [T] of a prompt, and by which of a row's positions its dimensions are rotated */
    rope_axes axes;
} index_gpu;

typedef struct attention_gpu {
    handoff link;
    int q_per_kv;                /* query heads of a kv head */
    attention_shape shape;
    const float *q_norm, *k_norm;                            /* [head_dim]; NULL: none */
    const float *sinks;          /* [heads]; NULL: none */
    int window;                  /* attend_window */
    const step_parameters *step;
    int sequences, one_each;     /* of a pass, see attend_sequence; 0: one. one_each: of one row each */
    int both_ways;               /* the sequences are turns of so many rows, each of which sees all of these; they have been appended. 0: see gpu_rows */
    int appends;                 /* it only appends k and v, and never releases: see gpu_append */
    int blocks;                  /* a kv head's, of a sequence: its first so many splits, which have all chunks there are; 0: all */
    int offset;                  /* index of row 0 minus step->index; a row before index 0 yields zeros */
    int T;                       /* token rows: of one sequence 1..STEP_ROWS */
    float *frequencies;          /* [rotary_dim / 2] of the layer; in scratch [layers][frequencies_size] */
    int frequencies_size;
    float *qg;                   /* [T][heads][2][head_dim] */
    float *k_new, *v_new;        /* [T][kv_heads][head_dim] */
    dtype kv;                    /* BF16 or FP8 */
    slot_view slot;
    char *k, *v;                 /* KV cache [context or ring][kv_heads][head_dim] of the captured slot: see attend_cache */
    int64_t k_growth, v_growth;  /* bytes by which they lie further on in a slot of KV_GRANULE more tokens of context, */
    int64_t k_past, v_past;      /* and less far where these are past a ring: gpu_rows.past */
    int ring;                    /* rows of the cache, as attend_row has it */
    float k_scale, v_scale;      /* factors of its numbers; 1 but for FP8 */
    int splits;                  /* of the layer; of scratch: the most of any */
    float *parts;                /* [T] partials: see attend_part_o */
    int *tickets;                /* [kv_heads][ATTEND_CLUSTER] of the last-block reduction, zero between launches */
    float *o;                    /* [T][heads][head_dim] */
    int kv_only;                 /* only append k and v */
    int prefill_warps;           /* attention_prefill_warps */
    float *g_new;                /* [T][heads][gate_size] */
    float query_scale;           /* log2(e) scale: scores are for exp2 */
    int partials;                /* of a kv head, that parts has space for: attend_partials */
    size_t parts_size;           /* floats of parts for a token row */
    int *layer_splits;           /* [layers] gpu_attention_splits of each, in the host's memory */
    index_gpu index;
} attention_gpu;

/* Floats of scratch for so many partials of each of a token row's query heads. */
static __host__ __device__ size_t gpu_attention_parts(const attention_shape *s, int partials) {
    return (size_t)partials * (size_t)s->heads * ((size_t)s->head_dim + 2 * ATTEND_CLUSTER);
}

/* Ints of scratch for a sequence's tickets; zero before the first launch. */
static __host__ __device__ size_t gpu_attention_tickets(const attention_shape *s) {
    return (size_t)s->kv_heads * ATTEND_CLUSTER;
}

/* What concerns sequence z of a pass: its rows, and its slot. */
__device__ __forceinline__ attention_gpu attend_sequence(const attention_gpu &all, int z) {
    const attention_shape *s = &all.shape;
    attention_gpu p = all;
    p.step = p.slot.step = all.step + z;
    const size_t first = p.step->first, d = s->head_dim;
    p.T = p.step->rows;
    p.qg += first * s->heads * attention_q_size(s);
    p.k_new += first * s->kv_heads * d;
    p.v_new += first * s->kv_heads * d;
    p.g_new += first * s->heads * s->gate_size;
    p.o += first * s->heads * d;
    p.parts += first * gpu_attention_parts(s, p.partials);
    p.tickets += z * gpu_attention_tickets(s);
    return p;
}

/* The keys or the values, of the slot that is resident. */
__device__ __forceinline__ char *attend_cache(const attention_gpu *p, bool values) {
    const int64_t growth = values ? p->v_growth : p->k_growth, past = values ? p->v_past : p->k_past;
    char *at = gpu_in_slot(&p->slot, values ? p->v : p->k);
    return p->slot.step ? at + growth * __ldg(&p->slot.step->kv_granules) - past * __ldg(&p->slot.step->past_ring) : at;
}

/* Where the rows of a launch stand. What the head of this file calls the positions of keys and rows are indexes: attend_row says which row of
   the cache an index has. */
typedef struct attend_span {
    int first;                   /* index of row 0 */
    int end;                     /* positions after this step */
    int chunks;                  /* that hold those */
    int lag;                     /* a row's index less the position that rotates it */
} attend_span;

/* ANY: of sequences that may see both ways. */
template <bool ANY = true> __device__ __forceinline__ attend_span attend_span_of(const attention_gpu *p) {
    attend_span s;
    const int rows = ANY && p->both_ways ? p->both_ways - p->step->first : p->T;
    s.first = p->step->index + p->offset;
    s.end = min(s.first + rows, gpu_slot_context(&p->slot));
    s.chunks = (s.end + ATTEND_CHUNK - 1) / ATTEND_CHUNK;
    s.lag = p->step->lag;
    return s;
}

/* The last position that token row t sees. */
__device__ __forceinline__ int attend_last(const attention_gpu *p, const attend_span *s, int t) {
    return p->both_ways ? s->end - 1 : min(s->first + t, s->end - 1);
}

/* Whether this block appends the KV row of position `at`. With kv_only there is one block a kv head, and it appends all. */
__device__ __forceinline__ bool attend_owns(const attention_gpu *p, const attend_span *s, int at) {
    return at >= 0 && at < s->end && (p->kv_only || at / ATTEND_CHUNK % p->splits == (int)blockIdx.y);
}

/* cs[i] = cos and cs[rotary_dim / 2 + i] = sin of dimension i's rotary angle, position * frequency, times rope_scale. The angle is the same
   float as in the C twin; it is reduced by multiples of pi in double, exact enough for any position. */
__device__ __forceinline__ void attend_angle(const attention_shape *s, int position, int i, float frequency, float *cs) {
    double turn = (double)((float)position * frequency) * 0.31830988618379067154;
    float rest = (float)(turn - 2 * rint(turn / 2));
    cs[i] = cospif(rest) * s->rope_scale;
    cs[s->rotary_dim / 2 + i] = sinpif(rest) * s->rope_scale;
}

/* An element of a head rotated by its angle. other: the other element of its pair, half of the rotated dimensions away; for
   the pair's first element x it is negated. */
__device__ __forceinline__ float attend_rotate(float x, float other, float cosine, float sine) {
    return fmaf(x, cosine, other * sine);
}

/* A step of the online softmax: *m, the largest score so far, becomes `top`, the largest with what is added. *rescale: what l and o
   so far are multiplied with. Returns what is subtracted from scores: *m, but 0 if no position was seen, which avoids inf - inf;
   SEEN: one always was. */
template <bool SEEN> __device__ __forceinline__ float attend_raise(float *m, float top, float *rescale) {
    const float base = !SEEN && top == -INFINITY ? 0 : top;
    *rescale = gpu_exp2(*m - base);
    *m = top;
    return base;
}

/* Rounds x to the cache's type, FP8 in units of `scale`, and stores it as element `at`. */
template <bool FP8> __device__ __forceinline__ void attend_store(void *cache, size_t at, float x, float scale) {
    if (FP8) ((uint8_t *)cache)[at] = gpu_fp8(x / scale);
    else ((uint16_t *)cache)[at] = (uint16_t)bf16_pair(x, 0);
}

/* The same for elements 2 pair and 2 pair + 1. */
template <bool FP8> __device__ __forceinline__ void attend_store_pair(void *cache, size_t pair, float2 x, float scale) {
    if (FP8) ((uint16_t *)cache)[pair] = (uint16_t)(gpu_fp8(x.x / scale) | gpu_fp8(x.y / scale) << 8);
    else ((uint32_t *)cache)[pair] = bf16_pair(x.x, x.y);
}

/* A score q . k less `base`: the keys are in units of `scale`. */
template <bool FP8> __device__ __forceinline__ float attend_above(float score, float scale, float base) {
    return FP8 ? fmaf(score, scale, -base) : score - base;
}

template <bool FP8> __device__ __forceinline__ float attend_load(const void *cache, size_t at) {
    if (!FP8) return bf16_low(((const uint16_t *)cache)[at]);
    uint32_t low, high;
    e4m3_pairs(((const uint8_t *)cache)[at], &low, &high);
    return f16_floats(low).x;
}
