/* cuda/gemm.cu: many token rows times a packed weight matrix: the product of a prompt, on tensor cores. Knows matrices,
   formats and rows of F16; must not know layers. Projections of one to four rows are cuda/projection.cu's.

     y[t] = W x[t] + bias                              GEMM_STORE
     y[t] += weight[t] (W x[t] + bias)                 GEMM_ADD
     h[t] = SiLU(W x[t] + bias) * (up x[t] + bias)     GEMM_SWIGLU: two matrices of one shape, or another activation of them
     part[t] = weight[t] (W x[t] + bias)               GEMM_PART: BF16, to be summed by who knows which rows belong together

   Grouped: for a mixture of experts the rows are sorted by expert ("slots"), and a list of tiles says which expert's matrix
   the slots first .. first + count - 1 want. Otherwise all rows want the same matrix.

   Operands of mma.m16n8k16. A is the weights, from global memory or the L2 straight into registers, as they lie packed
   (cuda/panels.cu) and as decode reads them: no second copy, no shared memory. They become F16 there: FP8, NVFP4
   with its groups' scales and INT4 less its zero points exactly, BF16 times a power of two that is the whole model's
   (bf16_factor). A launch has matrices of one format, a constant of its kernel, and of BF16: with a branch for every format in
   one kernel ptxas spilled several times as much, and a launch for each format left SMs idle. B is the tokens, F16 in shared memory. C is float.

   Token rows (gemm_rows) are F16, one term: its relative error of 2^-12 is less than BF16's 2^-9. A row, or each 64 columns
   of a row, has been multiplied with a power of two that brings its largest value into [2^7, 2^15); the inverse is its
   activation scale, `act_scale`.

   Scales without a second set of sums. The sums of k block kb are in units of scale[kb] and act_scale[kb]. Before the next k
   block is added, they are multiplied with scale[kb] / scale[kb + 1] and likewise with the activation scales, where these change,
   and at the end with the last of each. Powers of two do not round. Where each row has scales of its own (FP8 by row, INT4),
   a lane does so for its four or eight rows: gemm_change_rows. MXFP4's are powers of two, so that a weight may be in units of another
   k block's, exactly: sums change theirs only where it would be out of F16's range (gemm_keeps_scale).

   A tile of WIDTH tokens, gemm_form. 128 tokens: 4 warps, each 64 of 128 weight rows (eight row panels; for GEMM_SWIGLU four of
   each matrix, so that gate and up of an element meet in one lane) x 64 tokens: 128 sums a lane. What a warp reads of the tokens
   serves twice the rows that 32 would, and reading them is what the memory path of an SM has most to do with. 64 or 32 tokens: 8
   warps, each 32 of 256 rows: there the weights are most of what is read, and more warps have more of them on their way. 16 tokens, of
   prompts whose experts have a few rows each: 4 warps, each 32 of 128 rows, three or four blocks an SM, and the registers that sums leave hold four
   loads of weights (gemm_loads_ahead): there nothing else is read, so bytes on their way are what counts, and a block's start, which one of
   few k blocks does not hide, is hidden by the others. Columns do not mix and k goes upward in any tile, so a row's bits depend neither on
   WIDTH nor on the rows beside it.

   Shared memory: stages of 64 k, filled by cp.async. Of 128 tokens, 16 KB, there are two, so that two blocks fit an SM of 100
   KB: one computes while the other waits at its barrier; of 64 and 32, three, of 16, four. Row r's eight 16-byte chunks lie at chunk ^ 5 (r % 2):
   then the eight lanes that a load serves at a time, two rows of them, take eight different bank groups, for the chunks 2i + p
   that FP8 wants and for the chunks 4p + i of BF16. */

/* Multiplies the sums of rows that change their scale. */
template <int TILES, int NT>
__device__ __forceinline__ void gemm_change_scale(float (&sum)[TILES][NT][4], float low, float high) {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int j = 0; j < NT; j++) {
            sum[m][j][0] *= low;
            sum[m][j][1] *= low;
            sum[m][j][2] *= high;
            sum[m][j][3] *= high;
        }
}

/* Multiplies the sums of this lane's rows: of panel o of m tile m by by[m][o]. */
template <int TILES, int NT>
__device__ __forceinline__ void gemm_scale_rows(float (&sum)[TILES][NT][4], const float (&by)[TILES][2]) {
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int j = 0; j < NT; j++)
#pragma unroll
            for (int n = 0; n < 4; n++) sum[m][j][n] *= by[m][n / 2];
}

template <class F> __device__ __forceinline__ float gemm_row_scale(const typename F::raw &raw) {
    if constexpr (gemm_keeps_scale<F>()) return F::unit(raw);
    else return F::row_scale(raw);
}

/* Formats whose rows have scales of their own: in *before those of the last k block become those of this one, and the sums with
   them. first: there are no sums yet. */
template <class F, int TILES, int NT>
__device__ __forceinline__ void gemm_change_rows(float (&sum)[TILES][NT][4], const typename F::raw (&raw)[TILES][2],
                                                 float (&before)[TILES][2], bool first) {
    float by[TILES][2];
    if constexpr (gemm_keeps_scale<F>()) {
        bool kept = true;
#pragma unroll
        for (int m = 0; m < 2 * TILES; m++) kept = kept && F::keeps(raw[m / 2][m % 2], before[m / 2][m % 2]);
        if (!first && __all_sync(~0u, kept)) return;
    }
#pragma unroll
    for (int m = 0; m < TILES; m++)
#pragma unroll
        for (int o = 0; o < 2; o++) {
            const float scale = gemm_row_scale<F>(raw[m][o]);
            const float now = first ? scale != 0 ? scale : 0x1p-100f : gemm_usable_scale(scale, before[m][o]);
            by[m][o] = first ? 1 : gemm_keeps_scale<F>() ? fmaxf(gemm_ratio(before[m][o], now), 0) : before[m][o] / now;
            before[m][o] = now;
        }
    if (!first) gemm_scale_rows(sum, by);
}

/* Multiplies the sums of columns that change their activation scale; before, now: where the scales of the warp's tokens are. */
template <int TILES, int NT>
__device__ __forceinline__ void gemm_change_act_scale(float (&sum)[TILES][NT][4], uint32_t before, uint32_t now) {
    const int lane = threadIdx.x % 32;
    const float2 was = load_shared8(before + lane % (4 * NT) * 8), is = load_shared8(now + lane % (4 * NT) * 8);
    if (!__any_sync(~0u, was.x != is.x || was.y != is.y)) return;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const float2 a = load_shared8(before + lane % 4 * 8 + j * 32), b = load_shared8(now + lane % 4 * 8 + j * 32);
        const float x = gemm_ratio(a.x, b.x), y = gemm_ratio(a.y, b.y);
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            sum[m][j][0] *= x;
            sum[m][j][1] *= y;
            sum[m][j][2] *= x;
            sum[m][j][3] *= y;
        }
    }
}

/* sum += the columns of one load of weights, 64 or, of BF16, half of them, times NT * 8 tokens. Once raw has become
   fragments it is loaded anew if there is `more`: that is on its way while the tensor cores work. */
template <class F, int TILES, int NT>
__device__ __forceinline__ void gemm_k_block(float (&sum)[TILES][NT][4], gemm_weights<F, TILES> &w,
                                             typename F::raw (&raw)[TILES][2], const float (&row_scale)[TILES][2], bool more, int half,
                                             float factor, uint32_t tokens) {
    const int lane = threadIdx.x % 32, i = lane % 4, odd = 5 * (lane / 4 % 2);
    enum { CHUNKS = F::prefill_loads == 1 ? 2 : 1 };        /* of 16 bytes of a token, for one load of weights */
#pragma unroll
    for (int c = 0; c < CHUNKS; c++) {
        uint32_t a[2][TILES][4];                            /* [step][m tile] */
#pragma unroll
        for (int s = 0; s < 2; s++)
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                F::prefill(raw[m][0], 2 * c + s, gemm_keeps_scale<F>() ? row_scale[m][0] : factor, &a[s][m][0], &a[s][m][2]);
                F::prefill(raw[m][1], 2 * c + s, gemm_keeps_scale<F>() ? row_scale[m][1] : factor, &a[s][m][1], &a[s][m][3]);
            }
        if (c == CHUNKS - 1 && more) w.load(raw);
        const int chunk = gpu_block_parts<F>() > 1 ? 4 * c + i : CHUNKS == 2 ? 2 * i + c : 4 * half + i;
        const uint32_t at = tokens + (uint32_t)((chunk ^ odd) * 16);
#pragma unroll
        for (int j = 0; j < NT; j += 2) {
            const uint4 b[2] = {load_shared16(at + j * 8 * GEMM_ROW_BYTES), load_shared16(at + (j + 1) * 8 * GEMM_ROW_BYTES)};
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int m = 0; m < TILES; m++) mma_m16n8k16<true>(sum[m][j + k], a[0][m], b[k].x, b[k].y);
#pragma unroll
            for (int k = 0; k < 2; k++)
#pragma unroll
                for (int m = 0; m < TILES; m++) mma_m16n8k16<true>(sum[m][j + k], a[1][m], b[k].z, b[k].w);
        }
    }
}

/* The sums of a warp's rows and NT * 8 tokens, without the rows' last scale. scales: where the warps' ratios of scales go. */
template <class F, int WIDTH, int TILES, int NT>
__device__ __forceinline__ void gemm_sums(const gpu_gemm &p, const gemm_product &o, gemm_stages<WIDTH> &stages, gemm_weights<F, TILES> &w,
                                          int warp_row, float *scales, int token, float (&sum)[TILES][NT][4]) {
    enum { LOADS = F::prefill_loads, AHEAD = gemm_loads_ahead<WIDTH>(), STEP = AHEAD == 1 ? 1 : AHEAD / LOADS };
    const gpu_matrix &of = o.w;
    const int k_blocks = p.cols / GEMM_COLS, lane = threadIdx.x % 32;
    const uint32_t row = (uint32_t)(token + lane / 4) * GEMM_ROW_BYTES;
    typedef gemm_stages<WIDTH> stage;
    typename F::raw raw[AHEAD][TILES][2] = {};
    float row_scale[TILES][2];
    if (AHEAD == 1) w.begin_scales(o, stages.at, warp_row, scales);
#pragma unroll
    for (int n = 0; n < AHEAD; n++)
        if (AHEAD == 1 || n < k_blocks * LOADS) w.load(raw[n]);
    if (AHEAD > 1) w.begin_scales(o, stages.at, warp_row, scales);
#pragma unroll 1
    for (int first = 0; first < k_blocks; first += STEP)
#pragma unroll
        for (int n = 0; n < STEP; n++) {                    /* a k block; those of one n have their weights in the same registers */
            const int kb = first + n;
            if (STEP > 1 && kb >= k_blocks) break;
            cp_async_wait<stage::COUNT - 2>();
            __syncthreads();
            stages.fill(kb + stage::COUNT - 1, k_blocks);
            if (F::scaled && (kb & ((1 << of.k_block_shift) - 1)) == 0) {
                const uint32_t ratio = w.ratios + (kb >> of.k_block_shift) * 4;
                gemm_change_scale(sum, load_shared(ratio), load_shared(ratio + (of.scale_cols + 1) * 4));
            }
            if (p.in.act_scales > 1 && kb)
                gemm_change_act_scale(sum, stages.act_scales_at(kb - 1) + token * 4, stages.act_scales_at(kb) + token * 4);
            const uint32_t tokens = stages.base + kb % stage::COUNT * stage::BYTES + row;
#pragma unroll
            for (int half = 0; half < LOADS; half++) {
                const bool begins = (kb & ((1 << of.k_block_shift) - 1)) == 0;     /* a group; halves are groups themselves */
                typename F::raw (&now)[TILES][2] = raw[AHEAD == 1 ? 0 : n * LOADS + half];
                if (F::by_row && (F::groups ? begins : kb == 0)) gemm_change_rows<F>(sum, now, row_scale, kb + half == 0);
                gemm_k_block(sum, w, now, row_scale, (AHEAD == 1 && half + 1 < LOADS) || kb + STEP < k_blocks, half, p.factor, tokens);
            }
        }
    if (F::by_row) {
        gemm_scale_rows(sum, row_scale);
        return;
    }
    const float last_low = F::scaled ? F::post_scale * load_shared(w.ratios + of.scale_cols * 4) : 1 / p.factor;
    const float last_high = F::scaled ? F::post_scale * load_shared(w.ratios + (2 * of.scale_cols + 1) * 4) : last_low;
    gemm_change_scale(sum, last_low, last_high);
}

/* Of two neighbouring tokens' values (v0, v1) of row g, lanes g and g ^ 1 make two neighbouring rows' of one token: lanes of
   even g get token 0's, those of odd g token 1's. */
__device__ __forceinline__ float2 gemm_pair_rows(float v0, float v1) {
    const bool odd = threadIdx.x / 4 % 2;
    const float other = __shfl_xor_sync(~0u, odd ? v0 : v1, 4);
    return odd ? make_float2(other, v1) : make_float2(v0, other);
}

/* Adds the biases of this lane's rows to the sums, which are in units of the tokens' last activation scales: before the factor of a token,
   in which its weight is. */
template <int WIDTH, int TILES, int NT>
__device__ __forceinline__ void gemm_add_biases(const gemm_stages<WIDTH> &stages, int token, float (&sum)[TILES][NT][4]) {
    const int lane = threadIdx.x % 32;
    const uint32_t bias = stages.biases() + (threadIdx.x / 32 / gemm_form<WIDTH>::ACROSS * gemm_form<WIDTH>::WARP_ROWS + lane / 4) * 4;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const float2 per_scale = load_shared8(stages.per_scale() + (token + 8 * j + lane % 4 * 2) * 4);
#pragma unroll
        for (int m = 0; m < 2 * TILES; m++) {
            const float b = load_shared(bias + m * PANEL_ROWS * 4);
            float *of = &sum[m / 2][j][m % 2 * 2];
            of[0] = epilogue_sum(b, per_scale.x, of[0]);
            of[1] = epilogue_sum(b, per_scale.y, of[1]);
        }
    }
}

/* Stores a column of sums, of token t: y = or y += them. */
template <int TILES, int NT>
__device__ __forceinline__ void gemm_store_column(const gemm_product &o, int t, int row, const float (&sum)[TILES][NT][4],
                                                  int j, int c, float factor) {
    row += threadIdx.x % 32 / 4;
    float *y = o.y + (size_t)t * o.stride + row, before[2 * TILES] = {};
#pragma unroll
    for (int n = 0; n < 2 * TILES; n++)
        if (o.out == GEMM_ADD && row + 8 * n < o.w.rows) before[n] = y[8 * n];
#pragma unroll
    for (int n = 0; n < 2 * TILES; n++)
        if (row + 8 * n < o.w.rows) y[8 * n] = epilogue_sum(sum[n / 2][j][n % 2 * 2 + c], factor, before[n]);
}

/* Stores the sums: y, or part. */
template <int WIDTH, int TILES, int NT>
__device__ __forceinline__ void gemm_store(const gemm_product &o, const gemm_place &at, const gemm_stages<WIDTH> &stages,
                                           int row, int token, float (&sum)[TILES][NT][4]) {
    const int lane = threadIdx.x % 32, g = lane / 4, i = lane % 4;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const int t = token + 8 * j + 2 * i;
        const float2 factor = load_shared8(stages.finish() + t * 4);
        if (WIDTH < 128 && o.out == GEMM_PART) {            /* of slots, whose tiles are narrower */
#pragma unroll
            for (int n = 0; n < 2 * TILES; n++) {           /* panels */
                const float *of = &sum[n / 2][j][n % 2 * 2];
                const float2 v = gemm_pair_rows(of[0] * factor.x, of[1] * factor.y);
                uint16_t *to = o.to + (size_t)(at.first + t + g % 2) * o.stride + row + 8 * n + g / 2 * 2;
                if (t + g % 2 < at.count && row + 8 * n < o.w.rows) *(uint32_t *)to = bf16_pair(v.x, v.y);
            }
        } else {
            if (t < at.count) gemm_store_column(o, at.first + t, row, sum, j, 0, factor.x);
            if (t + 1 < at.count) gemm_store_column(o, at.first + t + 1, row, sum, j, 1, factor.y);
        }
    }
}

/* h = SiLU(gate) * up as F16 with an activation scale for each 64 elements: the share of SHARERS warps, whose largest values
   meet in `tops`, [warps][64 tokens] in shared memory. */
template <bool ANY, int WIDTH, int TILES, int NT>
__device__ __forceinline__ void gemm_store_swiglu(const gemm_product &o, const gemm_place &at, const gemm_stages<WIDTH> &stages,
                                                  int row, int token, float (&sum)[TILES][NT][4], float *tops, int T) {
    enum { ACROSS = gemm_form<WIDTH>::ACROSS, SHARERS = 64 / (gemm_form<WIDTH>::WARP_ROWS / 2) };
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, i = lane % 4;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const float2 scale = load_shared8(stages.finish() + (token + 8 * j + 2 * i) * 4);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            float top = 0;
#pragma unroll
            for (int m = 0; m < TILES; m++) {
                const float gate = sum[m][j][c] * (c ? scale.y : scale.x), up = sum[m][j][2 + c] * (c ? scale.y : scale.x);
                sum[m][j][c] = activate<ANY>(o.act, gate, up);
                top = fmaxf(top, fabsf(sum[m][j][c]));
            }
#pragma unroll
            for (int n = 4; n < 32; n *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, n));
            if (g == 0) tops[warp * 64 + 8 * j + 2 * i + c] = top;
        }
    }
    __syncthreads();
    const int first_of = warp / ACROSS / SHARERS * SHARERS * ACROSS + warp % ACROSS;
    if (row >= o.w.rows) return;
#pragma unroll
    for (int j = 0; j < NT; j++) {
        const int t = token + 8 * j + 2 * i + g % 2;
        float top = 0, factor;
#pragma unroll
        for (int n = 0; n < SHARERS; n++) top = fmaxf(top, tops[(first_of + n * ACROSS) * 64 + 8 * j + 2 * i + g % 2]);
        const float act_scale = gemm_act_scale(top, &factor);
        uint16_t *to = o.to + (size_t)(at.first + t) * o.stride + row + g / 2 * 2;
#pragma unroll
        for (int m = 0; m < TILES; m++) {
            const float2 v = gemm_pair_rows(sum[m][j][0], sum[m][j][1]);
            if (t < at.count) *(uint32_t *)(to + 8 * m) = f16_pair(v.x * factor, v.y * factor);
        }
        if (t < at.count && g < 2 && row % 64 == 0) o.to_scale[(size_t)(row / 64) * T + at.first + t] = act_scale;
    }
}

/* A tile whose tokens need NT * 8 columns of each warp. */
template <class F, int WIDTH, int NT>
__device__ __forceinline__ void gemm_tile_of(const gpu_gemm &p, const gemm_place &at, void *memory) {
    const gemm_product &o = p.product[at.product];
    typedef gemm_form<WIDTH> form;
    const int warp = threadIdx.x / 32, token = warp % form::ACROSS * 64;
    const int row = warp / form::ACROSS * (form::WARP_ROWS / (o.out == GEMM_SWIGLU ? 2 : 1));
    gemm_stages<WIDTH> stages(p, at, o, memory);
    float sum[form::TILES][NT][4] = {};
    for (int kb = 0; kb < form::STAGES - 1; kb++) stages.fill(kb, p.cols / GEMM_COLS);
    const auto multiply = [&](auto format) {
        gemm_weights<decltype(format), form::TILES> w;
        w.begin(o, at, row);
        gemm_sums(p, o, stages, w, row, (float *)((char *)memory + gemm_stages<WIDTH>::size()), token, sum);
    };
    if (std::is_same<F, format_bf16>::value || o.w.format != FORMAT_BF16) multiply(F());
    else multiply(format_bf16());
    if (o.w.bias) gemm_add_biases(stages, token, sum);
    if (o.out != GEMM_SWIGLU) {
        gemm_store(o, at, stages, at.row + row, token, sum);
        return;
    }
    __syncthreads();                                        /* the stages are done with */
    if (activation_is_plain(o.act)) gemm_store_swiglu<false>(o, at, stages, at.row + row, token, sum, (float *)memory, p.T);
    else gemm_store_swiglu<true>(o, at, stages, at.row + row, token, sum, (float *)memory, p.T);
}

/* Products of matrices of format F and, beside them, of BF16. Grid: weight tiles x token tiles. Tiles of half the tokens or fewer skip
   the other half. */
template <class F, int WIDTH>
__global__ void __launch_bounds__(gemm_form<WIDTH>::THREADS, gemm_blocks<F, WIDTH>()) gemm_kernel(const __grid_constant__ gpu_gemm p) {
    enum { NT = WIDTH == 128 ? 8 : WIDTH / 8, HALF = WIDTH < 128 && WIDTH > 16 ? NT / 2 : NT };
    extern __shared__ uint4 dynamic[];
    __shared__ gemm_place at;
    if (threadIdx.x == 0 && !gemm_place_of<WIDTH>(p, &at)) at.count = 0;
    __syncthreads();
    if (!at.count) return;
    if ((int)HALF < (int)NT && at.count <= WIDTH / 2) gemm_tile_of<F, WIDTH, HALF>(p, at, dynamic);
    else gemm_tile_of<F, WIDTH, NT>(p, at, dynamic);
}
