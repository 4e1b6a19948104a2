/* layers/kv.c: the numbers of a KV cache, F32, BF16 or E4M3. Knows no attention. */

/* Here the NaN codes are NaN: unlike weights, keys and values are not checked before they are used. */
static inline float float_of_fp8(uint8_t code) {
    float value = fp8_bits(code) * FP8_BITS_SCALE;
    return fabsf(value) > 448.0f ? NAN : value;
}

static size_t kv_size(dtype type) {
    return type == DTYPE_F32 ? 4 : type == DTYPE_BF16 ? 2 : 1;
}

/* What a cache's numbers are multiplied with. scale: the checkpoint's, of codes; NULL: 1. */
static float kv_scale(dtype kv, const float *scale) {
    return kv == DTYPE_FP8 && scale ? *scale : 1;
}

/* Elements at.. of a KV cache = n floats. */
static void kv_store(dtype type, void *cache, size_t at, const float *from, size_t n) {
    uint16_t *half = (uint16_t *)cache + at;
    uint8_t *code = (uint8_t *)cache + at;
    if (type == DTYPE_F32) memcpy((float *)cache + at, from, n * sizeof *from);
    for (size_t i = 0; type == DTYPE_BF16 && i < n; i++) half[i] = bf16_of_float(from[i]);
    for (size_t i = 0; type == DTYPE_FP8 && i < n; i++) code[i] = fp8_of_float(from[i]);
}

/* The floats of n elements at.. of a KV cache: where they lie or, decoded, in `to`. */
INLINE const float *kv_floats(const void *cache, size_t at, int n, float *__restrict to, const dtype type) {
    const uint16_t *__restrict half = (const uint16_t *)cache + at;
    const uint8_t *__restrict code = (const uint8_t *)cache + at;
    if (type == DTYPE_F32) return (const float *)cache + at;
    if (type == DTYPE_BF16)
        for (int i = 0; i < n; i++) to[i] = float_of_bf16(half[i]);
    else
        for (int i = 0; i < n; i++) to[i] = float_of_fp8(code[i]);
    return to;
}
