/* formats/unpack.c: stored numbers to floats, many at a time, as weight formats read them: by the plain loops of formats/numbers.c, or, where
   there are levels of processors (cpu/simd.c), by cpu/unpack.c's for the level at hand. */

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
    for (int i = 0; i < n; i++) out[i] *= scale * E4M3_BITS_SCALE;
}
