/* cpu/unpack.c: stored numbers to floats, many at a time. For each type a plain loop, which is the definition, and the same for
   levels of x86-64. Knows nothing of matrices.

   FP8 goes by way of F16, whose subnormal numbers the processor's conversion reads at full speed. The plain loop multiplies
   subnormal floats, and for each of those many processors take more than a hundred cycles. */

static inline void unpack_bf16_plain(const uint16_t *__restrict half, int n, float *__restrict out) {
    for (int i = 0; i < n; i++) out[i] = float_of_bf16(half[i]);
}

static void unpack_f16_plain(const uint16_t *__restrict half, int n, float *__restrict out) {
    for (int i = 0; i < n; i++) out[i] = float_of_f16(half[i]);
}

/* out[i] = an E4M3 code's value times 2^-8, which as an F16 has the code's exponent and mantissa in its own places. */
#define E4M3_UNIT 0x1p8f

static inline void unpack_e4m3_plain(const uint8_t *__restrict code, int n, float *__restrict out) {
    int i = 0;
#ifdef __aarch64__
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
    for (; i < n; i++) out[i] = fp8_bits(code[i]) * (FP8_UNIT / E4M3_UNIT);
}

#ifdef LEVELS
/* The _maskz_ intrinsics are those without a mask here, and compile to them; of these, GCC 12 warns in C++ that their own
   headers use something uninitialised. */
V4 static inline void unpack_bf16_v4(const uint16_t *__restrict half, int n, float *__restrict out) {
    const __mmask16 all = 0xffff;
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512i wide = _mm512_maskz_cvtepu16_epi32(all, _mm256_loadu_si256((const __m256i *)(const void *)(half + i)));
        _mm512_storeu_ps(out + i, _mm512_castsi512_ps(_mm512_maskz_slli_epi32(all, wide, 16)));
    }
    unpack_bf16_plain(half + i, n - i, out + i);
}

V3 static inline void unpack_bf16_v3(const uint16_t *__restrict half, int n, float *__restrict out) {
    int i = 0;
    for (; i + 8 <= n; i += 8) {
        __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(half + i)));
        _mm256_storeu_ps(out + i, _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16)));
    }
    unpack_bf16_plain(half + i, n - i, out + i);
}

V4 static inline void unpack_f16_v4(const uint16_t *__restrict half, int n, float *__restrict out) {
    int i = 0;
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(out + i, _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256((const __m256i *)(const void *)(half + i))));
    unpack_f16_plain(half + i, n - i, out + i);
}

V3 static inline void unpack_f16_v3(const uint16_t *__restrict half, int n, float *__restrict out) {
    int i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(half + i))));
    unpack_f16_plain(half + i, n - i, out + i);
}

V4 static inline void unpack_e4m3_v4(const uint8_t *__restrict code, int n, float *__restrict out) {
    const __mmask16 all = 0xffff;
    const __m512i mask = _mm512_set1_epi16((short)0xbfff);
    int i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i codes = _mm256_loadu_si256((const __m256i *)(const void *)(code + i)), half[2];
        __m512i wide = _mm512_maskz_cvtepi8_epi16(0xffffffff, codes);
        wide = _mm512_and_si512(_mm512_maskz_slli_epi16(0xffffffff, wide, 7), mask);
        memcpy(half, &wide, sizeof half);
        _mm512_storeu_ps(out + i, _mm512_maskz_cvtph_ps(all, half[0]));
        _mm512_storeu_ps(out + i + 16, _mm512_maskz_cvtph_ps(all, half[1]));
    }
    unpack_e4m3_plain(code + i, n - i, out + i);
}

V3 static inline void unpack_e4m3_v3(const uint8_t *__restrict code, int n, float *__restrict out) {
    const __m256i mask = _mm256_set1_epi16((short)0xbfff);
    int i = 0;
    for (; i + 16 <= n; i += 16) {
        __m256i wide = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)(code + i)));
        __m256i half = _mm256_and_si256(_mm256_slli_epi16(wide, 7), mask);
        _mm256_storeu_ps(out + i, _mm256_cvtph_ps(_mm256_castsi256_si128(half)));
        _mm256_storeu_ps(out + i + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)));
    }
    unpack_e4m3_plain(code + i, n - i, out + i);
}
#endif

static void unpack_bf16(const uint16_t *half, int n, float *out) {
#ifdef LEVELS
    int level = cpu_level();
    if (level == 4) unpack_bf16_v4(half, n, out);
    else if (level == 3) unpack_bf16_v3(half, n, out);
    else
#endif
        unpack_bf16_plain(half, n, out);
}

static void unpack_f16(const uint16_t *half, int n, float *out) {
#ifdef LEVELS
    int level = cpu_level();
    if (level == 4) unpack_f16_v4(half, n, out);
    else if (level == 3) unpack_f16_v3(half, n, out);
    else
#endif
        unpack_f16_plain(half, n, out);
}

/* out[i] = an E4M3 code's value times scale */
static void unpack_fp8(const uint8_t *code, int n, float scale, float *__restrict out) {
#ifdef LEVELS
    int level = cpu_level();
    if (level == 4) unpack_e4m3_v4(code, n, out);
    else if (level == 3) unpack_e4m3_v3(code, n, out);
    else
#endif
        unpack_e4m3_plain(code, n, out);
    for (int i = 0; i < n; i++) out[i] *= scale * E4M3_UNIT;
}

/* Codes of four bits are multiplied as they lie in memory (cpu/nibbles.c): a stretch of 128 columns is 16 words of eight codes,
   and lane l of a vector takes columns 8 l, 8 l + 1, ..., which are word l. So a shift by four bits brings each lane's
   next code, and a group of columns, which has one scale, is a few lanes.
   Here are, for each level: a token's stretch in this order; the codes' values; the scales of the lanes. */
enum { STRETCH = 128, STRETCH_LANES = 16, STRETCH_TOKEN = STRETCH + STRETCH_LANES };

/* What a code stands for: twice an E2M1, and an INT4 less 8. */
static const int8_t e2m1_codes[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
static const int8_t int4_codes[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};

/* to[j][l] = x[8 l + j] for eight j, and to[8][l] = the sum of lane l's. */
static inline void turn_token_plain(const float *__restrict x, float *__restrict to) {
    float *sum = to + STRETCH;
    for (int l = 0; l < STRETCH_LANES; l++) {
        for (int j = 0; j < 8; j++) to[j * STRETCH_LANES + l] = x[8 * l + j];
        sum[l] = x[8 * l];
        for (int j = 1; j < 8; j++) sum[l] += x[8 * l + j];
    }
}

/* The scales of a stretch's lanes, of which two have one E4M3; 2^-8 of their value, for the sake of the other levels. */
static inline void e4m3_scales_plain(const uint8_t *code, float *__restrict scale) {
    for (int l = 0; l < STRETCH_LANES; l++) scale[l] = fp8_bits(code[l / 2]) * (FP8_UNIT * 0x1p-8f);
}

/* Of lanes of which 2^shift have one word: a scale, whose lowest five bits are a zero point; lift[l] = 8 - zero point. */
static inline void word_scales_plain(const uint32_t *word, int shift, float *__restrict scale, float *__restrict lift) {
    for (int l = 0; l < STRETCH_LANES; l++) {
        scale[l] = float_of_bits(word[l >> shift] & ~31u);
        lift[l] = (float)(8 - (int)(word[l >> shift] & 31));
    }
}

/* Four lanes' values, as bytes: of even columns and of odd ones. */
typedef int32_t words_plain __attribute__((vector_size(16)));
typedef struct codes_plain { words_plain even, odd; } codes_plain;

static inline codes_plain codes_at_plain(const uint8_t *at, const int8_t *table) {
    codes_plain c;
#ifdef __aarch64__
    const uint8x16_t bytes = vld1q_u8(at);
    const int8x16_t values = vld1q_s8(table);
    const int8x16_t even = vqtbl1q_s8(values, vandq_u8(bytes, vdupq_n_u8(15))), odd = vqtbl1q_s8(values, vshrq_n_u8(bytes, 4));
    memcpy(&c.even, &even, sizeof even);
    memcpy(&c.odd, &odd, sizeof odd);
#else
    int8_t even[16], odd[16];
    for (int i = 0; i < 16; i++) even[i] = table[at[i] & 15], odd[i] = table[at[i] >> 4];
    memcpy(&c.even, even, sizeof even);
    memcpy(&c.odd, odd, sizeof odd);
#endif
    return c;
}

/* The values of column j, 0..7, of each lane. */
static inline quarter_lanes code_plain(codes_plain c, int j) {
    const words_plain one = ((j & 1 ? c.odd : c.even) << (24 - j / 2 * 8)) >> 24;
    const quarter_lanes value = {(float)one[0], (float)one[1], (float)one[2], (float)one[3]};
    return value;
}

#ifdef LEVELS
/* Eight rows of 16, of which each two lanes' columns, become eight rows of a column of all lanes: in each step one bit of a
   row's number changes places with one of a lane's, and in the last the lanes are put in order. */
V4 static inline void turn_token_v4(const float *__restrict x, float *__restrict to) {
    static const int32_t from[3][2][16] = {
        {{0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30},
         {1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31}},
        {{0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29},
         {2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31}},
        {{0, 8, 1, 9, 2, 10, 3, 11, 16, 24, 17, 25, 18, 26, 19, 27},
         {4, 12, 5, 13, 6, 14, 7, 15, 20, 28, 21, 29, 22, 30, 23, 31}}};
    __m512 row[8], sum;
    for (int i = 0; i < 8; i++) row[i] = _mm512_loadu_ps(x + 16 * i);
    for (int step = 0; step < 3; step++) {
        const __m512i low = _mm512_loadu_si512(from[step][0]), high = _mm512_loadu_si512(from[step][1]);
        for (int i = 0; i < 8; i++) {
            if (i >> step & 1) continue;
            const __m512 a = row[i], b = row[i + (1 << step)];
            row[i] = _mm512_permutex2var_ps(a, low, b);
            row[i + (1 << step)] = _mm512_permutex2var_ps(a, high, b);
        }
    }
    sum = row[0];
    for (int i = 0; i < 8; i++) {
        _mm512_storeu_ps(to + 16 * i, row[i]);
        if (i) sum = _mm512_add_ps(sum, row[i]);
    }
    _mm512_storeu_ps(to + STRETCH, sum);
}

V3 static inline void turn_token_v3(const float *__restrict x, float *__restrict to) {
    for (int half = 0; half < 2; half++) {
        __m256 a[8], b[8], sum;
        for (int i = 0; i < 8; i++) a[i] = _mm256_loadu_ps(x + 64 * half + 8 * i);
        for (int i = 0; i < 4; i++) {
            b[i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
            b[4 + i] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
        }
        for (int i = 0; i < 4; i++) {
            a[2 * i] = _mm256_shuffle_ps(b[2 * i], b[2 * i + 1], 0x44);
            a[2 * i + 1] = _mm256_shuffle_ps(b[2 * i], b[2 * i + 1], 0xee);
        }
        /* a[0], a[2]: columns 0 and 4 of lanes 0..3 and 4..7; a[1], a[3]: 1 and 5; a[4], a[6]: 2 and 6; a[5], a[7]: 3 and 7 */
        for (int i = 0; i < 4; i++) {
            const int at = i / 2 * 4 + i % 2;
            b[i] = _mm256_permute2f128_ps(a[at], a[at + 2], 0x20);
            b[4 + i] = _mm256_permute2f128_ps(a[at], a[at + 2], 0x31);
        }
        sum = b[0];
        for (int j = 0; j < 8; j++) {
            _mm256_storeu_ps(to + 16 * j + 8 * half, b[j]);
            if (j) sum = _mm256_add_ps(sum, b[j]);
        }
        _mm256_storeu_ps(to + STRETCH + 8 * half, sum);
    }
}

/* Eight E4M3 as F16, each twice. */
V3 static inline __m256i e4m3_pairs(const uint8_t *code) {
    const __m128i codes = _mm_loadl_epi64((const __m128i *)(const void *)code);
    return _mm256_slli_epi16(_mm256_cvtepu8_epi16(_mm_unpacklo_epi8(codes, codes)), 7);
}

V4 static inline void e4m3_scales_v4(const uint8_t *code, float *__restrict scale) {
    _mm512_storeu_ps(scale, _mm512_maskz_cvtph_ps(0xffff, e4m3_pairs(code)));
}

V3 static inline void e4m3_scales_v3(const uint8_t *code, float *__restrict scale) {
    const __m256i half = e4m3_pairs(code);
    _mm256_storeu_ps(scale, _mm256_cvtph_ps(_mm256_castsi256_si128(half)));
    _mm256_storeu_ps(scale + 8, _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1)));
}

/* A zero point in the last bits of 2^23 is a float 2^23 too large. */
V3 static inline void word_scales_v3(const uint32_t *word, int shift, float *__restrict scale, float *__restrict lift) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), zero_bits = _mm256_set1_epi32(31);
    const __m256 magic = _mm256_set1_ps(0x1p23f), eight = _mm256_set1_ps(0x1p23f + 8);
    const __m128i count = _mm_cvtsi32_si128(shift), have = _mm_set1_epi32(STRETCH_LANES >> shift);
    const __m128i all = _mm_cmpgt_epi32(have, _mm_setr_epi32(0, 1, 2, 3));
    const __m128i words = _mm_maskload_epi32((const int *)(const void *)word, all);
    for (int half = 0; half < 2; half++) {
        const __m256i from = _mm256_srl_epi32(_mm256_add_epi32(lane, _mm256_set1_epi32(8 * half)), count);
        const __m256i one = _mm256_permutevar8x32_epi32(_mm256_castsi128_si256(words), from);
        const __m256 zero = _mm256_or_ps(_mm256_castsi256_ps(_mm256_and_si256(one, zero_bits)), magic);
        _mm256_storeu_ps(scale + 8 * half, _mm256_castsi256_ps(_mm256_andnot_si256(zero_bits, one)));
        _mm256_storeu_ps(lift + 8 * half, _mm256_sub_ps(eight, zero));
    }
}

V4 static inline void word_scales_v4(const uint32_t *word, int shift, float *__restrict scale, float *__restrict lift) {
    const __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i zero_bits = _mm512_set1_epi32(31), magic = _mm512_set1_epi32(0x4b000000);
    const __m128i words = _mm_maskz_loadu_epi32((__mmask8)((1u << (STRETCH_LANES >> shift)) - 1), word);
    const __m512i from = _mm512_maskz_srl_epi32(0xffff, lane, _mm_cvtsi32_si128(shift));
    const __m512i one = _mm512_maskz_permutexvar_epi32(0xffff, from, _mm512_castsi128_si512(words));
    const __m512i zero = _mm512_or_si512(_mm512_and_si512(one, zero_bits), magic);
    _mm512_storeu_ps(scale, _mm512_castsi512_ps(_mm512_maskz_andnot_epi32(0xffff, zero_bits, one)));
    _mm512_storeu_ps(lift, _mm512_sub_ps(_mm512_set1_ps(0x1p23f + 8), _mm512_castsi512_ps(zero)));
}

/* Eight lanes' values as bytes. */
typedef int32_t words_v3 __attribute__((vector_size(32)));
typedef struct codes_v3 { words_v3 even, odd; } codes_v3;

V3 static inline codes_v3 codes_at_v3(const uint8_t *at, const int8_t *table) {
    const __m256i bytes = _mm256_loadu_si256((const __m256i *)(const void *)at), low = _mm256_set1_epi8(15);
    const __m256i values = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
    codes_v3 c;
    c.even = (words_v3)_mm256_shuffle_epi8(values, _mm256_and_si256(bytes, low));
    c.odd = (words_v3)_mm256_shuffle_epi8(values, _mm256_and_si256(_mm256_srli_epi16(bytes, 4), low));
    return c;
}

V3 static inline __m256 code_v3(codes_v3 c, int j) {
    return _mm256_cvtepi32_ps((__m256i)(((j & 1 ? c.odd : c.even) << (24 - j / 2 * 8)) >> 24));
}

/* 16 lanes' codes, and the table of their values: a permutation takes the lowest four bits of its indices. */
typedef uint32_t words_v4 __attribute__((vector_size(64)));
typedef struct codes_v4 { words_v4 words; __m512 values; } codes_v4;

V4 static inline codes_v4 codes_at_v4(const uint8_t *at, const int8_t *table) {
    const __m512i values = _mm512_maskz_cvtepi8_epi32(0xffff, _mm_loadu_si128((const __m128i *)(const void *)table));
    codes_v4 c;
    c.words = (words_v4)_mm512_loadu_si512(at);
    c.values = _mm512_maskz_cvtepi32_ps(0xffff, values);
    return c;
}

V4 static inline __m512 code_v4(codes_v4 c, int j) {
    return _mm512_maskz_permutexvar_ps(0xffff, (__m512i)(c.words >> 4 * j), c.values);
}
#endif
