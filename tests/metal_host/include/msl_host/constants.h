// Named constants.
#pragma once
#pragma clang system_header
#define M_E_F 2.718281828459045f
#define M_E_H ((half)2.718281828459045f)
#define M_LOG2E_F 1.4426950408889634f
#define M_LOG2E_H ((half)1.4426950408889634f)
#define M_LOG10E_F 0.4342944819032518f
#define M_LOG10E_H ((half)0.4342944819032518f)
#define M_LN2_F 0.6931471805599453f
#define M_LN2_H ((half)0.6931471805599453f)
#define M_LN10_F 2.302585092994046f
#define M_LN10_H ((half)2.302585092994046f)
#define M_PI_F 3.141592653589793f
#define M_PI_H ((half)3.141592653589793f)
#define M_PI_2_F 1.5707963267948966f
#define M_PI_2_H ((half)1.5707963267948966f)
#define M_PI_4_F 0.7853981633974483f
#define M_PI_4_H ((half)0.7853981633974483f)
#define M_1_PI_F 0.3183098861837907f
#define M_1_PI_H ((half)0.3183098861837907f)
#define M_2_PI_F 0.6366197723675814f
#define M_2_PI_H ((half)0.6366197723675814f)
#define M_2_SQRTPI_F 1.1283791670955126f
#define M_2_SQRTPI_H ((half)1.1283791670955126f)
#define M_SQRT2_F 1.4142135623730951f
#define M_SQRT2_H ((half)1.4142135623730951f)
#define M_SQRT1_2_F 0.7071067811865476f
#define M_SQRT1_2_H ((half)0.7071067811865476f)
#ifndef INFINITY
#define INFINITY __builtin_inff()
#define NAN __builtin_nanf("")
#endif
#define MAXFLOAT __FLT_MAX__
#define HUGE_VALF __builtin_inff()
