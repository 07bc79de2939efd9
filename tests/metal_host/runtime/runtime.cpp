// Runs one dispatch of a compute kernel on the host: threads as fibers, and in the checked build
// every access against the rules of GPU memory.
#include <setjmp.h>
#include <signal.h>

#include "callbacks.h"
#include "schedule.h"

namespace {
sigjmp_buf escape;

// An access that the unchecked build let through to memory that is not there.
void on_fault(int, siginfo_t* info, void*) {
  if (!run_now) abort();
  char* p = (char*)info->si_addr;
  bool overflow = lane_now && p >= lane_now->stack && p < lane_now->stack + GUARD;
  if (mslh_finding* f = find_new(overflow ? STACK_OVERFLOW : FAULT, 0)) {
    int64_t nearest = INT64_MAX;
    for (int i = 0; i < run_now->num_buffers; i++) {
      char* low = (char*)run_now->buffers[i].data;
      int64_t distance = p < low ? low - p : p - (low + run_now->buffers[i].bytes);
      if (distance >= nearest) continue;
      nearest = distance;
      f->buffer = i;
      f->offset = p - low;
    }
  }
  aborted = true;
  siglongjmp(escape, 1);
}

struct Faults {  // handlers for the time of a launch
  struct sigaction segv, bus, fpe;
  stack_t stack;
  void install() {
    static char alternate[64 << 10];
    stack_t ours = {};
    ours.ss_sp = alternate;
    ours.ss_size = sizeof alternate;
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigaltstack(&ours, &stack);
    sigaction(SIGSEGV, &action, &segv);
    sigaction(SIGBUS, &action, &bus);
    sigaction(SIGFPE, &action, &fpe);
  }
  void restore() {
    sigaction(SIGSEGV, &segv, nullptr);
    sigaction(SIGBUS, &bus, nullptr);
    sigaction(SIGFPE, &fpe, nullptr);
    sigaltstack(&stack, nullptr);
  }
};

struct Shape {  // of a dispatch; threadgroups at the edge of the grid are smaller
  uint32_t group[3], groups[3];
  explicit Shape(const mslh_launch& l) {
    for (int i = 0; i < 3; i++) {
      group[i] = least(l.group[i], l.grid[i]);
      groups[i] = (l.grid[i] + group[i] - 1) / group[i];
    }
  }
  uint32_t full() const { return group[0] * group[1] * group[2]; }
  uint32_t total() const { return groups[0] * groups[1] * groups[2]; }
};

// The values of the built-ins for one thread, in the order of BUILTINS in text.py.
void set_builtins(Lane& a, const Shape& s, const uint32_t at[3], const uint32_t size[3]) {
  const uint32_t *grid = run_now->grid, *full = s.group, i = a.index;
  uint32_t p[3] = {i % size[0], i / size[0] % size[1], i / size[0] / size[1]};
  uint32_t live = size[0] * size[1] * size[2];
  const Triple values[NUM_BUILTINS] = {
      {{(s.full() + 3) / 4}},
      {{(s.full() + 31) / 32}},
      {{full[0], full[1], full[2]}},
      {{0, 0, 0}},
      {{grid[0], grid[1], grid[2]}},
      {{i / 4}},
      {{(live + 3) / 4}},
      {{i / 32}},
      {{(live + 31) / 32}},
      {{32}},
      {{i % 4}},
      {{i % 32}},
      {{i}},
      {{at[0] * full[0] + p[0], at[1] * full[1] + p[1], at[2] * full[2] + p[2]}},
      {{p[0], p[1], p[2]}},
      {{at[0], at[1], at[2]}},
      {{s.groups[0], s.groups[1], s.groups[2]}},
      {{grid[0], grid[1], grid[2]}},
      {{32}},
      {{size[0], size[1], size[2]}},
  };
  memcpy(a.builtin, values, sizeof values);
}

bool run_group(uint32_t index, const Shape& s, Random& random) {
  group_now = index;
  uint32_t at[3] = {index % s.groups[0], index / s.groups[0] % s.groups[1],
                    index / s.groups[0] / s.groups[1]};
  uint32_t size[3];
  for (int i = 0; i < 3; i++) size[i] = least(s.group[i], run_now->grid[i] - at[i] * s.group[i]);
  memset(group_epoch, 0, sizeof group_epoch);
  memset(simd_epoch, 0, sizeof simd_epoch);
  size_t group_bytes = __stop_mslh_tg - __start_mslh_tg;
  if (group_bytes) memset(__start_mslh_tg, 0xff, group_bytes);  // NaN in half, bfloat and float
  forget_group_memory();
  uint32_t live = size[0] * size[1] * size[2];
  for (uint32_t i = 0; i < live; i++) {
    Lane& lane = lanes[i];
    lane.index = i;
    lane.simd = i / 32;
    lane.lane = i % 32;
    set_builtins(lane, s, at, size);
    start(lane);
  }
  return run_threadgroup(live, random);
}

void run_all(const Shape& s) {
  static Array<uint32_t> order;
  Random random = {run_now->seed};
  order.size = 0;
  for (uint32_t i = 0; i < s.total(); i++) order.push(i);
  if (run_now->shuffle) random.shuffle(order);
  if (sigsetjmp(escape, 1)) return;
  for (uint32_t index : order) {
    if (run_group(index, s, random)) continue;
    aborted = true;
    return;
  }
}

void add_regions(mslh_launch& l) {
  for (int i = 0; i < l.num_buffers; i++) {
    mslh_buffer& b = l.buffers[i];
    add_region((char*)b.data, b.bytes, i, 0, b.writable, b.initialised);
  }
  for (int i = 0; i < l.num_variables; i++)
    add_region(&__ehdr_start + l.variables[i].offset, l.variables[i].bytes, -2 - i, 1, true, false);
}
}  // namespace

extern "C" {
int mslh_run(mslh_launch* l) {
  run_now = l;
  lane_now = nullptr;
  aborted = false;
  in_atomic = 0;
  l->num_findings = 0;
  Shape shape(*l);
  if (lanes.size < shape.full()) {
    size_t had = lanes.size;
    lanes.reserve(shape.full());
    lanes.size = shape.full();
    memset((void*)(lanes.data + had), 0, (lanes.size - had) * sizeof(Lane));
  }
  arguments.zeroed(l->num_args);
  for (int i = 0; i < l->num_args; i++) arguments[i] = l->args[i];
  accesses.size = 0;
  if (l->checked) add_regions(*l);
  Faults faults;
  faults.install();
  run_all(shape);
  faults.restore();
  drop_regions();
  release_stacks();
  l->num_accesses = accesses.size;
  l->accesses = accesses.data;
  run_now = nullptr;
  lane_now = nullptr;
  return aborted;
}
uint64_t mslh_base(void) { return module_base(); }

// The compiler's library has these; it is not linked.  Round to nearest even.
__bf16 __truncsfbf2(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  bool nan = (u & 0x7fffffff) > 0x7f800000;
  uint16_t h = nan ? (uint16_t)(u >> 16 | 64) : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
  return __builtin_bit_cast(__bf16, h);
}
__bf16 __truncdfbf2(double d) { return __truncsfbf2((float)d); }
}
