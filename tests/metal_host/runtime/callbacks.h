// What -fsanitize=thread,undefined calls.  The sanitizers' own runtimes are not linked: these know
// GPU memory and GPU ordering, and need no second executable.
#pragma once
#include "shadow.h"

#define PC ((uint64_t)__builtin_return_address(0))
#define ACCESS(n)                                                                   \
  void __tsan_read##n(void* p) { access((char*)p, n, false, PC, true); }            \
  void __tsan_write##n(void* p) { access((char*)p, n, true, PC, true); }            \
  void __tsan_unaligned_read##n(void* p) { access((char*)p, n, false, PC, false); } \
  void __tsan_unaligned_write##n(void* p) { access((char*)p, n, true, PC, false); } \
  void __tsan_read_write##n(void* p) {                                              \
    access((char*)p, n, false, PC, true);                                           \
    access((char*)p, n, true, PC, true);                                            \
  }                                                                                 \
  void __tsan_unaligned_read_write##n(void* p) {                                    \
    access((char*)p, n, false, PC, false);                                          \
    access((char*)p, n, true, PC, false);                                           \
  }

// Every handler of the undefined-behaviour sanitizer gets a record that starts with the place.
struct Place {
  const char* file;
  uint32_t line, column;
};

namespace {
void undefined(const Place* at, const char* what) {
  if (!run_now) return;
  mslh_finding* f = find_new(UNDEFINED, place(at->line, at->column));
  if (!f) return;
  f->line = at->line;
  f->column = at->column;
  describe(f, what);
}

void* moved(void* to, const void* from, size_t n, uint64_t pc) {
  if (n) {
    access((char*)from, (int)n, false, pc, false);
    access((char*)to, (int)n, true, pc, false);
  }
  return memmove(to, from, n);
}
}  // namespace

#define UNDEFINED_BY(name)                                              \
  void __ubsan_handle_##name(const Place* at) { undefined(at, #name); } \
  void __ubsan_handle_##name##_abort(const Place* at) { undefined(at, #name); }

extern "C" {
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_vptr_update(void*, void*) {}
void __tsan_vptr_read(void*) {}
void* __tsan_memcpy(void* to, const void* from, size_t n) { return moved(to, from, n, PC); }
void* __tsan_memmove(void* to, const void* from, size_t n) { return moved(to, from, n, PC); }
void* __tsan_memset(void* to, int value, size_t n) {
  if (n) access((char*)to, (int)n, true, PC, false);
  return memset(to, value, n);
}

UNDEFINED_BY(add_overflow)
UNDEFINED_BY(sub_overflow)
UNDEFINED_BY(mul_overflow)
UNDEFINED_BY(negate_overflow)
UNDEFINED_BY(divrem_overflow)
UNDEFINED_BY(shift_out_of_bounds)
UNDEFINED_BY(out_of_bounds)
UNDEFINED_BY(local_out_of_bounds)
UNDEFINED_BY(builtin_unreachable)
UNDEFINED_BY(missing_return)
UNDEFINED_BY(vla_bound_not_positive)
UNDEFINED_BY(float_cast_overflow)
UNDEFINED_BY(load_invalid_value)
UNDEFINED_BY(invalid_builtin)
UNDEFINED_BY(pointer_overflow)
UNDEFINED_BY(type_mismatch_v1)
UNDEFINED_BY(alignment_assumption)
UNDEFINED_BY(nonnull_arg)
UNDEFINED_BY(nonnull_return_v1)
UNDEFINED_BY(function_type_mismatch)
UNDEFINED_BY(implicit_conversion)
}
