// Vectors: construction, conversion, as_type.
//
// clang's vectors have swizzles, arithmetic and T(scalar), but not float4(a, b, c, d): rewrite.py
// turns `vec<T, N>(` into a call of mslh::mk, and the macros in words.h do so for the named types.
#pragma once
#pragma clang system_header
#include "traits.h"

namespace mslh {
using metal::vec;
template <class V>
struct vt {
  typedef V elem;
  static constexpr int n = 0;
};
template <class T>
struct vt<vec<T, 2>> {
  typedef T elem;
  static constexpr int n = 2;
};
template <class T>
struct vt<vec<T, 3>> {
  typedef T elem;
  static constexpr int n = 3;
};
template <class T>
struct vt<vec<T, 4>> {
  typedef T elem;
  static constexpr int n = 4;
};
template <class T>
struct vt<vec<T, 8>> {
  typedef T elem;
  static constexpr int n = 8;
};
template <class T>
struct vt<vec<T, 16>> {
  typedef T elem;
  static constexpr int n = 16;
};
template <class T>
struct strip {
  typedef T type;
};  // drop cv, reference and address space
template <class T>
struct strip<T&> : strip<T> {};
template <class T>
struct strip<const T> : strip<T> {};
template <class T>
struct strip<volatile T> : strip<T> {};
template <class T>
struct strip<const volatile T> : strip<T> {};
#ifdef MSLH_ADDRESS_SPACES
template <class T>
struct strip<MSLH_DEV T> : strip<T> {};
template <class T>
struct strip<MSLH_CST T> : strip<T> {};
template <class T>
struct strip<MSLH_TG T> : strip<T> {};
template <class T>
struct strip<const MSLH_DEV T> : strip<T> {};
template <class T>
struct strip<const MSLH_CST T> : strip<T> {};
template <class T>
struct strip<const MSLH_TG T> : strip<T> {};
#endif
template <class T>
using strip_t = typename strip<T>::type;
template <class V>
constexpr int count() {
  return vt<V>::n ? vt<V>::n : 1;
}
template <class V, class A>
constexpr void put(V& r, int& i, A a) {
  typedef typename vt<V>::elem E;
  if constexpr (vt<A>::n == 0) {
    r[i++] = (E)a;
  } else {
    for (int k = 0; k < vt<A>::n; k++) r[i++] = (E)a[k];
  }
}
template <class V, class A>
inline V mk(A a) {
  V r;
  if constexpr (vt<A>::n == 0) {
    for (int k = 0; k < vt<V>::n; k++) r[k] = (typename vt<V>::elem)a;
  } else {
    static_assert(vt<A>::n == vt<V>::n, "vector conversion: widths differ");
    int i = 0;
    put(r, i, a);
  }
  return r;
}
template <class V, class A, class B, class... Cs>
inline V mk(A a, B b, Cs... cs) {
  static_assert(count<A>() + count<B>() + (0 + ... + count<Cs>()) == vt<V>::n,
                "vector construction: wrong number of components");
  V r;
  int i = 0;
  put(r, i, a);
  put(r, i, b);
  (put(r, i, cs), ...);
  return r;
}
template <class V>
inline V mk() {
  return V(0);
}
template <class T>
constexpr bool is_scalar = vt<T>::n == 0;
template <class T>
struct no_space {
  typedef T type;
};
#ifdef MSLH_ADDRESS_SPACES
template <class T>
struct no_space<MSLH_DEV T> {
  typedef T type;
};
template <class T>
struct no_space<MSLH_CST T> {
  typedef T type;
};
template <class T>
struct no_space<MSLH_TG T> {
  typedef T type;
};
template <class T>
struct no_space<const MSLH_DEV T> {
  typedef const T type;
};
template <class T>
struct no_space<const MSLH_CST T> {
  typedef const T type;
};
template <class T>
struct no_space<const MSLH_TG T> {
  typedef const T type;
};
#endif
// Metal converts half to bfloat when asked; clang refuses the direct cast, so it goes through float
// (exact).
template <class T, class U>
inline T cast(U u) {
  return static_cast<T>(u);
}
template <>
inline bfloat cast<bfloat, half>(half u) {
  return (bfloat)(float)u;
}
template <>
inline half cast<half, bfloat>(bfloat u) {
  return (half)(float)u;
}
// apply f to every component
template <class V, class F>
inline V map(V a, F f) {
  if constexpr (is_scalar<V>)
    return f(a);
  else {
    V r;
    for (int i = 0; i < vt<V>::n; i++) r[i] = f(a[i]);
    return r;
  }
}
}  // namespace mslh

#define MSLH_VECS(T, name)          \
  typedef metal::vec<T, 2> name##2; \
  typedef metal::vec<T, 3> name##3; \
  typedef metal::vec<T, 4> name##4;
MSLH_VECS(float, float)
MSLH_VECS(half, half) MSLH_VECS(bfloat, bfloat) MSLH_VECS(char, char) MSLH_VECS(uchar, uchar)
    MSLH_VECS(short, short) MSLH_VECS(ushort, ushort) MSLH_VECS(int, int) MSLH_VECS(uint, uint)
        MSLH_VECS(long, long) MSLH_VECS(ulong, ulong)

            template <class T, class U>
            inline T as_type(U u) {
  static_assert(sizeof(T) == sizeof(U), "as_type: sizes differ");
  return __builtin_bit_cast(T, u);
}
