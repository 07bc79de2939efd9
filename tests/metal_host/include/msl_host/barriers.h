// Barriers and what they order.
#pragma once
#pragma clang system_header
#include "math.h"

namespace metal {
enum class mem_flags {
  mem_none = 0,
  mem_device = 1,
  mem_threadgroup = 2,
  mem_texture = 4,
  mem_threadgroup_imageblock = 8
};
constexpr mem_flags operator|(mem_flags a, mem_flags b) { return (mem_flags)((int)a | (int)b); }
#define MSLH_LOC int mslh_line = __builtin_LINE(), int mslh_col = __builtin_COLUMN()
#define MSLH_AT mslh_line, mslh_col
inline void threadgroup_barrier(mem_flags f, MSLH_LOC) { mslh_tg_barrier((int)f, MSLH_AT); }
inline void simdgroup_barrier(mem_flags f, MSLH_LOC) {
  mslh_simd(nullptr, nullptr, nullptr, nullptr, (int)f, MSLH_AT);
}
}  // namespace metal
