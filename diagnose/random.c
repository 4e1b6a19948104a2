/* diagnose/random.c: random numbers for weights of synthetic models, for measuring and testing: for each format of formats/formats.c a function
   name_random(component, seed, i, to), which makes number i. Each is a function of a seed and of its place: integers, and one product of
   exact floats, so that a GPU and the CPU make the same bits. Knows how formats store numbers; must not know models. */

/* Random bits, for element i of what has this seed. */
BOTH uint32_t synthetic_bits(uint32_t seed, uint32_t i) {
    uint32_t x = ((i ^ i >> 16) * 0x7feb352du) ^ seed;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* -510..510, the sum of four bytes: a bell of standard deviation 148 */
BOTH int32_t synthetic_bell(uint32_t seed, uint32_t i) {
    uint32_t x = synthetic_bits(seed, i);
    return (int32_t)((x & 255) + (x >> 8 & 255) + (x >> 16 & 255) + (x >> 24)) - 510;
}

/* (low + a random number of the bits in mask) * scale. */
typedef struct synthetic_floats { int low; uint32_t mask; float scale; } synthetic_floats;

BOTH float synthetic_float(uint32_t seed, uint32_t i, synthetic_floats f) {
    return (float)(f.low + (int32_t)(synthetic_bits(seed, i) & f.mask)) * f.scale;
}

/* Standard deviation 0.02 */
BOTH float synthetic_f32(uint32_t seed, uint32_t i) {
    return (float)synthetic_bell(seed, i) * 0x1.1bcp-13f;
}

BOTH void f32_random(int component, uint32_t seed, uint32_t i, void *to) {
    (void)component;
    ((float *)to)[i] = synthetic_f32(seed, i);
}

/* Standard deviation 0.02 */
BOTH uint16_t synthetic_bf16(uint32_t seed, uint32_t i) {
    uint32_t bits;
    float f = synthetic_f32(seed, i);
    memcpy(&bits, &f, 4);
    return (uint16_t)((bits + 0x8000) >> 16);
}

BOTH void bf16_random(int component, uint32_t seed, uint32_t i, void *to) {
    (void)component;
    ((uint16_t *)to)[i] = synthetic_bf16(seed, i);
}

/* Standard deviation 0.018; a bell's 9 bits times 2^-13 are exact, and normal numbers. */
BOTH void f16_random(int component, uint32_t seed, uint32_t i, void *to) {
    uint32_t bits;
    int32_t bell = synthetic_bell(seed, i);
    float f = (float)bell * 0x1p-13f;
    (void)component;
    memcpy(&bits, &f, 4);
    ((uint16_t *)to)[i] = (uint16_t)(bell ? ((bits & 0x7fffffff) - (112u << 23)) >> 13 | (bits >> 31) << 15 : 0);
}

/* A whole number up to 448, rounded to what E4M3 has. */
BOTH uint8_t synthetic_fp8(uint32_t seed, uint32_t i) {
    uint32_t bits;
    int32_t bell = synthetic_bell(seed, i);
    float f = (float)bell;
    memcpy(&bits, &f, 4);
    int32_t code = (int32_t)(((bits & 0x7fffffff) + 0x80000) >> 20) - (120 << 3);      /* below 0 only for 0 */
    code = code < 0 ? 0 : code;
    code = code < 0x7e ? code : 0x7e;
    return (uint8_t)((uint32_t)code | bits >> 31 << 7);
}

/* Gives the codes the spread of synthetic BF16 weights. */
BOTH float synthetic_scale(uint32_t seed, uint32_t i) {
    synthetic_floats f = {96, 127, 0x1p-20f};
    return synthetic_float(seed, i, f);
}

BOTH void fp8_block_random(int component, uint32_t seed, uint32_t i, void *to) {
    if (component == CODES) ((uint8_t *)to)[i] = synthetic_fp8(seed, i);
    else ((float *)to)[i] = synthetic_scale(seed, i);
}

BOTH void fp8_row_random(int component, uint32_t seed, uint32_t i, void *to) {
    fp8_block_random(component, seed, i, to);
}

/* Any codes, of a mean square of 12; scales around 1, and a factor that gives the spread of synthetic BF16 weights. */
BOTH void nvfp4_random(int component, uint32_t seed, uint32_t i, void *to) {
    if (component == CODES) ((uint8_t *)to)[i] = (uint8_t)synthetic_bits(seed, i);
    else if (component == SCALES) ((uint8_t *)to)[i] = (uint8_t)(0x30 + (synthetic_bits(seed, i) & 15));
    else ((float *)to)[i] = 0x1.8p-8f;
}

/* Any codes, of a mean square of 9; scales of 2^-8 and 2^-7, which gives the spread of synthetic BF16 weights. */
BOTH void mxfp4_random(int component, uint32_t seed, uint32_t i, void *to) {
    const uint32_t bits = synthetic_bits(seed, i);
    ((uint8_t *)to)[i] = (uint8_t)(component == CODES ? bits : MXFP4_BIAS - 8 + (bits & 1));
}

/* Two codes around 8, of a standard deviation of 2.3; with the scales, that of synthetic BF16 weights. */
BOTH uint8_t synthetic_int4(uint32_t seed, uint32_t i) {
    uint32_t byte = 0;
    for (uint32_t half = 0; half < 2; half++) {
        const int32_t code = (synthetic_bell(seed, 2 * i + half) + 32 + 8 * 64) >> 6;   /* 8 in the mean */
        byte |= (uint32_t)(code < 0 ? 0 : code > 15 ? 15 : code) << 4 * half;
    }
    return (uint8_t)byte;
}

BOTH void int4_random(int component, uint32_t seed, uint32_t i, void *to) {
    synthetic_floats f = {96, 63, 0x1.1p-14f};
    float scale = synthetic_float(seed, i, f);
    uint32_t word;
    memcpy(&word, &scale, 4);
    if (component == CODES) ((uint8_t *)to)[i] = synthetic_int4(seed, i);
    else ((uint32_t *)to)[i] = (word & ~(uint32_t)INT4_ZERO) | 8;
}

BOTH void int4_fine_random(int component, uint32_t seed, uint32_t i, void *to) {
    int4_random(component, seed, i, to);
}

/* Words begin, begin + step, ... before end of a component = random ones. */
BOTH void format_random(enum format f, int component, uint32_t seed, void *to, uint32_t begin, uint32_t end, uint32_t step) {
    switch (f) {
#define FORMAT_CASE(NAME, name) \
    case FORMAT_##NAME: \
        if (component == CODES) \
            for (uint32_t i = begin; i < end; i += step) name##_random(CODES, seed, i, to); \
        else \
            for (uint32_t i = begin; i < end; i += step) name##_random(component, seed, i, to); \
        break;
        FORMATS(FORMAT_CASE)
#undef FORMAT_CASE
        default: break;
    }
}
