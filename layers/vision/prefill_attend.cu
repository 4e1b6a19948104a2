/* layers/vision/prefill_attend.cu: attention of an image's patches, each to all of them, on tensor cores. What a warp does with a tile of keys is
   attend_prefill's (layers/attention/prefill_tile.cu); what differs is that no row is masked, that keys and values are F16, [head][n][DIM], and where the
   output goes.

   A warp has 32 rows of queries of a head, in two strips, so that a fragment of keys or values serves both; a block four warps. Blocks of a head
   follow one another, and its keys and values, 1.3 MB of 4,096 patches, stay in the L2. All blocks meet the tiles in the same order: a row's bits depend on
   the image alone. Keys after the last of an image have the score -inf. */

/* See attend_plan. A row of DIM = 80 takes 256 bytes of shared memory, of which it uses 160: then vectors are swizzled as in other rows. */
template <int DIM> struct vision_plan {
    enum {
        HALF = 1, SPLIT = 1, STRIPS = 2, BLOCKS = 2, WARPS = 4, KEYS = 32, STAGES = 3, BUFFERS = 2,
        KEY_STEPS = DIM / 16, VALUE_STEPS = DIM / 16, Q_REGISTERS = KEY_STEPS, Q_PLACES = KEY_STEPS, Q_BYTES = 0,
        KEY_ROW = DIM > 64 ? 256 : 128, VALUE_ROW = KEY_ROW, KEY_TILE = KEYS * KEY_ROW, VALUE_TILE = KEY_TILE,
        VALUES_AT = STAGES * KEY_TILE, SHARED = VALUES_AT + STAGES * VALUE_TILE
    };
    static_assert(DIM % 16 == 0 && DIM * 2 <= (int)KEY_ROW && (int)SHARED <= (int)GPU_SHARED, "tiles of vision_attend");
};

typedef struct vision_attention {
    const uint16_t *q, *k, *v;   /* F16 [heads][n][DIM]; q times log2(e) / sqrt(d) */
    uint16_t *o;                 /* F16 [n][o_cols], of which the first are [heads][d] */
    int n, d, o_cols;
} vision_attention_gpu;

/* Starts to copy tile number `tile` of a head's keys and values to places `to` and to_values. Rows after the image's last become zeros, unread. */
template <int DIM> __device__ __forceinline__ void vision_copy_tile(uint32_t to, uint32_t to_values, const vision_attention_gpu &p, int tile, int thread) {
    typedef vision_plan<DIM> plan;
    enum { VECTORS = DIM / 8, ALL = (int)plan::KEYS * VECTORS, THREADS = 32 * (int)plan::WARPS };
    const int64_t from = (int64_t)((int)blockIdx.y * p.n + tile * plan::KEYS) * DIM + thread * 8;
    const int left = p.n - tile * plan::KEYS;
#pragma unroll
    for (int i = 0; i < (int)ALL; i += THREADS) {
        const int at = i + thread, row = at / VECTORS, vector = at % VECTORS;
        if ((int)ALL % (int)THREADS && at >= (int)ALL) break;
        const uint32_t place = row * plan::KEY_ROW + (vector ^ attend_swizzle<plan::KEY_ROW>(row)) * 16;
        cp_async16(to + place, p.k + from + i * 8, row < left);
        cp_async16(to_values + place, p.v + from + i * 8, row < left);
    }
}

/* The A fragments of a strip of queries whose row g is `row`; rows after the last are zeros. */
template <int DIM> __device__ __forceinline__ void vision_load_query(const uint16_t *q, int row, int n, uint4 *to) {
    const int i = threadIdx.x % 4;
    const uint32_t *from = (const uint32_t *)q + (size_t)row * (DIM / 2);
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        const int low = 8 * step + i;                        /* pairs of dimensions */
        uint4 a = make_uint4(0, 0, 0, 0);
        if (row < n) a.x = from[low], a.z = from[low + 4];
        if (row + 8 < n) a.y = from[4 * DIM + low], a.w = from[4 * DIM + low + 4];
        to[step] = a;
    }
}

/* Keys that are not there get -inf. */
template <class PLAN> __device__ __forceinline__ void vision_mask(float (*s)[4], int tile, int n, int thread) {
    const int left = n - tile * PLAN::KEYS - thread % 4 * 2;
#pragma unroll
    for (int c = 0; c < PLAN::KEYS / 8; c++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            if (8 * c + j % 2 >= left) s[c][j] = -INFINITY;
}

/* Stores row g (h = 0) or g + 8 (h = 1) of a strip: o / l. The row's four lanes call it together. */
template <int DIM> __device__ __forceinline__ void vision_store_row(const vision_attention_gpu &p, const float (*o)[4], const int h, float l, int row) {
    l += __shfl_xor_sync(~0u, l, 1);
    l += __shfl_xor_sync(~0u, l, 2);
    const float inverse = 1 / l;
    uint16_t *to = p.o + (size_t)row * p.o_cols + blockIdx.y * p.d;
    if (row >= p.n) return;
#pragma unroll
    for (int c = 0; c < DIM / 8; c++) {
        const int col = 8 * c + (int)threadIdx.x % 4 * 2;
        if (col < p.d) *(uint32_t *)(to + col) = f16_pair(o[c][2 * h] * inverse, o[c][2 * h + 1] * inverse);
    }
}

/* Row g of a warp's first strip: its lane's. */
template <class PLAN> __device__ __forceinline__ int vision_first_row(int thread) {
    return ((int)blockIdx.x * PLAN::WARPS + thread / 32) * (16 * PLAN::STRIPS) + thread % 32 / 4;
}

/* Grid: (blocks of 128 queries, heads). */
template <int DIM>
static __global__ void __launch_bounds__(32 * vision_plan<DIM>::WARPS, vision_plan<DIM>::BLOCKS)
vision_attend_kernel(const __grid_constant__ vision_attention_gpu p) {
    extern __shared__ __align__(16) char memory[];
    typedef vision_plan<DIM> plan;
    enum { STRIPS = plan::STRIPS, OUTS = plan::VALUE_STEPS * 2 };
    const int tiles = (p.n + plan::KEYS - 1) / plan::KEYS;
    const uint32_t keys = shared_address(memory), values = keys + plan::VALUES_AT;
    uint4 q[STRIPS][plan::Q_PLACES];
    float o[STRIPS][OUTS][4], m[STRIPS][2], l[STRIPS][2];
#pragma unroll
    for (int i = 0; i < STRIPS; i++) m[i][0] = m[i][1] = -0x1p126f, l[i][0] = l[i][1] = 0;
    memset(o, 0, sizeof o);
#pragma unroll
    for (int i = 0; i < plan::STAGES - 1; i++) {
        if (i < tiles) vision_copy_tile<DIM>(keys + i * plan::KEY_TILE, values + i * plan::VALUE_TILE, p, i, (int)threadIdx.x);
        cp_async_commit();
    }
#pragma unroll
    for (int i = 0; i < STRIPS; i++) vision_load_query<DIM>(p.q + (size_t)blockIdx.y * p.n * DIM, vision_first_row<plan>((int)threadIdx.x) + 16 * i, p.n, q[i]);
#pragma unroll 1
    for (int j = 0, place = 0; j < tiles; j++) {
        float s[STRIPS][plan::KEYS / 8][4], rescale[STRIPS][2];
        uint32_t w[STRIPS][plan::KEYS / 16][4];
        const int thread = attend_thread();
        const int next = j + plan::STAGES - 1, last = place == 0 ? plan::STAGES - 1 : place - 1;
        cp_async_wait<plan::STAGES - 2>();
        __syncthreads();
        if (next < tiles) vision_copy_tile<DIM>(keys + last * plan::KEY_TILE, values + last * plan::VALUE_TILE, p, next, thread);
        cp_async_commit();
        attend_tile_scores<false, plan>(s, q, 0, keys + place * plan::KEY_TILE + attend_key_lane<false, plan>(thread));
        if ((j + 1) * plan::KEYS > p.n) {
#pragma unroll
            for (int i = 0; i < STRIPS; i++) vision_mask<plan>(s[i], j, p.n, thread);
        }
#pragma unroll
        for (int i = 0; i < STRIPS; i++) attend_tile_weights<false, plan>(s[i], 1, m[i], l[i], rescale[i], w[i]);
        attend_tile_values<false, plan>(o, rescale, w, values + place * plan::VALUE_TILE + attend_value_lane<plan>(thread));
        place = place == plan::STAGES - 1 ? 0 : place + 1;
    }
    const int first = vision_first_row<plan>(attend_thread());         /* anew: fewer registers in the loop */
#pragma unroll
    for (int h = 0; h < 2 * STRIPS; h++) vision_store_row<DIM>(p, o[h / 2], h % 2, l[h / 2][h % 2], first + 8 * h);
}

/* ---- host ----------------------------------------------------------------------------------------------------------------- */

/* Dimensions that the kernel for heads of d has. */
static int vision_attend_dim(int d) {
    return d <= 64 ? 64 : VISION_GPU_HEAD_MAX;
}

template <int DIM> static cudaError_t vision_attend_launch(const vision_attention_gpu *p, int heads, cudaStream_t stream) {
    typedef vision_plan<DIM> plan;
    enum { QUERIES = 16 * (int)plan::STRIPS * (int)plan::WARPS };
    const cudaError_t status = cudaFuncSetAttribute((const void *)vision_attend_kernel<DIM>, cudaFuncAttributeMaxDynamicSharedMemorySize, GPU_SHARED);
    if (status != cudaSuccess) return status;
    const dim3 grid((unsigned)((p->n + QUERIES - 1) / QUERIES), (unsigned)heads);
    vision_attend_kernel<DIM><<<grid, 32 * plan::WARPS, plan::SHARED, stream>>>(*p);
    return cudaGetLastError();
}

static cudaError_t vision_attend_run(const vision_attention_gpu *p, int heads, cudaStream_t stream) {
    return vision_attend_dim(p->d) == 64 ? vision_attend_launch<64>(p, heads, stream) : vision_attend_launch<VISION_GPU_HEAD_MAX>(p, heads, stream);
}
