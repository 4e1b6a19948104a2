/* layers/moe/batch_up.cu: experts_up of a pass of more than STEP_ROWS token rows: h = weight SiLU(gate_proj u) (up_proj u) for every
   assignment to a routed expert. Reads prepared rows (cuda/batch_rows.cu) and the units of route; knows nothing of down projections but
   their operand order, in which it stores h.

   An item is a unit and 64 columns of h, of which each of the eight warps has a row panel of gate_proj and the same of up_proj, with all
   columns of both: so no warp waits for another's sums, and the block shares the unit's rows, which it gathers in shared memory. 64 columns
   of h are whole k blocks of down_proj in any format. Of experts without a gate an item is 128 columns, two panels of up_proj a warp. Grid: as
   many blocks as the SMs hold at once. Items ascend by expert, so that what the units of an expert share is in the L2.

   The bits of a row are those that it has alone: a warp closes the sums over the columns that the warps of gpu_run_tiles have, one after
   the other, and adds them in the order of those. */

enum { BATCH_UP_COLS = GPU_WARPS * PANEL_ROWS };

/* What a warp has of a k block of a tile. */
template <class F> struct gpu_batch_weights {
    enum { SCALED = gpu_scales_by_block<F>() };
    typename F::raw raw[2];
    float scale[2];              /* FP8: of either panel */
};

/* part = part `of` of a k block of a tile times the four rows whose fragments are x. */
template <class F>
__device__ __forceinline__ void gpu_multiply_block(float *part, const typename F::raw *raw, const uint4 *x, int of) {
    enum { STEPS = F::per_load / 4 / gpu_block_parts<F>() };
#pragma unroll
    for (int i = 0; i < 4; i++) part[i] = 0;
#pragma unroll
    for (int s = of * STEPS; s < (of + 1) * STEPS; s++)
#pragma unroll
        for (int term = 0; term < F::terms; term++) {
            uint32_t a[4] = {};
            F::fragment(raw[0], s, term, &a[0], &a[2]);
            F::fragment(raw[1], s, term, &a[1], &a[3]);
            mma_m16n8k16<F::half>(part, a, s % 2 ? x[s / 2].z : x[s / 2].x, s % 2 ? x[s / 2].w : x[s / 2].y);
        }
}

/* A tile on its way: where its first panel is, and how far from it the second. */
template <class F> struct gpu_batch_tile {
    const char *data;
    const float *scale;          /* FP8: of the panel's first k block */
    int64_t to_second, scale_to_second;
};

/* Panels after the last count as the last. WHOLE: experts have a gate. */
template <class F, bool WHOLE> __device__ __forceinline__ gpu_batch_tile<F> gpu_batch_tile_of(const moe_gpu &p, int64_t shift, int panel) {
    gpu_batch_tile<F> tile;
    const int second = min(panel + 1, p.gate.panels - 1);
    panel = min(panel, p.gate.panels - 1);
    tile.to_second = p.to_second;
    tile.scale_to_second = p.up.scale - p.gate.scale;
    if (!WHOLE && p.tile_panels > 1) {
        tile.to_second *= second - panel;
        tile.scale_to_second = ((second * PANEL_ROWS >> p.gate.row_shift) - (panel * PANEL_ROWS >> p.gate.row_shift)) * p.gate.scale_cols;
    }
    tile.data = p.gate.data + shift + (size_t)panel * (uint32_t)(p.gate.k_blocks * F::panel) + threadIdx.x % 32 * F::lane;
    tile.scale = (const float *)((const char *)p.gate.scale + shift);
    if (gpu_scales_by_block<F>()) tile.scale += (panel * PANEL_ROWS >> p.gate.row_shift) * p.gate.scale_cols;
    return tile;
}

/* Shared memory of a block besides the rows: of the item's, the factors that they are yet to be multiplied with; and h of the item before. */
template <bool WHOLE> struct gpu_batch_up_shared {
    enum { STRIDE = WHOLE ? BATCH_UP_COLS : 2 * BATCH_UP_COLS };        /* of pairs of gate and up the first 64 */
    int64_t at;                  /* where its expert is: for biases */
    float rms[N_TILE_ROWS], weight[N_TILE_ROWS];
    float h[N_TILE_ROWS][STRIDE];
};

/* Starts the copies of a unit's rows, of `count` k blocks from `first` on: their fragments, then, after `space` k blocks, their activation
   scales. */
template <class F, bool WHOLE>
__device__ __forceinline__ void gpu_gather_rows(const moe_gpu &p, int unit, uint32_t rows, int first, int count, int space, uint4 *to,
                                                gpu_batch_up_shared<WHOLE> *own) {
    enum { BLOCK = gpu_unit_block<F>() };
    const int o = threadIdx.x % BLOCK, k_blocks = p.gate.k_blocks;
    auto row_of = [&](int slot) { return (int)(rows >> 8 * slot & 255); };
    const int row = row_of(o / 4 % N_TILE_ROWS), of = row_of(threadIdx.x % N_TILE_ROWS);
    const bool there = row != UNIT_NO_ROW, is = of != UNIT_NO_ROW;
    const uint4 *from = p.batch.x.x + (there ? (size_t)(row / N_TILE_ROWS) * (uint32_t)(k_blocks * BLOCK) + row % N_TILE_ROWS * 4 : 0) +
                        (o & ~(4 * (N_TILE_ROWS - 1))) + (size_t)first * BLOCK;
    for (int k = threadIdx.x / BLOCK; k < count; k += GPU_THREADS / BLOCK)
        cp_async16(shared_address(to + k * BLOCK + o), from + (size_t)k * BLOCK, there);
    float *scales = (float *)(to + space * BLOCK);
    const float *scale = p.batch.x.act_scale + (is ? of / N_TILE_ROWS * k_blocks * N_TILE_ROWS + of % N_TILE_ROWS : 0) + first * N_TILE_ROWS;
    for (int i = threadIdx.x; F::half && i < count * N_TILE_ROWS; i += GPU_THREADS)
        cp_async4(shared_address(scales + i), scale + i / N_TILE_ROWS * N_TILE_ROWS);
    if (threadIdx.x < N_TILE_ROWS) {
        cp_async4(shared_address(own->rms + threadIdx.x), p.batch.x.rms + (is ? of : 0));
        cp_async4(shared_address(own->weight + threadIdx.x), p.batch.weight + unit * N_TILE_ROWS + threadIdx.x);
    }
    cp_async_commit();
}

/* A warp stores 64 columns of h as fragments of down_proj: lane 8 s + i has the i-th eight of them of the row in slot s. */
template <int STRIDE> __device__ __forceinline__ void gpu_store_h(const moe_gpu &p, int unit, int part, const float *h) {
    const int slot = threadIdx.x % 32 / 8, eighth = threadIdx.x % 8;
    float v[8];
#pragma unroll
    for (int i = 0; i < 8; i++) v[i] = h[slot * STRIDE + eighth * 8 + i];
    with_format(p.down.format, [&](auto format) {
        typedef decltype(format) F;
        enum { COLS = 4 * F::per_load, LANES = COLS / 8 };
        const activation_fragments to = gpu_unit_h<F>(p.batch.routed, p.down, unit);
        const int k_block = part * (BATCH_UP_COLS / COLS) + eighth / LANES;
        const float act_scale = activation_scale<F>(v);
        if (k_block < p.down.k_blocks) gpu_put_columns<F, N_TILE_ROWS>(to, k_block, eighth % LANES, slot, v, act_scale);
    });
}

/* A lane's sums of a tile, of the columns of one warp of gpu_run_tiles at a time: `close` adds them to the total, in the order of those warps.
   WHOLE: each of these has `end` columns. */
template <class F, bool WHOLE> struct gpu_batch_up_sums {
    float sum[4], total[4];
    int share, end;              /* warps whose columns are closed; k block at which the next one's end */
    __device__ __forceinline__ explicit gpu_batch_up_sums(int k_blocks) : share(0), end(k_blocks / GPU_WARPS) {
#pragma unroll
        for (int i = 0; i < 4; i++) sum[i] = 0, total[i] = -0.0f;       /* -0 + x is x, also for x = -0 */
    }
    __device__ __forceinline__ void close(int k_blocks, const float *row_scale) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (gpu_scaled_at_end<F>()) sum[i] = __fmul_rn(sum[i], row_scale[i / 2]);
            total[i] = __fadd_rn(total[i], __fadd_rn(sum[i], __shfl_xor_sync(~0u, sum[i], 2)));
            sum[i] = 0;
        }
        share += !WHOLE;
        end = WHOLE ? end + k_blocks / GPU_WARPS : k_blocks * (share + 1) / GPU_WARPS;
    }
    /* Closes what ends before k block k. */
    __device__ __forceinline__ void close_up_to(int k, int k_blocks, const float *row_scale) {
        if (WHOLE && k == end) close(k_blocks, row_scale);
        while (!WHOLE && share < GPU_WARPS && k == end) close(k_blocks, row_scale);
    }
};

/* What a warp does with its tiles, DEPTH k blocks at a time. WHOLE: the columns of each warp of gpu_run_tiles are whole sets, and these are an
   even number. */
template <class F, int DEPTH, bool WHOLE> struct gpu_batch_up_warp {
    enum { BLOCK = gpu_unit_block<F>(), pairs = gpu_step_pairs<F>() };
    const moe_gpu &p;
    uint4 *rows;                 /* the unit's rows, in shared memory, and their activation scales: of `space` k blocks at a time */
    int items, panels, parts, shared_units, space, before;  /* panels: moe_gpu.tile_panels; before: k blocks before those */

    __device__ __forceinline__ gpu_batch_up_warp(const moe_gpu &p, uint4 *rows)
        : p(p), rows(rows), items(0), panels(WHOLE ? 1 : p.tile_panels), parts((p.tiles + GPU_WARPS - 1) / GPU_WARPS),
          shared_units(gpu_shared_units(p)), space(WHOLE ? p.gate.k_blocks : p.batch.space), before(0) {}
    __device__ __forceinline__ gpu_unit unit_of(int item) const { return gpu_load_unit(p, shared_units + min(item, items - 1) / parts); }
    __device__ __forceinline__ int panel_of(int item) const { return (item % parts * GPU_WARPS + (int)threadIdx.x / 32) * panels; }
    __device__ __forceinline__ gpu_batch_tile<F> tile_of(int item, const gpu_unit &unit) const {
        return gpu_batch_tile_of<F, WHOLE>(p, unit.at, panel_of(min(item, items - 1)));
    }
    __device__ __forceinline__ void load(gpu_batch_weights<F> *set, const gpu_batch_tile<F> &of, int from, bool there) const {
#pragma unroll
        for (int j = 0; j < DEPTH; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int k = from + j;
                const bool is = there && (WHOLE || k < p.gate.k_blocks);
                F::load(&set[j].raw[i], of.data + (i ? of.to_second : 0) + from * F::panel, j * F::panel, is);
                if (gpu_scales_by_block<F>()) set[j].scale[i] = ld_volatile(of.scale + (i ? of.scale_to_second : 0) + (k >> p.gate.k_block_shift), is);
            }
        __syncwarp();                                       /* so that the compiler leaves the loads here */
    }
    /* Where it is applied to a sum: the scale of the lane's row, or of the matrix, of either. */
    __device__ __forceinline__ void load_row_scale(float *row_scale, int item, const gpu_unit &unit) const {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float *scale = (const float *)((const char *)(i ? p.up : p.gate).scale + unit.at);
            if (F::by_row) scale += min(panel_of(item) + i * (panels - 1), p.gate.panels - 1) * PANEL_ROWS + (int)threadIdx.x % 32 / 4;
            if (gpu_scaled_at_end<F>()) row_scale[i] = ld_volatile(scale) * gpu_post_scale<F>();
        }
    }
    __device__ __forceinline__ void multiply(gpu_batch_up_sums<F, WHOLE> *to, const gpu_batch_weights<F> *set, int from,
                                             const float *row_scale) const {
        const int lane = threadIdx.x % 32, k_blocks = p.gate.k_blocks, before = WHOLE ? 0 : this->before;
        const float *act_scales = (const float *)(rows + space * BLOCK) + lane % 2 * 2;            /* of the lane's rows */
#pragma unroll
        for (int j = 0; j < DEPTH; j++) {
            const int k = from + j;
            const uint4 *x = rows + (k - before) * BLOCK + lane;
            float part[4];
            uint4 columns[pairs];
            if (!WHOLE && k >= k_blocks) break;
#pragma unroll
            for (int i = 0; i < pairs; i++) columns[i] = x[i * 32];
            const float2 act = F::half ? *(const float2 *)(act_scales + (k - before) * N_TILE_ROWS) : make_float2(1, 1);
#pragma unroll
            for (int n = 0; n < gpu_block_parts<F>(); n++) {
                gpu_multiply_block<F>(part, set[j].raw, columns, n);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    const float of = i % 2 ? act.y : act.x;
                    if (F::groups) part[i] = __fmul_rn(part[i], gpu_row_scale<F>(set[j].raw[i / 2], n));
                    if (!F::half) to->sum[i] = __fadd_rn(to->sum[i], part[i]);
                    else to->sum[i] = __fmaf_rn(gpu_scales_by_block<F>() ? __fmul_rn(set[j].scale[i / 2], of * gpu_post_scale<F>()) : of, part[i],
                                                to->sum[i]);
                }
            }
            if (!WHOLE || j == DEPTH - 1) to->close_up_to(k + 1, k_blocks, row_scale);
        }
    }
    /* The item's rows, of k blocks from `from` on. */
    __device__ __forceinline__ void gather(int item, const gpu_unit &unit, int from, gpu_batch_up_shared<WHOLE> *own) {
        before = from;
        gpu_gather_rows<F, WHOLE>(p, shared_units + item / parts, unit.rows, from, WHOLE ? space : min(space, p.gate.k_blocks - from), space, rows,
                                  own);
    }
    /* The same where only some k blocks have space: when the block has multiplied those before. */
    __device__ __forceinline__ void gather_next(int item, const gpu_unit &unit, int from, gpu_batch_up_shared<WHOLE> *own) {
        if (WHOLE || from == 0 || from % space) return;
        __syncthreads();
        gather(item, unit, from, own);
        cp_async_wait<0>();
        __syncthreads();
    }
    /* h of the item's columns: gate and up of a row meet in a lane, as do two rows of experts without a gate. */
    __device__ __forceinline__ void put_h(gpu_batch_up_shared<WHOLE> *own, int item, const float *total) const {
        const int lane = threadIdx.x % 32;
        if (lane % 4 >= 2) return;
#pragma unroll 1
        for (int of = 0; of < panels; of++) {
            const int row = (panel_of(item) + of) * PANEL_ROWS + lane / 4;
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int slot = lane % 2 * 2 + i;
                const float gate = of ? total[i + 2] : total[i], up = panels == 1 ? total[i + 2] : gate;
                float h = 0;
                if (row < p.gate.rows)
                    h = epilogue_pair<!WHOLE>(p.end.act, p.gate, p.up, WHOLE ? 0 : own->at, row, gate, up, own->rms[slot]) * own->weight[slot];
                own->h[slot][(threadIdx.x / 32 * panels + of) * PANEL_ROWS + lane / 4] = h;
            }
        }
    }
    /* Stores h of the block's item before `item`. */
    __device__ __forceinline__ void store_h_before(int item, const gpu_batch_up_shared<WHOLE> *own) const {
        item -= (int)gridDim.x;
        if ((int)threadIdx.x / 32 != item % GPU_WARPS) return;
#pragma unroll 1
        for (int of = 0; of < panels; of++)
            gpu_store_h<gpu_batch_up_shared<WHOLE>::STRIDE>(p, item / parts, item % parts * panels + of, own->h[0] + of * BATCH_UP_COLS);
    }
};

/* A warp multiplies DEPTH k blocks while the next DEPTH are on their way, as in gpu_batch_down_units. */
template <class F, int DEPTH, bool WHOLE>
__device__ __forceinline__ void gpu_batch_up_items(const moe_gpu &p, uint4 *rows, gpu_batch_up_shared<WHOLE> *own) {
    gpu_batch_up_warp<F, DEPTH, WHOLE> warp(p, rows);
    gpu_batch_weights<F> ahead[2][DEPTH];
    const int k_blocks = p.gate.k_blocks;
    int item = (int)blockIdx.x;
    if (p.T <= STEP_ROWS) l2_prefetch_share(p.link.prefetch);        /* many rows' weights would take its place */
    pdl_wait();
    warp.items = (__ldcg(p.batch.count) - warp.shared_units) * warp.parts;
    if (item >= warp.items) return;
    gpu_unit unit = warp.unit_of(item), next_unit = unit;
    gpu_batch_tile<F> tile = warp.tile_of(item, unit);
    memset(ahead, 0, sizeof ahead);
    warp.load(ahead[0], tile, 0, true);
#pragma unroll 1
    for (; item < warp.items; item += (int)gridDim.x, unit = next_unit) {
        const bool more = item + (int)gridDim.x < warp.items;
        float row_scale[2] = {1, 1};
        if (!more) pdl_launch_dependents();
        next_unit = warp.unit_of(item + (int)gridDim.x);
        __syncthreads();                                    /* the rows are used, h of the item before is there */
        warp.gather(item, unit, 0, own);
        if (!WHOLE && threadIdx.x == 0) own->at = unit.at;
        if (item != (int)blockIdx.x) warp.store_h_before(item, own);
        warp.load_row_scale(row_scale, item, unit);
        cp_async_wait<0>();
        __syncthreads();
        gpu_batch_up_sums<F, WHOLE> sums(k_blocks);
        sums.close_up_to(0, k_blocks, row_scale);
#pragma unroll 1
        for (int from = 0; from < k_blocks; from += 2 * DEPTH) {
            const bool last = from + 2 * DEPTH >= k_blocks;
            warp.gather_next(item, unit, from, own);
            warp.load(ahead[1], tile, from + DEPTH, true);
            warp.multiply(&sums, ahead[0], from, row_scale);
            if (last) tile = warp.tile_of(item + (int)gridDim.x, next_unit);
            warp.load(ahead[0], tile, last ? 0 : from + 2 * DEPTH, !last || more);
            warp.multiply(&sums, ahead[1], from + DEPTH, row_scale);
        }
        warp.put_h(own, item, sums.total);
    }
    __syncthreads();
    warp.store_h_before(item, own);
}

/* Of whole sets, and of experts without biases and with SiLU alone. Of four bits registers hold four k blocks, or three, where the columns of a
   warp are no multiple of four; else two. */
template <class F, int DEPTH> __global__ void __launch_bounds__(GPU_THREADS, 2) gpu_batch_up(const __grid_constant__ moe_gpu p) {
    extern __shared__ uint4 dynamic[];
    __shared__ gpu_batch_up_shared<true> own;
    gpu_batch_up_items<F, DEPTH, true>(p, dynamic, &own);
}

/* Of any. */
static __global__ void __launch_bounds__(GPU_THREADS, 2) gpu_batch_up_any(const __grid_constant__ moe_gpu p) {
    extern __shared__ uint4 dynamic[];
    __shared__ gpu_batch_up_shared<false> own;
    with_format(p.gate.format, [&](auto format) { gpu_batch_up_items<decltype(format), 2, false>(p, dynamic, &own); });
}
