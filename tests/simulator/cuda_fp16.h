/* tests/simulator/cuda_fp16.h: half precision. */
#ifndef SIM_FP16
#define SIM_FP16
#include "cuda_runtime.h"

struct __half { uint16_t bits; };
struct alignas(4) __half2 { __half x, y; };
typedef __half half;
typedef __half2 half2;

static inline float __half2float(__half v) { return _cvtsh_ss(v.bits); }
static inline __half __float2half_rn(float v) { return {(uint16_t)_cvtss_sh(v, _MM_FROUND_TO_NEAREST_INT)}; }
static inline __half __float2half(float v) { return __float2half_rn(v); }
static inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
static inline __half2 __float2half2_rn(float v) { return __floats2half2_rn(v, v); }
static inline __half2 __half2half2(__half v) { return {v, v}; }
static inline float2 __half22float2(__half2 v) { return make_float2(__half2float(v.x), __half2float(v.y)); }
static inline float __low2float(__half2 v) { return __half2float(v.x); }
static inline float __high2float(__half2 v) { return __half2float(v.y); }
static inline __half __low2half(__half2 v) { return v.x; }
static inline __half __high2half(__half2 v) { return v.y; }
static inline __half2 __halves2half2(__half x, __half y) { return {x, y}; }
static inline __half __ushort_as_half(uint16_t v) { return {v}; }
static inline uint16_t __half_as_ushort(__half v) { return v.bits; }
static inline __half __hadd(__half a, __half b) { return __float2half_rn(__half2float(a) + __half2float(b)); }
static inline __half __hsub(__half a, __half b) { return __float2half_rn(__half2float(a) - __half2float(b)); }
static inline __half __hmul(__half a, __half b) { return __float2half_rn(__half2float(a) * __half2float(b)); }
static inline __half __hfma(__half a, __half b, __half c) { return __float2half_rn((float)((double)__half2float(a) * __half2float(b) + __half2float(c))); }
static inline __half2 __hadd2(__half2 a, __half2 b) { return {__hadd(a.x, b.x), __hadd(a.y, b.y)}; }
static inline __half2 __hsub2(__half2 a, __half2 b) { return {__hsub(a.x, b.x), __hsub(a.y, b.y)}; }
static inline __half2 __hmul2(__half2 a, __half2 b) { return {__hmul(a.x, b.x), __hmul(a.y, b.y)}; }
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) { return {__hfma(a.x, b.x, c.x), __hfma(a.y, b.y, c.y)}; }

#endif
