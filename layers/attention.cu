/* layers/attention.cu: rope_attend on a GPU: flash decoding, split over the context. What its two kernels share. */

/* CUDA, rope_attend: flash decoding, split over the context. The positions are dealt in chunks of 64: chunk c of a kv
   head belongs to split c % splits, so which positions form a part depends on the position alone, and a row gets the
   same bits in any block of rows. A block (kv head, split) keeps, for all rows and all query heads of its kv head, the
   running maximum m of the scores, l = sum of exp(score - m) and o = sum of exp(score - m) v; a position that a row
   does not see adds exactly nothing. The parts are put together in the order of the splits, again by maximum and
   rescaled sums.

   attend_fast, for heads of 256 with 64 rotated dimensions: query rows (token, head) are the A rows of mma, 16 to a
   tile. A query, and later a weight exp(score - m), goes in as two terms of half precision, high and low (BF16 for a
   BF16 cache; F16 for FP8, where each code is exact), so that the products are those of a float of 16 or more bits.
   Keys and values go from the cache to the B operand without being moved between lanes:
     scores   warp w has positions 8w..8w+7 of the chunk, lane (g, i) reads pieces i, i + 4, ... of 16 bytes of row
              8w + g; the queries lie in shared memory in that order of dimensions.
     values   warp w has dimensions 32w..32w+31, lane (g, i) reads 4 dimensions from 32w + 4g of the 16 positions that
              its part of the B operand needs; byte permutes pair them.
   The next chunk's rows are on their way while this one is computed, the first chunk's before pdl_wait: old rows never
   change within a step. The new rows come from shared memory, rounded as the cache holds them.

   Parts are put together first by clusters of 8 blocks (neighbouring splits) through distributed shared memory, each
   block a slice of 32 dimensions; then, where there are several clusters, by the block that finishes its slice last (a
   ticket, zero again afterwards). Before compute capability 9.0 there are no clusters, and the last block does it all.
   attend_any does any other shape, by plain loops. */

enum {
    ATTEND_CHUNK = 64,           /* positions */
    ATTEND_CLUSTER = 8,          /* splits of a cluster, and slices of a head */
    ATTEND_DIM = 256,            /* head_dim of attend_fast */
    ATTEND_STRIDE = ATTEND_DIM + 8                           /* floats from row to row of o in shared memory */
};

typedef struct gpu_attention {
    attention_shape shape;
    int q_per_kv;                   /* query heads of a kv head */
    const float *q_norm, *k_norm;                            /* [head_dim] */
    const step_parameters *step;
    int offset;                  /* position of row 0 less step->position; a row before position 0 yields zeros */
    int T;
    const float *frequencies;    /* [rotary_dim / 2] */
    const float *qg;             /* [T][heads][2][head_dim] */
    const float *k_new, *v_new;  /* [T][kv_heads][head_dim] */
    dtype kv;                    /* BF16 or FP8 */
    void *k, *v;                 /* KV cache [context][kv_heads][head_dim] */
    int context;
    int splits;                  /* gpu_attention_splits */
    float *parts;                /* gpu_attention_parts floats */
    int *tickets;                /* [kv_heads][ATTEND_CLUSTER], zero between launches */
    float *o;                    /* [T][heads][head_dim] */
    int kv_only;                 /* append k and v, and no more */
} gpu_attention;

/* Which positions a block works on. */
typedef struct attend_span {
    int first;                   /* position of row 0 */
    int end;                     /* positions in the cache after this step */
    int chunks;                  /* that hold them */
} attend_span;

__device__ __forceinline__ attend_span attend_span_of(const gpu_attention *p) {
    attend_span s;
    s.first = p->step->position + p->offset;
    s.end = min(s.first + p->T, p->context);
    s.chunks = (s.end + ATTEND_CHUNK - 1) / ATTEND_CHUNK;
    return s;
}

/* Is position `at` appended here? Every block of attend_any that only appends owns all. */
__device__ __forceinline__ bool attend_owns(const gpu_attention *p, const attend_span *s, int at) {
    return at >= 0 && at < s->end && (p->kv_only || at / ATTEND_CHUNK % p->splits == (int)blockIdx.y);
}

/* cs[i] = cos, cs[rotary_dim / 2 + i] = sin of the angle of dimension i, of this frequency, at a position. The angle is the
   float that the C twin has; its multiple of pi is reduced in double, exact enough for any position. */
__device__ __forceinline__ void attend_angle(const gpu_attention *p, int position, int i, float frequency, float *cs) {
    double turn = (double)((float)position * frequency) * 0.31830988618379067154;
    float rest = (float)(turn - 2 * rint(turn / 2));
    cs[i] = cospif(rest);
    cs[p->shape.rotary_dim / 2 + i] = sinpif(rest);
}

/* 2^x; less than 2^-126 is 0. */
__device__ __forceinline__ float attend_exp2(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Element `at` of a cache = x. */
template <bool FP8> __device__ __forceinline__ void attend_store(void *cache, size_t at, float x) {
    if (FP8) ((uint8_t *)cache)[at] = gpu_fp8(x);
    else ((uint16_t *)cache)[at] = (uint16_t)bf16_pair(x, 0);
}

/* Elements 2 pair and 2 pair + 1. */
template <bool FP8> __device__ __forceinline__ void attend_store_pair(void *cache, size_t pair, float2 x) {
    if (FP8) ((uint16_t *)cache)[pair] = (uint16_t)(gpu_fp8(x.x) | gpu_fp8(x.y) << 8);
    else ((uint32_t *)cache)[pair] = bf16_pair(x.x, x.y);
}

/* Two codes of FP8, the low byte first, as a pair of F16. */
__device__ __forceinline__ uint32_t attend_f16_pair(uint32_t codes) {
    uint32_t pair;
    asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(pair) : "h"((uint16_t)codes));
    return pair;
}

__device__ __forceinline__ float attend_f16_low(uint32_t pair) {
    float f;
    asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"((uint16_t)pair));
    return f;
}

template <bool FP8> __device__ __forceinline__ float attend_load(const void *cache, size_t at) {
    return FP8 ? attend_f16_low(attend_f16_pair(((const uint8_t *)cache)[at]))
               : bf16_low(((const uint16_t *)cache)[at]);
}
