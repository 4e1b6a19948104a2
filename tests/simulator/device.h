/* tests/simulator/device.h: what kernels call: what a thread knows of itself, barriers, warps, atomics, bits and numbers. */

#define threadIdx (sim::now->thread)
#define blockIdx (sim::now->block->index)
#define warpSize 32

static inline void __syncthreads() { sim::barrier(0); }
static inline int __syncthreads_or(int v) { return sim::barrier(v != 0); }
static inline void __threadfence() {}
static inline void __threadfence_block() {}
static inline void __threadfence_system() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __nanosleep(unsigned) { sim::poll(); }

namespace sim {

template <class T> struct exchanged { T v, got; int from; };

/* Lane `from` of each is where its value comes from. */
template <class T> static void exchange(void **of, uint32_t lanes) {
    for (uint32_t left = lanes; left; left &= left - 1) {
        exchanged<T> *to = (exchanged<T> *)of[__builtin_ctz(left)];
        if (!(lanes >> to->from & 1)) fault("lane %d reads lane %d, which is not there (%08x)", __builtin_ctz(left), to->from, lanes);
        to->got = ((exchanged<T> *)of[to->from])->v;
    }
}

template <class T> static inline T from_lane(uint32_t mask, T v, int lane) {
    exchanged<T> of = {v, v, lane};
    in_warp(mask, exchange<T>, &of);
    return of.got;
}

static void meet(void **, uint32_t) {}

template <class T> struct reduced { T v; };
template <class T, class F> static void reduce(void **of, uint32_t lanes) {
    T all = ((reduced<T> *)of[__builtin_ctz(lanes)])->v;
    for (uint32_t left = lanes & (lanes - 1); left; left &= left - 1) all = F::of(all, ((reduced<T> *)of[__builtin_ctz(left)])->v);
    for (uint32_t left = lanes; left; left &= left - 1) ((reduced<T> *)of[__builtin_ctz(left)])->v = all;
}
template <class F, class T> static inline T reduce_lanes(uint32_t mask, T v) {
    reduced<T> of = {v};
    in_warp(mask, reduce<T, F>, &of);
    return of.v;
}
struct sum { template <class T> static T of(T a, T b) { return a + b; } };
struct least { template <class T> static T of(T a, T b) { return a < b ? a : b; } };
struct most { template <class T> static T of(T a, T b) { return a > b ? a : b; } };
struct ored { template <class T> static T of(T a, T b) { return a | b; } };
struct anded { template <class T> static T of(T a, T b) { return a & b; } };
struct xored { template <class T> static T of(T a, T b) { return a ^ b; } };

template <class T> static void match(void **of, uint32_t lanes) {
    for (uint32_t left = lanes; left; left &= left - 1) {
        exchanged<T> *to = (exchanged<T> *)of[__builtin_ctz(left)];
        to->from = 0;
        for (uint32_t other = lanes; other; other &= other - 1)
            if (((exchanged<T> *)of[__builtin_ctz(other)])->v == to->v) to->from |= 1 << __builtin_ctz(other);
    }
}

}

static inline void __syncwarp(uint32_t mask = ~0u) { sim::in_warp(mask, sim::meet, NULL); }

template <class T> static inline T __shfl_sync(uint32_t mask, T v, int lane, int width = 32) {
    return sim::from_lane(mask, v, (sim::now->lane & ~(width - 1)) | (lane & (width - 1)));
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T v, int bits, int width = 32) {
    const int lane = sim::now->lane, from = lane ^ bits;
    return sim::from_lane(mask, v, from < (lane & ~(width - 1)) + width ? from : lane);
}
template <class T> static inline T __shfl_up_sync(uint32_t mask, T v, unsigned by, int width = 32) {
    const int lane = sim::now->lane, from = lane - (int)by;
    return sim::from_lane(mask, v, from >= (lane & ~(width - 1)) ? from : lane);
}
template <class T> static inline T __shfl_down_sync(uint32_t mask, T v, unsigned by, int width = 32) {
    const int lane = sim::now->lane, from = lane + (int)by;
    return sim::from_lane(mask, v, from < (lane & ~(width - 1)) + width ? from : lane);
}
static inline uint32_t __ballot_sync(uint32_t mask, int v) {
    return sim::reduce_lanes<sim::ored>(mask, v ? 1u << sim::now->lane : 0u);
}
static inline int __any_sync(uint32_t mask, int v) { return sim::reduce_lanes<sim::ored>(mask, v != 0); }
static inline int __all_sync(uint32_t mask, int v) { return sim::reduce_lanes<sim::anded>(mask, v != 0); }
template <class T> static inline T __reduce_add_sync(uint32_t mask, T v) { return sim::reduce_lanes<sim::sum>(mask, v); }
template <class T> static inline T __reduce_min_sync(uint32_t mask, T v) { return sim::reduce_lanes<sim::least>(mask, v); }
template <class T> static inline T __reduce_max_sync(uint32_t mask, T v) { return sim::reduce_lanes<sim::most>(mask, v); }
static inline uint32_t __reduce_or_sync(uint32_t mask, uint32_t v) { return sim::reduce_lanes<sim::ored>(mask, v); }
static inline uint32_t __reduce_and_sync(uint32_t mask, uint32_t v) { return sim::reduce_lanes<sim::anded>(mask, v); }
static inline uint32_t __reduce_xor_sync(uint32_t mask, uint32_t v) { return sim::reduce_lanes<sim::xored>(mask, v); }
template <class T> static inline uint32_t __match_any_sync(uint32_t mask, T v) {
    sim::exchanged<T> of = {v, v, 0};
    sim::in_warp(mask, sim::match<T>, &of);
    return (uint32_t)of.from;
}
static inline uint32_t __activemask() { return sim::now->warp->alive; }

/* One thread of a device runs at a time. */
template <class T> static inline T atomicAdd(T *at, T v) { T was = *at; *at = was + v; return was; }
template <class T> static inline T atomicSub(T *at, T v) { T was = *at; *at = was - v; return was; }
template <class T> static inline T atomicOr(T *at, T v) { T was = *at; *at = was | v; return was; }
template <class T> static inline T atomicAnd(T *at, T v) { T was = *at; *at = was & v; return was; }
template <class T> static inline T atomicMax(T *at, T v) { T was = *at; if (v > was) *at = v; return was; }
template <class T> static inline T atomicMin(T *at, T v) { T was = *at; if (v < was) *at = v; return was; }
template <class T> static inline T atomicExch(T *at, T v) { T was = *at; *at = v; return was; }
template <class T> static inline T atomicCAS(T *at, T is, T v) { T was = *at; if (was == is) *at = v; return was; }
static inline unsigned atomicInc(unsigned *at, unsigned most) { unsigned was = *at; *at = was >= most ? 0 : was + 1; return was; }
static inline unsigned atomicAdd(unsigned *at, int v) { return atomicAdd(at, (unsigned)v); }
static inline uint32_t atomicOr(uint32_t *at, int v) { return atomicOr(at, (uint32_t)v); }
static inline int atomicOr(int *at, unsigned v) { return atomicOr(at, (int)v); }

/* Of the whole system: with other devices and the host. */
template <class T> static inline T atomicAdd_system(T *at, T v) { return __atomic_fetch_add(sim::aligned(at), v, __ATOMIC_RELAXED); }
template <class T> static inline T atomicExch_system(T *at, T v) { return __atomic_exchange_n(sim::aligned(at), v, __ATOMIC_RELAXED); }

template <class T> static inline T __ldg(const T *at) { return *sim::aligned(at); }
template <class T> static inline T __ldcg(const T *at) { return *sim::aligned(at); }
template <class T> static inline T __ldca(const T *at) { return *sim::aligned(at); }
template <class T> static inline T __ldcs(const T *at) { return *sim::aligned(at); }
template <class T> static inline T __ldcv(const T *at) { return *sim::aligned(at); }
template <class T> static inline T __ldlu(const T *at) { return *sim::aligned(at); }
template <class T> static inline void __stcg(T *at, T v) { *sim::aligned(at) = v; }
template <class T> static inline void __stcs(T *at, T v) { *sim::aligned(at) = v; }
template <class T> static inline void __stwt(T *at, T v) { *sim::aligned(at) = v; }

static inline size_t __cvta_generic_to_shared(const void *at) { return sim::shared_offset(at); }
static inline void *__cvta_shared_to_generic(size_t at) { return sim::shared_at((uint32_t)at, 1); }
static inline void *__cluster_map_shared_rank(const void *at, unsigned rank) { return sim::of_rank(at, rank); }

template <class T, class F> static inline T sim_bits(F v) { T bits; static_assert(sizeof bits == sizeof v, "bits"); memcpy(&bits, &v, sizeof v); return bits; }
static inline float __uint_as_float(uint32_t v) { return sim_bits<float>(v); }
static inline float __int_as_float(int32_t v) { return sim_bits<float>(v); }
static inline int32_t __float_as_int(float v) { return sim_bits<int32_t>(v); }
static inline uint32_t __float_as_uint(float v) { return sim_bits<uint32_t>(v); }
static inline int __popc(uint32_t v) { return __builtin_popcount(v); }
static inline int __popcll(uint64_t v) { return __builtin_popcountll(v); }
static inline int __ffs(int v) { return __builtin_ffs(v); }
static inline int __ffsll(long long v) { return __builtin_ffsll(v); }
static inline int __clz(int v) { return v ? __builtin_clz((unsigned)v) : 32; }
static inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }
static inline uint32_t __brev(uint32_t v) {
    uint32_t r = 0;
    for (int i = 0; i < 32; i++) r |= (v >> i & 1) << (31 - i);
    return r;
}
static inline uint32_t __funnelshift_r(uint32_t low, uint32_t high, uint32_t by) { return (uint32_t)(((uint64_t)high << 32 | low) >> by % 32); }
static inline uint32_t __funnelshift_l(uint32_t low, uint32_t high, uint32_t by) { return (uint32_t)(((uint64_t)high << 32 | low) << by % 32 >> 32); }
/* Byte i is that of a, b whose number is hexadecimal digit i; with 8 added its sign. */
static inline uint32_t __byte_perm(uint32_t a, uint32_t b, uint32_t digits) {
    const uint64_t both = (uint64_t)b << 32 | a;
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t digit = digits >> 4 * i & 15, byte = (uint32_t)(both >> 8 * (digit & 7)) & 0xff;
        r |= (digit & 8 ? (byte & 0x80 ? 0xffu : 0) : byte) << 8 * i;
    }
    return r;
}
static inline int __dp4a(int a, int b, int c) {
    for (int i = 0; i < 4; i++) c += (int)(int8_t)(a >> 8 * i) * (int)(int8_t)(b >> 8 * i);
    return c;
}
static inline uint32_t __vsub4(uint32_t a, uint32_t b) {
    uint32_t r = 0;
    for (int i = 0; i < 4; i++) r |= ((a >> 8 * i) - (b >> 8 * i) & 0xff) << 8 * i;
    return r;
}

static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __frcp_rn(float a) { return 1 / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frsqrt_rn(float a) { return 1 / sqrtf(a); }
#define __expf expf
#define __logf logf
#define __tanhf tanhf
#define __sinf sinf
#define __cosf cosf
#define __powf powf
static inline float rsqrtf(float a) { return 1 / sqrtf(a); }
static inline float cospif(float a) { return (float)cos(M_PI * (double)a); }
static inline float sinpif(float a) { return (float)sin(M_PI * (double)a); }
static inline float __saturatef(float a) { return a < 0 ? 0 : a > 1 ? 1 : a; }
static inline int __float2int_rn(float a) { return (int)rintf(a); }
static inline int __float2int_rz(float a) { return (int)a; }
static inline int __float2int_rd(float a) { return (int)floorf(a); }
static inline float __int2float_rn(int a) { return (float)a; }
static inline float __uint2float_rn(unsigned a) { return (float)a; }

#define SIM_MIN_MAX(a, b, r) \
    static inline r min(a x, b y) { return (r)x < (r)y ? (r)x : (r)y; } \
    static inline r max(a x, b y) { return (r)x > (r)y ? (r)x : (r)y; }
SIM_MIN_MAX(int, int, int)
SIM_MIN_MAX(unsigned, unsigned, unsigned)
SIM_MIN_MAX(int, unsigned, unsigned)
SIM_MIN_MAX(unsigned, int, unsigned)
SIM_MIN_MAX(long, long, long)
SIM_MIN_MAX(unsigned long, unsigned long, unsigned long)
SIM_MIN_MAX(long, unsigned long, unsigned long)
SIM_MIN_MAX(unsigned long, long, unsigned long)
SIM_MIN_MAX(long long, long long, long long)
SIM_MIN_MAX(unsigned long long, unsigned long long, unsigned long long)
SIM_MIN_MAX(long long, unsigned long long, unsigned long long)
SIM_MIN_MAX(unsigned long long, long long, unsigned long long)
SIM_MIN_MAX(float, float, float)
SIM_MIN_MAX(double, double, double)
SIM_MIN_MAX(float, double, double)
SIM_MIN_MAX(double, float, double)
#undef SIM_MIN_MAX

#define __builtin_unreachable() sim::fault("code that cannot be reached")
