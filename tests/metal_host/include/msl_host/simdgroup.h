// SIMD-group and quad-group functions.
#pragma once
#pragma clang system_header
#include "barriers.h"

namespace mslh {
template <class T>
constexpr bool simd_ok =
    sizeof(typename vt<T>::elem) <= 4 && !metal::is_same_v<T, bool>;  // Metal: no 64-bit, no bool
template <class T>
struct io {
  static T in(mslh_simd_ctx* c, int l) { return *(const T*)c->lane[l].in; }
  static void out(mslh_simd_ctx* c, int l, T v) { *(T*)c->lane[l].out = v; }
  static T poison() {
    T r;
    __builtin_memset(&r, 0xff, sizeof(T));
    return r;
  }
  static T from(mslh_simd_ctx* c, int l) {
    return (l >= 0 && l < 32 && (c->active >> l & 1)) ? in(c, l) : poison();
  }
};
template <class T, class A>
inline T call(mslh_simd_fn fn, T v, A aux, int line, int col) {
  T r;
  mslh_simd(fn, &v, &r, &aux, -1, line, col);
  return r;
}
struct op_sum {
  template <class T>
  static T f(T a, T b) {
    return a + b;
  }
};
struct op_mul {
  template <class T>
  static T f(T a, T b) {
    return a * b;
  }
};
struct op_min {
  template <class T>
  static T f(T a, T b) {
    return metal::min(a, b);
  }
};
struct op_max {
  template <class T>
  static T f(T a, T b) {
    return metal::max(a, b);
  }
};
struct op_and {
  template <class T>
  static T f(T a, T b) {
    return a & b;
  }
};
struct op_or {
  template <class T>
  static T f(T a, T b) {
    return a | b;
  }
};
struct op_xor {
  template <class T>
  static T f(T a, T b) {
    return a ^ b;
  }
};
// Reduction by halves (lane i with lane i+16, +8, ...).  Metal does not document its order.
template <class T, class Op, int W>
MSLH_NOSAN void reduce(mslh_simd_ctx* c) {
  for (int base = 0; base < 32; base += W) {
    T v[W];
    bool on[W];
    bool some = false;
    for (int i = 0; i < W; i++) {
      on[i] = c->active >> (base + i) & 1;
      if (on[i]) {
        v[i] = io<T>::in(c, base + i);
        some = true;
      }
    }
    if (!some) continue;
    for (int h = W / 2; h; h >>= 1)
      for (int i = 0; i < h; i++)
        if (on[i + h]) {
          v[i] = on[i] ? Op::f(v[i], v[i + h]) : v[i + h];
          on[i] = true;
        }
    for (int i = 0; i < W; i++)
      if (c->active >> (base + i) & 1) io<T>::out(c, base + i, v[0]);
  }
}
template <class T, class Op, int Incl>
MSLH_NOSAN void scan(mslh_simd_ctx* c, T start) {
  T acc = start;
  for (int i = 0; i < 32; i++)
    if (c->active >> i & 1) {
      T v = io<T>::in(c, i);
      if (!Incl) io<T>::out(c, i, acc);
      acc = Op::f(acc, v);
      if (Incl) io<T>::out(c, i, acc);
    }
}
template <class T, class Op, int Incl, int S>
MSLH_NOSAN void scan0(mslh_simd_ctx* c) {
  scan<T, Op, Incl>(c, (T)S);
}
enum { SH_ABS, SH_DOWN, SH_UP, SH_XOR, SH_ROTD, SH_ROTU, SH_FIRST };
template <class T, int K, int W>
MSLH_NOSAN void shuffle(mslh_simd_ctx* c) {
  for (int i = 0; i < 32; i++) {
    if (!(c->active >> i & 1)) continue;
    int a = *(const int*)c->lane[i].aux, b = i & ~(W - 1), l = i & (W - 1), s;
    switch (K) {
      case SH_ABS:
        s = a;
        break;
      case SH_DOWN:
        s = l + a >= W ? l : l + a;
        break;  // the upper lanes keep their own value
      case SH_UP:
        s = l - a < 0 ? l : l - a;
        break;
      case SH_XOR:
        s = l ^ a;
        break;
      case SH_ROTD:
        s = (l + a) & (W - 1);
        break;
      case SH_ROTU:
        s = (l - a) & (W - 1);
        break;
      default:
        s = __builtin_ctz(c->active);
    }
    io<T>::out(c, i, s >= W ? io<T>::poison() : io<T>::from(c, b + s));
  }
}
template <class T>
struct filled {
  T fill;
  int delta, modulo;
};
template <class T, int Up>
MSLH_NOSAN void shuffle_fill(mslh_simd_ctx* c) {
  for (int i = 0; i < 32; i++) {
    if (!(c->active >> i & 1)) continue;
    const filled<T>& f = *(const filled<T>*)c->lane[i].aux;
    int m = f.modulo, b = i & ~(m - 1), l = i & (m - 1), s = Up ? l - f.delta : l + f.delta;
    if (s >= 0 && s < m) {
      io<T>::out(c, i, io<T>::from(c, b + s));
      continue;
    }
    int q = b + (s & (m - 1));  // the filling of the lane it wraps to
    io<T>::out(c, i,
               c->active >> q & 1 ? ((const filled<T>*)c->lane[q].aux)->fill : io<T>::poison());
  }
}
MSLH_NOSAN inline void vote(mslh_simd_ctx* c) {
  uint32_t m = 0;
  for (int i = 0; i < 32; i++)
    if ((c->active >> i & 1) && *(const bool*)c->lane[i].in) m |= 1u << i;
  for (int i = 0; i < 32; i++)
    if (c->active >> i & 1) *(uint64_t*)c->lane[i].out = (uint64_t)c->active << 32 | m;
}
inline uint64_t votes(bool b, int line, int col) {
  uint64_t r;
  mslh_simd(vote, &b, &r, nullptr, -1, line, col);
  return r;
}
}  // namespace mslh

namespace metal {
#define MSLH_RED(name, Op)                                                        \
  template <class T>                                                              \
  inline T simd_##name(T v, MSLH_LOC) {                                           \
    static_assert(mslh::simd_ok<T>, "no such SIMD-group function for this type"); \
    return mslh::call(mslh::reduce<T, mslh::Op, 32>, v, 0, MSLH_AT);              \
  }                                                                               \
  template <class T>                                                              \
  inline T quad_##name(T v, MSLH_LOC) {                                           \
    static_assert(mslh::simd_ok<T>, "no such quad-group function for this type"); \
    return mslh::call(mslh::reduce<T, mslh::Op, 4>, v, 0, MSLH_AT);               \
  }
MSLH_RED(sum, op_sum)
MSLH_RED(product, op_mul) MSLH_RED(min, op_min) MSLH_RED(max, op_max) MSLH_RED(and, op_and)
    MSLH_RED(or, op_or) MSLH_RED(xor, op_xor)
#define MSLH_SHUF(name, K)                                                        \
  template <class T>                                                              \
  inline T simd_##name(T v, ushort a, MSLH_LOC) {                                 \
    static_assert(mslh::simd_ok<T>, "no such SIMD-group function for this type"); \
    return mslh::call(mslh::shuffle<T, mslh::K, 32>, v, (int)a, MSLH_AT);         \
  }                                                                               \
  template <class T>                                                              \
  inline T quad_##name(T v, ushort a, MSLH_LOC) {                                 \
    static_assert(mslh::simd_ok<T>, "no such quad-group function for this type"); \
    return mslh::call(mslh::shuffle<T, mslh::K, 4>, v, (int)a, MSLH_AT);          \
  }
        MSLH_SHUF(shuffle, SH_ABS) MSLH_SHUF(broadcast, SH_ABS) MSLH_SHUF(shuffle_down, SH_DOWN)
            MSLH_SHUF(shuffle_up, SH_UP) MSLH_SHUF(shuffle_xor, SH_XOR)
                MSLH_SHUF(shuffle_rotate_down, SH_ROTD)
                    MSLH_SHUF(shuffle_rotate_up, SH_ROTU) template <class T>
                    inline T
    simd_shuffle_and_fill_down(T v, T fill, ushort d, ushort m = 32, MSLH_LOC) {
  static_assert(mslh::simd_ok<T>, "no such SIMD-group function for this type");
  return mslh::call(mslh::shuffle_fill<T, 0>, v, mslh::filled<T>{fill, d, m}, MSLH_AT);
}
template <class T>
inline T simd_shuffle_and_fill_up(T v, T fill, ushort d, ushort m = 32, MSLH_LOC) {
  static_assert(mslh::simd_ok<T>, "no such SIMD-group function for this type");
  return mslh::call(mslh::shuffle_fill<T, 1>, v, mslh::filled<T>{fill, d, m}, MSLH_AT);
}
template <class T>
inline T simd_broadcast_first(T v, MSLH_LOC) {
  return mslh::call(mslh::shuffle<T, mslh::SH_FIRST, 32>, v, 0, MSLH_AT);
}
template <class T>
inline T simd_prefix_inclusive_sum(T v, MSLH_LOC) {
  return mslh::call(mslh::scan0<T, mslh::op_sum, 1, 0>, v, 0, MSLH_AT);
}
template <class T>
inline T simd_prefix_exclusive_sum(T v, MSLH_LOC) {
  return mslh::call(mslh::scan0<T, mslh::op_sum, 0, 0>, v, 0, MSLH_AT);
}
template <class T>
inline T simd_prefix_inclusive_product(T v, MSLH_LOC) {
  return mslh::call(mslh::scan0<T, mslh::op_mul, 1, 1>, v, 0, MSLH_AT);
}
template <class T>
inline T simd_prefix_exclusive_product(T v, MSLH_LOC) {
  return mslh::call(mslh::scan0<T, mslh::op_mul, 0, 1>, v, 0, MSLH_AT);
}
inline bool simd_any(bool b, MSLH_LOC) { return (uint32_t)mslh::votes(b, MSLH_AT) != 0; }
inline bool simd_all(bool b, MSLH_LOC) {
  uint64_t v = mslh::votes(b, MSLH_AT);
  return (uint32_t)v == (uint32_t)(v >> 32);
}
struct simd_vote {
  typedef ulong vote_t;
  vote_t v;
  explicit constexpr simd_vote(vote_t x) : v(x) {}
  explicit operator vote_t() const { return v; }
  bool any() const { return v; }
};
inline simd_vote simd_ballot(bool b, MSLH_LOC) {
  return simd_vote((uint32_t)mslh::votes(b, MSLH_AT));
}
inline simd_vote simd_active_threads_mask(MSLH_LOC) {
  return simd_vote(mslh::votes(true, MSLH_AT) >> 32);
}
inline bool simd_is_first(MSLH_LOC) {
  return __builtin_ctz((uint32_t)mslh::votes(true, MSLH_AT)) == (int)mslh_lane_id();
}

}  // namespace metal
