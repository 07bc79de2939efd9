// One fiber per GPU thread, all on one OS thread.
#pragma once
#include <sys/mman.h>

#include "machine.h"

namespace {
constexpr size_t STACK = 256 << 10, GUARD = 64 << 10;
constexpr int NUM_BUILTINS = 20;
enum State { READY, AT_GROUP_BARRIER, AT_SIMD, DONE };

struct alignas(16) Triple {  // uint3 occupies 16 bytes
  uint32_t v[4];
};

struct Lane {
  void* sp;
  char* stack;
  State state;
  bool fresh;
  uint32_t index, simd, lane;
  Triple builtin[NUM_BUILTINS];
  mslh_simd_fn function;
  mslh_simd_lane io;
  int flags, line, column;
};

Array<Lane> lanes;
Array<void*> arguments;
Lane* lane_now;  // null: the scheduler is running
void* scheduler_sp;

// Saves what a call must preserve on this stack, its end in *save, and goes on where `to` was
// saved.
extern "C" void mslh_swap(void** save, void* to);
#if defined(__x86_64__)
asm(R"(
.text
.globl mslh_swap
.type mslh_swap,@function
mslh_swap:
  pushq %rbp; pushq %rbx; pushq %r12; pushq %r13; pushq %r14; pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15; popq %r14; popq %r13; popq %r12; popq %rbx; popq %rbp
  ret
.size mslh_swap,.-mslh_swap
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl mslh_swap
.type mslh_swap,@function
mslh_swap:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size mslh_swap,.-mslh_swap
)");
#else
#error "mslh_swap is written for x86-64 and aarch64"
#endif

void lane_main() {
  mslh_kernel(arguments.data);
  lane_now->state = DONE;
  mslh_swap(&lane_now->sp, scheduler_sp);
  abort();
}

// A saved frame from which mslh_swap "returns" into lane_main.
void* first_frame(char* top) {
  uint64_t* sp = (uint64_t*)top;
#if defined(__x86_64__)
  *--sp = 0;
  *--sp = (uint64_t)lane_main;  // at entry rsp % 16 == 8, as after a call
  for (int i = 0; i < 6; i++) *--sp = 0;
#else
  sp -= 20;
  memset(sp, 0, 160);
  sp[11] = (uint64_t)lane_main;  // x30
#endif
  return sp;
}

void start(Lane& lane) {
  if (!lane.stack) {
    void* at = mmap(nullptr, STACK + GUARD, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED || mprotect(at, GUARD, PROT_NONE)) abort();
    lane.stack = (char*)at;
  }
  lane.sp = first_frame(lane.stack + GUARD + STACK);
  lane.state = READY;
  lane.fresh = true;
}

// Every kernel is a library of its own, and a process may hold only so many mapped ranges.
void release_stacks() {
  for (Lane& lane : lanes)
    if (lane.stack) munmap(lane.stack, STACK + GUARD);
  lanes.release();
}

void resume(Lane& lane) {
  if (lane.fresh) {
    lane.fresh = false;
    for (int i = 0; i < run_now->num_args; i++)
      if (run_now->builtin[i] >= 0) arguments[i] = &lane.builtin[run_now->builtin[i]];
  }
  lane_now = &lane;
  mslh_swap(&scheduler_sp, lane.sp);
  lane_now = nullptr;
}

void wait_as(State state, int flags, int line, int column) {
  Lane* me = lane_now;
  me->state = state;
  me->flags = flags;
  me->line = line;
  me->column = column;
  mslh_swap(&me->sp, scheduler_sp);
}
}  // namespace

// Called by metal_stdlib.
extern "C" {
__attribute__((noinline)) void mslh_tg_barrier(int flags, int line, int column) {
  wait_as(AT_GROUP_BARRIER, flags, line, column);
}
__attribute__((noinline)) void mslh_simd(mslh_simd_fn function, const void* in, void* out,
                                         const void* aux, int flags, int line, int column) {
  lane_now->function = function;
  lane_now->io = {in, out, aux};
  wait_as(AT_SIMD, flags, line, column);
}
uint32_t mslh_lane_id(void) { return lane_now->lane; }
void mslh_atomic(int enter) { in_atomic = enter; }
}
