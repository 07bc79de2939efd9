// numeric_limits and a few small templates.
#pragma once
#pragma clang system_header
#include "vectors.h"

namespace metal {
using ::as_type;
template <class T>
using remove_addrspace_t = typename mslh::no_space<T>::type;
template <class T>
struct numeric_limits;
#define MSLH_LIM(T, MAX, LOW, MIN, INF, QN, DIG)  \
  template <>                                     \
  struct numeric_limits<T> {                      \
    static constexpr T max() { return MAX; }      \
    static constexpr T lowest() { return LOW; }   \
    static constexpr T min() { return MIN; }      \
    static constexpr T infinity() { return INF; } \
    static constexpr T quiet_NaN() { return QN; } \
    static constexpr int digits = DIG;            \
  };
MSLH_LIM(float, __FLT_MAX__, -__FLT_MAX__, __FLT_MIN__, __builtin_inff(), __builtin_nanf(""), 24)
MSLH_LIM(half, (half)65504.0f, (half)-65504.0f, (half)6.103515625e-05f, (half)__builtin_inff(),
         (half)__builtin_nanf(""), 11)
MSLH_LIM(bfloat, (bfloat)3.3895313892515355e38f, (bfloat)-3.3895313892515355e38f,
         (bfloat)1.1754943508222875e-38f, (bfloat)__builtin_inff(), (bfloat)__builtin_nanf(""), 8)
#define MSLH_LIMI(T, MAX, LOW) MSLH_LIM(T, MAX, LOW, LOW, 0, 0, (int)(sizeof(T) * 8))
MSLH_LIMI(signed char, 127, -128)
MSLH_LIMI(char, 127, -128) MSLH_LIMI(uchar, 255, 0) MSLH_LIMI(short, 32767, -32768)
    MSLH_LIMI(ushort, 65535, 0) MSLH_LIMI(int, 0x7fffffff, -0x7fffffff - 1)
        MSLH_LIMI(uint, 0xffffffffu, 0)
            MSLH_LIMI(long, 0x7fffffffffffffffl, -0x7fffffffffffffffl - 1)
                MSLH_LIMI(ulong, 0xfffffffffffffffful, 0)

                    template <class T>
                    using uniform = T;
template <class T>
inline T make_uniform(T v) {
  return v;
}
}  // namespace metal
