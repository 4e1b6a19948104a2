/* cpu/codes.c: codes of four bits times limbs, for each level of processor: the values of codes, sums of lanes, scales of
   lanes. For each a plain loop, which is the definition. Knows nothing of matrices.

   A block of 128 columns (COL_BLOCK) is 64 bytes of codes: byte i has columns 2 i and 2 i + 1, and four bytes are a lane. */

enum { CODE_ROWS = 4 };          /* most weight rows that are multiplied together */

/* A code's value before its format's zero point is subtracted: of E2M1 E2M1_ZERO, of INT4 one that comes with the scale. Values
   are 0..24, so that pairs of products have 16 bits. */
static const uint8_t e2m1_values[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
static const uint8_t int4_values[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

/* The scales of a column block's lanes, of which two have one E4M3; 2^-8 of their value, for the sake of the other levels. */
static inline void e4m3_scales_plain(const uint8_t *code, float *__restrict scale) {
    for (int l = 0; l < COL_BLOCK_LANES; l++) scale[l] = fp8_bits(code[l / 2]) * (FP8_BITS_SCALE * 0x1p-8f);
}

/* Of lanes of which 2^shift have one word: a scale, whose lowest five bits are a zero point. */
static inline void word_scales_plain(const uint32_t *word, int shift, float *__restrict scale, float *__restrict zero) {
    for (int l = 0; l < COL_BLOCK_LANES; l++) {
        scale[l] = float_of_bits(word[l >> shift] & ~31u);
        zero[l] = (float)(word[l >> shift] & 31);
    }
}

/* Values of four lanes' codes, of even columns and of odd ones. f is a constant in what follows. */
typedef struct codes_plain { uint8_t even[16], odd[16]; } codes_plain;

INLINE int has_e2m1_codes(const enum format f) {
    return kernel_of(f) == CPU_E2M1;
}

INLINE codes_plain codes_at_plain(const uint8_t *at, const enum format f) {
    const uint8_t *values = has_e2m1_codes(f) ? e2m1_values : int4_values;
    codes_plain c;
#ifdef __aarch64__
    const uint8x16_t bytes = vld1q_u8(at), table = vld1q_u8(values);
    vst1q_u8(c.even, vqtbl1q_u8(table, vandq_u8(bytes, vdupq_n_u8(15))));
    vst1q_u8(c.odd, vqtbl1q_u8(table, vshrq_n_u8(bytes, 4)));
#else
    for (int i = 0; i < 16; i++) c.even[i] = values[at[i] & 15], c.odd[i] = values[at[i] >> 4];
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

/* products[r] = the sums of lanes 4 part .. 4 part + 3 for `rows` <= CODE_ROWS weight rows; of E2M1s the zero point is
   subtracted. rows is a constant. */
INLINE void lane_products_plain(products_plain *products, const codes_plain *c, const int rows, const token_limbs *d, int part,
                                const enum format f) {
    const int at = 16 * part;
    for (int r = 0; r < rows; r++) {
#ifdef __aarch64__
        int32x4_t sum = lane_sums_neon(c[r], d->limb[0][0] + at, d->limb[0][1] + at);
        for (int i = 1; i < LIMBS; i++)
            sum = vaddq_s32(vshlq_n_s32(sum, 8), lane_sums_neon(c[r], d->limb[i][0] + at, d->limb[i][1] + at));
        if (has_e2m1_codes(f)) sum = vaddq_s32(sum, vld1q_s32(d->zero + 4 * part));
        products[r] = (quarter_lanes)vcvtq_f32_s32(sum);
#else
        for (int l = 0; l < 4; l++) {
            int32_t sum = 0;
            for (int k = 0; k < LIMBS; k++) {
                sum *= 256;
                for (int i = 4 * l; i < 4 * l + 4; i++)
                    sum += c[r].even[i] * d->limb[k][0][at + i] + c[r].odd[i] * d->limb[k][1][at + i];
            }
            products[r][l] = (float)(has_e2m1_codes(f) ? sum + d->zero[4 * part + l] : sum);
        }
#endif
    }
}

/* from - a b with one rounding, where the processor has such an instruction: a compiler that may choose takes the product out of
   one loop and not out of another, and then a row's bits depend on the number of rows. */
INLINE quarter_lanes minus_product_plain(quarter_lanes from, quarter_lanes a, quarter_lanes b) {
#ifdef __aarch64__
    return (quarter_lanes)vfmsq_f32((float32x4_t)from, (float32x4_t)a, (float32x4_t)b);
#elif defined __FP_FAST_FMAF
    for (int l = 0; l < 4; l++) from[l] = __builtin_fmaf(-a[l], b[l], from[l]);
    return from;
#else
    return from - a * b;
#endif
}

#ifdef LEVELS
V3 INLINE __m256 minus_product_v3(__m256 from, __m256 a, __m256 b) {
    return _mm256_fnmadd_ps(a, b, from);
}

V4 INLINE __m512 minus_product_v4(__m512 from, __m512 a, __m512 b) {
    return _mm512_fnmadd_ps(a, b, from);
}

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

V3 static inline void word_scales_v3(const uint32_t *word, int shift, float *__restrict scale, float *__restrict zero) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), zero_bits = _mm256_set1_epi32(31);
    const __m128i count = _mm_cvtsi32_si128(shift), have = _mm_set1_epi32(COL_BLOCK_LANES >> shift);
    const __m128i all = _mm_cmpgt_epi32(have, _mm_setr_epi32(0, 1, 2, 3));
    const __m128i words = _mm_maskload_epi32((const int *)(const void *)word, all);
    for (int half = 0; half < 2; half++) {
        const __m256i from = _mm256_srl_epi32(_mm256_add_epi32(lane, _mm256_set1_epi32(8 * half)), count);
        const __m256i one = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(words), from);
        _mm256_storeu_ps(scale + 8 * half, _mm256_castsi256_ps(_mm256_andnot_si256(zero_bits, one)));
        _mm256_storeu_ps(zero + 8 * half, _mm256_cvtepi32_ps(_mm256_and_si256(one, zero_bits)));
    }
}

/* One word comes straight from memory into all lanes, and its zero point by way of a table: with two vectors that wait for one
   load, INT4 in groups of 128 took a fifth longer. */
static const float zero_points[32] = {0,  1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14, 15,
                                      16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31};

V4 static inline void word_scales_v4(const uint32_t *word, int shift, float *__restrict scale, float *__restrict zero) {
    if (1 << shift == COL_BLOCK_LANES) {
        const __m512i one = _mm512_set1_epi32((int)*word);
        _mm512_storeu_ps(scale, _mm512_castsi512_ps(_mm512_maskz_andnot_epi32(0xffff, _mm512_set1_epi32(31), one)));
        _mm512_storeu_ps(zero, _mm512_set1_ps(zero_points[*word & 31]));
        return;
    }
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i zero_bits = _mm512_set1_epi32(31);
    const __m128i words = _mm_maskz_loadu_epi32((__mmask8)((1u << (COL_BLOCK_LANES >> shift)) - 1), word);
    const __m512i from = _mm512_maskz_srl_epi32(0xffff, lane, _mm_cvtsi32_si128(shift));
    const __m512i one = _mm512_maskz_permutexvar_epi32(0xffff, from, _mm512_castsi128_si512(words));
    _mm512_storeu_ps(scale, _mm512_castsi512_ps(_mm512_maskz_andnot_epi32(0xffff, zero_bits, one)));
    _mm512_storeu_ps(zero, _mm512_maskz_cvtepi32_ps(0xffff, _mm512_and_si512(one, zero_bits)));
}

/* Eight lanes. */
typedef struct codes_v3 { __m256i even, odd; } codes_v3;

V3 INLINE codes_v3 codes_at_v3(const uint8_t *at, const enum format f) {
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)at), low = _mm256_set1_epi8(15);
    const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)e2m1_values));
    codes_v3 c = {_mm256_and_si256(bytes, low), _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low)};
    if (has_e2m1_codes(f)) c.even = _mm256_shuffle_epi8(values, c.even), c.odd = _mm256_shuffle_epi8(values, c.odd);
    return c;
}

/* The sums of half a lane's products with one limb, as 16 bits. */
V3 INLINE __m256i half_lane_sums(codes_v3 c, const int8_t *even, const int8_t *odd) {
    const __m256i x = _mm256_loadu_si256((const __m256i *)(const void *)even);
    const __m256i y = _mm256_loadu_si256((const __m256i *)(const void *)odd);
    return _mm256_add_epi16(_mm256_maddubs_epi16(c.even, x), _mm256_maddubs_epi16(c.odd, y));
}

typedef __m256 products_v3;

V3 INLINE void lane_products_v3(products_v3 *products, const codes_v3 *c, const int rows, const token_limbs *d, int part,
                                const enum format f) {
    const int at = 32 * part;
    for (int r = 0; r < rows; r++) {
        __m256i sum = _mm256_setzero_si256();
        for (int i = 0; i < LIMBS; i++) {
            const __m256i halves = half_lane_sums(c[r], d->limb[i][0] + at, d->limb[i][1] + at);
            sum = _mm256_add_epi32(_mm256_slli_epi32(sum, 8), _mm256_madd_epi16(halves, _mm256_set1_epi16(1)));
        }
        if (has_e2m1_codes(f))
            sum = _mm256_add_epi32(sum, _mm256_loadu_si256((const __m256i *)(const void *)(d->zero + 8 * part)));
        products[r] = _mm256_cvtepi32_ps(sum);
    }
}

/* Sixteen lanes. */
typedef struct codes_v4 { __m512i even, odd; } codes_v4;

V4 INLINE codes_v4 codes_at_v4(const uint8_t *at, const enum format f) {
    const __m512i bytes = _mm512_loadu_si512(at), odd = _mm512_srli_epi16(bytes, 4), low = _mm512_set1_epi8(15);
    const __m128i values = _mm_loadu_si128((const __m128i *)(const void *)e2m1_values);
    const __m512i table = _mm512_maskz_broadcast_i32x4(0xffff, values);      /* vpermb takes six bits, a code has four */
    codes_v4 c;
    if (has_e2m1_codes(f)) {
        c.even = _mm512_maskz_permutexvar_epi8(~(__mmask64)0, bytes, table);
        c.odd = _mm512_maskz_permutexvar_epi8(~(__mmask64)0, odd, table);
    } else {
        c.even = _mm512_and_si512(bytes, low);
        c.odd = _mm512_and_si512(odd, low);
    }
    return c;
}

typedef __m512 products_v4;

/* Limb by limb for all rows: a row's sum is a chain of eight dependent operations, and the processor finds others to do
   meanwhile only a few dozen instructions ahead. */
V4 INLINE void lane_products_v4(products_v4 *products, const codes_v4 *c, const int rows, const token_limbs *d, int part,
                                const enum format f) {
    __m512i sum[CODE_ROWS];
    (void)part;
    for (int r = 0; r < rows; r++) sum[r] = _mm512_setzero_si512();
    for (int i = 0; i < LIMBS; i++) {
        const __m512i even = _mm512_loadu_si512(d->limb[i][0]), odd = _mm512_loadu_si512(d->limb[i][1]);
        for (int r = 0; r < rows && i; r++) sum[r] = _mm512_maskz_slli_epi32(0xffff, sum[r], 8);
        for (int r = 0; r < rows && i == LIMBS - 1 && has_e2m1_codes(f); r++)
            sum[r] = _mm512_add_epi32(sum[r], _mm512_loadu_si512(d->zero));
        for (int r = 0; r < rows; r++) sum[r] = _mm512_dpbusd_epi32(sum[r], c[r].even, even);
        for (int r = 0; r < rows; r++) sum[r] = _mm512_dpbusd_epi32(sum[r], c[r].odd, odd);
    }
    for (int r = 0; r < rows; r++) products[r] = _mm512_maskz_cvtepi32_ps(0xffff, sum[r]);
}
#endif
