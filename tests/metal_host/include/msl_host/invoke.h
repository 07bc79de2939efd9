// Calling a kernel from the runtime, with an array of pointers for arguments.
#pragma once
#pragma clang system_header
#include "atomics.h"

namespace mslh {
template <class A>
struct arg {
  MSLH_RAW static A get(void* p) { return *(A*)p; }
};  // a built-in, by value
template <class A>
struct arg<A*> {
  static A* get(void* p) { return (A*)p; }
};  // a buffer
template <class A>
struct arg<A&> {
  static A& get(void* p) { return *(A*)p; }
};  // a scalar buffer
template <size_t... I>
struct seq {};
template <size_t N, size_t... I>
struct mkseq : mkseq<N - 1, N - 1, I...> {};
template <size_t... I>
struct mkseq<0, I...> {
  typedef seq<I...> type;
};
template <class... A, size_t... I>
MSLH_RAW inline void invoke2(void (*f)(A...), void** a, seq<I...>) {
  f(arg<A>::get(a[I])...);
}
template <class... A>
inline int arity(void (*)(A...)) {
  return sizeof...(A);
}
template <class... A>
MSLH_RAW inline void invoke(void (*f)(A...), void** a) {
  invoke2(f, a, typename mkseq<sizeof...(A)>::type());
}
}  // namespace mslh
