/* tests/simulator/types.h: CUDA's words and vectors. */

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __noinline__
#define __restrict__ __restrict
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __align__(n) alignas(n)

#define SIM_VECTOR(name, type, align2, align4) \
    struct name##1 { type x; }; \
    struct alignas(align2) name##2 { type x, y; }; \
    struct name##3 { type x, y, z; }; \
    struct alignas(align4) name##4 { type x, y, z, w; }; \
    static inline name##2 make_##name##2(type x, type y) { return {x, y}; } \
    static inline name##3 make_##name##3(type x, type y, type z) { return {x, y, z}; } \
    static inline name##4 make_##name##4(type x, type y, type z, type w) { return {x, y, z, w}; }
SIM_VECTOR(char, signed char, 2, 4)
SIM_VECTOR(uchar, unsigned char, 2, 4)
SIM_VECTOR(short, short, 4, 8)
SIM_VECTOR(ushort, unsigned short, 4, 8)
SIM_VECTOR(int, int, 8, 16)
SIM_VECTOR(uint, unsigned, 8, 16)
SIM_VECTOR(longlong, long long, 16, 16)
SIM_VECTOR(ulonglong, unsigned long long, 16, 16)
SIM_VECTOR(float, float, 8, 16)
SIM_VECTOR(double, double, 16, 16)
#undef SIM_VECTOR

struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};
