/* cuda/fragments.cu: what a warp multiplies: its weights, and token rows as fragments in shared memory. */

/* Where a lane reads of a tile: its 16 bytes of the first k_block of either panel; the scales of panel lane / 16. An panel
   behind the last counts as the last. Rows of a panel share a scale. */
typedef struct gpu_place {
    const char *data[2];
    const float *scale;
} gpu_place;

/* a and b: two matrices of one shape, or the same one. */
__device__ __forceinline__ gpu_place gpu_place_of(const gpu_matrix &a, int panel_a, const gpu_matrix &b, int panel_b) {
    gpu_place at;
    int lane = threadIdx.x % 32;
    panel_b = min(panel_b, b.panels - 1);
    at.data[0] = a.data + (size_t)panel_a * (uint32_t)(a.k_blocks * PANEL_BYTES) + lane * 16;
    at.data[1] = b.data + (size_t)panel_b * (uint32_t)(a.k_blocks * PANEL_BYTES) + lane * 16;
    at.scale = lane < 16 ? a.scale : b.scale;
    at.scale += ((lane < 16 ? panel_a : panel_b) * PANEL_ROWS >> a.row_shift) * a.scale_cols;
    return at;
}

/* One thread brings memory into the L2; a multiple of 16 bytes. */
__device__ __forceinline__ void l2_prefetch(const void *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

/* What a later kernel reads first. A kernel that leaves the bus idle brings it into the L2. */
typedef struct prefetch_span {
    const char *from;
    uint32_t bytes;              /* whole 16; 0: nothing */
    uint32_t share;              /* of a block */
} prefetch_span;

/* Where `stage` runs, the first bytes of the matrix that it reads first. */
static prefetch_span prefetch_span_of(const gpu_queue *q, enum gpu_stage stage, const matrix *w) {
    prefetch_span prefetch = {(const char *)w->data, 0, 0};
    int64_t bytes = (int64_t)gpu_packed_size(w->type, w->rows, w->cols);
    if (q->stages >> (q->as != GPU_STAGES ? q->as : stage) & 1) prefetch.bytes = bytes < q->prefetch ? (uint32_t)bytes : q->prefetch;
    return prefetch;
}

static void prefetch_span_divide(prefetch_span *prefetch, int blocks) {
    prefetch->share = (prefetch->bytes / (uint32_t)blocks / 128 + 1) * 128;
}

/* A block's share of it. */
__device__ __forceinline__ void l2_prefetch_share(const prefetch_span &prefetch) {
    uint32_t at = prefetch.share * blockIdx.x;
    if (threadIdx.x == GPU_THREADS - 1 && at < prefetch.bytes) l2_prefetch(prefetch.from + at, min(prefetch.share, prefetch.bytes - at));
}

/* What a warp multiplies weights with, in shared memory: fragments [k_block][pair of steps][high, low][ROWS][4 lanes] of
   four registers, act_scales [k_block][ROWS] (formats with `half`). */
typedef struct activation_fragments {
    uint4 *x;
    float *act_scale;
} activation_fragments;

/* Steps of a k_block come in pairs, F32's only one counts as one. */
template <class F> __host__ __device__ constexpr int gpu_step_pairs() {
    return (F::per_load / 4 + 1) / 2;
}

template <class F, int ROWS> __device__ __forceinline__ activation_fragments activation_fragments_at(void *memory, int k_blocks) {
    activation_fragments o;
    o.x = (uint4 *)memory;
    o.act_scale = (float *)(o.x + k_blocks * gpu_step_pairs<F>() * 8 * ROWS);
    return o;
}

/* Its bytes, for rows of `k_blocks` k_blocks. */
static size_t activation_fragments_size(dtype type, int rows, int k_blocks) {
    return (size_t)k_blocks * (size_t)rows * ((type == DTYPE_FP8 ? 256 : 128) + sizeof(float)) + 16;
}

/* What this lane reads of k_block 0. */
template <class F, int ROWS> __device__ __forceinline__ const uint4 *gpu_lane_fragments(const activation_fragments &o) {
    int lane = threadIdx.x % 32;
    return o.x + (lane / 16 * ROWS + lane % 16 / 4 % ROWS) * 4 + lane % 4;
}

/* sum += a k_block of a tile times x, this lane's B registers, two steps at a time. With `half` the sums of token row t
   and panel o are multiplied with what `factor` is on lane from + 16 o + t (with ROWS = 1, on lane from + 16 o), or, if
   the panels have it in common (step = 0), on lane from + t. Without, a k_block that is not there counts nothing. PANELS: of
   the tile, 1 or 2; the rows of one that is not there get zeros. */
template <class F, int ROWS, int PANELS = 2>
__device__ __forceinline__ void gpu_multiply(float *sum, const uint4 *raw, const uint4 *x, float factor, int from,
                                             const int step, bool there) {
    float part[4] = {0, 0, 0, 0};
#pragma unroll
    for (int s = 0; s < F::per_load / 4; s++)
#pragma unroll
        for (int term = 0; term < F::terms; term++) {
            uint32_t a[4] = {}, b0 = s % 2 ? x[s / 2].z : x[s / 2].x, b1 = s % 2 ? x[s / 2].w : x[s / 2].y;
            F::fragment(raw[0], s, term, &a[0], &a[2]);
            if (PANELS == 2) F::fragment(raw[1], s, term, &a[1], &a[3]);
            if (F::half) mma_f16(part, a, b0, b1);
            else mma_bf16(part, a, b0, b1);
        }
#pragma unroll
    for (int i = 0; i < 2 * PANELS; i++) {                  /* column 2 (lane % 4) + i % 2, row i / 2 * 8 + lane / 4 */
        if (ROWS == 1 && i % 2) continue;
        int t = ROWS == 1 ? 0 : threadIdx.x % 2 * 2 + i % 2;
        if (F::half) sum[i] = fmaf(__shfl_sync(~0u, factor, from + i / 2 * step + t), part[i], sum[i]);
        else sum[i] += there ? part[i] : 0;
    }
}

/* Eight neighbouring floats of a token row as B registers of two steps: the high terms, and *low the low ones. */
template <class F> __device__ __forceinline__ uint4 gpu_split(const float *v, uint4 *low) {
    uint32_t h[4], l[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (F::half) {
            h[i] = f16_pair(v[2 * i], v[2 * i + 1]);
            float2 back = f16_floats(h[i]);
            l[i] = f16_pair(v[2 * i] - back.x, v[2 * i + 1] - back.y);
        } else {
            h[i] = bf16_pair(v[2 * i], v[2 * i + 1]);
            l[i] = bf16_pair(v[2 * i] - bf16_low(h[i]), v[2 * i + 1] - bf16_high(h[i]));
        }
    }
    *low = make_uint4(l[0], l[1], l[2], l[3]);
    return make_uint4(h[0], h[1], h[2], h[3]);
}

/* Multiplies the eight floats of each of LANES neighbouring lanes with the power of two that brings the largest of all
   into [2^14, 2^15), and returns its inverse. */
template <int LANES> __device__ __forceinline__ float gpu_bring_into_range(float *v) {
    float top = fmaxf(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3]))),
                      fmaxf(fmaxf(fabsf(v[4]), fabsf(v[5])), fmaxf(fabsf(v[6]), fabsf(v[7]))));
#pragma unroll
    for (int i = 1; i < LANES; i *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, i));
    int exponent = min(268 - (__float_as_int(top) >> 23), 253);
    float factor = __int_as_float(exponent << 23);
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] *= factor;
    return __int_as_float((254 - exponent) << 23);
}

/* Eight floats that another kernel writes; zeros from column `cols` on. Sizes of rows are multiples of four. */
__device__ __forceinline__ void gpu_load8(float *v, const float *row, int col, int cols) {
    *(float4 *)v = col < cols ? load_relaxed4(row + col) : make_float4(0, 0, 0, 0);
    *(float4 *)(v + 4) = col + 4 < cols ? load_relaxed4(row + col + 4) : make_float4(0, 0, 0, 0);
}

/* The same of a weight, which a rehearsal leaves in the L1. */
__device__ __forceinline__ void gpu_load8_constants(float *v, const float *row, int col, int cols) {
    *(float4 *)v = col < cols ? __ldg((const float4 *)(row + col)) : make_float4(0, 0, 0, 0);
    *(float4 *)(v + 4) = col + 4 < cols ? __ldg((const float4 *)(row + col + 4)) : make_float4(0, 0, 0, 0);
}

/* Four floats, zeros if not there. */
__device__ __forceinline__ void gpu_load4(float *v, const float *at, bool there) {
    *(float4 *)v = there ? __ldcg((const float4 *)at) : make_float4(0, 0, 0, 0);
}

/* The act_scale of the k_block that this lane has eight columns of, which it brings into range; its other lanes do the same. */
template <class F> __device__ __forceinline__ float activation_scale(float *v) {
    return F::half ? gpu_bring_into_range<4 * F::per_load / 8>(v) : 1;
}

/* Eight columns of token row t, number `part` of those of a k_block, to their place in a set of activation fragments. */
template <class F, int ROWS>
__device__ __forceinline__ void gpu_put_columns(const activation_fragments &to, int k_block, int part, int t, const float *v,
                                                float act_scale) {
    const int pairs = gpu_step_pairs<F>();
    uint4 low, high = gpu_split<F>(v, &low), *x;
    if (F::half && part == 0) to.act_scale[k_block * ROWS + t] = act_scale;
    if (F::per_load > 4) {                                  /* two steps of lane part / pairs */
        x = to.x + ((k_block * pairs + part % pairs) * 2 * ROWS + t) * 4 + part / pairs;
        x[0] = high;
        x[4 * ROWS] = low;
    } else {                                                /* the only step of two lanes */
        x = to.x + (k_block * 2 * ROWS + t) * 4 + part * 2;
        *(uint2 *)&x[0] = make_uint2(high.x, high.y);
        *(uint2 *)&x[1] = make_uint2(high.z, high.w);
        *(uint2 *)&x[4 * ROWS] = make_uint2(low.x, low.y);
        *(uint2 *)&x[4 * ROWS + 1] = make_uint2(low.z, low.w);
    }
}

/* One warp fills in `count` k_blocks of a set of activation fragments, from k_block `first` on, AT_ONCE times eight columns a lane at a time.
   in.load(v, more, T, col) asks for eight columns of all token rows, zeros from in.cols on, and whatever else is needed;
   when all has been asked for, in.finish makes of them what is multiplied, and where there is a norm sums up their squares,
   each lane its own. Kernels are made for ROWS = 1 and for ROWS = 4, which serves T = 2, 3, 4
   (experts_down for ROWS = 2, too): rows that are not there stay as they are, their sums go nowhere. */
template <class F, int ROWS, int AT_ONCE, class IN>
__device__ __forceinline__ void gpu_stage_activations(const IN &in, int T, int first, int count, const activation_fragments &to, float *square) {
    enum { COLS = 4 * F::per_load, LANES = COLS / 8 };      /* of a k_block */
    const int lane = threadIdx.x % 32, items = count * LANES;
#pragma unroll 1
    for (int begin = 0; begin < items; begin += 32 * AT_ONCE) {
        float v[AT_ONCE][ROWS][8], act_scale[AT_ONCE][ROWS];
        typename IN::template more<ROWS> more[AT_ONCE];
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            int item = begin + n * 32 + lane;
            in.template load<ROWS>(v[n], &more[n], T, item < items ? first * COLS + item * 8 : in.cols);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            in.template finish<ROWS>(v[n], &more[n], square, false);
#pragma unroll
            for (int t = 0; t < ROWS; t++)
                if (ROWS == 1 || t < T) act_scale[n][t] = activation_scale<F>(v[n][t]);
        }
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            int item = begin + n * 32 + lane, k_block = first + item / LANES, part = item % LANES;
#pragma unroll
            for (int t = 0; t < ROWS; t++)
                if ((ROWS == 1 || t < T) && item < items) gpu_put_columns<F, ROWS>(to, k_block, part, t, v[n][t], act_scale[n][t]);
        }
    }
    __syncwarp();
}

/* Where the partials of the warps meet. Two tiles take turns, so that one barrier a tile is enough. */
struct warp_partials {
    float tile[2][TILE_ROWS][GPU_ROWS][GPU_WARPS];
    float squares[GPU_ROWS][GPU_WARPS];
};

/* The share of one of `of` workers in `k_blocks` k_blocks: the first, and how many. */
__device__ __forceinline__ int gpu_share(int k_blocks, int worker, int of, int *mine) {
    int first = k_blocks * worker / of;
    *mine = k_blocks * (worker + 1) / of - first;
    return first;
}

/* Puts this warp's part of a tile in its place: high and low terms meet; rows g and g + 8, token rows 2i and 2i + 1. */
template <int ROWS> __device__ __forceinline__ void store_warp_partial(float (*to)[GPU_ROWS][GPU_WARPS], float *sum) {
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, i = lane % 4;
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (ROWS > 1 || j % 2 == 0) sum[j] += __shfl_xor_sync(~0u, sum[j], 2);
    if (2 * i >= ROWS) return;
    to[g][2 * i][warp] = sum[0];
    to[g + 8][2 * i][warp] = sum[2];
    if (ROWS == 1) return;
    to[g][2 * i + 1][warp] = sum[1];
    to[g + 8][2 * i + 1][warp] = sum[3];
}

template <int ROWS> __device__ __forceinline__ void store_warp_squares(warp_partials *partials, const float *square) {
#pragma unroll
    for (int t = 0; t < ROWS; t++) partials->squares[t][threadIdx.x / 32] = warp_sum(square[t]);
}

/* The sum of the warps' partials, in their order. */
__device__ __forceinline__ float sum_warp_partials(const float *part) {
    float4 a = *(const float4 *)part, b = *(const float4 *)(part + 4);
    return a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
}

/* 1 / root mean square of a token row, once all warps have filled in their part of it. */
__device__ __forceinline__ float gpu_rms_factor(const warp_partials *partials, int t, float scale, float eps) {
    return rsqrtf(fmaf(sum_warp_partials(partials->squares[t]), scale, eps));
}
