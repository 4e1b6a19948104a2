/* layers/moe/bring.cu: experts_bring: copies of a layer's experts from host memory, for a prompt. It knows addresses and bytes of experts, nothing of
   what is in them.

   A prompt of many rows reads nearly all experts of a layer, so slots (place.cu) are of no use to it but for what is in them: those experts it reads
   there, and leaves them as they are. All others are copied, once, into a buffer that holds a layer's experts in their order. experts_bring runs twice:

     beside the layer before      copies what is in no slot at this time. A prompt of few rows, which would copy what it does not choose, goes
                                  without: its layers compute for less time than a few experts take
     when the layer is routed     copies what rows have chosen that is neither in a slot nor in the buffer: of the former prompt all, of others what
                                  has left its slot meanwhile, as steps of other sessions run between two layers of a prompt

   Grid: PLACE_BLOCKS blocks. Blocks of the first may see a table that a step is changing, each something else: so an expert's parts are counted, and
   one that has not all of them is not there. */

typedef struct moe_brought {
    const char *host;                                       /* [experts][piece] in mapped host memory */
    int64_t piece;                                          /* bytes of an expert, a multiple of 16 */
    int experts, wanted_only;
    const int64_t *at;                                      /* [experts] moe_slots.at, or moe_weights.expert_at */
    char *to;                                               /* [experts][piece] the buffer */
    uint32_t *parts;                                        /* [experts] parts of each that are in it */
    uint32_t *wanted;                                       /* [experts] of a layer that is routed: what has to be copied yet */
    unsigned long long *bytes;                              /* count of what crossed the link */
} moe_brought;

/* Whether an expert is in no slot. */
__device__ __forceinline__ bool gpu_is_home(const moe_brought &p, int expert) {
    return __ldcg((const long long *)p.at + expert) == expert * p.piece;
}

/* Sets the bits of the experts that are to be copied. */
__device__ __forceinline__ void gpu_bring_list(const moe_brought &p, uint32_t *set) {
    if (threadIdx.x < GPU_EXPERTS / 32) set[threadIdx.x] = 0;
    __syncthreads();
    for (int e = threadIdx.x; e < p.experts; e += GPU_THREADS)
        if (p.wanted_only ? __ldcg(p.wanted + e) : gpu_is_home(p, e)) atomicOr(&set[e / 32], 1u << e % 32);
    __syncthreads();
}

/* Copies the block's parts of an expert: of all parts of all experts, numbered in order, it has every gridDim.x-th one. Returns their bytes. */
__device__ __forceinline__ int64_t gpu_bring_one(const moe_brought &p, int expert) {
    const int parts = gpu_expert_parts(p.piece), blocks = gridDim.x, first = (blocks - expert * parts % blocks + (int)blockIdx.x) % blocks;
    int64_t copied = 0;
#pragma unroll 1
    for (int i = first; i < parts; i += blocks) copied += gpu_copy_part(p.to + expert * p.piece, p.host + expert * p.piece, p.piece, i);
    if (threadIdx.x == 0 && first < parts) atomicAdd(p.parts + expert, (uint32_t)((parts - 1 - first) / blocks + 1));
    return copied;
}

static __global__ void __launch_bounds__(GPU_THREADS) gpu_experts_bring(const __grid_constant__ moe_brought p) {
    __shared__ uint32_t set[GPU_EXPERTS / 32];
    int64_t copied = 0;
    gpu_bring_list(p, set);
    for (int w = 0; w < GPU_EXPERTS / 32; w++)
#pragma unroll 1
        for (uint32_t left = set[w]; left; left &= left - 1) copied += gpu_bring_one(p, w * 32 + __ffs((int)left) - 1);
    if (threadIdx.x == 0 && copied) atomicAdd(p.bytes, (unsigned long long)copied);
}

/* A layer that is routed finds here where an expert of its rows is, and says that it wants it, if it has to be copied yet. One thread for each. */
__device__ __forceinline__ int64_t gpu_brought_at(const moe_brought &p, int expert, bool chosen) {
    const bool home = gpu_is_home(p, expert);
    p.wanted[expert] = chosen && home && __ldcg(p.parts + expert) < (uint32_t)gpu_expert_parts(p.piece);
    return home ? p.to - p.host + expert * p.piece : __ldcg((const long long *)p.at + expert);
}
