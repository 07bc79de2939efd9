// Mathematics for float, half and bfloat, for vectors of them, and for integers.
#pragma once
#pragma clang system_header
#include "limits.h"

namespace metal {
// One overload per scalar type, as in Metal: min(int, uint) stays ambiguous.
#define MSLH_F1(name, expr)                           \
  inline float name(float x) { return expr; }         \
  inline half name(half h) {                          \
    float x = (float)h;                               \
    return (half)(expr);                              \
  }                                                   \
  inline bfloat name(bfloat h) {                      \
    float x = (float)h;                               \
    return (bfloat)(float)(expr);                     \
  }                                                   \
  template <class T, int N>                           \
  inline vec<T, N> name(vec<T, N> v) {                \
    vec<T, N> r;                                      \
    for (int i = 0; i < N; i++) r[i] = name((T)v[i]); \
    return r;                                         \
  }
#define MSLH_F2(name, expr)                                    \
  inline float name(float x, float y) { return expr; }         \
  inline half name(half a, half b) {                           \
    float x = (float)a, y = (float)b;                          \
    return (half)(expr);                                       \
  }                                                            \
  inline bfloat name(bfloat a, bfloat b) {                     \
    float x = (float)a, y = (float)b;                          \
    return (bfloat)(float)(expr);                              \
  }                                                            \
  template <class T, int N>                                    \
  inline vec<T, N> name(vec<T, N> a, vec<T, N> b) {            \
    vec<T, N> r;                                               \
    for (int i = 0; i < N; i++) r[i] = name((T)a[i], (T)b[i]); \
    return r;                                                  \
  }
#define MSLH_MATH                                                                                  \
  MSLH_F1(exp, __builtin_expf(x))                                                                  \
  MSLH_F1(exp2, __builtin_exp2f(x)) MSLH_F1(exp10, __builtin_exp10f(x)) MSLH_F1(                   \
      log, __builtin_logf(x)) MSLH_F1(log2, __builtin_log2f(x)) MSLH_F1(log10,                     \
                                                                        __builtin_log10f(x))       \
      MSLH_F1(sqrt, __builtin_sqrtf(x)) MSLH_F1(rsqrt, 1.0f / __builtin_sqrtf(x)) MSLH_F1(         \
          sin, __builtin_sinf(x)) MSLH_F1(cos, __builtin_cosf(x)) MSLH_F1(tan, __builtin_tanf(x))  \
          MSLH_F1(sinh, __builtin_sinhf(x)) MSLH_F1(cosh, __builtin_coshf(x)) MSLH_F1(             \
              tanh, __builtin_tanhf(x)) MSLH_F1(asin, __builtin_asinf(x))                          \
              MSLH_F1(acos, __builtin_acosf(x)) MSLH_F1(atan, __builtin_atanf(x)) MSLH_F1(         \
                  asinh, __builtin_asinhf(x)) MSLH_F1(acosh, __builtin_acoshf(x))                  \
                  MSLH_F1(atanh, __builtin_atanhf(x)) MSLH_F1(floor, __builtin_floorf(x)) MSLH_F1( \
                      ceil, __builtin_ceilf(x)) MSLH_F1(round, __builtin_roundf(x))                \
                      MSLH_F1(rint, __builtin_rintf(x)) MSLH_F1(trunc, __builtin_truncf(x))        \
                          MSLH_F1(fabs, __builtin_fabsf(x)) MSLH_F1(                               \
                              fract, __builtin_fminf(x - __builtin_floorf(x), 0x1.fffffep-1f))     \
                              MSLH_F1(saturate, __builtin_fminf(__builtin_fmaxf(x, 0.0f), 1.0f))   \
                                  MSLH_F1(sign, (x > 0.0f   ? 1.0f                                 \
                                                 : x < 0.0f ? -1.0f                                \
                                                            : 0.0f))                               \
                                      MSLH_F2(pow, __builtin_powf(x, y))                           \
                                          MSLH_F2(powr, __builtin_powf(x, y))                      \
                                              MSLH_F2(atan2, __builtin_atan2f(x, y)) MSLH_F2(      \
                                                  fmod, __builtin_fmodf(x, y))                     \
                                                  MSLH_F2(fmin, __builtin_fminf(x, y)) MSLH_F2(    \
                                                      fmax, __builtin_fmaxf(x, y))                 \
                                                      MSLH_F2(copysign, __builtin_copysignf(x, y)) \
                                                          MSLH_F2(fdim, __builtin_fdimf(x, y))     \
                                                              MSLH_F2(divide, x / y) MSLH_F2(      \
                                                                  step, (y < x ? 0.0f : 1.0f))
MSLH_MATH
namespace fast {
MSLH_MATH
}
namespace precise {
MSLH_MATH
}

#define MSLH_I(T)                                                 \
  inline T min(T a, T b) { return b < a ? b : a; }                \
  inline T max(T a, T b) { return a < b ? b : a; }                \
  inline T clamp(T x, T lo, T hi) { return min(max(x, lo), hi); } \
  inline T abs(T x) { return x < (T)0 ? (T) - x : x; }            \
  inline T select(T a, T b, bool c) { return c ? b : a; }
MSLH_I(char)
MSLH_I(signed char) MSLH_I(uchar) MSLH_I(short) MSLH_I(ushort) MSLH_I(int) MSLH_I(uint) MSLH_I(long)
    MSLH_I(ulong)
#define MSLH_FM(T)                                                  \
  inline T min(T a, T b) { return fmin(a, b); }                     \
  inline T max(T a, T b) { return fmax(a, b); }                     \
  inline T clamp(T x, T lo, T hi) { return fmin(fmax(x, lo), hi); } \
  inline T abs(T x) { return fabs(x); }                             \
  inline T select(T a, T b, bool c) { return c ? b : a; }           \
  inline T mix(T a, T b, T t) { return a + (b - a) * t; }
        MSLH_FM(float) MSLH_FM(half) MSLH_FM(bfloat) inline float fma(float a, float b, float c) {
  return __builtin_fmaf(a, b, c);
}
inline half fma(half a, half b, half c) {
  return (half)__builtin_fma((double)a, (double)b, (double)c);
}
inline bfloat fma(bfloat a, bfloat b, bfloat c) { return (bfloat)__builtin_fmaf(a, b, c); }
template <class T, int N>
inline vec<T, N> fma(vec<T, N> a, vec<T, N> b, vec<T, N> c) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r[i] = fma((T)a[i], (T)b[i], (T)c[i]);
  return r;
}
template <class T, int N>
inline vec<T, N> min(vec<T, N> a, vec<T, N> b) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r[i] = min((T)a[i], (T)b[i]);
  return r;
}
template <class T, int N>
inline vec<T, N> max(vec<T, N> a, vec<T, N> b) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r[i] = max((T)a[i], (T)b[i]);
  return r;
}
template <class T, int N>
inline vec<T, N> clamp(vec<T, N> x, vec<T, N> a, vec<T, N> b) {
  return min(max(x, a), b);
}
template <class T, int N>
inline vec<T, N> clamp(vec<T, N> x, T a, T b) {
  return min(max(x, vec<T, N>(a)), vec<T, N>(b));
}
template <class T, int N>
inline vec<T, N> abs(vec<T, N> a) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r[i] = abs((T)a[i]);
  return r;
}
template <class T, class M, int N>
inline vec<T, N> select(vec<T, N> a, vec<T, N> b, vec<M, N> c) {
  vec<T, N> r;
  for (int i = 0; i < N; i++) r[i] = c[i] ? b[i] : a[i];
  return r;
}
template <class M, int N>
inline bool any(vec<M, N> c) {
  bool r = false;
  for (int i = 0; i < N; i++) r |= (bool)c[i];
  return r;
}
template <class M, int N>
inline bool all(vec<M, N> c) {
  bool r = true;
  for (int i = 0; i < N; i++) r &= (bool)c[i];
  return r;
}
template <class T, int N>
inline T dot(vec<T, N> a, vec<T, N> b) {
  T s = 0;
  for (int i = 0; i < N; i++) s += a[i] * b[i];
  return s;
}
template <class T, int N>
inline T length(vec<T, N> a) {
  return sqrt(dot(a, a));
}
template <class T>
inline bool signbit(T x) {
  return __builtin_signbit((float)x);
}
template <class T>
inline bool isnan(T x) {
  return x != x;
}
template <class T>
inline bool isinf(T x) {
  return __builtin_isinf((float)x);
}
template <class T>
inline bool isfinite(T x) {
  return __builtin_isfinite((float)x);
}
inline float ldexp(float x, int e) { return __builtin_ldexpf(x, e); }
inline half ldexp(half x, int e) { return (half)__builtin_ldexpf(x, e); }
namespace fast {
using metal::abs;
using metal::clamp;
using metal::fma;
using metal::ldexp;
using metal::max;
using metal::min;
}  // namespace fast
namespace precise {
using metal::abs;
using metal::clamp;
using metal::fma;
using metal::ldexp;
using metal::max;
using metal::min;
}  // namespace precise
#define MSLH_BITS(T, U, W)                                                          \
  inline T popcount(T x) { return (T)__builtin_popcountll((U)x); }                  \
  inline T clz(T x) { return (U)x ? (T)(__builtin_clzll((U)x) - (64 - W)) : (T)W; } \
  inline T ctz(T x) { return (U)x ? (T)__builtin_ctzll((U)x) : (T)W; }              \
  inline T rotate(T x, T n) {                                                       \
    U u = (U)x;                                                                     \
    unsigned s = (unsigned)n & (W - 1);                                             \
    return (T)(U)((u << s) | (u >> ((W - s) & (W - 1))));                           \
  }                                                                                 \
  inline T extract_bits(T x, uint off, uint bits) {                                 \
    return bits == 0 ? (T)0 : (T)((T)((U)x << (W - off - bits)) >> (W - bits));     \
  }
MSLH_BITS(char, uchar, 8)
MSLH_BITS(uchar, uchar, 8) MSLH_BITS(short, ushort, 16) MSLH_BITS(ushort, ushort, 16)
    MSLH_BITS(int, uint, 32) MSLH_BITS(uint, uint, 32) MSLH_BITS(long, ulong, 64)
        MSLH_BITS(ulong, ulong, 64) inline int mulhi(int a, int b) {
  return (int)(((long)a * b) >> 32);
}
inline uint mulhi(uint a, uint b) { return (uint)(((ulong)a * b) >> 32); }
inline uint reverse_bits(uint x) { return __builtin_bitreverse32(x); }
}  // namespace metal
