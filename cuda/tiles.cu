/* cuda/tiles.cu: the loop over a block's tiles of a matrix: gpu_run_tiles for any shape, gpu_run_one_tile and
   gpu_run_short_tiles for whole k blocks in fixed numbers. Knows fragments and the hand-off between kernels; must not
   know stages: what a tile is, what is staged and what becomes of the sums is up to TILES and IN.

   A tile is 16 rows of W, two panels. The eight warps of a block split its columns (split-K): each has a range of k
   blocks and sums them in registers. The eight partials are then added in the order of the warps, so that every run
   gives the same bits.

   A warp keeps the loads of AHEAD k blocks of both panels, 4 KB, in flight, across tiles too: as soon as it has
   multiplied a k block, it loads a later one into the same registers. The first are loaded before the block waits for
   its predecessor, and the rest of its first tile is prefetched into the L2. */

/* The weights that a warp has in flight: AHEAD k blocks of both panels of a tile. */
template <int ROWS> struct gpu_ahead {
    int first, mine;             /* the warp's k blocks of every tile */
    gpu_place place;
    uint4 raw[AHEAD][2];
    float scale;                 /* of k block piece() of those in flight */

    __device__ __forceinline__ int piece() const { return threadIdx.x % 16 / ROWS % AHEAD; }
    /* Loads the warp's k block from + j, if it exists: there are `left` from `from` on. */
    __device__ __forceinline__ void load(int j, int from, int left) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            if (j < left)
                raw[j][half] = __ldcs((const uint4 *)(place.data[half] + (first + from) * PANEL_BYTES) +
                                      j * (PANEL_BYTES / 16));
    }
    __device__ __forceinline__ void load_scale(const gpu_matrix &w, int from, int left) {
        if (w.scale && piece() < left) scale = __ldg(place.scale + (first + from + piece() >> w.k_block_shift));
    }
    __device__ __forceinline__ void nothing(const gpu_matrix &w) {
        first = gpu_share(w.k_blocks, threadIdx.x / 32, GPU_WARPS, &mine);
        memset(&place, 0, sizeof place);
        memset(raw, 0, sizeof raw);
        scale = 1;
    }
    /* Loads the first k blocks of the block's first tile, if it has one. If there are more, one thread prefetches the
       tile into the L2. */
    template <class TILES> __device__ __forceinline__ void begin(const TILES &tiles, int tile, const gpu_matrix &w) {
        int left = tiles.valid(tile) ? mine : 0;
        if (left) place = tiles.place(tile);
#pragma unroll
        for (int j = 0; j < AHEAD; j++) load(j, 0, left);
        load_scale(w, 0, left);
        if (threadIdx.x || !left || mine <= AHEAD) return;
        l2_prefetch(place.data[0], (uint32_t)(w.k_blocks * PANEL_BYTES));
        l2_prefetch(place.data[1], (uint32_t)(w.k_blocks * PANEL_BYTES));
    }
};

/* The loop over a block's tiles. TILES says what they are:
     next(tile), valid(tile)   the block's next tile; does this one exist
     place(tile)               where this lane reads it
     old(tile, row, t)         what is loaded before the sum is known, and handed on to store
     store(tile, row, t, partials of the tile, old, rms)
     prepare(first, mine, act, square)   waits for the predecessor and stages the activations, unless that is done
   One thread for each of the 16 rows and T token rows calls old and store, threads of other warps from tile to tile; rms
   is the token row's factor where there is a norm. */
template <class F, int ROWS, class TILES>
__device__ __forceinline__ void gpu_run_tiles(const TILES &tiles, int tile, const gpu_matrix &w, int T, void *memory,
                                              warp_partials *partials, gpu_ahead<ROWS> &ahead) {
    const int pairs = gpu_step_pairs<F>(), lane = threadIdx.x % 32, turns = GPU_THREADS / (TILE_ROWS * GPU_ROWS);
    const int row = threadIdx.x % TILE_ROWS, t = threadIdx.x / TILE_ROWS % GPU_ROWS;
    const int turn = threadIdx.x / (TILE_ROWS * GPU_ROWS);  /* this thread stores tiles with n % turns == turn */
    const int first = ahead.first, mine = ahead.mine, rounds = (mine + AHEAD - 1) / AHEAD, piece = ahead.piece();
    const activation_fragments act = activation_fragments_at<F, ROWS>(memory, w.k_blocks);
    const uint4 *fragments = gpu_lane_fragments<F, ROWS>(act) + first * pairs * 8 * ROWS;
    const float *act_scale = act.act_scale + (first + piece) * ROWS + lane % ROWS;
    float rms = 1, square[ROWS] = {};
    tiles.template prepare<F, ROWS>(first, mine, act, square);
    for (int n = 0; tiles.valid(tile); n++) {
        int next = tiles.next(tile);
        bool more = tiles.valid(next), stores = n % turns == turn && t < T;
        float sum[4] = {0, 0, 0, 0}, old = 0;
        if (stores) old = tiles.old(tile, row, t);
        for (int r = 0; r < rounds; r++) {
            bool last = r == rounds - 1;
            int from = last ? 0 : (r + 1) * AHEAD, left = last ? (more ? mine : 0) : mine - from;
            float factor = 0;
            if (F::half && r * AHEAD + piece < mine) factor = ahead.scale * act_scale[r * AHEAD * ROWS];
            if (last && more) ahead.place = tiles.place(next);
            if (F::scaled) ahead.load_scale(w, from, left);
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                uint4 x[pairs];
                bool there = r * AHEAD + j < mine;
                const uint4 *at = fragments + (there ? r * AHEAD + j : 0) * pairs * 8 * ROWS;
#pragma unroll
                for (int pair = 0; pair < pairs; pair++) x[pair] = at[pair * 8 * ROWS];
                gpu_multiply<F, ROWS>(sum, ahead.raw[j], x, factor, j * ROWS, 16, there);
                ahead.load(j, from, left);
            }
        }
        store_warp_partial<ROWS>(partials->tile[n % 2], sum);
        if (n == 0 && TILES::normed) store_warp_squares<ROWS>(partials, square);
        __syncthreads();
        if (n == 0 && TILES::normed && t < ROWS) rms = gpu_rms_factor(partials, t, tiles.per_col(), tiles.eps());
        if (stores) tiles.store(tile, row, t, partials->tile[n % 2], old, rms);
        tile = next;
    }
}

/* A warp's part of a tile, for rows of whole k blocks, MINE to each of the eight warps: the same sums in the same order
   as gpu_run_tiles, sooner. ROWS is T exactly.

   Why it is fast: what a block does once, from its wait on, is straight-line code. In front of a loop or a branch the
   compiler waits for all loads in flight, so that x, loaded behind the weights, would arrive only after them. */
template <class F, int MINE, int ROWS> struct gpu_short {
    enum { COLS = 4 * F::per_load, LANES = COLS / 8, PARTS = MINE * LANES / 32, pairs = gpu_step_pairs<F>() };
    enum { EACH = 16 / ROWS, FACTORS = (MINE - 1) / EACH + 1 };     /* k blocks whose factors share a register; registers */
    gpu_place place;
    uint4 raw[MINE][2];
    float scale[FACTORS];        /* of k block piece(k), for panel lane / 16 */

    __device__ __forceinline__ static int first() { return threadIdx.x / 32 * MINE; }
    __device__ __forceinline__ static int piece(int k) { return k * EACH + threadIdx.x % 16 / ROWS; }
    __device__ __forceinline__ void load(int j) {
#pragma unroll
        for (int half = 0; half < 2; half++)
            raw[j][half] = __ldcs((const uint4 *)(place.data[half] + (first() + j) * PANEL_BYTES));
    }
    __device__ __forceinline__ void load_scale(const gpu_matrix &w) {
#pragma unroll
        for (int k = 0; k < FACTORS; k++)
            scale[k] = F::scaled && piece(k) < MINE ? __ldg(place.scale + (first() + piece(k) >> w.k_block_shift)) : 1;
    }
    /* This lane's columns of the token rows: PARTS groups of eight, AT_ONCE of them in registers at a time. */
    template <class IN> struct columns {
        enum { MOST = IN::template at_once<ROWS>(), AT_ONCE = MOST < PARTS ? MOST : PARTS };
        float v[AT_ONCE][ROWS][8];
        typename IN::template more<ROWS> more[AT_ONCE];
        __device__ __forceinline__ static int column(int part) {
            return first() * COLS + (part * 32 + (int)threadIdx.x % 32) * 8;
        }
        __device__ __forceinline__ void load(const IN &in, int from) {
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++) in.template load<ROWS>(v[n], &more[n], ROWS, column(from + n));
        }
        /* Loads again the groups whose tags do not match; all if there is no tag. Predicated, not a branch. */
        __device__ __forceinline__ void reload_mismatched(const IN &in, const gpu_tag &tag) {
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
                for (int t = 0; t < ROWS; t++)
                    if (!tag.mask || tag_mismatch(v[n][t], 8, tag)) in.load_row(v[n][t], ROWS, t, column(n));
        }
        /* Does a tag not match, on any lane of the warp? */
        __device__ __forceinline__ bool mismatch(const gpu_tag &tag) const {
            uint32_t other = 0;
#pragma unroll
            for (int n = 0; n < AT_ONCE; n++)
#pragma unroll
                for (int t = 0; t < ROWS; t++) other |= tag_mismatch(v[n][t], 8, tag);
            return __any_sync(~0u, other);
        }
        /* Polls until all tags match. Without a tag it only loads. */
        __device__ __forceinline__ void spin(const IN &in, const gpu_tag &tag) {
            load(in, 0);
#pragma unroll 1
            while (mismatch(tag)) {
                spin_until_tagged(in.x + first() * COLS, tag);
                load(in, 0);
            }
        }
        __device__ __forceinline__ void stage_rows(const IN &in, const activation_fragments &to, float *square) {
#pragma unroll
            for (int from = 0; from < PARTS; from += AT_ONCE) {
                if (from) load(in, from);
#pragma unroll
                for (int n = 0; n < AT_ONCE; n++) {
                    int part = (from + n) * 32 + threadIdx.x % 32;
                    in.template finish<ROWS>(v[n], &more[n], square, true);
#pragma unroll
                    for (int t = 0; t < ROWS; t++) {
                        float act_scale = activation_scale<F>(v[n][t]);
                        gpu_put_columns<F, ROWS>(to, first() + part / LANES, part % LANES, t, v[n][t], act_scale);
                    }
                }
            }
            __syncwarp();
        }
    };
    /* The activation scale of k block piece(k) of token row lane % 16 % ROWS. */
    __device__ __forceinline__ float act_scale(const activation_fragments &x, int k) const {
        return F::half && piece(k) < MINE ? x.act_scale[(first() + piece(k)) * ROWS + threadIdx.x % 16 % ROWS] : 0;
    }
    /* sum += k block j of the tile times the token rows. */
    __device__ __forceinline__ void multiply(int j, const uint4 *fragments, const float *factor, float *sum) const {
        uint4 x[pairs];
#pragma unroll
        for (int pair = 0; pair < pairs; pair++) x[pair] = fragments[((first() + j) * pairs + pair) * 8 * ROWS];
        gpu_multiply<F, ROWS>(sum, raw[j], x, factor[j / EACH], j % EACH * ROWS, 16, true);
    }
};

/* A block's only tile. EARLY of its k blocks are loaded before the wait: all of them would slow down the predecessor,
   which still loads what it needs. With one row the rest is loaded right behind x. With several rows (LATE) it is loaded
   when x has left its registers; until then an L2 prefetch of the tile is on its way.

   Rows that are normalised are x, which is tagged: the block polls for it instead of waiting (see gpu_tag). These blocks
   start so early that their weights have arrived before x, so the polling loop, in front of which the compiler waits for
   them, costs nothing.

   norm_router, whose logits all blocks of experts_up poll for, stores them before its wait. The wait comes last, as the
   end of a kernel must imply the end of all before it. */
template <class F, int MINE, int EARLY, int ROWS, class IN, class TILES>
__device__ __forceinline__ void gpu_run_one_tile(const TILES &tiles, const IN &in, int tile, const gpu_matrix &w,
                                                 void *memory, warp_partials *partials) {
    typedef gpu_short<F, MINE, ROWS> sizes;
    enum { LATE = ROWS > 1, OLD = !TILES::normed };         /* normed projections have no residual */
    const int row = threadIdx.x % TILE_ROWS, t = threadIdx.x / TILE_ROWS;
    const activation_fragments act = activation_fragments_at<F, ROWS>(memory, w.k_blocks);
    const uint4 *fragments = gpu_lane_fragments<F, ROWS>(act);
    const bool stores = t < ROWS;
    sizes weights;
    typename sizes::template columns<IN> x;
    float sum[4] = {0, 0, 0, 0}, square[ROWS] = {}, factor[sizes::FACTORS], old = 0, rms = 1;
    weights.place = tiles.place(tile);
    if (LATE && threadIdx.x == 0) {
        l2_prefetch(weights.place.data[0], (uint32_t)(w.k_blocks * PANEL_BYTES));
        l2_prefetch(weights.place.data[1], (uint32_t)(w.k_blocks * PANEL_BYTES));
    }
#pragma unroll
    for (int j = 0; j < EARLY; j++) weights.load(j);
    weights.load_scale(w);
    if constexpr (TILES::normed) {
        pdl_launch_dependents();
        if (!tiles.p.awaited.mask) pdl_wait();
        x.spin(in, tiles.p.awaited);
    } else {
        tiles.wait();
        x.load(in, 0);
    }
#pragma unroll
    for (int j = LATE ? MINE : EARLY; j < MINE; j++) weights.load(j);
    if (OLD && !LATE && stores) old = tiles.old(tile, row, t);
    x.stage_rows(in, act, square);
#pragma unroll
    for (int j = LATE ? EARLY : MINE; j < MINE; j++) weights.load(j);
    if (OLD && LATE && stores) old = tiles.old(tile, row, t);
#pragma unroll
    for (int k = 0; k < sizes::FACTORS; k++) factor[k] = weights.scale[k] * weights.act_scale(act, k);
#pragma unroll
    for (int j = 0; j < MINE; j++) weights.multiply(j, fragments, factor, sum);
    store_warp_partial<ROWS>(partials->tile[0], sum);
    if (TILES::normed) store_warp_squares<ROWS>(partials, square);
    __syncthreads();
    if (TILES::normed && !TILES::router) pdl_wait();
    if (stores && TILES::normed) rms = gpu_rms_factor(partials, t, tiles.per_col(), tiles.eps());
    if (stores) tiles.store(tile, row, t, partials->tile[0], old, rms);
    if (TILES::router) pdl_wait();
}

/* All tiles of a block, as in gpu_run_tiles, all of a tile's k blocks in flight.

   Speculative load: half of the blocks start when the predecessor is nearly done. With one row they load x before their
   weights, without waiting, and reload after the wait only what did not have its tag yet. */
template <class F, int MINE, int ROWS, class IN, class TILES>
__device__ __forceinline__ void gpu_run_short_tiles(const TILES &tiles, const IN &in, int tile, const gpu_matrix &w,
                                                    void *memory, warp_partials *partials) {
    enum { SPECULATIVE = TILES::normed && ROWS == 1 };
    typedef gpu_short<F, MINE, ROWS> sizes;
    const int row = threadIdx.x % TILE_ROWS, t = threadIdx.x / TILE_ROWS % GPU_ROWS;
    const int turns = GPU_THREADS / (TILE_ROWS * GPU_ROWS), turn = threadIdx.x / (TILE_ROWS * GPU_ROWS);
    const activation_fragments act = activation_fragments_at<F, ROWS>(memory, w.k_blocks);
    const uint4 *fragments = gpu_lane_fragments<F, ROWS>(act);
    sizes weights;
    typename sizes::template columns<IN> x;
    float square[ROWS] = {}, rms = 1, act_scale[sizes::FACTORS];
    weights.place = tiles.place(tile);
    if (SPECULATIVE) x.load(in, 0);
#pragma unroll
    for (int j = 0; j < MINE; j++) weights.load(j);
    weights.load_scale(w);
    tiles.wait();
    if constexpr (SPECULATIVE) x.reload_mismatched(in, tiles.p.awaited);
    else x.load(in, 0);
    x.stage_rows(in, act, square);
    if (TILES::normed) store_warp_squares<ROWS>(partials, square);
#pragma unroll
    for (int k = 0; k < sizes::FACTORS; k++) act_scale[k] = weights.act_scale(act, k);
#pragma unroll 1
    for (int n = 0; tiles.valid(tile); n++) {
        const int next = tiles.next(tile);
        const bool more = tiles.valid(next), stores = n % turns == turn && t < ROWS;
        const float old = stores ? tiles.old(tile, row, t) : 0;
        float sum[4] = {0, 0, 0, 0}, factor[sizes::FACTORS];
#pragma unroll
        for (int k = 0; k < sizes::FACTORS; k++) factor[k] = weights.scale[k] * act_scale[k];
        if (more) {
            weights.place = tiles.place(next);
            weights.load_scale(w);
        }
#pragma unroll
        for (int j = 0; j < MINE; j++) {
            weights.multiply(j, fragments, factor, sum);
            if (more) weights.load(j);
        }
        store_warp_partial<ROWS>(partials->tile[n % 2], sum);
        __syncthreads();
        if (n == 0 && TILES::normed) rms = gpu_rms_factor(partials, t, tiles.per_col(), tiles.eps());
        if (stores) tiles.store(tile, row, t, partials->tile[n % 2], old, rms);
        tile = next;
    }
}
