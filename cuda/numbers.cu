/* cuda/numbers.cu: sums over a warp, packed pairs of BF16, F16 and E4M3, and mma.m16n8k16. Knows registers alone, no memory
   and no matrices. */

/* ceil(2^32 / n), for n > 1: x / n is x * it >> 32 for x < 2^32 / n. */
static __host__ __device__ __forceinline__ uint32_t reciprocal_of(int n) {
    return 0xffffffffu / (uint32_t)n + 1;
}

/* The same number in a register, from which the compiler takes it instead of computing it again, or computes what follows from it anew. */
__device__ __forceinline__ int opaque(int n) {
    int same;
    asm volatile("mov.b32 %0, %1;" : "=r"(same) : "r"(n));
    return same;
}

/* Sum over a warp (butterfly): the same bits on all lanes. */
__device__ __forceinline__ float warp_sum(float v) {
    for (int i = 16; i; i /= 2) v += __shfl_xor_sync(~0u, v, i);
    return v;
}

__device__ __forceinline__ float warp_max(float v) {
    for (int i = 16; i; i /= 2) v = fmaxf(v, __shfl_xor_sync(~0u, v, i));
    return v;
}

/* Inclusive prefix sum over a warp: of v on the lanes up to this one. */
__device__ __forceinline__ int warp_prefix_sum(int v) {
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
        int before = __shfl_up_sync(~0u, v, i);
        v += (int)threadIdx.x % 32 >= i ? before : 0;
    }
    return v;
}

/* RMSNorm's factor 1 / sqrt(squares / n + eps), given the sum of squares of n elements and 1 / n, as decode computes it. */
__device__ __forceinline__ float rms_factor(float squares, float per_element, float eps) {
    return rsqrtf(fmaf(squares, per_element, eps));
}

/* The same with a division, as the rows of a prompt and the input of the MTP layer have it: other bits, unless n is a power of two. */
__device__ __forceinline__ float rms_factor_divided(float squares, int n, float eps) {
    return rsqrtf(squares / (float)n + eps);
}

__device__ __forceinline__ float gpu_sigmoid(float x) {
    return __fdividef(1.0f, 1.0f + __expf(-x));
}

__device__ __forceinline__ float gpu_silu(float x) {
    return x * gpu_sigmoid(x);
}

/* sigmoid: the factor alone. */
__device__ __forceinline__ float gpu_gate(float x, int sigmoid) {
    return sigmoid ? gpu_sigmoid(x) : gpu_silu(x);
}

/* log(1 + exp(a)) = max(a, 0) + 2 artanh(x / (2 + x)) with x = exp(-|a|); artanh by its series. No branches, unlike log1pf:
   loads in a branch are issued late. */
__device__ __forceinline__ float gpu_softplus(float a) {
    float x = expf(-fabsf(a)), s = __fdividef(x, 2.0f + x), q = s * s, sum = 1.0f / 15;
#pragma unroll
    for (int i = 13; i > 0; i -= 2) sum = fmaf(sum, q, 1.0f / i);
    return fmaf(2.0f * s, sum, fmaxf(a, 0.0f));
}

/* Two floats rounded to two BF16 in a register, the first in the low half. */
__device__ __forceinline__ uint32_t bf16_pair(float low, float high) {
    uint32_t pair;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

__device__ __forceinline__ float bf16_low(uint32_t pair) {
    return __uint_as_float(pair << 16);
}

__device__ __forceinline__ float bf16_high(uint32_t pair) {
    return __uint_as_float(pair & 0xffff0000u);
}

__device__ __forceinline__ uint32_t f16_pair(float low, float high) {
    __half2 pair = __floats2half2_rn(low, high);
    return *(uint32_t *)&pair;
}

__device__ __forceinline__ float2 f16_floats(uint32_t pair) {
    return __half22float2(*(__half2 *)&pair);
}

/* The largest of a value that each thread of a block has; `shared`: one float a warp. Begins with a barrier. */
__device__ __forceinline__ float block_max(float v, float *shared) {
    v = warp_max(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < GPU_WARPS; w++) v = fmaxf(v, shared[w]);
    return v;
}

/* The sum, likewise: of each warp, then of the warps in order. */
__device__ __forceinline__ float block_sum(float v, float *shared) {
    float all = 0;
    v = warp_sum(v);
    __syncthreads();
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = v;
    __syncthreads();
#pragma unroll
    for (int w = 0; w < GPU_WARPS; w++) all += shared[w];
    return all;
}

/* 2^x in one instruction; results below 2^-126 are flushed to 0. */
__device__ __forceinline__ float gpu_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Four E4M3 codes, the lowest byte first, as two pairs of F16: exact. */
__device__ __forceinline__ void e4m3_pairs(uint32_t codes, uint32_t *low, uint32_t *high) {
    asm("{.reg .b16 first, second;\n\t"
        "mov.b32 {first, second}, %2;\n\t"
        "cvt.rn.f16x2.e4m3x2 %0, first;\n\t"
        "cvt.rn.f16x2.e4m3x2 %1, second;}"
        : "=r"(*low), "=r"(*high) : "r"(codes));
}

/* The two-term split of x and y: *high = the pair rounded to F16 (HALF) or BF16, *low = the rest, rounded likewise. */
template <bool HALF> __device__ __forceinline__ void split_pair(float x, float y, uint32_t *high, uint32_t *low) {
    if (HALF) {
        *high = f16_pair(x, y);
        float2 back = f16_floats(*high);
        *low = f16_pair(x - back.x, y - back.y);
    } else {
        *high = bf16_pair(x, y);
        *low = bf16_pair(x - bf16_low(*high), y - bf16_high(*high));
    }
}

/* mma.m16n8k16 of a warp: c[16][8] += a[16][16] b[16][8], F16 times F16 (HALF) or BF16 times BF16, summed in float. With
   g = lane / 4 and i = lane % 4, a lane holds
     a   rows g, g + 8, g, g + 8 at k = 2i, 2i, 2i + 8, 2i + 8: a register has two neighbouring k each
     b   column g at k = 2i (b0) and 2i + 8 (b1), again two k each
     c   row g columns 2i, 2i + 1, then row g + 8 columns 2i, 2i + 1
   Which weight is which k does not matter as long as a and b agree. */
template <bool HALF> __device__ __forceinline__ void mma_m16n8k16(float *c, const uint32_t *a, uint32_t b0, uint32_t b1) {
    if (HALF)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
