// What the language has before any library: types, address spaces, literals, and the calls that
// reach the runtime (../../runtime).
#pragma once
#pragma clang system_header
#include <stddef.h>
#include <stdint.h>

#ifndef __METAL__
#define __METAL__ 1
#endif
#ifndef __METAL_VERSION__
#define __METAL_VERSION__ 310
#endif
#define MSL_HOST 1

extern "C" {
struct mslh_simd_lane {
  const void* in;
  void* out;
  const void* aux;
};
struct mslh_simd_ctx {
  uint32_t active;
  int width;
  mslh_simd_lane lane[32];
};
typedef void (*mslh_simd_fn)(mslh_simd_ctx*);
void mslh_tg_barrier(int flags, int line, int col);
void mslh_simd(mslh_simd_fn fn, const void* in, void* out, const void* aux, int flags, int line,
               int col);
uint32_t mslh_lane_id(void);
void mslh_atomic(int enter);
}

typedef _Float16 half;
typedef __bf16 bfloat;
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long ulong;

#ifdef MSLH_ADDRESS_SPACES
#define MSLH_DEV __attribute__((address_space(1)))
#define MSLH_CST __attribute__((address_space(2)))
#define MSLH_TG __attribute__((address_space(3)))
#define MSLH_TGVAR static MSLH_TG
#else
#define MSLH_DEV
#define MSLH_CST
#define MSLH_TG
// All threadgroup variables of a kernel sit in one ELF section: the runtime can poison it before
// every threadgroup, shadow it, and check its size against the 32 KiB limit.  In the checked build
// a guard stands between two variables.
#define MSLH_TGSEC static __attribute__((section("mslh_tg"), aligned(16)))
#ifdef MSLH_CHECKED
#define MSLH_CAT2(a, b) a##b
#define MSLH_CAT(a, b) MSLH_CAT2(a, b)
#define MSLH_TGVAR                                                              \
  MSLH_TGSEC __attribute__((used)) char MSLH_CAT(mslh_guard, __COUNTER__)[256]; \
  MSLH_TGSEC
#else
#define MSLH_TGVAR MSLH_TGSEC
#endif
#endif
#define METAL_FUNC inline __attribute__((always_inline))
#define MSLH_RAW __attribute__((no_sanitize("thread", "undefined")))
#define MSLH_NOSAN MSLH_RAW __attribute__((noinline))

// floating literals: 1.0h, 1.0bf
constexpr half operator""h(long double v) { return (half)v; }
constexpr half operator"" H(long double v) { return (half)v; }
constexpr bfloat operator"" bf(long double v) { return (bfloat)(float)v; }
