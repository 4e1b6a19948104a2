/* cpu/simd.c: what makes one build fast on every processor: function clones and vector types. */

/* Functions marked SIMD are compiled once for each level of x86-64 and chosen when the program starts, so that one build
   is fast everywhere. Other processors need no choice. MOTE_NO_TARGET_CLONES leaves one version: ThreadSanitizer needs that,
   because the choice runs before the sanitizer does. */
#if defined(MOTE_NO_TARGET_CLONES)
#define SIMD
#elif defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && __GNUC__ >= 12
#define SIMD __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && defined(__GLIBC__) && (!defined(__clang__) || __clang_major__ >= 14)
#define SIMD __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define SIMD
#endif

/* Kernels that are written for a level: functions marked V3 or V4 are compiled for AVX2 and for AVX-512 with VNNI and VBMI (Ice
   Lake, Zen 4 and newer), and cpu_level() says which the processor has. Elsewhere there is the plain version alone.
   MOTE_CPU_LEVEL, set when compiling, is the highest one used: to test and time the others where they would not be chosen. */
#ifndef MOTE_CPU_LEVEL
#define MOTE_CPU_LEVEL 4
#endif
#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__)) && MOTE_CPU_LEVEL > 0
#define LEVELS
#define V3 __attribute__((target("avx2,fma,f16c")))
#define V4 __attribute__((target("avx2,fma,f16c,avx512f,avx512bw,avx512dq,avx512vl,avx512vbmi,avx512vnni")))

static inline int cpu_level(void) {
    int wide = MOTE_CPU_LEVEL >= 4 && __builtin_cpu_supports("avx512bw") &&
               __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
               __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni");
    return wide ? 4 : __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 3 : 0;
}
#endif
#ifdef __aarch64__
#define NEON                     /* which all of them have */
#endif

/* Long helpers of SIMD functions. Builds for sanitizers call them: clang would take minutes over the checks of all their copies. */
#ifdef MOTE_NO_TARGET_CLONES
#define INLINE_LONG static
#else
#define INLINE_LONG INLINE
#endif

/* How far ahead of a weight row's place lines are prefetched while weights come from memory: so many bytes at least, and whole
   pieces of `bytes`, which are used together. */
static size_t bytes_ahead(size_t bytes) {
    enum { LEAST = 2048 };
    return ((LEAST - 1) / bytes + 1) * bytes;
}

/* 16 floats at any address: one register or several, whatever the processor has. */
typedef float half_lanes __attribute__((vector_size(32)));
typedef float quarter_lanes __attribute__((vector_size(16), aligned(4), may_alias));
typedef float lanes __attribute__((vector_size(64), aligned(4), may_alias));

/* The sum of each of four registers, pairwise: (0 + 2) + (1 + 3). */
static inline __attribute__((always_inline)) quarter_lanes sum_quarters(quarter_lanes a, quarter_lanes b, quarter_lanes c, quarter_lanes d) {
#ifdef __SSE2__
    _MM_TRANSPOSE4_PS(a, b, c, d);
    return (a + c) + (b + d);
#else
    return (quarter_lanes){(a[0] + a[2]) + (a[1] + a[3]), (b[0] + b[2]) + (b[1] + b[3]), (c[0] + c[2]) + (c[1] + c[3]),
                           (d[0] + d[2]) + (d[1] + d[3])};
#endif
}
