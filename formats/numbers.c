/* formats/numbers.c: stored numbers to floats. Knows single values, and nothing of matrices.

   Each conversion is exact. FP8 is E4M3 "fn" (1 sign, 4 exponent, 3 mantissa bits, bias 7, largest 448, no infinity):
   its bits, moved to their places in a float, are the value times 2^-120, subnormals included. The two NaN codes 0x7f and
   0xff would come out as 480: a checkpoint holding them is refused when it is loaded. */

typedef enum dtype { DTYPE_F32, DTYPE_F16, DTYPE_BF16, DTYPE_FP8 } dtype;

static inline float float_of_bits(uint32_t bits) {
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

#define FP8_UNIT 0x1p120f /* fp8_bits(code) * FP8_UNIT is the value; a block's scale is multiplied into it first */

static inline float fp8_bits(uint8_t code) {
    return float_of_bits((uint32_t)(int32_t)(int8_t)code << 20 & 0x87f00000u);
}
