/* cpu/int4_codes.c: INT4 codes times limbs, for each level of processor: codes, sums of quarters, scales of quarters. For each a
   plain loop, which is the definition. Knows nothing of matrices.

   A column block is 64 bytes of codes: byte i has columns 2 i and 2 i + 1. Lane 4 r + q of a register is quarter q of weight row
   r: a register of LANES lanes has LANES / 4 weight rows, and its lanes sum up whole quarters. Part p of the codes of these rows
   are columns 8 p to 8 p + 7 of each quarter, four bytes a lane; the limbs of a part are 16 bytes, the same for each row. */

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

/* Scales and zero points of a row's quarters, of which 2^(shift - 2) have one word: a scale, whose lowest five bits are a zero
   point. `below`: bytes to the next row's words, for levels that take several. */
typedef struct int4_scales_plain { quarter_lanes scale, zero; } int4_scales_plain;

INLINE int4_scales_plain int4_scales_at_plain(const char *words, size_t below, int shift) {
    const uint32_t *word = (const uint32_t *)(const void *)words;
    int4_scales_plain of;
    (void)below;
    for (int q = 0; q < QUARTERS; q++) {
        of.scale[q] = float_of_bits(word[4 * q >> shift] & ~31u);
        of.zero[q] = (float)(word[4 * q >> shift] & 31);
    }
    return of;
}

/* Of one row: the codes of each part's even columns, and of its odd ones. */
typedef struct int4_codes_plain { uint8_t even[QUARTER_PARTS][16], odd[QUARTER_PARTS][16]; } int4_codes_plain;

/* `below`: bytes to the next row's codes, for levels that take several. */
INLINE int4_codes_plain int4_codes_at_plain(const uint8_t *at, size_t below) {
    int4_codes_plain c;
    (void)below;
#ifdef __aarch64__
    const uint32x4x4_t parts = vld4q_u32((const uint32_t *)(const void *)at);
    for (int p = 0; p < QUARTER_PARTS; p++) {
        const uint8x16_t bytes = vreinterpretq_u8_u32(parts.val[p]);
        vst1q_u8(c.even[p], vandq_u8(bytes, vdupq_n_u8(15)));
        vst1q_u8(c.odd[p], vshrq_n_u8(bytes, 4));
    }
#else
    for (int p = 0; p < QUARTER_PARTS; p++)
        for (int i = 0; i < 16; i++) {
            const uint8_t byte = at[16 * (i / 4) + 4 * p + i % 4];
            c.even[p][i] = byte & 15;
            c.odd[p][i] = byte >> 4;
        }
#endif
    return c;
}

#ifdef __aarch64__
/* The sums of a row's quarters of products with one limb. Without sdot: 8 products of at most 15 x 128 have 16 bits. */
INLINE int32x4_t quarter_sums_neon(const int4_codes_plain *c, const int8_t (*limb)[2][QUARTERS][4]) {
#ifdef __ARM_FEATURE_DOTPROD
    int32x4_t sum = vdupq_n_s32(0);
    for (int p = 0; p < QUARTER_PARTS; p++) {
        sum = vdotq_s32(sum, vreinterpretq_s8_u8(vld1q_u8(c->even[p])), vld1q_s8(limb[p][0][0]));
        sum = vdotq_s32(sum, vreinterpretq_s8_u8(vld1q_u8(c->odd[p])), vld1q_s8(limb[p][1][0]));
    }
    return sum;
#else
    int16x8_t low = vdupq_n_s16(0), high = low;
    for (int p = 0; p < QUARTER_PARTS; p++) {
        const int8x16_t even = vreinterpretq_s8_u8(vld1q_u8(c->even[p])), odd = vreinterpretq_s8_u8(vld1q_u8(c->odd[p]));
        const int8x16_t x = vld1q_s8(limb[p][0][0]), y = vld1q_s8(limb[p][1][0]);
        low = vmlal_s8(vmlal_s8(low, vget_low_s8(even), vget_low_s8(x)), vget_low_s8(odd), vget_low_s8(y));
        high = vmlal_high_s8(vmlal_high_s8(high, even, x), odd, y);
    }
    return vpaddq_s32(vpaddlq_s16(low), vpaddlq_s16(high));
#endif
}
#endif

/* products[groups t + g] = the sums of quarters of the rows of c[g] with column block s of token row x[t], for `groups` registers
   of weight rows and `count` token rows, constants. Limbs of what is not finite may be anything: there sums wrap around. */
INLINE void int4_products_plain(products_plain *products, const int4_codes_plain *c, const int groups,
                                const quarter_limbs *const *x, int s, const int count) {
    for (int i = 0; i < groups * count; i++) {
        const int4_codes_plain *w = c + i % groups;
        const quarter_limbs *d = x[i / groups] + s;
#ifdef __aarch64__
        int32x4_t sum = quarter_sums_neon(w, d->limb[0]);
        for (int k = 1; k < LIMBS; k++) sum = vaddq_s32(vshlq_n_s32(sum, 8), quarter_sums_neon(w, d->limb[k]));
        products[i] = (quarter_lanes)vcvtq_f32_s32(sum);
#else
        for (int q = 0; q < QUARTERS; q++) {
            uint32_t sum = 0;
            for (int k = 0; k < LIMBS; k++) {
                sum *= 256;
                for (int p = 0; p < QUARTER_PARTS; p++)
                    for (int b = 0; b < 4; b++)
                        sum += (uint32_t)(w->even[p][4 * q + b] * d->limb[k][p][0][q][b] + w->odd[p][4 * q + b] * d->limb[k][p][1][q][b]);
            }
            products[i][q] = (float)(int32_t)sum;
        }
#endif
    }
}

/* 4 floats, the same for each row of a register. */
INLINE quarter_lanes int4_quarters_plain(const float *from) {
    return *(const quarter_lanes *)from;
}

/* to[r] = the sum of row r's four partial sums, pairwise. */
INLINE void int4_row_sums_plain(quarter_lanes sum, float *to) {
    *to = (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

#ifdef LEVELS
V3 INLINE void int4_row_sums_v3(__m256 sum, float *to) {
    const __m256 pairs = sum + _mm256_permute_ps(sum, 0x4e), all = pairs + _mm256_permute_ps(pairs, 0xb1);
    to[0] = _mm256_cvtss_f32(all);
    to[1] = _mm_cvtss_f32(_mm256_extractf128_ps(all, 1));
}

V4 INLINE void int4_row_sums_v4(__m512 sum, float *to) {
    const __m512 pairs = sum + _mm512_maskz_permute_ps(0xffff, sum, 0x4e);
    const __m512 all = pairs + _mm512_maskz_permute_ps(0xffff, pairs, 0xb1);
    _mm_storeu_ps(to, _mm512_maskz_extractf32x4_ps(0xf, _mm512_maskz_compress_ps(0x1111, all), 0));
}

V3 INLINE __m256 minus_product_v3(__m256 from, __m256 a, __m256 b) {
    return _mm256_fnmadd_ps(a, b, from);
}

V4 INLINE __m512 minus_product_v4(__m512 from, __m512 a, __m512 b) {
    return _mm512_fnmadd_ps(a, b, from);
}

V3 INLINE __m256 int4_quarters_v3(const float *from) {
    return _mm256_broadcast_ps((const __m128 *)(const void *)from);
}

V4 INLINE __m512 int4_quarters_v4(const float *from) {
    return _mm512_maskz_broadcast_f32x4(0xffff, _mm_loadu_ps(from));
}

V3 INLINE __m256i limbs_v3(const int8_t (*part)[4]) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)part));
}

V4 INLINE __m512i limbs_v4(const int8_t (*part)[4]) {
    return _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128((const __m128i *)(const void *)part));
}

typedef struct int4_scales_v3 { __m256 scale, zero; } int4_scales_v3;

/* Two rows. */
V3 INLINE int4_scales_v3 int4_scales_at_v3(const char *words, size_t below, int shift) {
    const __m128i have = _mm_set1_epi32(COL_BLOCK_LANES >> shift), number = _mm_setr_epi32(0, 1, 2, 3);
    const __m128i mask = _mm_cmpgt_epi32(have, number);
    const __m128i from = _mm_srl_epi32(_mm_slli_epi32(number, 2), _mm_cvtsi32_si128(shift));
    const __m128i first = _mm_maskload_epi32((const int *)(const void *)words, mask);
    const __m128i second = _mm_maskload_epi32((const int *)(const void *)(words + below), mask);
    const __m256 both = _mm256_castsi256_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1));
    const __m256i word = _mm256_castps_si256(_mm256_permutevar_ps(both, _mm256_broadcastsi128_si256(from)));
    const __m256i zero_bits = _mm256_set1_epi32(31);
    int4_scales_v3 of = {_mm256_castsi256_ps(_mm256_andnot_si256(zero_bits, word)),
                         _mm256_cvtepi32_ps(_mm256_and_si256(word, zero_bits))};
    return of;
}

typedef struct int4_codes_v3 { __m256i even[QUARTER_PARTS], odd[QUARTER_PARTS]; } int4_codes_v3;

/* Quarters of both rows, and of these the parts. */
V3 INLINE int4_codes_v3 int4_codes_at_v3(const uint8_t *at, size_t below) {
    __m256i quarter[QUARTERS], part[QUARTER_PARTS];
    int4_codes_v3 c;
    for (int q = 0; q < QUARTERS; q++) {
        const __m128i first = _mm_loadu_si128((const __m128i *)(const void *)(at + 16 * q));
        const __m128i second = _mm_loadu_si128((const __m128i *)(const void *)(at + below + 16 * q));
        quarter[q] = _mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1);
    }
    const __m256i a = _mm256_unpacklo_epi32(quarter[0], quarter[1]), b = _mm256_unpackhi_epi32(quarter[0], quarter[1]);
    const __m256i d = _mm256_unpacklo_epi32(quarter[2], quarter[3]), e = _mm256_unpackhi_epi32(quarter[2], quarter[3]);
    part[0] = _mm256_unpacklo_epi64(a, d);
    part[1] = _mm256_unpackhi_epi64(a, d);
    part[2] = _mm256_unpacklo_epi64(b, e);
    part[3] = _mm256_unpackhi_epi64(b, e);
    for (int p = 0; p < QUARTER_PARTS; p++) {
        c.even[p] = _mm256_and_si256(part[p], _mm256_set1_epi8(15));
        c.odd[p] = _mm256_and_si256(_mm256_srli_epi16(part[p], 4), _mm256_set1_epi8(15));
    }
    return c;
}

/* Sums of half a quarter's products with one limb have 16 bits: 16 of at most 15 x 128. */
V3 INLINE void int4_products_v3(__m256 *products, const int4_codes_v3 *c, const int groups, const quarter_limbs *const *x, int s,
                                const int count) {
    __m256i sum[8];
    for (int i = 0; i < groups * count; i++) sum[i] = _mm256_setzero_si256();
    for (int k = 0; k < LIMBS; k++) {
        __m256i half[8];
        for (int i = 0; i < groups * count; i++) half[i] = _mm256_setzero_si256();
        for (int p = 0; p < QUARTER_PARTS; p++)
            for (int odd = 0; odd < 2; odd++)
                for (int t = 0; t < count; t++) {
                    const __m256i limbs = limbs_v3(x[t][s].limb[k][p][odd]);
                    for (int g = 0; g < groups; g++)
                        half[groups * t + g] = _mm256_add_epi16(half[groups * t + g],
                                                                _mm256_maddubs_epi16(odd ? c[g].odd[p] : c[g].even[p], limbs));
                }
        for (int i = 0; i < groups * count; i++)
            sum[i] = _mm256_add_epi32(_mm256_slli_epi32(sum[i], 8), _mm256_madd_epi16(half[i], _mm256_set1_epi16(1)));
    }
    for (int i = 0; i < groups * count; i++) products[i] = _mm256_cvtepi32_ps(sum[i]);
}

typedef struct int4_scales_v4 { __m512 scale, zero; } int4_scales_v4;

/* Four rows, of which each has one word, or more. */
V4 INLINE int4_scales_v4 int4_scales_at_v4(const char *words, size_t below, int shift) {
    const __m512i zero_bits = _mm512_set1_epi32(31);
    __m512i word;
    if (1 << shift == COL_BLOCK_LANES) {
        const __m512i row = _mm512_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3);
        __m128 four = _mm_load_ss((const float *)(const void *)words);
        four = _mm_insert_ps(four, _mm_load_ss((const float *)(const void *)(words + below)), 0x10);
        four = _mm_insert_ps(four, _mm_load_ss((const float *)(const void *)(words + 2 * below)), 0x20);
        four = _mm_insert_ps(four, _mm_load_ss((const float *)(const void *)(words + 3 * below)), 0x30);
        word = _mm512_maskz_permutexvar_epi32(0xffff, row, _mm512_castsi128_si512(_mm_castps_si128(four)));
    } else {
        const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15), three = _mm512_set1_epi32(3);
        const __m512i quarter = _mm512_maskz_slli_epi32(0xffff, _mm512_and_si512(lane, three), 2);
        const __m512i first = _mm512_maskz_srl_epi32(0xffff, quarter, _mm_cvtsi32_si128(shift));
        const __m512i from = _mm512_add_epi32(_mm512_maskz_andnot_epi32(0xffff, three, lane), first);
        const __mmask8 have = (__mmask8)((1u << (COL_BLOCK_LANES >> shift)) - 1);
        word = _mm512_castsi128_si512(_mm_maskz_loadu_epi32(have, words));
        word = _mm512_maskz_inserti32x4(0xffff, word, _mm_maskz_loadu_epi32(have, words + below), 1);
        word = _mm512_maskz_inserti32x4(0xffff, word, _mm_maskz_loadu_epi32(have, words + 2 * below), 2);
        word = _mm512_maskz_inserti32x4(0xffff, word, _mm_maskz_loadu_epi32(have, words + 3 * below), 3);
        word = _mm512_maskz_permutexvar_epi32(0xffff, from, word);
    }
    int4_scales_v4 of = {_mm512_castsi512_ps(_mm512_maskz_andnot_epi32(0xffff, zero_bits, word)),
                         _mm512_maskz_cvtepi32_ps(0xffff, _mm512_and_si512(word, zero_bits))};
    return of;
}

typedef struct int4_codes_v4 { __m512i even[QUARTER_PARTS], odd[QUARTER_PARTS]; } int4_codes_v4;

/* Two parts of two rows, and then each part of all four. */
V4 INLINE int4_codes_v4 int4_codes_at_v4(const uint8_t *at, size_t below) {
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i next = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
    const __m512i low = _mm512_set1_epi8(15);
    __m512i row[4], part[QUARTER_PARTS];
    int4_codes_v4 c;
    for (int r = 0; r < 4; r++) row[r] = _mm512_loadu_si512(at + (size_t)r * below);
    for (int p = 0; p < QUARTER_PARTS; p += 2) {
        const __m512i top = _mm512_permutex2var_epi32(row[0], p ? next : first, row[1]);
        const __m512i bottom = _mm512_permutex2var_epi32(row[2], p ? next : first, row[3]);
        part[p] = _mm512_maskz_shuffle_i64x2(0xff, top, bottom, 0x44);
        part[p + 1] = _mm512_maskz_shuffle_i64x2(0xff, top, bottom, 0xee);
    }
    for (int p = 0; p < QUARTER_PARTS; p++) {
        c.even[p] = _mm512_and_si512(part[p], low);
        c.odd[p] = _mm512_and_si512(_mm512_maskz_srli_epi16(~(__mmask32)0, part[p], 4), low);
    }
    return c;
}

/* x, loaded once: compilers would load it again for each of its uses, and these would wait for loads. */
V4 INLINE __m512i loaded_v4(__m512i x) {
    __asm__("" : "+v"(x));
    return x;
}

enum { MOST_SUMS_V4 = 8 };      /* of int4_products_v4: `groups` times `count` */

/* sum[k][groups t + g] += part p of the codes of c[g], of odd columns or of even ones, times limb k of token row x[t]. */
V4 INLINE void int4_add_codes_v4(__m512i (*sum)[MOST_SUMS_V4], const int4_codes_v4 *c, const int groups,
                                 const quarter_limbs *const *x, int s, const int count, const int p, const int odd) {
    __m512i codes[4];
    for (int g = 0; g < groups; g++) codes[g] = loaded_v4(odd ? c[g].odd[p] : c[g].even[p]);
    for (int t = 0; t < count; t++)
        for (int k = 0; k < LIMBS; k++) {
            const __m512i limbs = limbs_v4(x[t][s].limb[k][p][odd]);
            for (int g = 0; g < groups; g++)
                sum[k][groups * t + g] = _mm512_dpbusd_epi32(sum[k][groups * t + g], codes[g], limbs);
        }
}

V4 INLINE void int4_add_part_v4(__m512i (*sum)[MOST_SUMS_V4], const int4_codes_v4 *c, const int groups,
                                const quarter_limbs *const *x, int s, const int count, const int p) {
    int4_add_codes_v4(sum, c, groups, x, s, count, p, 0);
    int4_add_codes_v4(sum, c, groups, x, s, count, p, 1);
}

/* Sums of each limb first: then a code is loaded once for all of them, and no chain of dependent operations is longer than nine.
   Parts are not a loop, because compilers keep the sums of one in memory. */
V4 INLINE_LONG void int4_products_v4(__m512 *products, const int4_codes_v4 *c, const int groups, const quarter_limbs *const *x, int s,
                                const int count) {
    __m512i sum[LIMBS][MOST_SUMS_V4];
    static_assert(QUARTER_PARTS == 4, "so many are added");
    for (int k = 0; k < LIMBS; k++)
        for (int i = 0; i < groups * count; i++) sum[k][i] = _mm512_setzero_si512();
    int4_add_part_v4(sum, c, groups, x, s, count, 0);
    int4_add_part_v4(sum, c, groups, x, s, count, 1);
    int4_add_part_v4(sum, c, groups, x, s, count, 2);
    int4_add_part_v4(sum, c, groups, x, s, count, 3);
    for (int i = 0; i < groups * count; i++) {
        const __m512i upper = _mm512_add_epi32(_mm512_maskz_slli_epi32(0xffff, sum[0][i], 8), sum[1][i]);
        products[i] = _mm512_maskz_cvtepi32_ps(0xffff, _mm512_add_epi32(_mm512_maskz_slli_epi32(0xffff, upper, 8), sum[2][i]));
    }
}
#endif
