/* cpu/quarter_codes.c: codes of four bits times limbs, for each level of processor, where quarters of a column block have a scale:
   INT4 (CPU_UINT4) and MXFP4 (CPU_E2M1_E8M0), `kernel`, a constant everywhere. The values of codes, sums of quarters, scales of
   quarters. For each a plain loop, which is the definition. Knows nothing of matrices.

   A value of INT4 is the code, of MXFP4 what e2m1_values has for it, from 0 to 24: twice the weight and E2M1_ZERO more.

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

/* Scales and zero points of a row's quarters. Those of MXFP4 are the same for all weights, and not used. */
typedef struct quarter_scales_plain { quarter_lanes scale, zero; } quarter_scales_plain;

/* Of INT4 2^(shift - 2) quarters have one word: a scale, whose lowest five bits are a zero point. `below`: bytes to the next row's
   words, for levels that take several. */
INLINE quarter_scales_plain int4_scales_at_plain(const char *words, size_t below, int shift) {
    const uint32_t *word = (const uint32_t *)(const void *)words;
    quarter_scales_plain of;
    (void)below;
    for (int q = 0; q < QUARTERS; q++) {
        of.scale[q] = float_of_bits(word[4 * q >> shift] & ~31u);
        of.zero[q] = (float)(word[4 * q >> shift] & 31);
    }
    return of;
}

/* Of MXFP4 each quarter has a byte. */
INLINE quarter_scales_plain e8m0_scales_at_plain(const char *bytes, size_t below) {
    const uint8_t *code = (const uint8_t *)bytes;
    const quarter_scales_plain of = {{e8m0_value(code[0]), e8m0_value(code[1]), e8m0_value(code[2]), e8m0_value(code[3])}, {0}};
    (void)below;
    return of;
}

/* Of one row: the values of each part's even columns, and of its odd ones. */
typedef struct quarter_codes_plain { uint8_t even[QUARTER_PARTS][16], odd[QUARTER_PARTS][16]; } quarter_codes_plain;

/* `below`: bytes to the next row's codes, for levels that take several. */
INLINE quarter_codes_plain quarter_codes_at_plain(const uint8_t *at, size_t below, const enum cpu_kernel kernel) {
    quarter_codes_plain c;
    (void)below;
#ifdef __aarch64__
    const uint32x4x4_t parts = vld4q_u32((const uint32_t *)(const void *)at);
    for (int p = 0; p < QUARTER_PARTS; p++) {
        const uint8x16_t bytes = vreinterpretq_u8_u32(parts.val[p]), table = vld1q_u8(e2m1_values);
        const uint8x16_t even = vandq_u8(bytes, vdupq_n_u8(15)), odd = vshrq_n_u8(bytes, 4);
        vst1q_u8(c.even[p], kernel == CPU_UINT4 ? even : vqtbl1q_u8(table, even));
        vst1q_u8(c.odd[p], kernel == CPU_UINT4 ? odd : vqtbl1q_u8(table, odd));
    }
#else
    for (int p = 0; p < QUARTER_PARTS; p++)
        for (int i = 0; i < 16; i++) {
            const uint8_t byte = at[16 * (i / 4) + 4 * p + i % 4];
            c.even[p][i] = kernel == CPU_UINT4 ? byte & 15 : e2m1_values[byte & 15];
            c.odd[p][i] = kernel == CPU_UINT4 ? byte >> 4 : e2m1_values[byte >> 4];
        }
#endif
    return c;
}

#ifdef __aarch64__
/* The sums of a row's quarters of products with one limb. Without sdot: 8 products of at most 24 x 128 have 16 bits. */
INLINE int32x4_t quarter_sums_neon(const quarter_codes_plain *c, const int8_t (*limb)[2][QUARTERS][4]) {
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
   of weight rows and `count` token rows, constants. MXFP4's zero point is subtracted. That takes its sums back into 31 bits and a
   sign, if they wrapped around before; limbs of what is not finite may be anything. */
INLINE void quarter_products_plain(products_plain *products, const quarter_codes_plain *c, const int groups,
                                   const quarter_limbs *const *x, int s, const int count, const enum cpu_kernel kernel) {
    for (int i = 0; i < groups * count; i++) {
        const quarter_codes_plain *w = c + i % groups;
        const quarter_limbs *d = x[i / groups] + s;
#ifdef __aarch64__
        int32x4_t sum = quarter_sums_neon(w, d->limb[0]);
        for (int k = 1; k < LIMBS; k++) sum = vaddq_s32(vshlq_n_s32(sum, 8), quarter_sums_neon(w, d->limb[k]));
        if (kernel != CPU_UINT4) sum = vaddq_s32(sum, vld1q_s32(d->zero));
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
            products[i][q] = (float)(int32_t)(kernel == CPU_UINT4 ? sum : sum + (uint32_t)d->zero[q]);
        }
#endif
    }
}

/* 4 floats, the same for each row of a register. */
INLINE quarter_lanes quarter_floats_plain(const float *from) {
    return *(const quarter_lanes *)from;
}

/* to[r] = the sum of row r's four partial sums, pairwise. */
INLINE void quarter_row_sums_plain(quarter_lanes sum, float *to) {
    *to = (sum[0] + sum[2]) + (sum[1] + sum[3]);
}

#ifdef LEVELS
V3 INLINE void quarter_row_sums_v3(__m256 sum, float *to) {
    const __m256 pairs = sum + _mm256_permute_ps(sum, 0x4e), all = pairs + _mm256_permute_ps(pairs, 0xb1);
    to[0] = _mm256_cvtss_f32(all);
    to[1] = _mm_cvtss_f32(_mm256_extractf128_ps(all, 1));
}

V4 INLINE void quarter_row_sums_v4(__m512 sum, float *to) {
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

V3 INLINE __m256 quarter_floats_v3(const float *from) {
    return _mm256_broadcast_ps((const __m128 *)(const void *)from);
}

V4 INLINE __m512 quarter_floats_v4(const float *from) {
    return _mm512_maskz_broadcast_f32x4(0xffff, _mm_loadu_ps(from));
}

V3 INLINE __m256i limbs_v3(const int8_t (*part)[4]) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)part));
}

V4 INLINE __m512i limbs_v4(const int8_t (*part)[4]) {
    return _mm512_maskz_broadcast_i32x4(0xffff, _mm_loadu_si128((const __m128i *)(const void *)part));
}

typedef struct quarter_scales_v3 { __m256 scale, zero; } quarter_scales_v3;

/* Two rows. */
V3 INLINE quarter_scales_v3 int4_scales_at_v3(const char *words, size_t below, int shift) {
    const __m128i have = _mm_set1_epi32(COL_BLOCK_LANES >> shift), number = _mm_setr_epi32(0, 1, 2, 3);
    const __m128i mask = _mm_cmpgt_epi32(have, number);
    const __m128i from = _mm_srl_epi32(_mm_slli_epi32(number, 2), _mm_cvtsi32_si128(shift));
    const __m128i first = _mm_maskload_epi32((const int *)(const void *)words, mask);
    const __m128i second = _mm_maskload_epi32((const int *)(const void *)(words + below), mask);
    const __m256 both = _mm256_castsi256_ps(_mm256_inserti128_si256(_mm256_castsi128_si256(first), second, 1));
    const __m256i word = _mm256_castps_si256(_mm256_permutevar_ps(both, _mm256_broadcastsi128_si256(from)));
    const __m256i zero_bits = _mm256_set1_epi32(31);
    quarter_scales_v3 of = {_mm256_castsi256_ps(_mm256_andnot_si256(zero_bits, word)),
                         _mm256_cvtepi32_ps(_mm256_and_si256(word, zero_bits))};
    return of;
}

V3 INLINE quarter_scales_v3 e8m0_scales_at_v3(const char *bytes, size_t below) {
    int32_t row[2];
    for (size_t r = 0; r < 2; r++) memcpy(&row[r], bytes + r * below, sizeof *row);
    const __m256i exponents = _mm256_cvtepu8_epi32(_mm_setr_epi32(row[0], row[1], 0, 0));
    const __m256i scale = _mm256_max_epi32(_mm256_slli_epi32(exponents, 23), _mm256_set1_epi32(1 << 22));
    quarter_scales_v3 of = {_mm256_castsi256_ps(scale), _mm256_setzero_ps()};
    return of;
}

typedef struct quarter_codes_v3 { __m256i even[QUARTER_PARTS], odd[QUARTER_PARTS]; } quarter_codes_v3;

/* Quarters of both rows, and of these the parts. */
V3 INLINE quarter_codes_v3 quarter_codes_at_v3(const uint8_t *at, size_t below, const enum cpu_kernel kernel) {
    const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)e2m1_values));
    __m256i quarter[QUARTERS], part[QUARTER_PARTS];
    quarter_codes_v3 c;
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
        if (kernel == CPU_UINT4) continue;
        c.even[p] = _mm256_shuffle_epi8(values, c.even[p]);
        c.odd[p] = _mm256_shuffle_epi8(values, c.odd[p]);
    }
    return c;
}

/* sum[groups t + g] += the products with limb k of `parts` parts from `first` on, a constant: half a quarter's have 16 bits, 16 of at
   most 15 x 128 or 8 of at most 24 x 128. */
V3 INLINE void quarter_add_parts_v3(__m256i *sum, const quarter_codes_v3 *c, const int groups, const quarter_limbs *const *x, int s,
                                    const int count, int k, int first, const int parts) {
    __m256i half[8];
    for (int i = 0; i < groups * count; i++) half[i] = _mm256_setzero_si256();
    for (int p = first; p < first + parts; p++)
        for (int odd = 0; odd < 2; odd++)
            for (int t = 0; t < count; t++) {
                const __m256i limbs = limbs_v3(x[t][s].limb[k][p][odd]);
                for (int g = 0; g < groups; g++)
                    half[groups * t + g] = _mm256_add_epi16(half[groups * t + g],
                                                            _mm256_maddubs_epi16(odd ? c[g].odd[p] : c[g].even[p], limbs));
            }
    for (int i = 0; i < groups * count; i++)
        sum[i] = _mm256_add_epi32(sum[i], _mm256_madd_epi16(half[i], _mm256_set1_epi16(1)));
}

V3 INLINE void quarter_products_v3(__m256 *products, const quarter_codes_v3 *c, const int groups, const quarter_limbs *const *x, int s,
                                   const int count, const enum cpu_kernel kernel) {
    __m256i sum[8];
    for (int i = 0; i < groups * count; i++) sum[i] = _mm256_setzero_si256();
    for (int k = 0; k < LIMBS; k++) {
        for (int i = 0; i < groups * count; i++) sum[i] = _mm256_slli_epi32(sum[i], 8);
        if (kernel == CPU_UINT4) quarter_add_parts_v3(sum, c, groups, x, s, count, k, 0, QUARTER_PARTS);
        else
            for (int p = 0; p < QUARTER_PARTS; p += 2) quarter_add_parts_v3(sum, c, groups, x, s, count, k, p, 2);
    }
    for (int i = 0; i < groups * count; i++) {
        const __m128i zero = _mm_loadu_si128((const __m128i *)(const void *)x[i / groups][s].zero);
        if (kernel != CPU_UINT4) sum[i] = _mm256_add_epi32(sum[i], _mm256_broadcastsi128_si256(zero));
        products[i] = _mm256_cvtepi32_ps(sum[i]);
    }
}

typedef struct quarter_scales_v4 { __m512 scale, zero; } quarter_scales_v4;

/* Four rows, of which each has one word, or more. */
V4 INLINE quarter_scales_v4 int4_scales_at_v4(const char *words, size_t below, int shift) {
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
    quarter_scales_v4 of = {_mm512_castsi512_ps(_mm512_maskz_andnot_epi32(0xffff, zero_bits, word)),
                         _mm512_maskz_cvtepi32_ps(0xffff, _mm512_and_si512(word, zero_bits))};
    return of;
}

V4 INLINE quarter_scales_v4 e8m0_scales_at_v4(const char *bytes, size_t below) {
    int32_t row[4];
    for (size_t r = 0; r < 4; r++) memcpy(&row[r], bytes + r * below, sizeof *row);
    const __m512i exponents = _mm512_maskz_cvtepu8_epi32(0xffff, _mm_setr_epi32(row[0], row[1], row[2], row[3]));
    const __m512i scale = _mm512_maskz_max_epi32(0xffff, _mm512_maskz_slli_epi32(0xffff, exponents, 23), _mm512_set1_epi32(1 << 22));
    quarter_scales_v4 of = {_mm512_castsi512_ps(scale), _mm512_setzero_ps()};
    return of;
}

typedef struct quarter_codes_v4 { __m512i even[QUARTER_PARTS], odd[QUARTER_PARTS]; } quarter_codes_v4;

/* Two parts of two rows, and then each part of all four. */
V4 INLINE quarter_codes_v4 quarter_codes_at_v4(const uint8_t *at, size_t below, const enum cpu_kernel kernel) {
    const __m512i first = _mm512_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28, 1, 5, 9, 13, 17, 21, 25, 29);
    const __m512i next = _mm512_setr_epi32(2, 6, 10, 14, 18, 22, 26, 30, 3, 7, 11, 15, 19, 23, 27, 31);
    const __m512i low = _mm512_set1_epi8(15), values = e2m1_table_v4();
    __m512i row[4], part[QUARTER_PARTS];
    quarter_codes_v4 c;
    for (int r = 0; r < 4; r++) row[r] = _mm512_loadu_si512(at + (size_t)r * below);
    for (int p = 0; p < QUARTER_PARTS; p += 2) {
        const __m512i top = _mm512_permutex2var_epi32(row[0], p ? next : first, row[1]);
        const __m512i bottom = _mm512_permutex2var_epi32(row[2], p ? next : first, row[3]);
        part[p] = _mm512_maskz_shuffle_i64x2(0xff, top, bottom, 0x44);
        part[p + 1] = _mm512_maskz_shuffle_i64x2(0xff, top, bottom, 0xee);
    }
    for (int p = 0; p < QUARTER_PARTS; p++) {
        const __m512i odd = _mm512_maskz_srli_epi16(~(__mmask32)0, part[p], 4);
        c.even[p] = kernel == CPU_UINT4 ? _mm512_and_si512(part[p], low) : e2m1_values_v4(values, part[p]);
        c.odd[p] = kernel == CPU_UINT4 ? _mm512_and_si512(odd, low) : e2m1_values_v4(values, odd);
    }
    return c;
}

/* x, loaded once: compilers would load it again for each of its uses, and these would wait for loads. */
V4 INLINE __m512i loaded_v4(__m512i x) {
    __asm__("" : "+v"(x));
    return x;
}

enum { MOST_SUMS_V4 = 8 };      /* of quarter_products_v4: `groups` times `count` */

/* sum[k][groups t + g] += part p of the codes of c[g], of odd columns or of even ones, times limb k of token row x[t]. */
V4 INLINE void quarter_add_codes_v4(__m512i (*sum)[MOST_SUMS_V4], const quarter_codes_v4 *c, const int groups,
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

V4 INLINE void quarter_add_part_v4(__m512i (*sum)[MOST_SUMS_V4], const quarter_codes_v4 *c, const int groups,
                                const quarter_limbs *const *x, int s, const int count, const int p) {
    quarter_add_codes_v4(sum, c, groups, x, s, count, p, 0);
    quarter_add_codes_v4(sum, c, groups, x, s, count, p, 1);
}

/* Sums of each limb first: then a code is loaded once for all of them, and no chain of dependent operations is longer than nine.
   Parts are not a loop, because compilers keep the sums of one in memory. */
V4 INLINE_LONG void quarter_products_v4(__m512 *products, const quarter_codes_v4 *c, const int groups, const quarter_limbs *const *x,
                                        int s, const int count, const enum cpu_kernel kernel) {
    __m512i sum[LIMBS][MOST_SUMS_V4];
    static_assert(QUARTER_PARTS == 4, "so many are added");
    for (int k = 0; k < LIMBS; k++)
        for (int i = 0; i < groups * count; i++) {
            const int has_zero = kernel != CPU_UINT4 && k == LIMBS - 1;
            const __m128i zero = _mm_loadu_si128((const __m128i *)(const void *)x[i / groups][s].zero);
            sum[k][i] = has_zero ? _mm512_maskz_broadcast_i32x4(0xffff, zero) : _mm512_setzero_si512();
        }
    quarter_add_part_v4(sum, c, groups, x, s, count, 0);
    quarter_add_part_v4(sum, c, groups, x, s, count, 1);
    quarter_add_part_v4(sum, c, groups, x, s, count, 2);
    quarter_add_part_v4(sum, c, groups, x, s, count, 3);
    for (int i = 0; i < groups * count; i++) {
        const __m512i upper = _mm512_add_epi32(_mm512_maskz_slli_epi32(0xffff, sum[0][i], 8), sum[1][i]);
        products[i] = _mm512_maskz_cvtepi32_ps(0xffff, _mm512_add_epi32(_mm512_maskz_slli_epi32(0xffff, upper, 8), sum[2][i]));
    }
}
#endif
