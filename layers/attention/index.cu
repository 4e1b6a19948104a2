/* layers/attention/index.cu: which tokens a row of an indexed layer attends to, on a GPU: what its kernels share. The definition is
   layers/attention/definition.c, and what a group and an entry is says layers/attention/index.c.

   In the place of rope_attend such a layer has three kernels:
     index_scores    (index_scores.cu)   appends the rows' keys and values, their index keys, and the keys of the groups that they make whole;
                                         scores the whole groups that a row sees, if these are more than it attends to
     index_choose    (index_choose.cu)   the best of those, of equal ones the first
     index_attend    (index_attend.cu)   rope_attend over a row's entries: each row is for itself, with what the rows before it appended
   A prompt has index_prepare_rows (index_prefill.cu) in front of the first two, and then attend_prefill, which passes over what is not chosen. Where
   contexts are so long that most of what that reads is not chosen, index_attend takes its rows, too.

   Why a row's bits do not depend on the rows beside it: a score is one of a row and a group. The key of a group is made from index keys as the
   cache holds them, whether they are in it already or are still projections. Entries are dealt to splits by their number alone.

   index_scores reads groups that were whole before the launch early, before its pdl_wait, as rope_attend reads keys. All others it
   makes itself, in each block that scores them: no block waits for another one. */

/* Rows of a launch that follow each other in one session: those of a sequence, or STEP_ROWS rows of a prompt. */
typedef struct index_turn {
    int row, T;                  /* number of the first in the launch; how many */
    int first;                   /* its index */
    int end;                     /* tokens that the last one sees */
    int before;                  /* tokens whose index keys are in the cache; those after them are rows of this launch */
    int lag;                     /* as attend_span's */
    slot_view slot;
} index_turn;

/* Those number z. */
__device__ __forceinline__ index_turn index_turn_of(const attention_gpu &p, int z) {
    index_turn r;
    if (!p.step) {
        r.row = z * STEP_ROWS;
        r.T = min(p.T - r.row, (int)STEP_ROWS);
        r.first = p.offset + r.row;
        r.end = r.first + r.T;
        r.before = INT_MAX;
        r.lag = 0;
        r.slot = {NULL, INT_MAX};
        return r;
    }
    const step_parameters *step = p.step + z;
    r.row = p.sequences ? step->first : 0;
    r.T = p.sequences ? step->rows : p.T;
    r.first = step->index + p.offset;
    r.slot = gpu_slot_of(&p.slot, step);
    r.end = max(0, min(r.first + r.T, gpu_slot_context(&r.slot)));
    r.before = max(0, p.index.in_turn ? p.step->index + p.offset : r.first);
    r.lag = step->lag;
    return r;
}

/* Tokens that row t of these sees: none before index 0. */
__device__ __forceinline__ int index_visible(const index_turn &r, int t) {
    return max(0, min(r.first + t + 1, r.end));
}

/* One row of a launch by itself. row: -1: number z is none. */
typedef struct index_row {
    int row, sequence, visible;
} index_row;

/* Numbers of rows in grids: of several sequences each has STEP_ROWS, or one. */
__device__ __forceinline__ index_row index_row_of(const attention_gpu &p, int z) {
    if (!p.step) return {z, 0, p.offset + z + 1};
    const int each = p.sequences ? (p.one_each ? 1 : STEP_ROWS) : INT_MAX, sequence = z / each, t = z % each;
    const index_turn r = index_turn_of(p, sequence);
    return {t < r.T ? r.row + t : -1, sequence, index_visible(r, t)};
}

/* The position by which dimension i of row r is rotated. */
__device__ __forceinline__ int index_position(const attention_gpu &p, const index_row &r, int i) {
    if (!p.step) return p.index.table[r.row].position[rope_axis(p.index.axes, i)];
    return r.visible - 1 - p.step[r.sequence].lag;
}

/* The index keys of a slot, or the keys of its groups. */
__device__ __forceinline__ char *index_cache(const attention_gpu &p, const slot_view &slot, bool groups) {
    char *at = gpu_in_slot(&slot, groups ? p.index.groups : p.index.keys);
    if (!slot.step) return at;
    return at + p.index.growth[groups] * __ldg(&slot.step->kv_granules) - p.index.past[groups] * __ldg(&slot.step->past_ring);
}

/* A number as the cache holds it. */
template <bool FP8> __device__ __forceinline__ float index_rounded(float x) {
    if (!FP8) return bf16_low(bf16_pair(x, 0));
    uint32_t low, high;
    e4m3_pairs(gpu_fp8(x), &low, &high);
    return f16_floats(low).x;
}

/* The index key of a row of the launch, as projected. */
__device__ __forceinline__ const float *index_new_key(const attention_gpu &p, const index_turn &r, int index) {
    const int heads = p.shape.index_heads;
    return p.index.qk + ((int64_t)(r.row + index - r.first) * (heads + 1) + heads) * p.shape.index_dim;
}

/* A vector of index_dim numbers while one warp normalises and rotates it. */
typedef struct index_vector {
    const float *x, *norm, *cs;  /* x, cs: shared memory of [index_dim], and of [rotary_dim] as attend_angle has it */
    float factor;                /* rms_factor */
    int half;                    /* of the dimensions that are rotated */
} index_vector;

/* Loads it: load(i) is number i. x, cs: the memory; cs is filled in. All lanes of the warp call it. */
template <class LOAD>
__device__ __forceinline__ index_vector index_load(const attention_gpu &p, const float *norm, float *x, const float *cs, const LOAD &load) {
    const int n = p.shape.index_dim;
    float squares = 0;
    for (int i = threadIdx.x % 32; i < n; i += 32) {
        x[i] = load(i);
        squares = fmaf(x[i], x[i], squares);
    }
    const float factor = rms_factor(warp_sum(squares), 1.0f / (float)n, p.shape.eps);
    __syncwarp();
    return {x, norm, cs, factor, p.shape.rotary_dim / 2};
}

/* Number i of what becomes of it. */
__device__ __forceinline__ float index_number(const index_vector &v, int i) {
    const int half = v.half, other = i < half ? i + half : i - half;
    const float x = v.x[i] * v.factor * v.norm[i];
    if (i >= 2 * half) return x;
    const float y = v.x[other] * v.factor * v.norm[other], *cs = v.cs + (i < half ? i : other);
    return attend_rotate(x, i < half ? -y : y, cs[0], cs[half]);
}

/* One warp stores the key of a group as numbers at.. of `to`. own: shared memory of the warp, index_own_size floats. angle(i, cs) computes angle i of
   the group's first token. r: the rows of the launch, one of which is the group's last token. */
template <bool FP8, class ANGLE>
__device__ __forceinline__ void index_make_group(const attention_gpu &p, const index_turn &r, int group, float *own, const ANGLE &angle, void *to,
                                                 size_t at) {
    const attention_shape *s = &p.shape;
    const int n = s->index_dim, count = s->index_group, first = group * count;
    const char *keys = index_cache(p, r.slot, false);
    float *cs = own + n;
    for (int i = threadIdx.x % 32; i < s->rotary_dim / 2; i += 32) angle(i, cs);
    const index_vector v = index_load(p, p.index.k_norm, own, cs, [&](int i) {
        float sum = 0;
        for (int k = first; k < first + count; k++)
            sum += k < r.before ? attend_load<FP8>(keys, (size_t)k * n + i) : index_rounded<FP8>(index_new_key(p, r, k)[i]);
        return sum / (float)count;
    });
    for (int i = threadIdx.x % 32; i < n; i += 32) attend_store<FP8>(to, at + i, index_number(v, i), 1);
    __syncwarp();
}

/* Floats of shared memory that a warp has for a vector. */
static __host__ __device__ __forceinline__ size_t index_own_size(const attention_shape *s) {
    return (size_t)s->index_dim + (size_t)s->rotary_dim;
}
