/* cuda/fragments.cu: what a warp multiplies: its weights, and token rows as tensor-core fragments in shared memory. Also
   the prefetch of weights into the L2. Knows packed matrices and weight formats; must not know which tiles a block has,
   nor what stage it is.

   y[t] = W x[t] by mma.m16n8k16, for one to four token rows at the price of one: B has eight columns whether they are
   used or not.
     A   16 rows of W: two panels. Lane 4 g + i has 16 bytes of row g of each panel, as they come; four lanes have 64
         bytes side by side, a k block. An mma step takes four weights of each lane. Which weight is which k does not
         matter as long as A and B agree.
     B   the token rows. A float is split into two terms, high + low: column t has the high terms of row t, column t + 4
         the low ones.
     C   sums in float, one for each column. The sums of high and low terms meet at the end (store_warp_partial).
   Columns do not mix: a row gets the same bits whatever the others hold, and however many there are.

   Two-term split. The terms have the type that a weight becomes without rounding.
     BF16   for BF16 and F32 weights: two terms have 16 significant bits, and the range of a float.
     F16    for F16 and FP8 weights: two terms have 22 significant bits, but little range. So each k block of a token row
            is first multiplied with the power of two that brings its largest value into [2^14, 2^15). Its inverse, the
            activation scale, is multiplied into the sum of the k block, as FP8's block scale is. Multiplying by
            a power of two does not round. */

/* The factor of a scale as it is stored. */
template <class F> __device__ constexpr float gpu_post_scale() {
    return F::scaled ? (float)F::post_scale : 1;
}

/* Whether rows' scales are applied to a tile's sum, as they are the same for all columns; otherwise to that of a k block. */
template <class F> __host__ __device__ constexpr bool gpu_scaled_at_end() {
    return F::whole || (F::by_row && !F::groups);
}

/* Whether a block of several rows and columns has one scale, as FP8's. */
template <class F> __host__ __device__ constexpr bool gpu_scales_by_block() {
    return F::scaled && !F::whole;
}

/* Parts of a k block under scales of their own, each with as many steps and pairs of steps. */
template <class F> __host__ __device__ constexpr int gpu_block_parts() {
    return std::is_same<F, format_mxfp4>::value ? 2 : 1;
}

/* The scale of the lane's row in a part. */
template <class F> __device__ __forceinline__ float gpu_row_scale(const typename F::raw &raw, int part) {
    if constexpr (gpu_block_parts<F>() > 1) return F::part_scale(raw, part);
    else return F::row_scale(raw);
}

/* What is in an activation scale beside the scale: that of codes as they enter products. */
template <class F> __device__ constexpr float gpu_codes_scale() {
    return gpu_block_parts<F>() > 1 ? (float)F::post_scale : 1;
}

/* The scales of a tile's rows, if gpu_scaled_at_end. */
struct row_scales {
    float of[2];
    template <class F, class PLACE> __device__ __forceinline__ void load(const PLACE &place) {
        if (!gpu_scaled_at_end<F>()) return;
        of[0] = ld_volatile(place.scale);
        of[1] = ld_volatile(place.scale + place.to_row);
    }
    template <class F> __device__ __forceinline__ void apply(float *sum) const {
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (gpu_scaled_at_end<F>()) sum[i] *= of[i / 2] * gpu_post_scale<F>();
    }
};

/* Where a lane reads a tile: data: its part of the first k block of either panel; scale: FP8, of the first k block
   of panel lane / 16; NVFP4 and FP8 by row, of the lane's row of the first panel, and to_row floats on of the second. A panel
   after the last counts as the last. All rows of a panel share a scale, but by row. */
struct gpu_place {
    const char *data[2];
    const float *scale;
    int to_row;
};

/* F::load, and the scale of its row where a sum over several matrices cannot wait for that. */
template <class F>
__device__ __forceinline__ void gpu_load_weights(typename F::raw *to, const char *at, int offset, const float *row, bool there) {
    F::load(to, at, offset, there);
    if constexpr (F::by_row && !F::groups) F::load_row(to, row, there);
}

/* The tile of panel_a of a and panel_b of b: two matrices of one shape, or the same one. */
template <class F>
__device__ __forceinline__ gpu_place gpu_place_of(const gpu_matrix &a, int panel_a, const gpu_matrix &b, int panel_b) {
    gpu_place at;
    int lane = threadIdx.x % 32;
    panel_b = min(panel_b, b.panels - 1);
    at.data[0] = a.data + (size_t)panel_a * (uint32_t)(a.k_blocks * F::panel) + lane * F::lane;
    at.data[1] = b.data + (size_t)panel_b * (uint32_t)(a.k_blocks * F::panel) + lane * F::lane;
    if (F::by_row || F::whole) {
        at.scale = a.scale + (F::by_row ? panel_a * PANEL_ROWS + lane / 4 : 0);
        at.to_row = (int)(b.scale - a.scale) + (F::by_row ? (panel_b - panel_a) * PANEL_ROWS : 0);
        return at;
    }
    at.scale = lane < 16 ? a.scale : b.scale;
    at.scale += ((lane < 16 ? panel_a : panel_b) * PANEL_ROWS >> a.row_shift) * a.scale_cols;
    at.to_row = 0;
    return at;
}

/* L2 prefetch by one thread; `bytes`: a multiple of 16. Before compute capability 9.0 it does nothing. */
__device__ __forceinline__ void l2_prefetch(const void *from, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
    asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

/* Prefetches the block's share. All blocks issue one instruction each. */
__device__ __forceinline__ void l2_prefetch_share(const prefetch_span &prefetch) {
    uint32_t at = prefetch.share * blockIdx.x;
    if (threadIdx.x == GPU_THREADS - 1 && at < prefetch.bytes)
        l2_prefetch(prefetch.from + at, min(prefetch.share, prefetch.bytes - at));
}

/* Activation fragments: token rows as B operands, in shared memory.
     x          [k_block][pair of steps][high, low][ROWS][4 lanes], each a uint4: b0, b1 of the pair's first step, b0, b1
                of the second
     act_scale  [k_block][ROWS], for formats with `half`
   A lane gets the B registers of two steps by one 16-byte load. */
typedef struct activation_fragments {
    uint4 *x;
    float *act_scale;
} activation_fragments;

/* Pairs of steps of a k block. F32 has one step, which counts as a pair. */
template <class F> __host__ __device__ constexpr int gpu_step_pairs() {
    return (F::per_load / 4 + 1) / 2;
}

template <class F, int ROWS>
__device__ __forceinline__ activation_fragments activation_fragments_at(void *memory, int k_blocks) {
    activation_fragments o;
    o.x = (uint4 *)memory;
    o.act_scale = (float *)(o.x + k_blocks * gpu_step_pairs<F>() * 8 * ROWS);
    return o;
}

/* Bytes of the activation fragments of `rows` rows of `k_blocks` k blocks. */
static size_t activation_fragments_size(enum format format, int rows, int k_blocks) {
    const size_t bytes = format_k_block_cols(format) < K_BLOCK_COLS ? 128 : 256;
    return (size_t)k_blocks * (size_t)rows * (bytes + sizeof(float)) + 16;
}

/* This lane's fragments of k block 0: the high terms (lanes 0 .. 15) or the low ones of row lane / 4 % 4. Columns after
   the last row repeat one; their sums are dropped. */
template <class F, int ROWS> __device__ __forceinline__ const uint4 *gpu_lane_fragments(const activation_fragments &o) {
    int lane = threadIdx.x % 32;
    return o.x + (lane / 16 * ROWS + lane % 16 / 4 % ROWS) * 4 + lane % 4;
}

/* sum += factor * (a k block of a tile times x), where raw has the lane's weights of each panel, and x its B registers,
   two steps in each.

   With `half` the factor is the weight scale times the activation scale. For token row t and panel o it is the value of
   `factor` on lane from + 16 o + t (with ROWS = 1, on lane from + 16 o) or, if the panels share it (step = 0), on lane
   from + t; or, with `own`, that is own[t % 2]. Without `half` there is no factor, and a k block that is
   not there adds nothing. PANELS: of the tile, 1 or 2; the rows of a panel that is not there get zeros. BY_ROW: the rows'
   scales come with the weights and are multiplied in here; otherwise row_scales does that once a tile, or there are none. */
template <class F, int ROWS, int PANELS = 2, bool BY_ROW = F::by_row>
__device__ __forceinline__ void gpu_multiply(float *sum, const typename F::raw *raw, const uint4 *x, float factor, int from,
                                             const int step, bool there, const float *own = NULL) {
    enum { PARTS = gpu_block_parts<F>(), STEPS = F::per_load / 4 / PARTS };
#pragma unroll
    for (int of = 0; of < PARTS; of++) {
        float part[4] = {0, 0, 0, 0};
#pragma unroll
        for (int s = of * STEPS; s < (of + 1) * STEPS; s++)
#pragma unroll
            for (int term = 0; term < F::terms; term++) {
                uint32_t a[4] = {}, b0 = s % 2 ? x[s / 2].z : x[s / 2].x, b1 = s % 2 ? x[s / 2].w : x[s / 2].y;
                F::fragment(raw[0], s, term, &a[0], &a[2]);
                if (PANELS == 2) F::fragment(raw[1], s, term, &a[1], &a[3]);
                mma_m16n8k16<F::half>(part, a, b0, b1);
            }
#pragma unroll
        for (int i = 0; i < 2 * PANELS; i++) {              /* C: column 2 (lane % 4) + i % 2, row i / 2 * 8 + lane / 4 */
            if (ROWS == 1 && i % 2) continue;
            int t = ROWS == 1 ? 0 : threadIdx.x % 2 * 2 + i % 2;
            if (BY_ROW) part[i] *= gpu_row_scale<F>(raw[i / 2], of);
            if (F::half && own) sum[i] = fmaf(own[i % 2], part[i], sum[i]);
            else if (F::half) sum[i] = fmaf(__shfl_sync(~0u, factor, from + i / 2 * step + t), part[i], sum[i]);
            else sum[i] += there ? part[i] : 0;
        }
    }
}

/* The two-term split of eight neighbouring floats of a token row, as the B registers of two steps: returns the high
   terms, and the low ones in *low. */
template <class F> __device__ __forceinline__ uint4 gpu_split(const float *v, uint4 *low) {
    uint32_t h[4], l[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int first = F::apart == 1 ? 2 * i : F::apart == 2 ? i / 2 * 4 + i % 2 : i;
        split_pair<F::half>(v[first], v[first + F::apart], &h[i], &l[i]);
    }
    *low = make_uint4(l[0], l[1], l[2], l[3]);
    return make_uint4(h[0], h[1], h[2], h[3]);
}

/* A lane's weights as floats, in the order of their columns, without the scales that wait for sums. */
template <class F> __device__ __forceinline__ void gpu_lane_weights(const typename F::raw &raw, float *to) {
#pragma unroll
    for (int s = 0; s < F::per_load / 4; s++)
#pragma unroll
        for (int term = 0; term < F::terms; term++) {
            uint32_t pair[2];
            F::fragment(raw, s, term, &pair[0], &pair[1]);
#pragma unroll
            for (int k = 0; k < 2; k++) {
                const int n = s % 2 * 2 + k, first = s / 2 * 8 + (F::apart == 1 ? 2 * n : F::apart == 2 ? n / 2 * 4 + n % 2 : n);
                const float2 two = F::half ? f16_floats(pair[k]) : make_float2(bf16_low(pair[k]), bf16_high(pair[k]));
                to[first] = term ? to[first] + two.x : two.x;
                to[first + F::apart] = term ? to[first + F::apart] + two.y : two.y;
            }
        }
}

/* Multiplies the eight floats of each of LANES neighbouring lanes, a k block together, with the power of two that brings
   the largest magnitude into [2^14, 2^15); returns its inverse. Both are normal floats, also for a k block of zeros. */
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

/* Loads eight floats that another kernel stores, maybe at this time; zeros from column `cols` on. Rows have a multiple
   of four columns. */
__device__ __forceinline__ void gpu_load8(float *v, const float *row, int col, int cols) {
    *(float4 *)v = col < cols ? load_relaxed4(row + col) : make_float4(0, 0, 0, 0);
    *(float4 *)(v + 4) = col + 4 < cols ? load_relaxed4(row + col + 4) : make_float4(0, 0, 0, 0);
}

/* The same of a norm weight, a constant: through the L1. */
__device__ __forceinline__ void gpu_load8_constants(float *v, const float *row, int col, int cols) {
    *(float4 *)v = col < cols ? __ldg((const float4 *)(row + col)) : make_float4(0, 0, 0, 0);
    *(float4 *)(v + 4) = col + 4 < cols ? __ldg((const float4 *)(row + col + 4)) : make_float4(0, 0, 0, 0);
}

/* Loads four floats from the L2; zeros if not `there`. */
__device__ __forceinline__ void gpu_load4(float *v, const float *at, bool there) {
    *(float4 *)v = there ? __ldcg((const float4 *)at) : make_float4(0, 0, 0, 0);
}

/* The activation scale of the k block that this lane has eight columns of; the lanes that have the others call it, too.
   Brings v into range. Formats without `half`: 1, and v stays. */
template <class F> __device__ __forceinline__ float activation_scale(float *v) {
    return F::half ? gpu_bring_into_range<4 * F::per_load / 8>(v) : 1;
}

/* Stores eight columns of token row t, number `part` of those of a k block, to their place in the activation fragments. */
template <class F, int ROWS>
__device__ __forceinline__ void gpu_put_columns(const activation_fragments &to, int k_block, int part, int t,
                                                const float *v, float act_scale) {
    const int pairs = gpu_step_pairs<F>();
    uint4 low, high = gpu_split<F>(v, &low), *x;
    if (F::half && part == 0) to.act_scale[k_block * ROWS + t] = act_scale * gpu_codes_scale<F>();
    if (F::per_load > 4) {                                  /* a pair of steps of a lane, which has neighbouring columns, or as many of each part */
        const int pair = gpu_block_parts<F>() > 1 ? part / 4 : part % pairs, lane = gpu_block_parts<F>() > 1 ? part % 4 : part / pairs;
        x = to.x + ((k_block * pairs + pair) * 2 * ROWS + t) * 4 + lane;
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

/* Kernels for fixed shapes exist for one, two and four token rows. That of four serves three, too: what it loads, polls and stages of the
   fourth is the third again, without a branch, and nothing is stored of it. Rows of the kernel for T rows; in one for ROWS, how many there
   are, and whose data row t has if `last` is the last. */
__host__ __device__ constexpr int gpu_fixed_rows(int T) { return T == STEP_ROWS - 1 ? STEP_ROWS : T; }
template <int ROWS> __device__ __forceinline__ int gpu_rows_there(int T) { return ROWS < STEP_ROWS ? ROWS : T; }
template <int ROWS> __device__ __forceinline__ int gpu_row_there(int t, int last) {
    return ROWS < STEP_ROWS || t < STEP_ROWS - 1 ? t : min(t, last);
}

/* Token rows on their way into a warp's activation fragments: `count` k blocks from k block `first` on, which are items of
   eight columns. A lane has the items lane, lane + 32, ..., AT_ONCE of them in registers: all are loaded before the first is
   used. IN is a prologue (cuda/projection.cu):
     in.load(v, more, T, col)   loads eight columns of all token rows, zeros from in.cols on, and whatever else is needed
     in.finish(v, more, square, whole)   makes of them what is multiplied, and, where there is a norm, adds their squares
                                         to the lane's own sums in `square`; whole: without further loads
   The kernels for any shape exist for ROWS = 1 and for ROWS = 4, which serves T = 2, 3 and 4. Rows from T on are not staged;
   what shared memory holds there only reaches sums that nobody stores. Those for fixed shapes: gpu_fixed_rows. */
template <class F, int ROWS, int AT_ONCE, class IN> struct row_columns {
    enum { COLS = 4 * F::per_load, LANES = COLS / 8, ITEMS = AT_ONCE };     /* of a k block; of a lane */
    const IN &in;
    const int T, first, count;
    float v[AT_ONCE][ROWS][8];
    typename IN::template more<ROWS> more[AT_ONCE];

    __device__ __forceinline__ row_columns(const IN &in, int T, int first, int count)
        : in(in), T(ROWS == 1 ? 1 : T), first(first), count(count) {}
    __device__ __forceinline__ int item(int begin, int n) const { return begin + n * 32 + (int)threadIdx.x % 32; }
    __device__ __forceinline__ bool there(int begin, int n) const { return item(begin, n) < count * LANES; }
    __device__ __forceinline__ int column(int begin, int n) const {
        return there(begin, n) ? first * COLS + item(begin, n) * 8 : in.cols;
    }
    __device__ __forceinline__ void load(int begin) {
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) in.template load<ROWS>(v[n], &more[n], T, column(begin, n));
    }
    /* Stores what load(begin) has loaded. The warp may use it after a __syncwarp. */
    __device__ __forceinline__ void stage(int begin, const activation_fragments &to, float *square, bool whole) {
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++) {
            in.template finish<ROWS>(v[n], &more[n], square, whole);
#pragma unroll
            for (int t = 0; t < ROWS; t++) {
                if (t >= T) continue;
                float act_scale = activation_scale<F>(v[n][t]);
                if (!there(begin, n)) continue;
                gpu_put_columns<F, ROWS>(to, first + item(begin, n) / LANES, item(begin, n) % LANES, t, v[n][t], act_scale);
            }
        }
    }
    /* Whether a tag of the token rows does not match, on any lane of the warp. */
    __device__ __forceinline__ bool mismatch(int begin, const gpu_tag &tag) const {
        uint32_t other = 0;
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
            for (int t = 0; t < ROWS; t++) other |= there(begin, n) ? tag_mismatch(v[n][t], 8, tag) : 0;
        return __any_sync(~0u, other);
    }
    /* Polls until all tags of what load(begin) has loaded match. */
    __device__ __forceinline__ void await(int begin, const gpu_tag &tag) {
#pragma unroll 1
        while (mismatch(begin, tag)) {
            spin_until_tagged(in.x + first * COLS + begin * 8, tag);
            load(begin);
        }
    }
    __device__ __forceinline__ void poll(int begin, const gpu_tag &tag) {
        load(begin);
        await(begin, tag);
    }
    /* Loads again what has no matching tag; everything if there is no tag. Predicated, not a branch. */
    __device__ __forceinline__ void reload_mismatched(int begin, const gpu_tag &tag) {
#pragma unroll
        for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
            for (int t = 0; t < ROWS; t++)
                if (!tag.mask || tag_mismatch(v[n][t], 8, tag)) in.template load_row<ROWS>(v[n][t], T, t, column(begin, n));
    }
};

/* A warp stages `count` k blocks of its activation fragments, from k block `first` on. */
template <class F, int ROWS, int AT_ONCE, class IN>
__device__ __forceinline__ void gpu_stage_activations(const IN &in, int T, int first, int count,
                                                      const activation_fragments &to, float *square) {
    typedef row_columns<F, ROWS, AT_ONCE, IN> columns;
    columns x(in, T, first, count);
#pragma unroll 1
    for (int begin = 0; begin < count * columns::LANES; begin += 32 * AT_ONCE) {
        x.load(begin);
        x.stage(begin, to, square, false);
    }
    __syncwarp();
}

/* Shared memory in which the warps' partial sums of a tile meet. Two tiles alternate, so that one barrier a tile is
   enough. */
struct warp_partials {
    float tile[2][TILE_ROWS][STEP_ROWS][GPU_WARPS];
    float squares[STEP_ROWS][GPU_WARPS];                /* for the norm: of the columns of each warp */
};

/* The share of one of `of` workers in `k_blocks` k blocks: returns the first, *count: how many. */
__device__ __forceinline__ int gpu_share(int k_blocks, int worker, int of, int *count) {
    int first = k_blocks * worker / of;
    *count = k_blocks * (worker + 1) / of - first;
    return first;
}

/* Adds the sums of high and low terms, two lanes apart; lane 4 g + i then has rows g and g + 8 of token rows 2i and 2i + 1. */
template <int ROWS> __device__ __forceinline__ void add_terms(float *sum) {
#pragma unroll
    for (int j = 0; j < 4; j++)
        if (ROWS > 1 || j % 2 == 0) sum[j] += __shfl_xor_sync(~0u, sum[j], 2);
}

/* Stores this warp's partial of a tile. */
template <int ROWS> __device__ __forceinline__ void store_partial_of(float (*to)[STEP_ROWS][GPU_WARPS], float *sum, int warp) {
    int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;
    add_terms<ROWS>(sum);
    if (2 * i >= ROWS) return;
    to[g][2 * i][warp] = sum[0];
    to[g + 8][2 * i][warp] = sum[2];
    if (ROWS == 1) return;
    to[g][2 * i + 1][warp] = sum[1];
    to[g + 8][2 * i + 1][warp] = sum[3];
}

template <int ROWS> __device__ __forceinline__ void store_warp_partial(float (*to)[STEP_ROWS][GPU_WARPS], float *sum) {
    store_partial_of<ROWS>(to, sum, threadIdx.x / 32);
}

template <int ROWS> __device__ __forceinline__ void store_warp_squares(warp_partials *partials, const float *square) {
#pragma unroll
    for (int t = 0; t < ROWS; t++) partials->squares[t][threadIdx.x / 32] = warp_sum(square[t]);
}

/* The sum of the warps' partials, always in their order: the same bits in every run. */
__device__ __forceinline__ float sum_warp_partials(const float *part) {
    float4 a = *(const float4 *)part, b = *(const float4 *)(part + 4);
    return a.x + a.y + a.z + a.w + b.x + b.y + b.z + b.w;
}

/* 1 / rms of token row t, after a barrier after every warp's store_warp_squares. scale: 1 / columns. */
__device__ __forceinline__ float gpu_rms_factor(const warp_partials *partials, int t, float scale, float eps) {
    return rms_factor(sum_warp_partials(partials->squares[t]), scale, eps);
}
