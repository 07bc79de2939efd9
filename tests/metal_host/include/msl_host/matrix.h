// simdgroup_matrix, 8 x 8.
#pragma once
#pragma clang system_header
#include "simdgroup.h"

namespace metal {
// Lane -> element map as MLX's steel code relies on it: lane l holds row (l>>2 & 4) + (l>>1 & 3),
// columns (l>>2 & 2)*2 + (l&1)*2 and the next one.
template <class T, int C, int R>
struct simdgroup_matrix {
  static_assert(C == 8 && R == 8, "only 8x8 exists");
  static_assert(is_floating_point_v<T>, "simdgroup_matrix of half, bfloat or float only");
  typedef vec<T, 2> storage_type;
  storage_type e;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T d) {
    int r, c;
    pos(r, c);
    e = storage_type(0);
    if (r == c) e[0] = d;
    if (r == c + 1) e[1] = d;
  }
  storage_type& thread_elements() { return e; }
  const storage_type& thread_elements() const { return e; }
  static void pos(int& r, int& c) {
    uint l = mslh_lane_id(), q = l >> 2;
    r = (q & 4) + (l >> 1 & 3);
    c = (q & 2) * 2 + (l & 1) * 2;
  }
};
typedef simdgroup_matrix<half, 8, 8> simdgroup_half8x8;
typedef simdgroup_matrix<float, 8, 8> simdgroup_float8x8;
typedef simdgroup_matrix<bfloat, 8, 8> simdgroup_bfloat8x8;
template <class T, int C, int R = C, class U>
inline simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(U v) {
  simdgroup_matrix<T, C, R> m;
  m.e = vec<T, 2>((T)v);
  return m;
}
template <class T, int C, int R>
inline simdgroup_matrix<T, C, R> make_diagonal_simdgroup_matrix(T v) {
  return simdgroup_matrix<T, C, R>(v);
}
}  // namespace metal
namespace mslh {
// The lanes of a SIMD-group must all be here: a collective with no data, so divergence is caught.
inline void together(int line, int col) {
  mslh_simd(nullptr, nullptr, nullptr, nullptr, -1, line, col);
}
struct mma_ptrs {
  const void *a, *b, *c;
  void* d;
};
inline void rc(int l, int& r, int& c) {
  int q = l >> 2;
  r = (q & 4) + (l >> 1 & 3);
  c = (q & 2) * 2 + (l & 1) * 2;
}
template <class TD, class TA, class TB, class TC>
MSLH_NOSAN void mma(mslh_simd_ctx* x) {
  float A[8][8], B[8][8], C[8][8];
  for (int l = 0; l < 32; l++) {
    int r, c;
    rc(l, r, c);
    const mma_ptrs* p = (const mma_ptrs*)x->lane[l].in;
    bool on = x->active >> l & 1;
    for (int k = 0; k < 2; k++) {
      A[r][c + k] = on ? (float)(*(const vec<TA, 2>*)p->a)[k] : __builtin_nanf("");
      B[r][c + k] = on ? (float)(*(const vec<TB, 2>*)p->b)[k] : __builtin_nanf("");
      C[r][c + k] = !on ? __builtin_nanf("") : p->c ? (float)(*(const vec<TC, 2>*)p->c)[k] : 0.0f;
    }
  }
  for (int l = 0; l < 32; l++) {
    if (!(x->active >> l & 1)) continue;
    int r, c;
    rc(l, r, c);
    vec<TD, 2> d;
    for (int k = 0; k < 2; k++) {
      float s = C[r][c + k];
      for (int i = 0; i < 8; i++) s = __builtin_fmaf(A[r][i], B[i][c + k], s);
      d[k] = (TD)s;
    }
    *(vec<TD, 2>*)((const mma_ptrs*)x->lane[l].in)->d = d;  // fp32 inside, one rounding to D's type
  }
}
}  // namespace mslh
namespace metal {
// `P` is a pointer to T in any address space (device and threadgroup in Metal).
#define MSLH_SRC(T, P)                                               \
  static_assert(is_same_v<mslh::strip_t<decltype(*(P) nullptr)>, T>, \
                "element type of the pointer and of the matrix differ")
template <class T, class P>
inline void simdgroup_load(simdgroup_matrix<T, 8, 8>& m, P src, ulong ld = 8, ulong2 o = 0,
                           bool tr = false, MSLH_LOC) {
  MSLH_SRC(T, P);
  mslh::together(MSLH_AT);
  int r, c;
  m.pos(r, c);
  for (int k = 0; k < 2; k++)
    m.e[k] = tr ? src[(o.y + c + k) * ld + o.x + r] : src[(o.y + r) * ld + o.x + c + k];
}
template <class T, class P>
inline void simdgroup_store(const simdgroup_matrix<T, 8, 8>& m, P dst, ulong ld = 8, ulong2 o = 0,
                            bool tr = false, MSLH_LOC) {
  MSLH_SRC(T, P);
  mslh::together(MSLH_AT);
  int r, c;
  m.pos(r, c);
  for (int k = 0; k < 2; k++)
    (tr ? dst[(o.y + c + k) * ld + o.x + r] : dst[(o.y + r) * ld + o.x + c + k]) = m.e[k];
}
template <class TD, class TA, class TB, class TC>
inline void simdgroup_multiply_accumulate(simdgroup_matrix<TD, 8, 8>& d,
                                          const simdgroup_matrix<TA, 8, 8>& a,
                                          const simdgroup_matrix<TB, 8, 8>& b,
                                          const simdgroup_matrix<TC, 8, 8>& c, MSLH_LOC) {
  mslh::mma_ptrs p = {&a.e, &b.e, &c.e, &d.e};
  mslh_simd(mslh::mma<TD, TA, TB, TC>, &p, nullptr, nullptr, -1, MSLH_AT);
}
template <class TD, class TA, class TB>
inline void simdgroup_multiply(simdgroup_matrix<TD, 8, 8>& d, const simdgroup_matrix<TA, 8, 8>& a,
                               const simdgroup_matrix<TB, 8, 8>& b, MSLH_LOC) {
  mslh::mma_ptrs p = {&a.e, &b.e, nullptr, &d.e};
  mslh_simd(mslh::mma<TD, TA, TB, TD>, &p, nullptr, nullptr, -1, MSLH_AT);
}

}  // namespace metal
