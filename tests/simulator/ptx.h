/* tests/simulator/ptx.h: instructions of PTX, as asm of the sources has them (tests/simulator/rewrite.pl): operands in their order, the result first. */

#include "cuda_fp16.h"

/* ---- Memory. A load without a register for its result is none. -------------------------------------------------------- */

template <class T> static inline void sim_load(T &x, const void *at) { x = *sim::aligned((const T *)at); }
template <class T> static inline void sim_load2(T &x, T &y, const void *at) {
    struct alignas(2 * sizeof(T)) pair { T x, y; };
    const pair v = *sim::aligned((const pair *)at);
    x = v.x; y = v.y;
}
template <class T> static inline void sim_load4(T &x, T &y, T &z, T &w, const void *at) {
    struct alignas(4 * sizeof(T)) four { T x, y, z, w; };
    const four v = *sim::aligned((const four *)at);
    x = v.x; y = v.y; z = v.z; w = v.w;
}
/* Instructions that are one function with other words. */
#define SIM_SAME(name, function) template <class... A> static inline void ptx_##name(A &&...a) { function(a...); }
SIM_SAME(ld_global_f32, sim_load)
SIM_SAME(ld_global_cs_b32, sim_load)
SIM_SAME(ld_global_cs_v2_b32, sim_load2)
SIM_SAME(ld_global_cs_v4_b32, sim_load4)
SIM_SAME(ld_global_cg_v2_f32, sim_load2)
SIM_SAME(ld_global_cg_v4_b32, sim_load4)
static inline void ptx_ld_global_cs_u8(uint32_t &to, const void *at) { to = *(const uint8_t *)at; }

/* What is polled for: kernels before this one have ended, so it is there; if it is not, it never will be. */
static inline void sim_polled() {
    if (sim::now->loads++ > sim::LOADS_MOST) sim::fault("polls without end");
}
static inline void ptx_ld_relaxed_gpu_global_f32(float &x, const void *at) { sim_polled(); sim_load(x, at); }
static inline void ptx_ld_relaxed_gpu_global_v4_f32(float &x, float &y, float &z, float &w, const void *at) { sim_polled(); sim_load4(x, y, z, w, at); }
static inline void ptx_st_relaxed_gpu_global_u32(void *at, uint32_t v) { *sim::aligned((uint32_t *)at) = v; }
static inline void ptx_atom_acq_rel_gpu_global_add_s32(int &was, int *at, int v) { was = atomicAdd(at, v); }

/* Of the whole system: what other devices and the host store is polled for until it is there. An access is one of its whole width: processors
   with AVX load and store aligned vectors whole. */
template <int BYTES> struct sim_whole { alignas(BYTES) char bytes[BYTES]; };
template <int BYTES> static inline sim_whole<BYTES> sim_load_whole(const void *at) {
    sim_whole<BYTES> v, *from = sim::aligned((sim_whole<BYTES> *)at);
    sim::poll();
    if (BYTES == 4) *(uint32_t *)&v = __atomic_load_n((uint32_t *)from, __ATOMIC_ACQUIRE);
    else if (BYTES == 8) *(uint64_t *)&v = __atomic_load_n((uint64_t *)from, __ATOMIC_ACQUIRE);
    else *(__m128i *)&v = *(volatile __m128i *)from;
    return v;
}
template <int BYTES> static inline void sim_store_whole(void *at, sim_whole<BYTES> v) {
    sim_whole<BYTES> *to = sim::aligned((sim_whole<BYTES> *)at);
    if (BYTES == 4) __atomic_store_n((uint32_t *)to, *(uint32_t *)&v, __ATOMIC_RELEASE);
    else if (BYTES == 8) __atomic_store_n((uint64_t *)to, *(uint64_t *)&v, __ATOMIC_RELEASE);
    else *(volatile __m128i *)to = *(__m128i *)&v;
}
template <class T> static inline void sim_load_system1(T &x, const void *at) { x = sim_bits<T>(sim_load_whole<sizeof(T)>(at)); }
template <class X, class Y> static inline void sim_load_system2(X &x, Y &y, const void *at) {
    struct two { X x; Y y; };
    const two v = sim_bits<two>(sim_load_whole<sizeof(two)>(at));
    x = v.x; y = v.y;
}
template <class X, class Y, class Z, class W> static inline void sim_load_system4(X &x, Y &y, Z &z, W &w, const void *at) {
    struct four { X x; Y y; Z z; W w; };
    const four v = sim_bits<four>(sim_load_whole<sizeof(four)>(at));
    x = v.x; y = v.y; z = v.z; w = v.w;
}
template <class T> static inline void sim_store_system1(void *at, T x) { sim_store_whole(at, sim_bits<sim_whole<sizeof(T)>>(x)); }
template <class X, class Y> static inline void sim_store_system2(void *at, X x, Y y) {
    struct two { X x; Y y; };
    sim_store_whole(at, sim_bits<sim_whole<sizeof(two)>>(two{x, y}));
}
template <class X, class Y, class Z, class W> static inline void sim_store_system4(void *at, X x, Y y, Z z, W w) {
    struct four { X x; Y y; Z z; W w; };
    sim_store_whole(at, sim_bits<sim_whole<sizeof(four)>>(four{x, y, z, w}));
}
#define SIM_TYPES(is, name, function) \
    SIM_SAME(name##is##u32, function) SIM_SAME(name##is##s32, function) SIM_SAME(name##is##b32, function) SIM_SAME(name##is##f32, function)
#define SIM_SYSTEM(load, store) \
    SIM_TYPES(_, load, sim_load_system1) SIM_TYPES(_v2_, load, sim_load_system2) SIM_TYPES(_v4_, load, sim_load_system4) \
    SIM_TYPES(_, store, sim_store_system1) SIM_TYPES(_v2_, store, sim_store_system2) SIM_TYPES(_v4_, store, sim_store_system4) \
    SIM_SAME(load##_u64, sim_load_system1) SIM_SAME(load##_b64, sim_load_system1) SIM_SAME(load##_v2_u64, sim_load_system2) \
    SIM_SAME(load##_v2_b64, sim_load_system2) SIM_SAME(store##_u64, sim_store_system1) SIM_SAME(store##_b64, sim_store_system1) \
    SIM_SAME(store##_v2_u64, sim_store_system2) SIM_SAME(store##_v2_b64, sim_store_system2)
SIM_SYSTEM(ld_relaxed_sys, st_relaxed_sys)
SIM_SYSTEM(ld_relaxed_sys_global, st_relaxed_sys_global)
SIM_SYSTEM(ld_acquire_sys, st_release_sys)
SIM_SYSTEM(ld_acquire_sys_global, st_release_sys_global)
SIM_SYSTEM(ld_volatile, st_volatile)
SIM_SYSTEM(ld_volatile_global, st_volatile_global)
static inline void ptx_fence_acq_rel_sys() { __threadfence_system(); }
static inline void ptx_fence_sc_sys() { __threadfence_system(); }
static inline void ptx_membar_sys() { __threadfence_system(); }

static inline void ptx_cp_async_bulk_prefetch_L2_global(const void *at, uint32_t bytes) {
    if ((uintptr_t)at % 16 || bytes % 16) sim::fault("prefetch of %u bytes at %p", bytes, at);
}

static inline void ptx_ld_shared_f32(float &x, uint32_t at) { sim_load(x, sim::shared_at(at, 4)); }
static inline void ptx_ld_shared_v2_f32(float &x, float &y, uint32_t at) { sim_load2(x, y, sim::shared_at(at, 8)); }
static inline void ptx_ld_shared_v4_f32(float &x, float &y, float &z, float &w, uint32_t at) { sim_load4(x, y, z, w, sim::shared_at(at, 16)); }
static inline void ptx_ld_shared_v4_u32(uint32_t &x, uint32_t &y, uint32_t &z, uint32_t &w, uint32_t at) { sim_load4(x, y, z, w, sim::shared_at(at, 16)); }

/* Copies in the background: done when they are waited for, and NaNs until then. */
static inline void sim_copy(uint32_t to, const void *from, int bytes, int from_bytes) {
    char *at = sim::shared_at(to, (uint32_t)bytes);
    if ((uintptr_t)from % bytes) sim::fault("cp.async of %d bytes from %p", bytes, from);
    memset(at, 0xff, (size_t)bytes);
    sim::now->copies.push_back({at, (const char *)from, bytes, from_bytes, sim::now->group});
}
static inline void ptx_cp_async_cg_shared_global(uint32_t to, const void *from, int bytes, int from_bytes) { sim_copy(to, from, bytes, from_bytes); }
static inline void ptx_cp_async_cg_shared_global(uint32_t to, const void *from, int bytes) { sim_copy(to, from, bytes, bytes); }
static inline void ptx_cp_async_ca_shared_global(uint32_t to, const void *from, int bytes) { sim_copy(to, from, bytes, bytes); }
static inline void ptx_cp_async_ca_shared_global(uint32_t to, const void *from, int bytes, int from_bytes) { sim_copy(to, from, bytes, from_bytes); }
static inline void ptx_cp_async_commit_group() { sim::now->group++; }
static inline void ptx_cp_async_wait_group(int left) {
    std::vector<sim::copy> &copies = sim::now->copies;
    size_t done = 0;
    for (; done < copies.size() && copies[done].group < sim::now->group - left; done++) {
        const sim::copy &c = copies[done];
        memset(c.to, 0, (size_t)c.bytes);
        memcpy(c.to, c.from, (size_t)c.from_bytes);
    }
    copies.erase(copies.begin(), copies.begin() + (ptrdiff_t)done);
}

/* ---- How kernels follow each other: one after the other; clusters ------------------------------------------------------- */

static inline void ptx_griddepcontrol_wait() {}
static inline void ptx_griddepcontrol_launch_dependents() {}
static inline void ptx_bar_sync(int number, int threads) { sim::barrier_of(number, threads, true); }
static inline void ptx_bar_arrive(int number, int threads) { sim::barrier_of(number, threads, false); }
static inline void ptx_barrier_cluster_arrive_release() { sim::cluster_arrive(); }
static inline void ptx_barrier_cluster_arrive_relaxed() { sim::cluster_arrive(); }
static inline void ptx_barrier_cluster_wait_acquire() { sim::cluster_wait(); }

/* ---- Registers --------------------------------------------------------------------------------------------------------------- */

template <class T, class F> static inline void ptx_mov_b32(T &to, F from) { static_assert(sizeof to == 4 && sizeof from == 4, "mov.b32"); memcpy(&to, &from, 4); }
template <class T, class F> static inline void ptx_mov_b64(T &to, F from) { static_assert(sizeof to == 8 && sizeof from == 8, "mov.b64"); memcpy(&to, &from, 8); }
static inline void ptx_mov_b32(uint16_t &low, uint16_t &high, uint32_t v) { low = (uint16_t)v; high = (uint16_t)(v >> 16); }
static inline void ptx_mov_b32(uint8_t &a, uint8_t &b, uint8_t &c, uint8_t &d, uint32_t v) {
    a = (uint8_t)v; b = (uint8_t)(v >> 8); c = (uint8_t)(v >> 16); d = (uint8_t)(v >> 24);
}
template <class T> static inline void ptx_mov_u64(T &to, uint64_t from) { to = (T)from; }
template <class T> static inline void ptx_mov_u32(T &to, uint32_t from) { to = (T)from; }
static inline void ptx_setp_ne_s32(bool &p, int a, int b) { p = a != b; }
/* Bit (a << 2 | b << 1 | c) of `table` for each bit. */
static inline void ptx_lop3_b32(uint32_t &to, uint32_t a, uint32_t b, uint32_t c, int table) {
    to = 0;
    for (int i = 0; i < 8; i++)
        if (table >> i & 1) to |= (i & 4 ? a : ~a) & (i & 2 ? b : ~b) & (i & 1 ? c : ~c);
}

static inline uint16_t sim_bf16(float v) {
    const uint32_t bits = __float_as_uint(v);
    return v != v ? 0x7fff : (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static inline float sim_flush(float v) { return fabsf(v) < 0x1p-126f ? copysignf(0, v) : v; }
static inline void ptx_ex2_approx_ftz_f32(float &to, float v) { to = sim_flush(exp2f(sim_flush(v))); }
static inline void ptx_rcp_approx_ftz_f32(float &to, float v) { to = sim_flush(1 / sim_flush(v)); }
static inline void ptx_tanh_approx_f32(float &to, float v) { to = tanhf(v); }
static inline void ptx_cvt_rn_bf16x2_f32(uint32_t &to, float high, float low) { to = (uint32_t)sim_bf16(high) << 16 | sim_bf16(low); }
static float sim_e4m3(uint8_t code) {
    const int exponent = code >> 3 & 15, mantissa = code & 7;
    const float size = exponent == 15 && mantissa == 7 ? NAN : exponent ? ldexpf((float)(8 + mantissa), exponent - 10) : ldexpf((float)mantissa, -9);
    return code & 0x80 ? -size : size;
}
struct sim_e4m3_table {
    uint16_t half[256];
    sim_e4m3_table() { for (int i = 0; i < 256; i++) half[i] = __float2half_rn(sim_e4m3((uint8_t)i)).bits; }
};
static const sim_e4m3_table sim_e4m3_halves;
static inline void ptx_cvt_rn_f16x2_e4m3x2(uint32_t &to, uint16_t codes) {
    to = (uint32_t)sim_e4m3_halves.half[codes >> 8] << 16 | sim_e4m3_halves.half[codes & 0xff];
}
/* The nearest of all codes; of two, the even one. */
static inline uint8_t sim_to_e4m3(float v) {
    const uint8_t sign = std::signbit(v) ? 0x80 : 0;
    const float size = fabsf(v);
    uint8_t best = 0;
    if (v != v) return 0x7f;
    for (int step = 64; step; step /= 2)
        if (best + step < 0x7f && sim_e4m3((uint8_t)(best + step)) <= size) best = (uint8_t)(best + step);
    if (best < 0x7e) {
        const float low = size - sim_e4m3(best), high = sim_e4m3((uint8_t)(best + 1)) - size;
        best += high < low || (high == low && best % 2);
    }
    return sign | best;
}
static inline void ptx_cvt_rn_satfinite_e4m3x2_f32(uint16_t &to, float high, float low) { to = (uint16_t)(sim_to_e4m3(high) << 8 | sim_to_e4m3(low)); }

/* ---- What a warp does together --------------------------------------------------------------------------------------------------- */

struct sim_matrices { uint32_t *to[4]; const char *at; };
template <bool TRANSPOSED, int COUNT> static void sim_load_matrices(void **of, uint32_t lanes) {
    if (lanes != ~0u) sim::fault("ldmatrix without lanes %08x", ~lanes);
    for (int lane = 0; lane < 32; lane++)
        for (int m = 0; m < COUNT; m++) {
            uint32_t pair = 0;
            for (int e = 0; e < 2; e++) {
                const int row = TRANSPOSED ? lane % 4 * 2 + e : lane / 4, column = TRANSPOSED ? lane / 4 : lane % 4 * 2 + e;
                uint16_t v;
                memcpy(&v, ((sim_matrices *)of[8 * m + row])->at + 2 * column, 2);
                pair |= (uint32_t)v << 16 * e;
            }
            *((sim_matrices *)of[lane])->to[m] = pair;
        }
}
template <bool TRANSPOSED> static inline void sim_ldmatrix4(uint32_t &a, uint32_t &b, uint32_t &c, uint32_t &d, uint32_t at) {
    sim_matrices of = {{&a, &b, &c, &d}, sim::shared_at(at, 16)};
    sim::in_warp(~0u, sim_load_matrices<TRANSPOSED, 4>, &of);
}
template <bool TRANSPOSED> static inline void sim_ldmatrix2(uint32_t &a, uint32_t &b, uint32_t at) {
    sim_matrices of = {{&a, &b}, sim::shared_at(at, 16)};
    sim::in_warp(~0u, sim_load_matrices<TRANSPOSED, 2>, &of);
}
SIM_SAME(ldmatrix_sync_aligned_m8n8_x4_shared_b16, sim_ldmatrix4<false>)
SIM_SAME(ldmatrix_sync_aligned_m8n8_x4_trans_shared_b16, sim_ldmatrix4<true>)
SIM_SAME(ldmatrix_sync_aligned_m8n8_x2_shared_b16, sim_ldmatrix2<false>)
SIM_SAME(ldmatrix_sync_aligned_m8n8_x2_trans_shared_b16, sim_ldmatrix2<true>)

/* mma.m16n8k16: c[16][8] += a[16][16] b[16][8]; who holds what stands in cuda/numbers.cu. */
struct sim_mma { float c[4]; uint32_t a[4], b[2]; };
template <bool HALF> static inline float sim_16(uint32_t pair, int which) {
    const uint16_t bits = (uint16_t)(pair >> 16 * which);
    return HALF ? _cvtsh_ss(bits) : __uint_as_float((uint32_t)bits << 16);
}
template <bool HALF> __attribute__((optimize("O3"))) static void sim_multiply(void **of, uint32_t lanes) {
    alignas(32) float a[16][16], b[16][8], c[16][8];
    if (lanes != ~0u) sim::fault("mma without lanes %08x", ~lanes);
    for (int lane = 0; lane < 32; lane++) {
        const sim_mma *m = (const sim_mma *)of[lane];
        const int g = lane / 4, i = lane % 4;
        for (int e = 0; e < 2; e++) {
            a[g][2 * i + e] = sim_16<HALF>(m->a[0], e);
            a[g + 8][2 * i + e] = sim_16<HALF>(m->a[1], e);
            a[g][2 * i + 8 + e] = sim_16<HALF>(m->a[2], e);
            a[g + 8][2 * i + 8 + e] = sim_16<HALF>(m->a[3], e);
            b[2 * i + e][g] = sim_16<HALF>(m->b[0], e);
            b[2 * i + 8 + e][g] = sim_16<HALF>(m->b[1], e);
            c[g][2 * i + e] = m->c[e];
            c[g + 8][2 * i + e] = m->c[2 + e];
        }
    }
    for (int row = 0; row < 16; row++)
        for (int k = 0; k < 16; k++)
            for (int column = 0; column < 8; column++) c[row][column] += a[row][k] * b[k][column];
    for (int lane = 0; lane < 32; lane++) {
        sim_mma *m = (sim_mma *)of[lane];
        const int g = lane / 4, i = lane % 4;
        for (int e = 0; e < 2; e++) {
            m->c[e] = c[g][2 * i + e];
            m->c[2 + e] = c[g + 8][2 * i + e];
        }
    }
}
template <bool HALF>
static inline void sim_mma_m16n8k16(float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1,
                                    float c0, float c1, float c2, float c3) {
    sim_mma m = {{c0, c1, c2, c3}, {a0, a1, a2, a3}, {b0, b1}};
    sim::in_warp(~0u, sim_multiply<HALF>, &m);
    d0 = m.c[0]; d1 = m.c[1]; d2 = m.c[2]; d3 = m.c[3];
}
SIM_SAME(mma_sync_aligned_m16n8k16_row_col_f32_f16_f16_f32, sim_mma_m16n8k16<true>)
SIM_SAME(mma_sync_aligned_m16n8k16_row_col_f32_bf16_bf16_f32, sim_mma_m16n8k16<false>)
