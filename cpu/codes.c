/* cpu/codes.c: E2M1 codes times limbs, for each level of processor: the values of codes, sums of lanes, scales of lanes. For each
   a plain loop, which is the definition. Knows nothing of matrices. INT4 has its own: cpu/quarter_codes.c.

   A block of 128 columns (COL_BLOCK) is 64 bytes of codes: byte i has columns 2 i and 2 i + 1, and four bytes are a lane. */

enum { CODE_ROWS = 4 };          /* most weight rows that are multiplied together */

/* A code's value before E2M1_ZERO is subtracted. Values are 0..24, so that pairs of products have 16 bits. */
static const uint8_t e2m1_values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};

/* The scales of a column block's lanes, of which two have one E4M3; 2^-8 of their value, for the sake of the other levels. */
static inline void e4m3_scales_plain(const uint8_t *code, float *__restrict scale) {
    for (int l = 0; l < COL_BLOCK_LANES; l++) scale[l] = fp8_bits(code[l / 2]) * (FP8_BITS_SCALE * 0x1p-8f);
}

/* Values of four lanes' codes, of even columns and of odd ones. */
typedef struct codes_plain { uint8_t even[16], odd[16]; } codes_plain;

INLINE codes_plain codes_at_plain(const uint8_t *at) {
    codes_plain c;
#ifdef __aarch64__
    const uint8x16_t bytes = vld1q_u8(at), table = vld1q_u8(e2m1_values);
    vst1q_u8(c.even, vqtbl1q_u8(table, vandq_u8(bytes, vdupq_n_u8(15))));
    vst1q_u8(c.odd, vqtbl1q_u8(table, vshrq_n_u8(bytes, 4)));
#else
    for (int i = 0; i < 16; i++) c.even[i] = e2m1_values[at[i] & 15], c.odd[i] = e2m1_values[at[i] >> 4];
#endif
    return c;
}

#ifdef __aarch64__
/* The sums of four lanes' products with one limb. */
INLINE int32x4_t lane_sums_neon(codes_plain c, const int8_t *even, const int8_t *odd) {
    const int8x16_t a = vreinterpretq_s8_u8(vld1q_u8(c.even)), b = vreinterpretq_s8_u8(vld1q_u8(c.odd));
    const int8x16_t x = vld1q_s8(even), y = vld1q_s8(odd);
#ifdef __ARM_FEATURE_DOTPROD
    return vdotq_s32(vdotq_s32(vdupq_n_s32(0), a, x), b, y);
#else
    const int16x8_t first = vmlal_s8(vmull_s8(vget_low_s8(a), vget_low_s8(x)), vget_low_s8(b), vget_low_s8(y));
    const int16x8_t second = vmlal_high_s8(vmull_high_s8(a, x), b, y);
    return vpaddlq_s16(vpaddq_s16(first, second));
#endif
}
#endif

typedef quarter_lanes products_plain;

/* products[r] = the sums of lanes 4 part .. 4 part + 3 for `rows` <= CODE_ROWS weight rows, the zero point subtracted. rows is a
   constant. Limbs of what is not finite may be anything: there sums wrap around. */
INLINE void lane_products_plain(products_plain *products, const codes_plain *c, const int rows, const lane_limbs *d, int part) {
    const int at = 16 * part;
    for (int r = 0; r < rows; r++) {
#ifdef __aarch64__
        int32x4_t sum = lane_sums_neon(c[r], d->limb[0][0] + at, d->limb[0][1] + at);
        for (int i = 1; i < LIMBS; i++)
            sum = vaddq_s32(vshlq_n_s32(sum, 8), lane_sums_neon(c[r], d->limb[i][0] + at, d->limb[i][1] + at));
        products[r] = (quarter_lanes)vcvtq_f32_s32(vaddq_s32(sum, vld1q_s32(d->zero + 4 * part)));
#else
        for (int l = 0; l < 4; l++) {
            uint32_t sum = 0;
            for (int k = 0; k < LIMBS; k++) {
                sum *= 256;
                for (int i = 4 * l; i < 4 * l + 4; i++)
                    sum += (uint32_t)(c[r].even[i] * d->limb[k][0][at + i] + c[r].odd[i] * d->limb[k][1][at + i]);
            }
            products[r][l] = (float)(int32_t)(sum + (uint32_t)d->zero[4 * part + l]);
        }
#endif
    }
}

#ifdef LEVELS
/* Eight E4M3 as F16, each twice. */
V3 static inline __m256i e4m3_pairs(const uint8_t *code) {
    const __m128i codes = _mm_loadl_epi64((const __m128i *)(const void *)code);
    return _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(codes, codes)), 7);
}

/* vpmultishiftqb takes any eight bits out of the eight codes for each byte: for lane l the lowest bit of code l / 2, and the
   bits above it. */
V4 static inline void e4m3_scales_v4(const uint8_t *code, float *__restrict scale) {
    uint64_t codes;
    memcpy(&codes, code, sizeof codes);
    const __m256i from = _mm256_setr_epi64x(0x0901090101390139, 0x1911191111091109, 0x2921292121192119, 0x3931393131293129);
    const __m256i half = _mm256_maskz_multishift_epi64_epi8(~(__mmask32)0, from, _mm256_set1_epi64x((long long)codes));
    _mm512_storeu_ps(scale, _mm512_maskz_cvtph_ps(0xffff, _mm256_and_si256(half, _mm256_set1_epi16(0x3f80))));
}

V3 static inline void e4m3_scales_v3(const uint8_t *code, float *__restrict scale) {
    const __m256i half = e4m3_pairs(code);
    _mm256_storeu_ps(scale, _mm256_cvtph_ps(_mm256_castsi256_si128(half)));
    _mm256_storeu_ps(scale + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)));
}

/* Eight lanes. */
typedef struct codes_v3 { __m256i even, odd; } codes_v3;

V3 INLINE codes_v3 codes_at_v3(const uint8_t *at) {
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)at), low = _mm256_set1_epi8(15);
    const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)e2m1_values));
    codes_v3 c;
    c.even = _mm256_shuffle_epi8(values, _mm256_and_si256(bytes, low));
    c.odd = _mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low));
    return c;
}

/* The sums of half a lane's products with one limb, as 16 bits. */
V3 INLINE __m256i half_lane_sums(codes_v3 c, const int8_t *even, const int8_t *odd) {
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)even);
    const __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)odd);
    return _mm256_add_epi16(_mm256_maddubs_epi16(c.even, x), _mm256_maddubs_epi16(c.odd, y));
}

typedef __m256 products_v3;

V3 INLINE void lane_products_v3(products_v3 *products, const codes_v3 *c, const int rows, const lane_limbs *d, int part) {
    const int at = 32 * part;
    for (int r = 0; r < rows; r++) {
        __m256i sum = _mm256_setzero_si256();
        for (int i = 0; i < LIMBS; i++) {
            const __m256i halves = half_lane_sums(c[r], d->limb[i][0] + at, d->limb[i][1] + at);
            sum = _mm256_add_epi32(_mm256_slli_epi32(sum, 8), _mm256_madd_epi16(halves, _mm256_set1_epi16(1)));
        }
        sum = _mm256_add_epi32(sum, _mm256_loadu_si256((const __m256i *)(const void *)(d->zero + 8 * part)));
        products[r] = _mm256_cvtepi32_ps(sum);
    }
}

/* Sixteen lanes. */
typedef struct codes_v4 { __m512i even, odd; } codes_v4;

/* e2m1_values of the lower halves of bytes, whatever stands in the upper ones: vpermb takes six bits, so the table is there four times. */
V4 INLINE __m512i e2m1_table_v4(void) {
    return _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128((const __m128i *)(const void *)e2m1_values));
}

V4 INLINE __m512i e2m1_values_v4(__m512i table, __m512i bytes) {
    return _mm512_maskz_permutexvar_epi8(~(__mmask64)0, bytes, table);
}

V4 INLINE codes_v4 codes_at_v4(const uint8_t *at) {
    const __m512i bytes = _mm512_loadu_si512(at), table = e2m1_table_v4();
    codes_v4 c;
    c.even = e2m1_values_v4(table, bytes);
    c.odd = e2m1_values_v4(table, _mm512_srli_epi16(bytes, 4));
    return c;
}

typedef __m512 products_v4;

/* Limb by limb for all rows: a row's sum is a chain of eight dependent operations, and the processor finds others to do
   meanwhile only a few dozen instructions ahead. */
V4 INLINE void lane_products_v4(products_v4 *products, const codes_v4 *c, const int rows, const lane_limbs *d, int part) {
    __m512i sum[CODE_ROWS];
    (void)part;
    for (int r = 0; r < rows; r++) sum[r] = _mm512_setzero_si512();
    for (int i = 0; i < LIMBS; i++) {
        const __m512i even = _mm512_loadu_si512(d->limb[i][0]), odd = _mm512_loadu_si512(d->limb[i][1]);
        for (int r = 0; r < rows && i; r++) sum[r] = _mm512_maskz_slli_epi32(0xffff, sum[r], 8);
        for (int r = 0; r < rows && i == LIMBS - 1; r++)
            sum[r] = _mm512_add_epi32(sum[r], _mm512_loadu_si512(d->zero));
        for (int r = 0; r < rows; r++) sum[r] = _mm512_dpbusd_epi32(sum[r], c[r].even, even);
        for (int r = 0; r < rows; r++) sum[r] = _mm512_dpbusd_epi32(sum[r], c[r].odd, odd);
    }
    for (int r = 0; r < rows; r++) products[r] = _mm512_maskz_cvtepi32_ps(0xffff, sum[r]);
}
#endif
