// Atomics: relaxed order only, as in Metal before 3.2.
#pragma once
#pragma clang system_header
#include "matrix.h"

namespace metal {
enum memory_order { memory_order_relaxed };
template <class T>
struct atomic {
  T v;
};
typedef atomic<int> atomic_int;
typedef atomic<uint> atomic_uint;
typedef atomic<float> atomic_float;
typedef atomic<bool> atomic_bool;
template <class P>
using mslh_at = mslh::strip_t<decltype(((P) nullptr)->v)>;
#define MSLH_AT_OP(name, expr)                                                  \
  template <class P>                                                            \
  inline mslh_at<P> atomic_##name##_explicit(P p, mslh_at<P> x, memory_order) { \
    mslh_atomic(1);                                                             \
    mslh_at<P> o = p->v;                                                        \
    p->v = (expr);                                                              \
    mslh_atomic(0);                                                             \
    return o;                                                                   \
  }
MSLH_AT_OP(fetch_add, o + x)
MSLH_AT_OP(fetch_sub, o - x) MSLH_AT_OP(fetch_min, x < o ? x : o)
    MSLH_AT_OP(fetch_max, o < x ? x : o) MSLH_AT_OP(fetch_and, o& x) MSLH_AT_OP(fetch_or, o | x)
        MSLH_AT_OP(fetch_xor, o ^ x) MSLH_AT_OP(exchange, x) template <class P>
        inline mslh_at<P> atomic_load_explicit(P p, memory_order) {
  mslh_atomic(1);
  mslh_at<P> o = p->v;
  mslh_atomic(0);
  return o;
}
template <class P>
inline void atomic_store_explicit(P p, mslh_at<P> x, memory_order) {
  mslh_atomic(1);
  p->v = x;
  mslh_atomic(0);
}
template <class P, class E>
inline bool atomic_compare_exchange_weak_explicit(P p, E e, mslh_at<P> x, memory_order,
                                                  memory_order) {
  mslh_atomic(1);
  mslh_at<P> o = p->v;
  bool ok = o == *e;
  if (ok) p->v = x;
  mslh_atomic(0);
  if (!ok) *e = o;
  return ok;
}
}  // namespace metal
