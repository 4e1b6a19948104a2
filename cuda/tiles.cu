/* cuda/tiles.cu: the loop over a block's tiles of a matrix: gpu_run_tiles for any shape, gpu_run_one_tile,
   gpu_run_short_tiles and gpu_run_tiles_by_warp for the columns of two models. Knows fragments and the hand-off between
   kernels; must not know stages: what a tile is, what is staged and what becomes of the sums is up to TILES and IN.

   A tile is 16 rows of W, two panels. The eight warps of a block split its columns (split-K): each has a range of k
   blocks and sums them in registers. The eight partials are then added in the order of the warps, so that every run
   gives the same bits.

   A warp keeps the loads of AHEAD k blocks of both panels, 4 KB, in flight, across tiles too: as soon as it has
   multiplied a k block, it loads a later one into the same registers. The first are loaded before the block waits for
   its predecessor, and the rest of its first tile is prefetched into the L2. */

/* Before compute capability 9.0 a load that may be absent is in a branch: predicated, it costs the kernels for any shape a
   stack frame. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
#define GPU_BRANCH_AROUND_LOADS 1
#else
#define GPU_BRANCH_AROUND_LOADS 0
#endif

/* The weights that a warp has in flight: AHEAD k blocks of both panels of a tile. */
template <class F, int ROWS> struct gpu_ahead {
    enum { scaled = F::scaled && !gpu_scaled_at_end<F>() };            /* by k block */
    int first, warp_k_blocks;    /* the warp's k blocks of every tile */
    gpu_place place;
    typename F::raw raw[AHEAD][2];
    float scale;                 /* of k block scale_slot() of those in flight */

    __device__ __forceinline__ int scale_slot() const { return threadIdx.x % 16 / ROWS % AHEAD; }
    /* Loads the warp's k block from + j, if it exists: there are `left` from `from` on. */
    __device__ __forceinline__ void load(int j, int from, int left) {
        if (GPU_BRANCH_AROUND_LOADS && j >= left) return;
#pragma unroll
        for (int half = 0; half < 2; half++)
            F::load(&raw[j][half], place.data[half] + (first + from) * F::panel, j * F::panel, j < left);
    }
    __device__ __forceinline__ void load_scale(const gpu_matrix &w, int from, int left) {
        if (scaled) scale = ld_volatile(place.scale + (first + from + scale_slot() >> w.k_block_shift), scale_slot() < left);
    }
    /* With the activation scale; post_scale goes to that, as a product with the other would wait for it. */
    __device__ __forceinline__ float scale_of(float act_scale) const {
        return scale * (scaled ? act_scale * gpu_post_scale<F>() : act_scale);
    }
    __device__ __forceinline__ void nothing(const gpu_matrix &w) {
        first = gpu_share(w.k_blocks, threadIdx.x / 32, GPU_WARPS, &warp_k_blocks);
        memset(&place, 0, sizeof place);
        memset(raw, 0, sizeof raw);
        scale = 1;
    }
    /* Loads the first k blocks of the block's first tile, if it has one. If there are more, one thread prefetches the
       tile into the L2. */
    template <class TILES> __device__ __forceinline__ void begin(const TILES &tiles, int tile, const gpu_matrix &w) {
        int left = tiles.valid(tile) ? warp_k_blocks : 0;
        if (left) place = tiles.template place<F>(tile);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) load(j, 0, left);
        load_scale(w, 0, left);
        if (threadIdx.x || !left || warp_k_blocks <= AHEAD) return;
        l2_prefetch(place.data[0], (uint32_t)(w.k_blocks * F::panel));
        l2_prefetch(place.data[1], (uint32_t)(w.k_blocks * F::panel));
    }
};

/* The loop over a block's tiles. TILES says what they are:
     next(tile), valid(tile)   the block's next tile; does this one exist
     place<F>(tile)            where this lane reads it
     before(tile, row, t)      what the sum is added to: loaded before it is known, and handed on to store
     store(tile, row, t, partials of the tile, before, rms)
     prepare(first, warp_k_blocks, act, square)   waits for the predecessor and stages the activations, unless that is done
   One thread for each of the 16 rows and T token rows calls before and store, threads of other warps from tile to tile; rms
   is the token row's factor where there is a norm. */
template <class F, int ROWS, class TILES>
__device__ __forceinline__ void gpu_run_tiles(const TILES &tiles, int tile, const gpu_matrix &w, int T, void *memory,
                                              warp_partials *partials, gpu_ahead<F, ROWS> &ahead) {
    const int pairs = gpu_step_pairs<F>(), lane = threadIdx.x % 32, turns = GPU_THREADS / (TILE_ROWS * STEP_ROWS);
    const int row = threadIdx.x % TILE_ROWS, t = threadIdx.x / TILE_ROWS % STEP_ROWS;
    const int turn = threadIdx.x / (TILE_ROWS * STEP_ROWS); /* this thread stores tiles with n % turns == turn */
    const int first = ahead.first, warp_k_blocks = ahead.warp_k_blocks, rounds = (warp_k_blocks + AHEAD - 1) / AHEAD;
    const int scale_slot = ahead.scale_slot();
    const activation_fragments act = activation_fragments_at<F, ROWS>(memory, w.k_blocks);
    const uint4 *fragments = gpu_lane_fragments<F, ROWS>(act) + first * pairs * 8 * ROWS;
    const float *act_scale = act.act_scale + (first + scale_slot) * ROWS + lane % ROWS;
    float rms = 1, square[ROWS] = {};
    tiles.template prepare<F, ROWS>(first, warp_k_blocks, act, square);
    for (int n = 0; tiles.valid(tile); n++) {
        int next = tiles.next(tile);
        bool more = tiles.valid(next), stores = n % turns == turn && t < T;
        float sum[4] = {0, 0, 0, 0}, before = 0;
        row_scales rows = {};
        if (stores) before = tiles.before(tile, row, t);
        for (int r = 0; r < rounds; r++) {
            bool last = r == rounds - 1;
            int from = last ? 0 : (r + 1) * AHEAD, left = last ? (more ? warp_k_blocks : 0) : warp_k_blocks - from;
            float factor = 0;
            if (F::half && r * AHEAD + scale_slot < warp_k_blocks) factor = ahead.scale_of(act_scale[r * AHEAD * ROWS]);
            if (last) rows.load<F>(ahead.place);
            if (last && more) ahead.place = tiles.template place<F>(next);
            ahead.load_scale(w, from, left);
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                uint4 x[pairs];
                bool there = r * AHEAD + j < warp_k_blocks;
                const uint4 *at = fragments + (there ? r * AHEAD + j : 0) * pairs * 8 * ROWS;
#pragma unroll
                for (int pair = 0; pair < pairs; pair++) x[pair] = at[pair * 8 * ROWS];
                gpu_multiply<F, ROWS, 2, F::groups>(sum, ahead.raw[j], x, factor, j * ROWS, 16, there);
                ahead.load(j, from, left);
            }
        }
        rows.apply<F>(sum);
        store_warp_partial<ROWS>(partials->tile[n % 2], sum);
        if (n == 0 && TILES::normed) store_warp_squares<ROWS>(partials, square);
        __syncthreads();
        if (n == 0 && TILES::normed && t < ROWS) rms = gpu_rms_factor(partials, t, tiles.per_col(), tiles.eps());
        if (stores) tiles.store(tile, row, t, partials->tile[n % 2], before, rms);
        tile = next;
    }
}

/* The shapes with kernels of their own: hidden size, columns of out_proj and o_proj, of an expert's down_proj, experts of a row, and
   LISTS * 256: most experts to choose from. All other shapes run through the kernels for any shape. Of Coder-Next there is
   experts_up alone, for one row: its projections are 35B's, its experts_down is gpu_experts_down_lone. Those of Flash-Next are for one row,
   too; its experts_down is gpu_experts_down_dealt. */
struct shape_35b_a3b { enum { HIDDEN = 2048, OUT = 4096, EXPERT = 512, TOP_K = 8, LISTS = 1 }; };
struct shape_122b_a10b { enum { HIDDEN = 3072, OUT = 8192, EXPERT = 1024, TOP_K = 8, LISTS = 1 }; };
struct shape_coder_next { enum { HIDDEN = 2048, EXPERT = 512, TOP_K = 10, LISTS = 2 }; };
struct shape_flash_next { enum { HIDDEN = 2560, OUT = 6144, EXPERT = 640, TOP_K = 10, LISTS = 2 }; };
struct shape_nemotron { enum { HIDDEN = 2688, OUT = 4096 }; };          /* projections of one row after a norm alone: others are 35B's */

template <class F> constexpr bool gpu_has_lone_up() {
    return std::is_same<F, format_mxfp4>::value || std::is_same<F, format_nvfp4>::value || std::is_same<F, format_fp8_row>::value;
}

/* Whether there is, for this format, a kernel of one row of a mixture of experts for other shapes: gpu_experts_down_lone; gpu_experts_up_lone. */
template <class F> constexpr bool gpu_has_lone() {
    return F::whole || gpu_scales_by_block<F>() || gpu_has_lone_up<F>();
}

/* A warp's part of a tile of COLS columns, which are WARP_K_BLOCKS whole k blocks for each of the eight warps: the same sums in the
   same order as gpu_run_tiles, sooner. RAGGED: the warps do not have as many k blocks, which is a number that each knows; what one
   has less is not loaded, and counts 0. ROWS is gpu_fixed_rows(T). DEPTH of the k blocks are in registers, in flight or arrived:
   all if they are no more than MAX_IN_FLIGHT, which depends on what else a kernel has in registers.

   Why it is fast: what a block does once, from its wait on, is straight-line code. In front of a loop or a branch the
   compiler waits for all loads in flight, so that x, loaded after the weights, would arrive only after them. */
template <class F, int COLS, int ROWS, int MAX_IN_FLIGHT> struct fixed_tile {
    enum {
        K_BLOCKS = COLS / (4 * F::per_load), RAGGED = K_BLOCKS % GPU_WARPS != 0, MOST = (K_BLOCKS - 1) / GPU_WARPS + 1,
        WARP_K_BLOCKS = RAGGED && MOST > MAX_IN_FLIGHT ? (MOST + 3) / 4 * 4 : MOST,
        DEPTH = WARP_K_BLOCKS <= MAX_IN_FLIGHT ? WARP_K_BLOCKS : MAX_IN_FLIGHT < 3 ? MAX_IN_FLIGHT : WARP_K_BLOCKS % 4 == 0 ? 4 :
                                                                WARP_K_BLOCKS % 3 == 0 ? 3 : 5,
        PARTS = (WARP_K_BLOCKS * F::per_load / 2 + 31) / 32,  /* items of eight columns of a lane */
        ROUNDS = WARP_K_BLOCKS / DEPTH,
        FACTOR_SPAN = ROUNDS > 1 ? (int)DEPTH : 16 / ROWS,  /* k blocks whose factors share a register */
        FACTORS = (WARP_K_BLOCKS - 1) / FACTOR_SPAN + 1, pairs = gpu_step_pairs<F>()
    };
    static_assert(K_BLOCKS * 4 * F::per_load == COLS && ROUNDS * DEPTH == WARP_K_BLOCKS, "whole k blocks, whole rounds");
    static_assert(!F::half || (int)FACTOR_SPAN * ROWS <= 16, "a lane for each factor");
    gpu_place place;             /* of the warp's k blocks in this round */
    typename F::raw raw[DEPTH][2];
    /* Of k block scale_slot(k): its scale for panel lane / 16, and the activation scale of token row lane % 16 % ROWS, in which
       F::post_scale is, as a product with the scale would wait for that. Where k blocks have no scales, BY_LANE, a lane has the
       activation scales of its own two token rows for each k block. */
    enum { SCALED = F::scaled && !gpu_scaled_at_end<F>(), BY_LANE = F::half && !SCALED && ROUNDS == 1 };
    float scale[FACTORS], act_scale[BY_LANE ? (int)WARP_K_BLOCKS : (int)FACTORS][2];
    row_scales rows;

    template <class IN> __host__ __device__ static constexpr int at_once() {        /* three are one round, not two */
        return (int)PARTS == 3 && ROWS == 1 ? 3 : IN::template at_once<ROWS>() < PARTS ? IN::template at_once<ROWS>() : PARTS;
    }
    /* The warp's first k block, how many it has, and whether it has number k. */
    __device__ __forceinline__ static int first() { return RAGGED ? K_BLOCKS * (threadIdx.x / 32) / GPU_WARPS : threadIdx.x / 32 * WARP_K_BLOCKS; }
    __device__ __forceinline__ static bool has(int k) { return !RAGGED || k < K_BLOCKS / GPU_WARPS || k < count(); }
    __device__ __forceinline__ static int count() { return RAGGED ? (int)(K_BLOCKS * (threadIdx.x / 32 + 1) / GPU_WARPS) - first() : WARP_K_BLOCKS; }
    __device__ __forceinline__ fixed_tile() {
        if (RAGGED) memset(raw, 0, sizeof raw);
    }
    __device__ __forceinline__ static int scale_slot(int k) { return k * FACTOR_SPAN + threadIdx.x % 16 / ROWS; }
    /* Goes to the tile whose first k block is at `at`. */
    __device__ __forceinline__ void move(const gpu_place &at) {
        place = at;
        place.data[0] += first() * F::panel;                /* so that loads from there on need no arithmetic */
        place.data[1] += first() * F::panel;
    }
    __device__ __forceinline__ void load_scale(const gpu_matrix &w) {
        rows.load<F>(place);
#pragma unroll
        for (int k = 0; k < FACTORS; k++)
            scale[k] = SCALED ? ld_volatile(place.scale + (first() + scale_slot(k) >> w.k_block_shift),
                                            scale_slot(k) < count()) : 1;
    }
    /* Loads the warp's k block j of the round that begins with k block `from`, if it is `there`. */
    __device__ __forceinline__ void load(int j, bool there = true, int from = 0) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            F::load(&raw[j][half], place.data[half], j * F::panel, there && has(from + j));
    }
    __device__ __forceinline__ void load_act_scale(const activation_fragments &x) {
        if constexpr (BY_LANE) {
#pragma unroll
            for (int k = 0; k < WARP_K_BLOCKS; k++)
#pragma unroll
                for (int i = 0; i < (ROWS == 1 ? 1 : 2); i++)
                    act_scale[k][i] = has(k) ? x.act_scale[(first() + k) * ROWS + min((int)threadIdx.x % 2 * 2 + i, ROWS - 1)] : 0;
        } else if constexpr (F::half) {
#pragma unroll
            for (int k = 0; k < FACTORS; k++)
                act_scale[k][0] = scale_slot(k) < count() ?
                                      x.act_scale[(first() + scale_slot(k)) * ROWS + threadIdx.x % 16 % ROWS] *
                                                        (SCALED ? gpu_post_scale<F>() : 1) : 0;
        }
    }
    /* sum += the tile times the token rows, in rounds of DEPTH k blocks. The registers of a k block that has been multiplied
       get that of the next round: of this tile or, if there are `more`, of the next. next() moves to that, or else may move to
       any tile: it is no branch, as before one the compiler waits for loads. TILES: there may be a next one. */
    template <bool TILES, class NEXT>
    __device__ __forceinline__ void multiply(const uint4 *fragments, float *sum, bool more, const NEXT &next) {
        const row_scales of_tile = rows;
        float factor[FACTORS];
#pragma unroll
        for (int k = 0; k < FACTORS; k++) factor[k] = BY_LANE || !F::half ? 0 : scale[k] * act_scale[k][0];
        fragments += first() * pairs * 8 * ROWS;
#pragma unroll 1
        for (int round = 0; round < ROUNDS; round++, fragments += DEPTH * pairs * 8 * ROWS) {
            const bool last = round == ROUNDS - 1;
            float of_round = factor[0];
#pragma unroll
            for (int k = 1; ROUNDS > 1 && k < FACTORS; k++) of_round = round == k ? factor[k] : of_round;
            if (!last) {
                place.data[0] += DEPTH * F::panel;
                place.data[1] += DEPTH * F::panel;
            } else {
                next();
            }
#pragma unroll
            for (int j = 0; j < DEPTH; j++) {
                uint4 x[pairs];
                const bool there = has((ROUNDS > 1 ? round * DEPTH : 0) + j);
                const int at = there ? j : ROUNDS > 1 ? -round * DEPTH : 0;  /* in place of what is not the warp's its first k block */
#pragma unroll
                for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[(at * pairs + pair) * 8 * ROWS];
                gpu_multiply<F, ROWS, 2, F::groups>(sum, raw[j], x, ROUNDS > 1 ? of_round : factor[j / FACTOR_SPAN],
                                                    j % FACTOR_SPAN * ROWS, 16, there, BY_LANE ? act_scale[j] : NULL);
                if (!TILES && ROUNDS == 1) continue;
                load(j, !last || more, last ? 0 : (round + 1) * DEPTH);
                __syncwarp();                               /* so that the compiler leaves the loads here */
            }
        }
        of_tile.apply<F>(sum);
    }
};

/* The token rows of a fixed_tile: of its items, a lane has as many in registers as the prologue says. */
template <class TILE, class F, int ROWS, class IN>
struct fixed_columns : row_columns<F, ROWS, TILE::template at_once<IN>(), IN> {
    enum { AT_ONCE = TILE::template at_once<IN>() };
    __device__ __forceinline__ fixed_columns(const IN &in)
        : row_columns<F, ROWS, AT_ONCE, IN>(in, ROWS, TILE::first(), TILE::count()) {}
    /* Stages all items, the first of which are loaded. The others are polled for: a caller that has waited has no tag. */
    __device__ __forceinline__ void stage_all(const activation_fragments &to, float *square, const gpu_tag &tag) {
#pragma unroll
        for (int begin = 0; begin < TILE::PARTS * 32; begin += 32 * AT_ONCE) {
            if constexpr (IN::normed) {
                if (begin) this->poll(begin, tag);
            } else {
                if (begin) this->load(begin);
            }
            this->stage(begin, to, square, true);
        }
        __syncwarp();
    }
};

/* A block's only tile. PRELOAD of its k blocks are loaded before the wait: all of them would slow down the predecessor,
   which still loads what it needs, unless it loads little (IN::all_early). With one row the rest is loaded right after x. With
   several rows (DEFER) it is loaded when x has left its registers. Of what is loaded later than x an L2 prefetch is on its way.

   norm_router, whose logits all blocks of experts_up poll for, does not wait (p.waits_last): it polls for x, which is
   tagged (see gpu_tag), and stores the logits as soon as it can, and the shared expert's h. Its blocks start so early that
   their weights have arrived before x, so the polling loop, in front of which the compiler waits for them, costs nothing. The
   wait comes last, as the end of a kernel must imply the end of all before it. */
template <class F, int COLS, int ROWS, class IN, class TILES>
__device__ __forceinline__ void gpu_run_one_tile(const TILES &tiles, const IN &in, int tile, const gpu_matrix &w,
                                                 void *memory, warp_partials *partials) {
    typedef fixed_tile<F, COLS, ROWS, 8> sizes;
    enum { DEFER = ROWS > 1, HAS_RESIDUAL = !TILES::normed, DEPTH = sizes::DEPTH };  /* HAS_RESIDUAL: there may be a residual */
    enum { FEW = DEFER || (HAS_RESIDUAL && !IN::all_early), MAX_PRELOAD = ROWS > 2 ? 4 : FEW ? 5 : 8 };
    enum { PRELOAD = MAX_PRELOAD < DEPTH ? MAX_PRELOAD : DEPTH };
    const int row = threadIdx.x % TILE_ROWS, t = threadIdx.x / TILE_ROWS;
    const activation_fragments act = activation_fragments_at<F, ROWS>(memory, w.k_blocks);
    const uint4 *fragments = gpu_lane_fragments<F, ROWS>(act);
    const bool stores = t < gpu_rows_there<ROWS>(tiles.p.T);
    sizes weights;
    fixed_columns<sizes, F, ROWS, IN> x(in);
    float sum[4] = {0, 0, 0, 0}, square[ROWS] = {}, before = 0, rms = 1;
    weights.move(tiles.template place<F>(tile));
    if ((DEFER || sizes::ROUNDS > 1) && threadIdx.x == 0) {
        l2_prefetch(weights.place.data[0], (uint32_t)(w.k_blocks * F::panel));
        l2_prefetch(weights.place.data[1], (uint32_t)(w.k_blocks * F::panel));
    }
#pragma unroll
    for (int j = 0; j < PRELOAD; j++) weights.load(j);
    weights.load_scale(w);
    if constexpr (!TILES::normed && IN::prefetches) l2_prefetch_share(tiles.p.link.prefetch);
    if constexpr (TILES::normed) {
        if (tiles.waits_last()) pdl_launch_dependents();
        else tiles.wait();
        x.poll(0, tiles.p.link.await);
    } else {
        tiles.wait();
        x.load(0);
        __syncwarp();                                       /* so that the compiler leaves the weights after x */
    }
#pragma unroll
    for (int j = DEFER ? DEPTH : PRELOAD; j < DEPTH; j++) weights.load(j);
    if (HAS_RESIDUAL && !DEFER && stores) before = tiles.before(tile, row, t);
    x.stage_all(act, square, tiles.p.link.await);
#pragma unroll
    for (int j = DEFER ? PRELOAD : DEPTH; j < DEPTH; j++) weights.load(j);
    if (HAS_RESIDUAL && DEFER && stores) before = tiles.before(tile, row, t);
    weights.load_act_scale(act);
    weights.template multiply<false>(fragments, sum, false, [] {});
    store_warp_partial<ROWS>(partials->tile[0], sum);
    if (TILES::normed) store_warp_squares<ROWS>(partials, square);
    __syncthreads();
    if (stores && TILES::normed) rms = gpu_rms_factor(partials, t, tiles.per_col(), tiles.eps());
    if (stores) tiles.store(tile, row, t, partials->tile[0], before, rms);
    if (TILES::normed && tiles.waits_last()) pdl_wait();
}

/* All tiles of a block, as in gpu_run_tiles, DEPTH k blocks of a tile in flight, at most MAX_IN_FLIGHT if a warp has many.

   Speculative load: half of the blocks start when the predecessor is nearly done. With one row they load x before their
   weights, without waiting, and reload only what did not have its tag yet: after the wait or, where that comes last
   (p.waits_last), by polling. */
template <class F, int COLS, int ROWS, int MAX_IN_FLIGHT, class IN, class TILES>
__device__ __forceinline__ void gpu_run_short_tiles(const TILES &tiles, const IN &in, int tile, const gpu_matrix &w,
                                                    void *memory, warp_partials *partials) {
    enum { SPECULATIVE = TILES::normed && ROWS == 1 };
    typedef fixed_tile<F, COLS, ROWS, MAX_IN_FLIGHT> sizes;
    const int row = threadIdx.x % TILE_ROWS, t = threadIdx.x / TILE_ROWS % STEP_ROWS;
    const int turns = GPU_THREADS / (TILE_ROWS * STEP_ROWS), turn = threadIdx.x / (TILE_ROWS * STEP_ROWS);
    const activation_fragments act = activation_fragments_at<F, ROWS>(memory, w.k_blocks);
    const uint4 *fragments = gpu_lane_fragments<F, ROWS>(act);
    sizes weights;
    fixed_columns<sizes, F, ROWS, IN> x(in);
    float square[ROWS] = {}, rms = 1;
    if (SPECULATIVE) x.load(0);
    weights.move(tiles.template place<F>(tile));
    if (!F::half && sizes::ROUNDS > 1 && threadIdx.x == 0) {
        l2_prefetch(weights.place.data[0], (uint32_t)(w.k_blocks * F::panel));
        l2_prefetch(weights.place.data[1], (uint32_t)(w.k_blocks * F::panel));
    }
#pragma unroll
    for (int j = 0; j < sizes::DEPTH; j++) weights.load(j);
    weights.load_scale(w);
    if (TILES::normed && tiles.waits_last()) {
        pdl_launch_dependents();
        if (!SPECULATIVE) x.load(0);
        x.await(0, tiles.p.link.await);
    } else {
        tiles.wait();
        if constexpr (SPECULATIVE) x.reload_mismatched(0, tiles.p.link.await);
        else x.load(0);
    }
    x.stage_all(act, square, tiles.p.link.await);
    if (TILES::normed) store_warp_squares<ROWS>(partials, square);
    weights.load_act_scale(act);
#pragma unroll 1
    for (int n = 0; tiles.valid(tile); n++) {
        const int next = tiles.next(tile);
        const bool more = tiles.valid(next), stores = n % turns == turn && t < gpu_rows_there<ROWS>(tiles.p.T);
        const float before = stores ? tiles.before(tile, row, t) : 0;
        float sum[4] = {0, 0, 0, 0};
        weights.template multiply<true>(fragments, sum, more, [&] {
            weights.move(tiles.template place<F>(more ? next : tile));
            weights.load_scale(w);
        });
        store_warp_partial<ROWS>(partials->tile[n % 2], sum);
        __syncthreads();
        if (n == 0 && TILES::normed) rms = gpu_rms_factor(partials, t, tiles.per_col(), tiles.eps());
        if (stores) tiles.store(tile, row, t, partials->tile[n % 2], before, rms);
        tile = next;
    }
    if (TILES::normed && tiles.waits_last()) pdl_wait();
}

/* Whether gpu_run_tiles_by_warp is used: where it was measured, and ptxas keeps all it needs in registers. Without it ptxas spills a
   register of the same kernel on sm_90a. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ / 100 == 9
#define GPU_TILES_BY_WARP 1
#else
#define GPU_TILES_BY_WARP 0
#endif

/* All tiles of a matrix that has many for each warp, as lm_head, times one token row, after a norm: a warp has tiles of its
   own, with all their columns. So no warp waits for the others, and what is done once a tile is done an eighth as often. The
   same bits: a warp sums the columns that each warp has of a tile of gpu_run_short_tiles by themselves, and then adds these sums
   in the order of the warps. For formats that have one scale for all of a matrix. Not for several rows: it gains them nothing, and
   the kernel, twice as large, is a hundredth slower with other formats. */
template <class F, int COLS, class IN, class TILES>
__device__ __forceinline__ void gpu_run_tiles_by_warp(const TILES &tiles, const IN &in, int tile, const gpu_matrix &w,
                                                      void *memory, warp_partials *partials) {
    typedef fixed_tile<F, COLS, 1, 6> share;                /* of a warp, if the warps split a tile */
    enum { WARP_K_BLOCKS = share::WARP_K_BLOCKS, DEPTH = WARP_K_BLOCKS <= 4 ? 2 * WARP_K_BLOCKS : WARP_K_BLOCKS, pairs = gpu_step_pairs<F>() };
    enum { PANEL = GPU_WARPS * WARP_K_BLOCKS * F::panel };           /* bytes of a row panel */
    const int lane = threadIdx.x % 32, step = GPU_WARPS * tiles.step();
    const activation_fragments act = activation_fragments_at<F, 1>(memory, w.k_blocks);
    const uint4 *fragments = gpu_lane_fragments<F, 1>(act);
    fixed_columns<share, F, 1, IN> x(in);
    typename F::raw raw[DEPTH][2];
    row_scales rows;
    float square[1] = {};
    tile += threadIdx.x / 32 * tiles.step();
    const gpu_place place = tiles.template place<F>(tile);
    const char *at = place.data[0];                         /* of the round; the tile's second panel lies after its first */
    auto load = [&](int j, bool there) {
#pragma unroll
        for (int half = 0; half < 2; half++) F::load(&raw[j][half], at, half * PANEL + j * F::panel, there);
    };
#pragma unroll
    for (int j = 0; j < DEPTH; j++) load(j, true);
    rows.load<F>(place);
    tiles.wait();
    x.load(0);
    x.stage_all(act, square, tiles.p.link.await);
    store_warp_squares<1>(partials, square);
    __syncthreads();
    const float rms = gpu_rms_factor(partials, 0, tiles.per_col(), tiles.eps());
#pragma unroll 1
    for (; tiles.valid(tile); tile += step) {
        const bool more = tiles.valid(tile + step);
        float sum[4] = {0, 0, 0, 0}, all[4] = {0, 0, 0, 0};
#pragma unroll 1
        for (int k_block = 0; k_block < GPU_WARPS * WARP_K_BLOCKS; k_block += DEPTH) {
            const bool last = k_block == GPU_WARPS * WARP_K_BLOCKS - DEPTH;
            at += DEPTH * F::panel + (last ? (2 * (int64_t)step - 1) * PANEL : 0);      /* where its next tile begins */
#pragma unroll
            for (int j = 0; j < DEPTH; j++) {
                uint4 columns[pairs];
#pragma unroll
                for (int pair = 0; pair < pairs; pair++) columns[pair] = fragments[((k_block + j) * pairs + pair) * 8];
                gpu_multiply<F, 1, 2, F::groups>(sum, raw[j], columns, 0, 0, 0, true, &act.act_scale[k_block + j]);
                load(j, !last || more);
                __syncwarp();                               /* so that the compiler leaves the loads here */
                if (j % WARP_K_BLOCKS < WARP_K_BLOCKS - 1) continue;
                rows.apply<F>(sum);
                add_terms<1>(sum);
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    all[i] += sum[i];
                    sum[i] = 0;
                }
            }
        }
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (lane % 4 == 0) tiles.put(tile * TILE_ROWS + half * PANEL_ROWS + lane / 4, 0, all[2 * half], rms, 0);
    }
}
