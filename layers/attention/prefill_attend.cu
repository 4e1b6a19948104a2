/* layers/attention/prefill_attend.cu: attend_prefill: attention of many rows of queries, whose keys and values are given. The formula is at the
   top of prefill.cu.

   attend_prefill<FP8, WARPS, KEY_DIM, VALUE_DIM, MARKED> is flash attention. MARKED: of indexed layers (index_prefill.cu), whose rows leave groups of
   positions out: those get -inf like those that a row does not see. A warp owns 16 neighbouring positions of one query head, or 32. The warps of a
   block share a KV head: they have as many of its query heads as divide it (a power of two, at most one a warp) and, if warps are
   left, further positions. So few keys are computed only to be masked. The block walks over tiles of 16, 32 or 64 positions, with a
   window from the one that its first row's window begins in; each warp computes its scores of a tile, the online softmax and its part of
   o, all in registers. Blocks of late positions, which take longest, start first.

   Registers decide the shape: o of a warp is 16 x 256 floats, 128 registers a lane. That leaves two warps a scheduler; smaller heads
   run in blocks of four warps on any GPU. Each warp loads all B fragments for itself, 256 bytes of shared memory an mma: 2 cycles of an
   SM, where an H200 needs 1.6 for the mma. With FP8 it is half of that, as tiles stay FP8 in shared memory, but each mma takes two
   conversions. Of heads of 64 with BF16 keys a warp has two strips of 16 rows, and a fragment serves both. Of heads of 512 two warps share
   16 rows: each computes the scores of half of the dimensions, adds up both, and has half of o.

   Precision. BF16 keys: q and the weights 2^(s - m) are one BF16 term each, as transformers rounds them. FP8 keys: codes
   become F16, exactly, between shared memory and mma; q and the weights are F16, the weights times 2^14, as in decode, so
   that small ones keep their bits (l carries the factor, too). Scores, m, l and o are float. Decode uses two terms, so
   its bits differ.

   Why a row's bits depend on nothing but its position, the keys before it and its own q: tiles begin at multiples of their
   size, counted from position 0, a row meets them all in order, and no lane mixes rows. A tile that a row does not see has
   score -inf and weight 0: m, l and o keep their bits (2^(m - m) = 1). m begins with the head's sink or, without, with a finite number
   below all scores. Positions after the last row read as zeros: what the cache holds there may be NaN.

   Keys and values that are made anew for each prompt, as latent attention's, need not be there for all positions at once. With `carry`
   calls follow one another: the first has positions 0 .. end - 1, the next one goes on with first = that end, and the last one has index + T
   as its end; each other end is a multiple of 64. m, l and o go through carry unrounded, so that the bits are those of a single
   call. Other heads of the same rows may be computed by other calls, with their own carry: first_head. */

/* The place of a warp: a head, positions from `first` on (of its block: from `block_first` on), and the lane's row g of its first strip as a
   row of this call, which may lie before the first or after the last one. The block has 2^heads_shift heads. */
typedef struct attend_warp_tile {
    int head, block_first, first, row;
} attend_warp_tile;

/* GROUPS: of warps, each with ROWS rows. */
template <int GROUPS, int SPLIT, int ROWS>
__device__ __forceinline__ attend_warp_tile attend_warp_tile_of(const prefill_attend *p, int heads_shift, int thread) {
    const int span = ROWS * (GROUPS >> heads_shift), group = thread / (32 * SPLIT);          /* span: a power of two */
    attend_warp_tile s;
    s.head = p->first_head + ((int)(blockIdx.y * gridDim.x + blockIdx.x) << heads_shift) + (group & ((1 << heads_shift) - 1));
    s.block_first = (p->index & -span) + (int)(gridDim.z - 1 - blockIdx.z) * span;
    s.first = s.block_first + ROWS * (group >> heads_shift);
    s.row = s.first + thread % 32 / 4 - p->index;
    return s;
}

/* The A fragments of a strip of the warp's queries, so many rows after its first: to q, from step Q_REGISTERS on to q_shared. Rows outside of
   this call are zeros. */
template <bool FP8, class PLAN, int KEY_DIM>
__device__ __forceinline__ void attend_load_query(const prefill_attend *p, const attend_warp_tile *warp_tile, int after, uint4 *q,
                                                  uint4 *q_shared) {
    const int i = threadIdx.x % 4, row = warp_tile->row + after;
    const uint32_t *from = (const uint32_t *)p->q + ((int64_t)row * p->heads + warp_tile->head) * (KEY_DIM / 2);
    const int64_t eight = (int64_t)p->heads * (KEY_DIM / 2) * 8;                  /* rows further on */
    const bool there = row >= 0 && row < p->T, there8 = row + 8 >= 0 && row + 8 < p->T;
    if (PLAN::SPLIT > 1) from += threadIdx.x / 32 % 2 * (PLAN::KEY_STEPS * 8);
#pragma unroll
    for (int step = 0; step < PLAN::KEY_STEPS; step++) {
        const int low = 8 * step + (FP8 ? 2 * i : i), high = low + (FP8 ? 1 : 4);  /* pairs of dimensions */
        uint4 a = make_uint4(0, 0, 0, 0);
        if (there) a.x = from[low], a.z = from[high];
        if (there8) a.y = from[eight + low], a.w = from[eight + high];
        if (step < PLAN::Q_REGISTERS) q[step < PLAN::Q_REGISTERS ? step : 0] = a;
        else q_shared[(step - PLAN::Q_REGISTERS) * 32 * PLAN::STRIPS + after / 16 * 32] = a;
    }
}

/* Stores row g (h = 0) or g + 8 (h = 1) of a strip, columns first_col .. of the head: o / l * v_scale * gate, if there is one, each 64
   dimensions times a power of two as gpu_bring_into_range chooses it. The row's four lanes call it together; `there`: it is a row of this
   call. */
template <bool FP8, class PLAN, int VALUE_DIM>
__device__ __forceinline__ void attend_store_row(const prefill_attend *p, const float (*o)[4], const int h, float l,
                                                 int t, int head, int first_col, bool there) {
    const int i = threadIdx.x % 4;
    const size_t row = there ? (size_t)t * p->heads + head : 0;
    const float *gates = p->gates + row * p->gate_stride;
    const bool gated = p->gates && there, each = gated && p->gate_each, logits = p->gate_logits;
    l += __shfl_xor_sync(~0u, l, 1);
    l += __shfl_xor_sync(~0u, l, 2);
    const float inverse = p->v_scale / l * (gated && !each ? *gates : 1);
#pragma unroll
    for (int group = 0; group < PLAN::VALUE_STEPS / 4; group++) {
        float2 v[8];                                         /* of dimensions col, col + 1 */
        float top = 0;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int col = first_col + 64 * group + (FP8 ? n / 2 * 16 + 4 * i + n % 2 * 2 : 8 * n + 2 * i), c = 8 * group + n;
            const float2 gate = each ? *(const float2 *)(gates + col) : make_float2(1, 1);
            v[n].x = (FP8 ? o[c & ~1][2 * h + n % 2] : o[c][2 * h]) * inverse * (logits ? gpu_sigmoid(gate.x) : gate.x);
            v[n].y = (FP8 ? o[c | 1][2 * h + n % 2] : o[c][2 * h + 1]) * inverse * (logits ? gpu_sigmoid(gate.y) : gate.y);
            top = fmaxf(top, fmaxf(fabsf(v[n].x), fabsf(v[n].y)));
        }
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 1));
        top = fmaxf(top, __shfl_xor_sync(~0u, top, 2));
        float factor;
        const float scale = gemm_act_scale(top, &factor);
        if (!there) continue;
#pragma unroll
        for (int n = 0; n < 8; n++) {
            const int col = first_col + 64 * group + (FP8 ? n / 2 * 16 + 4 * i + n % 2 * 2 : 8 * n + 2 * i);
            ((uint32_t *)p->out)[(row * VALUE_DIM + col) / 2] = f16_pair(v[n].x * factor, v[n].y * factor);
        }
        if (i == 0) p->out_scale[(size_t)(head * (VALUE_DIM / 64) + first_col / 64 + group) * (p->T + p->other_rows) + t] = scale;
    }
}

/* Between calls: [kv_heads q_per_kv][warp tiles of 16 positions, from the first block's][VALUE_DIM / 8 + 1][32], of a lane its C fragments,
   at last m and l of rows g and g + 8. */
template <int VALUE_DIM> __device__ __forceinline__ float4 *attend_carry_of(const prefill_attend *p, const attend_warp_tile *t, int span) {
    const int tiles = (int)gridDim.z * (span / 16), tile = (t->first - (p->index & -span)) / 16;
    return p->carry + ((size_t)(t->head - p->first_head) * tiles + tile) * ((VALUE_DIM / 8 + 1) * 32) + threadIdx.x % 32;
}

template <int N> __device__ __forceinline__ void attend_load_carry(const float4 *from, float (*o)[4], float *m, float *l) {
#pragma unroll
    for (int n = 0; n < N; n++) {
        const float4 four = from[32 * n];
        o[n][0] = four.x, o[n][1] = four.y, o[n][2] = four.z, o[n][3] = four.w;
    }
    const float4 four = from[32 * N];
    m[0] = four.x, m[1] = four.y, l[0] = four.z, l[1] = four.w;
}

template <int N> __device__ __forceinline__ void attend_store_carry(float4 *to, const float (*o)[4], const float *m, const float *l) {
#pragma unroll
    for (int n = 0; n < N; n++) to[32 * n] = make_float4(o[n][0], o[n][1], o[n][2], o[n][3]);
    to[32 * N] = make_float4(m[0], m[1], l[0], l[1]);
}

/* The kernel. Grid: (groups of heads of a KV head, KV heads, spans of positions); see the top of this file. One barrier a
   tile: after it every warp is done with the tile before, whose place is filled again, and all threads' copies of
   this tile have arrived. */
template <bool FP8, int WARPS, int KEY_DIM, int VALUE_DIM, bool MARKED>
__global__ void __launch_bounds__(32 * WARPS, attend_plan<FP8, WARPS, KEY_DIM, VALUE_DIM>::BLOCKS)
attend_prefill(const __grid_constant__ prefill_attend p, const int heads_shift) {
    extern __shared__ __align__(16) char memory[];
    typedef attend_plan<FP8, WARPS, KEY_DIM, VALUE_DIM> plan;
    enum { GROUPS = WARPS / plan::SPLIT, STRIPS = plan::STRIPS, ROWS = 16 * STRIPS, OUTS = plan::VALUE_STEPS * 2 };
    const bool carries = !FP8 && (KEY_DIM != VALUE_DIM || KEY_DIM == 256) && p.carry;
    const attend_warp_tile warp_tile = attend_warp_tile_of<GROUPS, plan::SPLIT, ROWS>(&p, heads_shift, (int)threadIdx.x);
    const int span = ROWS * (GROUPS >> heads_shift), kv_end = min(warp_tile.block_first + span, p.end);
    const int tiles = (kv_end + plan::KEYS - 1) / plan::KEYS;
    const int from = max(attend_window_first(warp_tile.block_first, p.window), p.first) / plan::KEYS;
    const char *k = (const char *)p.k + blockIdx.y * plan::KEY_ROW, *v = (const char *)p.v + blockIdx.y * plan::VALUE_ROW;
    const uint32_t keys = shared_address(memory), values = keys + plan::VALUES_AT, queries = keys + plan::QUERIES_AT;
    uint4 q[STRIPS][plan::Q_PLACES];
    float o[STRIPS][OUTS][4], m[STRIPS][2], l[STRIPS][2];
    const float *sinks = KEY_DIM < 256 ? p.sinks : NULL;
#pragma unroll
    for (int i = 0; i < STRIPS; i++) m[i][0] = m[i][1] = fmaxf(attend_first_top(sinks, warp_tile.head), -0x1p126f);
#pragma unroll
    for (int i = 0; i < STRIPS; i++) l[i][0] = l[i][1] = sinks && threadIdx.x % 4 == 0 ? attend_unit(FP8) : 0;
    memset(o, 0, sizeof o);
    if (carries && p.first > 0) attend_load_carry<OUTS>(attend_carry_of<VALUE_DIM>(&p, &warp_tile, span), o[0], m[0], l[0]);
#pragma unroll
    for (int i = 0; i < plan::STAGES - 1; i++) {
        if (from + i < tiles)
            attend_copy_tile<plan, WARPS>(keys + i * plan::KEY_TILE, values + i * plan::VALUE_TILE, k, v, &p, from + i, (int)threadIdx.x);
        cp_async_commit();
    }
#pragma unroll
    for (int i = 0; i < STRIPS; i++)
        attend_load_query<FP8, plan, KEY_DIM>(&p, &warp_tile, 16 * i, q[i], (uint4 *)(memory + plan::QUERIES_AT + threadIdx.x / 32 * plan::Q_BYTES) +
                                                                 threadIdx.x % 32);
#pragma unroll 1
    for (int j = from, place = 0; j < tiles; j++) {
        float s[STRIPS][plan::KEYS / 8][4], rescale[STRIPS][2];
        uint32_t w[STRIPS][plan::KEYS / 16][4];
        const int thread = attend_thread();                  /* anew: fewer registers from tile to tile */
        const int next = j + plan::STAGES - 1, last = place == 0 ? plan::STAGES - 1 : place - 1;
        const int part = plan::SPLIT > 1 ? thread / 32 % 2 : 0;                   /* of the dimensions */
        cp_async_wait<plan::STAGES - 2>();
        __syncthreads();
        if (next < tiles)
            attend_copy_tile<plan, WARPS>(keys + last * plan::KEY_TILE, values + last * plan::VALUE_TILE, k, v, &p, next, thread);
        cp_async_commit();
        uint32_t marks = ~0u;                                /* loaded here, needed after the scores */
        if (MARKED) marks = attend_load_marks<plan>(&p, attend_warp_tile_of<GROUPS, plan::SPLIT, ROWS>(&p, heads_shift, thread).row, j);
        attend_tile_scores<FP8, plan>(s, q, queries + attend_query_lane<plan>(thread),
                                      keys + place * plan::KEY_TILE + attend_key_lane<FP8, plan>(thread) + part * (plan::KEY_ROW / 2));
        if (plan::SPLIT > 1) attend_share_scores<plan>(s[0], (float4 *)(memory + plan::SCORES_AT), thread);
        if (attend_tile_after(j, plan::KEYS, warp_tile.block_first)) {
            const int first = attend_warp_tile_of<GROUPS, plan::SPLIT, ROWS>(&p, heads_shift, thread).first;
#pragma unroll
            for (int i = 0; i < STRIPS; i++) attend_mask_after<plan>(s[i], j, first + 16 * i, thread);
        }
        if (attend_tile_before(j, plan::KEYS, kv_end, p.window)) {
            const int before = attend_warp_tile_of<GROUPS, plan::SPLIT, ROWS>(&p, heads_shift, thread).first - p.window;
#pragma unroll
            for (int i = 0; i < STRIPS; i++) attend_mask_before<plan>(s[i], j, before + 16 * i, thread);
        }
        if (MARKED) attend_mask_unmarked<plan>(s[0], marks, thread);
#pragma unroll
        for (int i = 0; i < STRIPS; i++) attend_tile_weights<FP8, plan>(s[i], p.k_scale, m[i], l[i], rescale[i], w[i]);
        attend_tile_values<FP8, plan>(o, rescale, w, values + place * plan::VALUE_TILE + attend_value_lane<plan>(thread) +
                                                         part * (plan::VALUE_ROW / 2));
        place = place == plan::STAGES - 1 ? 0 : place + 1;
    }
    const int thread = attend_thread();                      /* this, and what follows from it, saves registers in the loop */
    const int first_col = plan::SPLIT > 1 ? thread / 32 % 2 * (VALUE_DIM / 2) : 0;
    const attend_warp_tile again = attend_warp_tile_of<GROUPS, plan::SPLIT, ROWS>(&p, heads_shift, thread);
    if (carries && p.end < p.index + p.T) {
        attend_store_carry<OUTS>(attend_carry_of<VALUE_DIM>(&p, &again, ROWS * (GROUPS >> heads_shift)), o[0], m[0], l[0]);
        return;
    }
#pragma unroll
    for (int h = 0; h < 2 * STRIPS; h++) {
        const int row = again.row + 8 * h;
        const bool there = row >= 0 && row < p.T;
        attend_store_row<FP8, plan, VALUE_DIM>(&p, o[h / 2], h % 2, l[h / 2][h % 2], row, again.head, first_col, there);
    }
}

/* ---- host --------------------------------------------------------------------------------------------------------- */

/* Whether there is a kernel for heads of these dimensions. */
static int prefill_attend_fits(int key_dim, int value_dim, dtype kv) {
    if (key_dim == 192 && value_dim == 128) return kv == DTYPE_BF16;
    return key_dim == value_dim && (key_dim == 64 || key_dim == 128 || key_dim == 256 || key_dim == 512) && (kv == DTYPE_BF16 || kv == DTYPE_FP8);
}

/* Bytes of prefill_attend.carry for T rows and so many heads. */
static size_t prefill_carry_bytes(int T, int heads, int value_dim) {
    const size_t warp_tiles = ((size_t)(T - 1) / 128 + 2) * 8;                    /* a block has up to 128 positions */
    return (size_t)heads * warp_tiles * (size_t)(value_dim / 8 + 1) * 32 * sizeof(float4);
}

/* Where two blocks fit an SM (Hopper), blocks have four warps: they overlap one's softmax with the other's mma.
   Elsewhere one block of eight. The choice depends on the GPU alone: so do a row's bits. */
static int attention_prefill_warps(int shared_bytes_an_sm) {
    return shared_bytes_an_sm >= 2 * GPU_SHARED ? 4 : 8;
}

template <bool FP8, int WARPS, int KEY_DIM, int VALUE_DIM, bool MARKED = false>
static cudaError_t prefill_attend_launch(const prefill_attend *p, cudaStream_t stream) {
    typedef attend_plan<FP8, WARPS, KEY_DIM, VALUE_DIM> plan;
    const int groups = WARPS / plan::SPLIT;
    int shift = 0;                                           /* of a block's heads: a power of two that divides q_per_kv */
    while (2 << shift <= groups && p->q_per_kv % (2 << shift) == 0) shift++;
    const int span = 16 * plan::STRIPS * (groups >> shift), spans = (p->index + p->T - 1) / span - p->index / span + 1;
    const void *kernel = (const void *)attend_prefill<FP8, WARPS, KEY_DIM, VALUE_DIM, MARKED>;
    cudaError_t status = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, GPU_SHARED);
    if (status != cudaSuccess) return status;
    const dim3 grid((unsigned)(p->q_per_kv >> shift), (unsigned)p->kv_heads, (unsigned)spans);
    attend_prefill<FP8, WARPS, KEY_DIM, VALUE_DIM, MARKED><<<grid, 32 * WARPS, plan::SHARED, stream>>>(*p, shift);
    return cudaGetLastError();
}

template <bool FP8> static cudaError_t prefill_attend_of(const prefill_attend *p, cudaStream_t stream) {
    switch (p->key_dim) {
        case 64: return prefill_attend_launch<FP8, 4, 64, 64>(p, stream);
        case 128: return prefill_attend_launch<FP8, 4, 128, 128>(p, stream);
        case 192: return prefill_attend_launch<false, 4, 192, 128>(p, stream);
        case 256:
            if (p->marks) return p->warps == 4 ? prefill_attend_launch<FP8, 4, 256, 256, true>(p, stream) : prefill_attend_launch<FP8, 8, 256, 256, true>(p, stream);
            return p->warps == 4 ? prefill_attend_launch<FP8, 4, 256, 256>(p, stream) : prefill_attend_launch<FP8, 8, 256, 256>(p, stream);
        default: return prefill_attend_launch<FP8, 8, 512, 512>(p, stream);
    }
}

/* Attention of p->T rows of p->kv_heads * p->q_per_kv heads, of dimensions that prefill_attend_fits. */
static cudaError_t prefill_attend_run(const prefill_attend *p, cudaStream_t stream) {
    return p->kv == DTYPE_FP8 ? prefill_attend_of<true>(p, stream) : prefill_attend_of<false>(p, stream);
}

/* Whether a layer's prompts can be read so. */
static int attention_prefill_fits(const attention_shape *s, dtype kv) {
    return prefill_attend_fits(s->head_dim, s->head_dim, kv) && s->heads % s->kv_heads == 0 && !(s->sinks && s->head_dim > 128) &&
           !(s->gated && s->gate_size) && s->rotary_dim >= 0 && s->rotary_dim % 2 == 0 && s->rotary_dim <= s->head_dim;
}

/* Bytes of attention_prefill.q for T rows. */
static size_t attention_prefill_q_bytes(const attention_shape *s, int T) {
    return (size_t)T * (size_t)(s->heads * s->head_dim) * 2;
}

static cudaError_t attention_prefill_prepare(const attention_prefill *p, cudaStream_t stream) {
    const unsigned T = (unsigned)p->T;
    switch (p->shape.head_dim) {
        case 64: attend_prefill_prepare<64><<<T, GPU_THREADS, 0, stream>>>(*p); break;
        case 128: attend_prefill_prepare<128><<<T, GPU_THREADS, 0, stream>>>(*p); break;
        case 256: attend_prefill_prepare<256><<<T, GPU_THREADS, 0, stream>>>(*p); break;
        default: attend_prefill_prepare<512><<<T, GPU_THREADS, 0, stream>>>(*p);
    }
    return cudaGetLastError();
}
