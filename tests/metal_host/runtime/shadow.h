// Memory as the checked build sees it: who touched each byte last, and behind which barriers.
#pragma once
#include "findings.h"

namespace {
struct Touch {
  uint32_t group;  // index + 1; 0: nobody
  uint32_t thread, group_epoch, simd_epoch, pc;
  bool atomic;
};
struct Byte {
  Touch writer, reader[2];
};
struct Region {
  char *low, *high;
  int buffer;
  int memory;  // 0 device, 1 threadgroup
  bool writable;
  Array<Byte> bytes;
  Array<uint8_t> initialised;
};
Array<Region> regions;
Array<mslh_access> accesses;

uint64_t module_base() { return (uint64_t)&__ehdr_start; }

void add_region(char* low, size_t size, int buffer, int memory, bool writable, bool initialised) {
  Region r = {low, low + size, buffer, memory, writable, {}, {}};
  if (writable) {
    r.bytes.zeroed(size);
    r.initialised.zeroed(size);
    if (initialised && size) memset(r.initialised.data, 1, size);
  }
  regions.push(r);
}

void drop_regions() {
  for (Region& r : regions) {
    r.bytes.release();
    r.initialised.release();
  }
  regions.size = 0;
}

// Threadgroup memory has no contents when a threadgroup starts.
void forget_group_memory() {
  for (Region& r : regions) {
    if (r.memory != 1) continue;
    r.bytes.zeroed(r.bytes.size);
    r.initialised.zeroed(r.initialised.size);
  }
}

Region* region_of(char* p) {
  static size_t last;
  if (last < regions.size && p >= regions[last].low && p < regions[last].high)
    return &regions[last];
  for (size_t i = 0; i < regions.size; i++)
    if (p >= regions[i].low && p < regions[i].high) return &regions[last = i];
  return nullptr;
}

// Happens-before, from barriers alone: it does not depend on the order that was drawn.
bool unordered(const Touch& a, const Touch& b) {
  if (!a.group || (a.group == b.group && a.thread == b.thread) || (a.atomic && b.atomic))
    return false;
  if (a.group != b.group) return true;  // nothing orders two threadgroups of one dispatch
  if (b.group_epoch > a.group_epoch) return false;
  return !(a.thread / 32 == b.thread / 32 && b.simd_epoch > a.simd_epoch);
}

void race(const Touch& a, Region& r, char* p, int size, uint64_t pc, bool write) {
  mslh_finding* f = find_new(RACE, pc, a.pc + module_base());
  if (!f) return;
  f->buffer = r.buffer;
  f->offset = p - r.low;
  f->size = size;
  f->other_group = a.group - 1;
  f->other_thread = a.thread;
  describe(f, write ? "write" : "read");
}

bool is_program_constant(char* p, bool write) {
  if (write || p < &__ehdr_start || p >= &_end) return false;
  return !(p >= __start_mslh_tg && p < __stop_mslh_tg);
}

void out_of_bounds(char* p, int size, bool write, uint64_t pc) {
  mslh_finding* f = find_new(write ? OUT_OF_BOUNDS_WRITE : OUT_OF_BOUNDS_READ, pc);
  if (!f) return;
  f->size = size;
  int64_t nearest = INT64_MAX;
  for (Region& r : regions) {
    int64_t distance = p < r.low ? r.low - p : p + size - r.high;
    if (distance >= nearest) continue;
    nearest = distance;
    f->buffer = r.buffer;
    f->offset = p - r.low;
  }
}

void found_at(int kind, Region& r, char* p, int size, uint64_t pc) {
  mslh_finding* f = find_new(kind, pc);
  if (!f) return;
  f->buffer = r.buffer;
  f->offset = p - r.low;
  f->size = size;
}

void write_byte(Byte& byte, const Touch& me, Region& r, char* p, int size, uint64_t pc) {
  for (Touch& reader : byte.reader)
    if (unordered(reader, me)) race(reader, r, p, size, pc, true);
  byte.writer = me;
  byte.reader[0].group = byte.reader[1].group = 0;
}

// Two readers are kept, of different SIMD-groups if there are such.
void read_byte(Byte& byte, const Touch& me) {
  Touch &a = byte.reader[0], &b = byte.reader[1];
  if (!a.group || (a.group == me.group && a.thread == me.thread))
    a = me;
  else if (!b.group || (b.group == me.group && b.thread == me.thread) ||
           (b.group == a.group && b.thread / 32 == a.thread / 32))
    b = me;
}

void touch(Region& r, char* p, int size, bool write, uint64_t pc) {
  Touch me = {group_now + 1,
              lane_now->index,
              group_epoch[r.memory],
              simd_epoch[lane_now->simd][r.memory],
              (uint32_t)(pc - module_base()),
              in_atomic != 0};
  for (size_t i = p - r.low, end = i + size; i < end; i++) {
    Byte& byte = r.bytes[i];
    if (!write && !r.initialised[i]) found_at(UNINITIALISED, r, p, size, pc);
    if (unordered(byte.writer, me)) race(byte.writer, r, p, size, pc, write);
    if (write) {
      write_byte(byte, me, r, p, size, pc);
      r.initialised[i] = 1;
    } else {
      read_byte(byte, me);
    }
  }
}

void record(const Region& r, char* p, int size, bool write, uint64_t pc) {
  if (!run_now->record || r.memory != 0) return;
  accesses.push({(uint32_t)(pc - module_base()), group_now, lane_now->index, (int16_t)r.buffer,
                 (int16_t)(write ? -size : size), (uint32_t)(p - r.low)});
}

void access(char* p, int size, bool write, uint64_t pc, bool must_align) {
  if (!lane_now) return;
  if (p >= lane_now->stack && p < lane_now->stack + GUARD + STACK) return;  // the thread's own
  Region* r = region_of(p);
  if (must_align && (uint64_t)p % size) {
    if (r)
      found_at(MISALIGNED, *r, p, size, pc);
    else
      find_new(MISALIGNED, pc);
  }
  if (!r || p + size > r->high) {
    if (r || !is_program_constant(p, write)) out_of_bounds(p, size, write, pc);
    return;
  }
  record(*r, p, size, write, pc);
  if (write && !r->writable)
    found_at(WRITE_TO_INPUT, *r, p, size, pc);
  else if (r->writable)
    touch(*r, p, size, write, pc);  // inputs never change
}
}  // namespace
