/* formats/numbers.c: stored numbers to floats and back, and random numbers. Knows single values, and nothing of matrices.

   Each conversion to a float is exact. FP8 is E4M3 "fn" (1 sign, 4 exponent, 3 mantissa bits, bias 7, largest 448, no infinity):
   its bits, moved to their places in a float, are the value times 2^-120, subnormals included. The two NaN codes 0x7f and
   0xff would come out as 480: a checkpoint holding them is refused when it is loaded. */

/* Small helpers that must become part of the function around them, which may be compiled for several processors. */
#define INLINE static inline __attribute__((always_inline))

/* The same for kernels, too. */
#ifdef __CUDACC__
#define BOTH INLINE __host__ __device__
#else
#define BOTH INLINE
#endif

static int max_int(int a, int b) {
    return a > b ? a : b;
}

static int min_int(int a, int b) {
    return a < b ? a : b;
}

static size_t max_size(size_t a, size_t b) {
    return a > b ? a : b;
}

/* Types of single numbers: in a KV cache, in a stored vector. How the numbers of a matrix are stored is its format. */
typedef enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_FP8 } dtype;

BOTH float float_of_bits(uint32_t bits) {
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

static inline float float_of_bf16(uint16_t h) {
    return float_of_bits((uint32_t)h << 16);
}

/* F16 has 5 exponent bits, bias 15: moved into a float it is the value times 2^-112; infinities and NaNs (exponent 31,
   here 143 after the product) need all exponent bits set. */
static inline float float_of_f16(uint16_t h) {
    float f = float_of_bits((uint32_t)(h & 0x7fff) << 13) * 0x1p112f;
    uint32_t bits;
    memcpy(&bits, &f, 4);
    bits |= (h & 0x7c00) == 0x7c00 ? 0x7f800000u : 0;
    return float_of_bits(bits | (uint32_t)(h & 0x8000) << 16);
}

#define FP8_BITS_SCALE 0x1p120f /* fp8_bits(code) * FP8_BITS_SCALE is the value; a block's scale is multiplied into it first */

static inline float fp8_bits(uint8_t code) {
    return float_of_bits((uint32_t)(int32_t)(int8_t)code << 20 & 0x87f00000u);
}

/* To the nearest BF16, ties to even; beyond the largest to infinity, any NaN to 0x7fff. */
static inline uint16_t bf16_of_float(float f) {
    uint32_t bits;
    memcpy(&bits, &f, 4);
    return (bits & 0x7fffffff) > 0x7f800000 ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* To the nearest E4M3, ties to even; beyond 448 to 448, any NaN to 0x7f. Below 2^-6 codes count units of 2^-9: that is
   the last bit of a float next to 2^14, so adding 2^14 rounds. Above, the float's exponent and first three bits of its
   mantissa are the code, 120 exponents too large. */
static inline uint8_t fp8_of_float(float f) {
    uint32_t bits, size, code;
    memcpy(&bits, &f, 4);
    size = bits & 0x7fffffff;
    if (size > 0x7f800000) return 0x7f;
    if (size < 0x3c800000) {
        f = fabsf(f) + 0x1p14f;
        memcpy(&code, &f, 4);
        code -= 0x46800000;
    } else {
        code = ((size + 0x7ffff + (size >> 20 & 1)) >> 20) - (120 << 3);
        if (code > 0x7e) code = 0x7e;
    }
    return (uint8_t)(code | (bits >> 24 & 0x80));
}

/* name(numbers, n, mask): the first of n numbers, at any address, all of whose bits of mask are set; n: none. Mask is the bits next to the
   sign: added to the lowest of them, they carry into it only if all are set. */
#define FIND_ALL_SET(name, type) \
    static size_t name(const void *numbers, size_t n, type mask) { \
        enum { MANY = 4096 }; \
        const type lowest = (type)(mask & -mask), sign = (type)(mask + lowest); \
        for (size_t i = 0, end; i < n; i = end) { \
            type number, seen = 0; \
            end = n - i < MANY ? n : i + MANY; \
            for (size_t k = i; k < end; k++) { \
                memcpy(&number, (const char *)numbers + k * sizeof number, sizeof number); \
                seen = (type)(seen | ((number & mask) + lowest)); \
            } \
            for (; seen & sign && i < end; i++) { \
                memcpy(&number, (const char *)numbers + i * sizeof number, sizeof number); \
                if ((number & mask) == mask) return i; \
            } \
        } \
        return n; \
    }

FIND_ALL_SET(find_all_set_8, uint8_t)
FIND_ALL_SET(find_all_set_16, uint16_t)
FIND_ALL_SET(find_all_set_32, uint32_t)

/* How a number is written that is not finite. */
static void not_finite(float f, char value[32]) {
    snprintf(value, 32, "%s", f != f ? "NaN" : f < 0 ? "-inf" : "inf");
}

/* The first of n numbers of 16 bits that is not finite; exponent: the bits that all are set in such. */
static size_t find_not_finite_16(const void *numbers, size_t n, uint16_t exponent, float (*float_of)(uint16_t), char value[32]) {
    const size_t i = find_all_set_16(numbers, n, exponent);
    uint16_t number;
    if (i == n) return n;
    memcpy(&number, (const char *)numbers + i * sizeof number, sizeof number);
    not_finite(float_of(number), value);
    return i;
}

/* n = rows x cols stored numbers as floats. */
static void widen(dtype stored, const void *from, void *to, int rows, int cols) {
    float *out = (float *)to;
    for (size_t i = 0, n = (size_t)rows * (size_t)cols; i < n; i++) {
        if (stored == DTYPE_F32) memcpy(out + i, (const char *)from + 4 * i, 4);
        if (stored == DTYPE_BF16) out[i] = float_of_bf16(((const uint16_t *)from)[i]);
        if (stored == DTYPE_F16) out[i] = float_of_f16(((const uint16_t *)from)[i]);
    }
}

/* Many numbers at a time. */
static inline void unpack_bf16_plain(const uint16_t *__restrict half, int n, float *__restrict out) {
    for (int i = 0; i < n; i++) out[i] = float_of_bf16(half[i]);
}

static void unpack_f16_plain(const uint16_t *__restrict half, int n, float *__restrict out) {
    for (int i = 0; i < n; i++) out[i] = float_of_f16(half[i]);
}

/* out[i] = an E4M3 code's value times 2^-8, which as an F16 has the code's exponent and mantissa in its own places. */
#define E4M3_BITS_SCALE 0x1p8f

static inline void unpack_e4m3_plain(const uint8_t *__restrict code, int n, float *__restrict out) {
    int i = 0;
#ifdef NEON
    for (; i + 16 <= n; i += 16) {
        const int8x16_t codes = vreinterpretq_s8_u8(vld1q_u8(code + i));
        const int16x8_t mask = vdupq_n_s16((int16_t)0xbfff), first = vshll_n_s8(vget_low_s8(codes), 7);
        const int16x8_t second = vshll_n_s8(vget_high_s8(codes), 7);
        const float16x8_t low = vreinterpretq_f16_s16(vandq_s16(first, mask));
        const float16x8_t high = vreinterpretq_f16_s16(vandq_s16(second, mask));
        vst1q_f32(out + i, vcvt_f32_f16(vget_low_f16(low)));
        vst1q_f32(out + i + 4, vcvt_f32_f16(vget_high_f16(low)));
        vst1q_f32(out + i + 8, vcvt_f32_f16(vget_low_f16(high)));
        vst1q_f32(out + i + 12, vcvt_f32_f16(vget_high_f16(high)));
    }
#endif
    for (; i < n; i++) out[i] = fp8_bits(code[i]) * (FP8_BITS_SCALE / E4M3_BITS_SCALE);
}
