// What a compiled kernel, the runtime and launch.py agree on.
#pragma once
#include <stddef.h>
#include <stdint.h>

extern "C" {
// A SIMD-group function: every lane hands in a value and a place for the result.
struct mslh_simd_lane {
  const void* in;
  void* out;
  const void* aux;
};
struct mslh_simd_ctx {
  uint32_t active;  // bit per lane that takes part
  int width;
  mslh_simd_lane lane[32];
};
typedef void (*mslh_simd_fn)(mslh_simd_ctx*);

enum Kind {
  NOTHING,
  RACE,
  OUT_OF_BOUNDS_READ,
  OUT_OF_BOUNDS_WRITE,
  UNINITIALISED,
  WRITE_TO_INPUT,
  DIVERGENCE,
  AFTER_RETURN,
  UNDEFINED,
  FAULT,
  STACK_OVERFLOW,
  MISALIGNED,
};

struct mslh_finding {
  int kind;
  int buffer;  // index of the buffer; -2 - i for threadgroup variable i; -1 unknown
  int64_t offset;
  int size, line, column, other_line;
  uint32_t group, thread, other_group, other_thread;
  uint64_t pc, other_pc;
  char text[64];
};

struct mslh_buffer {
  void* data;
  uint64_t bytes;
  int writable, initialised;
};

struct mslh_variable {  // a threadgroup variable, as an offset from the module
  uint64_t offset, bytes;
};

struct mslh_access {  // one load or store of a device buffer that was executed
  uint32_t pc, group, thread;
  int16_t buffer, size;  // size is negative for a store
  uint32_t offset;
};

struct mslh_launch {
  uint32_t grid[3], group[3];
  int num_args;
  void** args;   // per kernel parameter; null where builtin[i] >= 0
  int* builtin;  // index into BUILTINS of text.py, or -1
  int num_buffers;
  mslh_buffer* buffers;
  int num_variables;
  mslh_variable* variables;
  uint64_t seed;
  int shuffle, checked, strict, record;  // record: keep every access of a device buffer
  int max_findings, num_findings;
  mslh_finding* findings;
  uint64_t num_accesses;
  mslh_access* accesses;
};

void mslh_kernel(void** args);  // in the compiled kernel
extern char __start_mslh_tg[] __attribute__((weak, visibility("hidden")));
extern char __stop_mslh_tg[] __attribute__((weak, visibility("hidden")));
extern char __ehdr_start __attribute__((weak, visibility("hidden")));
extern char _end __attribute__((weak, visibility("hidden")));
}
