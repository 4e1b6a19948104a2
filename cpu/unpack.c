/* cpu/unpack.c: stored numbers to floats, many at a time: the plain loops of formats/numbers.c for levels of x86-64. Knows nothing of
   matrices.

   FP8 goes by way of F16, whose subnormal numbers the processor's conversion reads at full speed, or by a table. The plain loop
   multiplies subnormal floats, and for each of those many processors take more than a hundred cycles. */

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

/* The magnitudes of E4M3 codes times 2^-8 as BF16: their high bytes, and their low ones. */
#define SAME_8(x) x, x, x, x, x, x, x, x
#define SAME_16(x) SAME_8(x), SAME_8(x)
#define FROM_0 0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70
#define FROM_8 0x80, 0x90, 0xa0, 0xb0, 0xc0, 0xd0, 0xe0, 0xf0
static const uint8_t e4m3_high[128] = {
    0x00, 0x37, 0x37, 0x37, 0x38, 0x38, 0x38, 0x38, SAME_8(0x38), SAME_16(0x39), SAME_16(0x3a), SAME_16(0x3b),
    SAME_16(0x3c), SAME_16(0x3d), SAME_16(0x3e), SAME_16(0x3f)};
static const uint8_t e4m3_low[128] = {
    0x00, 0x00, 0x80, 0xc0, 0x00, 0x20, 0x40, 0x60, FROM_8, FROM_0, FROM_8, FROM_0, FROM_8, FROM_0, FROM_8,
    FROM_0, FROM_8, FROM_0, FROM_8, FROM_0, FROM_8, FROM_0, FROM_8};
#undef SAME_8
#undef SAME_16
#undef FROM_0
#undef FROM_8

/* vpermi2b looks 64 codes up among 128 bytes: the bytes of their BF16s take two operations, and unpacking these to floats six.
   That is less time than widening, shifting, masking and F16's conversion take. Bytes are unpacked within each 128 bits of a
   register, hence codes are brought into that order before, by fours. */
V4 static inline void unpack_e4m3_v4(const uint8_t *__restrict code, int n, float *__restrict out) {
    const __m512i high_0 = _mm512_loadu_si512(e4m3_high), high_1 = _mm512_loadu_si512(e4m3_high + 64);
    const __m512i low_0 = _mm512_loadu_si512(e4m3_low), low_1 = _mm512_loadu_si512(e4m3_low + 64);
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    const __m512i sign = _mm512_set1_epi8((char)0x80), zero = _mm512_setzero_si512();
    const __mmask64 bytes = ~(__mmask64)0;
    const __mmask32 words = ~(__mmask32)0;
    int i = 0;
    for (; i + 64 <= n; i += 64) {
        const __m512i codes = _mm512_maskz_permutexvar_epi32(0xffff, order, _mm512_loadu_si512(code + i));
        const __m512i low = _mm512_permutex2var_epi8(low_0, codes, low_1);
        const __m512i magnitude = _mm512_permutex2var_epi8(high_0, codes, high_1);
        const __m512i high = _mm512_ternarylogic_epi32(magnitude, codes, sign, 0xf8);      /* magnitude | (codes & sign) */
        const __m512i first = _mm512_maskz_unpacklo_epi8(bytes, low, high);
        const __m512i second = _mm512_maskz_unpackhi_epi8(bytes, low, high);
        _mm512_storeu_si512(out + i, _mm512_maskz_unpacklo_epi16(words, zero, first));
        _mm512_storeu_si512(out + i + 16, _mm512_maskz_unpackhi_epi16(words, zero, first));
        _mm512_storeu_si512(out + i + 32, _mm512_maskz_unpacklo_epi16(words, zero, second));
        _mm512_storeu_si512(out + i + 48, _mm512_maskz_unpackhi_epi16(words, zero, second));
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
