/* layers/attention/decode_fast.cu: attend_fast: rope_attend on tensor cores, for heads of 64, 128, 256 or 512 dimensions and up to 16 query
   heads a kv head, of 512 up to 8. Formula, grid, and what it may read before pdl_wait: layers/attention/decode.cu.

   What it does of a chunk of positions is decode_chunk.cu; here are the partials of blocks, and the kernel.

   attend_fast<FP8, ROWS, DIM, EACH>: FP8 is the type of the KV cache (else BF16), ROWS the most query rows, 8 to 64, DIM that of a head.
   A query row is a (token row, query head). 8 query rows, which heads of all but 256 dimensions have a kernel of, fill half of a
   tensor-core tile: registers, shared memory and loads for the other half do not exist (HALVES). EACH: of a pass of several sequences or
   of one alone, and of any layer: which gates, norms, scale and rotation it has say its parameters, in branches outside of the loop. The
   others, of heads of 256, are for one sequence and Qwen3.5's layers: what these have is compiled in.

   Combining the partials. A thread block cluster of 8 neighbouring splits first combines its own through distributed shared
   memory: block r of the cluster does slice r, an eighth of the dimensions, of every query row. If several clusters have work, each
   stores its result in device memory, and a last-block reduction follows: for each (kv head, slice) the block that draws
   the last ticket combines those of all clusters, and sets the ticket back to zero. Before compute capability 9.0 there
   are no clusters: every block stores its partial, and the last block of a kv head combines all slices.

   Memory order. A block publishes its partial with barrier.cluster.arrive.release, and the others read it after
   barrier.cluster.wait.acquire. A second cluster barrier at the end keeps a block's shared memory alive until the others
   have read it. The ticket is an acq_rel atomic between two barriers of the block, and the partials it stands for are read
   past L1.

   Deadlock. No block spins. A cluster barrier waits for blocks of its own cluster only, which are resident together, and
   these return early all or none. A ticket is drawn, never waited for. */

/* A partial of one query row: m, l and 4 dimensions of o. */
typedef struct attend_part { float m, l; float4 o; } attend_part;

/* Combines *to with up to eight more partials, `count` of them. The caller may load them in any order; they are summed in
   one. */
__device__ __forceinline__ void attend_join(attend_part *to, int count, const float2 *ml, const float4 *o) {
    float top = to->m;
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < count) top = fmaxf(top, ml[i].x);
    float rescale, base = attend_raise<false>(&to->m, top, &rescale);
    to->l *= rescale;
    to->o = make_float4(to->o.x * rescale, to->o.y * rescale, to->o.z * rescale, to->o.w * rescale);
#pragma unroll
    for (int i = 0; i < 8; i++) {
        float weight = i < count ? gpu_exp2(ml[i].x - base) : 0;
        to->l = fmaf(weight, ml[i].y, to->l);
        to->o.x = fmaf(weight, o[i].x, to->o.x);
        to->o.y = fmaf(weight, o[i].y, to->o.y);
        to->o.z = fmaf(weight, o[i].z, to->o.z);
        to->o.w = fmaf(weight, o[i].w, to->o.w);
    }
}

/* The output gates of 4 dimensions of a query row as projected, if the layer has gates. */
template <int DIM, bool EACH> __device__ __forceinline__ float4 attend_output_gate(const attention_gpu *p, int row, int column) {
    if (attend_gated<EACH>(&p->shape)) return *(const float4 *)(p->qg + (attend_head_of(p, row) * 2 + 1) * DIM + column);
    if (!p->shape.gate_size) return make_float4(0, 0, 0, 0);
    if (p->shape.gate_size > 1) return *(const float4 *)(p->g_new + attend_head_of(p, row) * DIM + column);
    const float gate = p->g_new[attend_head_of(p, row)];
    return make_float4(gate, gate, gate, gate);
}

/* o = o / l * v_scale * gate, if there is one, for 4 dimensions of a query row; a row that saw nothing becomes 0. */
template <int DIM, bool EACH>
__device__ __forceinline__ void attend_finish(const attention_gpu *p, int row, int column, const attend_part *part,
                                              float4 gate) {
    float factor = __fdividef(1.0f, part->l == 0 ? 1 : part->l) * p->v_scale;
    float4 o = make_float4(part->o.x * factor, part->o.y * factor, part->o.z * factor, part->o.w * factor);
    if (attend_gated<EACH>(&p->shape))
        o = make_float4(o.x * gpu_sigmoid(gate.x), o.y * gpu_sigmoid(gate.y), o.z * gpu_sigmoid(gate.z), o.w * gpu_sigmoid(gate.w));
    else if (p->shape.gate_size)
        o = make_float4(o.x * gpu_softplus(gate.x), o.y * gpu_softplus(gate.y), o.z * gpu_softplus(gate.z), o.w * gpu_softplus(gate.w));
    *(float4 *)(p->o + attend_head_of(p, row) * DIM + column) = o;
}

/* Partials in device memory: o [kv_heads][partials][rows][head_dim], then ml [kv_heads][slices][partials][rows]. They are filled up to
   the number that there is work for: a cluster stores one or, without clusters, a block (attend_partials). */
__device__ __forceinline__ float *attend_part_o(const attention_gpu *p, int rows, int partial, int row, int column) {
    return p->parts + (((size_t)blockIdx.x * p->partials + partial) * rows + row) * p->shape.head_dim + column;
}

__device__ __forceinline__ float2 *attend_part_ml(const attention_gpu *p, int rows, int partial, int row, int slice) {
    float *ml = p->parts + (size_t)p->shape.kv_heads * p->partials * rows * p->shape.head_dim;
    return (float2 *)ml + ((size_t)(blockIdx.x * ATTEND_CLUSTER + slice) * p->partials + partial) * rows + row;
}

/* Last-block reduction: true, in all threads, for the last of `count` blocks to call this, which resets the ticket. What
   the other blocks stored before their calls is then visible to loads past L1 (ld.global.cg). */
__device__ __forceinline__ bool attend_is_last(int *ticket, int count, int *last) {
    __syncthreads();
    if (threadIdx.x == 0) {
        int before;
        asm volatile("atom.acq_rel.gpu.global.add.s32 %0, [%1], 1;" : "=r"(before) : "l"(ticket) : "memory");
        *last = before == count - 1;
        if (*last) *ticket = 0;
    }
    __syncthreads();
    return *last;
}

/* A block's share in combining the partials. */
typedef struct attend_place {
    int partial, partials;       /* that its cluster (without clusters: it) stores; of how many */
    int ranks;                   /* blocks of its cluster with work, the first */
    int slice, slices;           /* eighths of a head that it combines: its first, how many */
} attend_place;

/* All blocks of a cluster compute the same `partial` and `partials`: they return early together or not at all. */
__device__ __forceinline__ attend_place attend_place_of(const attention_gpu *p, int chunks) {
    attend_place at;
#if __CUDA_ARCH__ >= 900
    at.partial = blockIdx.y / ATTEND_CLUSTER;
    at.partials = max(1, min((chunks + ATTEND_CLUSTER - 1) / ATTEND_CLUSTER, p->splits / ATTEND_CLUSTER));
    at.ranks = max(1, min(chunks - at.partial * ATTEND_CLUSTER, (int)ATTEND_CLUSTER));
    at.slice = blockIdx.y % ATTEND_CLUSTER;
    at.slices = 1;
#else
    at.partial = blockIdx.y;
    at.partials = max(1, min(chunks, p->splits));
    at.ranks = 1;
    at.slice = 0;
    at.slices = ATTEND_CLUSTER;
#endif
    return at;
}

/* Combines the cluster's partials of a query row, from (distributed) shared memory. */
template <bool FP8, int ROWS, int DIM>
__device__ __forceinline__ attend_part attend_join_cluster(attend_shared<FP8, ROWS, DIM> *sh, int ranks, int row, int column) {
    attend_part part = {-INFINITY, 0, {0, 0, 0, 0}};
    float2 ml[ATTEND_CLUSTER] = {};
    float4 o[ATTEND_CLUSTER] = {};
#pragma unroll
    for (int i = 0; i < ATTEND_CLUSTER; i++) {
#if __CUDA_ARCH__ >= 900
        if (i >= ranks) continue;
        ml[i] = *(const float2 *)__cluster_map_shared_rank(&sh->ml[row], i);
        o[i] = *(const float4 *)__cluster_map_shared_rank(&sh->o[row][column], i);
#else
        ml[i] = sh->ml[row];
        o[i] = *(const float4 *)&sh->o[row][column];
#endif
    }
    attend_join(&part, ranks, ml, o);
    return part;
}

/* Combines all partials from device memory, eight loads in flight at a time. */
template <int DIM>
__device__ __forceinline__ attend_part attend_join_partials(const attention_gpu *p, int partials, int row, int column) {
    attend_part part = {-INFINITY, 0, {0, 0, 0, 0}};
    const int rows = p->T * p->q_per_kv;
#pragma unroll 1
    for (int base = 0; base < partials; base += 8) {
        float2 ml[8];
        float4 o[8];
#pragma unroll
        for (int i = 0; i < 8; i++) {
            int partial = min(base + i, partials - 1);
            ml[i] = __ldcg(attend_part_ml(p, rows, partial, row, column / (DIM / ATTEND_CLUSTER)));
            o[i] = __ldcg((const float4 *)attend_part_o(p, rows, partial, row, column));
        }
        attend_join(&part, partials - base, ml, o);
    }
    return part;
}

/* Combines the partials of all blocks: see the top of this file. A thread has 4 dimensions of a slice, of every ROUNDth query
   row. It loads its first gate, which needs pdl_wait only, before the cluster barrier. */
template <bool FP8, int ROWS, int DIM, bool EACH>
__device__ __forceinline__ void attend_combine(const attention_gpu *p, attend_shared<FP8, ROWS, DIM> *sh,
                                               const attend_place *place) {
    enum { SLICE = DIM / ATTEND_CLUSTER, THREADS = SLICE / 4, ROUND = GPU_THREADS / THREADS };   /* THREADS: of a row */
    const int rows = p->T * p->q_per_kv, first = threadIdx.x / THREADS, slice = place->slice, partials = place->partials;
    const int column = slice * SLICE + threadIdx.x % THREADS * 4, end = column + place->slices * SLICE;
    float4 gate = first < rows ? attend_output_gate<DIM, EACH>(p, first, column) : make_float4(0, 0, 0, 0);
    cluster_wait();
#pragma unroll 1
    for (int c = column; c < end; c += SLICE)
#pragma unroll 1
        for (int row = first; row < rows; row += ROUND) {
            attend_part part = attend_join_cluster<FP8, ROWS, DIM>(sh, place->ranks, row, c);
            if (partials == 1) {
                if (c > column || row > first) gate = attend_output_gate<DIM, EACH>(p, row, c);
                attend_finish<DIM, EACH>(p, row, c, &part, gate);
            } else {
                *(float4 *)attend_part_o(p, rows, place->partial, row, c) = part.o;
                if (threadIdx.x % THREADS == 0) *attend_part_ml(p, rows, place->partial, row, c / SLICE) = make_float2(part.m, part.l);
            }
        }
    cluster_leave();
    if (partials > 1 && attend_is_last(p->tickets + blockIdx.x * ATTEND_CLUSTER + slice, partials, &sh->last)) {
#pragma unroll 1
        for (int c = column; c < end; c += SLICE)
#pragma unroll 1
            for (int row = first; row < rows; row += ROUND) {
                attend_part part = attend_join_partials<DIM>(p, partials, row, c);
                if (c > column || row > first) gate = attend_output_gate<DIM, EACH>(p, row, c);
                attend_finish<DIM, EACH>(p, row, c, &part, gate);
            }
    }
    cluster_wait();                                   /* until then others may read this block's shared memory */
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ATTEND_CLUSTERS __cluster_dims__(1, ATTEND_CLUSTER, 1)
#else
#define ATTEND_CLUSTERS
#endif

/* The kernel. Grid: (kv head, split, sequence), clusters of 8 splits; with fewer than p.splits of them, those that have chunks. Two
   blocks an SM up to 32 query rows (16 where EACH), one with more, or of heads of 512.
   Two block barriers a chunk: one makes the maxima visible, the other the weights. Each also protects the other's buffer: a
   warp stores its maxima of the next chunk only after all warps have read those of this one, and so for the weights. */
template <bool FP8, int ROWS, int DIM, bool EACH>
__global__ void ATTEND_CLUSTERS __launch_bounds__(GPU_THREADS, DIM < ATTEND_DIM || (DIM == ATTEND_DIM && ROWS <= (EACH ? 16 : 32)) ? 2 : 1)
attend_fast(const __grid_constant__ attention_gpu all) {
    extern __shared__ __align__(16) char memory[];
    const attention_gpu own = EACH && all.sequences ? attend_sequence(all, blockIdx.z) : all;
    const attention_gpu &p = EACH ? own : all;
    enum { TILES = attend_sizes<ROWS>::TILES };
    attend_shared<FP8, ROWS, DIM> *sh = (attend_shared<FP8, ROWS, DIM> *)memory;
    attend_rows<FP8, DIM> r;
    attend_state<ROWS, DIM> state;
    attend_vector<DIM> q_norm, k_norm = {};
    pdl_launch_dependents();
    const int t = threadIdx.x / 32 % STEP_ROWS, lane = threadIdx.x % 32, half = attend_half<EACH>(&p.shape);
    const float frequency = lane < half ? p.frequencies[lane] : 0, higher = DIM > 64 && lane + 32 < half ? p.frequencies[lane + 32] : 0;
    if (attend_normed<EACH>(&p.shape)) attend_load_vector(&q_norm, p.q_norm);
    const attend_span s = attend_span_of<EACH>(&p);
    const int tiles = TILES == 1 ? 1 : (p.T * p.q_per_kv + 15) / 16;
    if (attend_place_of(&p, s.chunks).partial >= attend_place_of(&p, s.chunks).partials) return;
    int chunk = attend_own_chunk(attend_window_first(s.first, p.window) / ATTEND_CHUNK, blockIdx.y, p.splits);
    const bool appended = EACH && all.both_ways;             /* all rows are in the cache */
    const int cached = appended ? s.end : max(0, min(s.first, s.end));
    attend_load_k<FP8, DIM>(&p, cached, chunk, &r);
    attend_load_v<FP8, DIM>(&p, cached, chunk, &r);
    const bool owns = t < p.T && attend_owns(&p, &s, s.first + t);
    if (owns && attend_normed<EACH>(&p.shape)) attend_load_vector(&k_norm, p.k_norm);
    for (int i = lane; threadIdx.x / 32 < p.T && i < half; i += 32)
        attend_angle(&p.shape, s.first + t - s.lag, i, i < 32 ? frequency : i < 64 ? higher : p.frequencies[i], sh->cs[t]);
    if (threadIdx.x < ROWS) sh->kv_last[threadIdx.x] = EACH ? attend_last(&p, &s, attend_token(&p, threadIdx.x)) : min(s.first + attend_token(&p, threadIdx.x), s.end - 1);
    __syncthreads();
    pdl_wait();
    attend_prepare<FP8, ROWS, DIM, EACH>(&p, &s, &q_norm, &k_norm, owns, sh);
    __syncthreads();
    if (!appended && (chunk + 1) * ATTEND_CHUNK > s.first) {
        attend_new_k<FP8, ROWS, DIM>(sh, &s, chunk, &r);
        attend_new_v<FP8, ROWS, DIM>(sh, &s, chunk, &r);
    }
    attend_begin<FP8, ROWS, DIM>(&p, &state);
#pragma unroll 1
    for (; chunk < s.chunks; chunk += p.splits) {
        float c[TILES][4];
        int next = chunk + p.splits;
        memset(c, 0, sizeof c);
        attend_scores<FP8, ROWS, DIM>(sh, &r, tiles, c);
        if (next < s.chunks) {
            attend_load_k<FP8, DIM>(&p, cached, next, &r);
            if (!appended && (next + 1) * ATTEND_CHUNK > s.first) attend_new_k<FP8, ROWS, DIM>(sh, &s, next, &r);
        }
        attend_tops<FP8, ROWS, DIM>(sh, chunk, p.window, tiles, p.k_scale, c);
        __syncthreads();
        attend_weights<FP8, ROWS, DIM>(sh, tiles, p.k_scale, c, &state);
        __syncthreads();
        attend_values<FP8, ROWS, DIM>(sh, &r, tiles, &state);
        if (next < s.chunks) {
            attend_load_v<FP8, DIM>(&p, cached, next, &r);
            if (!appended && (next + 1) * ATTEND_CHUNK > s.first) attend_new_v<FP8, ROWS, DIM>(sh, &s, next, &r);
        }
    }
    attend_put_part<FP8, ROWS, DIM>(sh, tiles, &state);
    cluster_arrive();
    attend_place place = attend_place_of(&p, attend_span_of<EACH>(&p).chunks);  /* again: saves registers in the loop */
    attend_combine<FP8, ROWS, DIM, EACH>(&p, sh, &place);
}
