// Threadgroups one after the other; in one, SIMD-groups and lanes in an order drawn from the seed,
// each lane until its next barrier or SIMD-group function.
#pragma once
#include "findings.h"

namespace {
constexpr int DEVICE_MEMORY = 1, GROUP_MEMORY = 2;  // bits of mem_flags

bool same_place(const Lane& a, const Lane& b) {
  return a.line == b.line && a.column == b.column && a.function == b.function;
}

void meet(Array<Lane*>& waiting, uint32_t simd) {
  mslh_simd_ctx c;
  c.active = 0;
  c.width = 32;
  for (Lane* lane : waiting) {
    c.active |= 1u << lane->lane;
    c.lane[lane->lane] = lane->io;
  }
  Lane& first = *waiting[0];
  if (first.function) first.function(&c);
  if (first.flags > 0 && (first.flags & DEVICE_MEMORY)) simd_epoch[simd][0]++;
  if (first.flags > 0 && (first.flags & GROUP_MEMORY)) simd_epoch[simd][1]++;
  for (Lane* lane : waiting) lane->state = READY;
}

// Lanes that returned are inactive, which Metal allows.
void run_simdgroup(uint32_t simd, uint32_t live, Random& random) {
  static Array<Lane*> order, waiting;
  uint32_t first = simd * 32, last = least(first + 32, live);
  for (;;) {
    order.size = waiting.size = 0;
    for (uint32_t i = first; i < last; i++)
      if (lanes[i].state == READY) order.push(&lanes[i]);
    if (run_now->shuffle) random.shuffle(order);
    for (Lane* lane : order) resume(*lane);
    Lane* other = nullptr;
    for (uint32_t i = first; i < last; i++) {
      Lane& lane = lanes[i];
      if (lane.state == AT_SIMD && (!waiting.size || same_place(lane, *waiting[0])))
        waiting.push(&lane);
      else if (lane.state != DONE)
        other = &lane;
    }
    if (!waiting.size) return;  // all have finished or stand at a threadgroup barrier
    if (other && run_now->strict)
      apart(DIVERGENCE, *waiting[0], *other, "SIMD-group function reached by only some lanes");
    meet(waiting, simd);
  }
}

enum Barrier { FINISHED, PASSED, STUCK };

Barrier pass_barrier(uint32_t live) {
  Lane *at = nullptr, *gone = nullptr, *elsewhere = nullptr;
  for (uint32_t i = 0; i < live; i++) {
    Lane& lane = lanes[i];
    if (lane.state == DONE)
      gone = &lane;
    else if (!at)
      at = &lane;
    else if (lane.line != at->line || lane.column != at->column)
      elsewhere = &lane;
  }
  if (!at) return FINISHED;
  if (elsewhere)
    apart(DIVERGENCE, *at, *elsewhere, "threadgroup_barrier reached by only some threads");
  if (gone) apart(AFTER_RETURN, *at, *gone, "threadgroup_barrier after some threads returned");
  if ((elsewhere || gone) && run_now->strict) return STUCK;
  if (at->flags & DEVICE_MEMORY) group_epoch[0]++;
  if (at->flags & GROUP_MEMORY) group_epoch[1]++;
  for (uint32_t i = 0; i < live; i++)
    if (lanes[i].state == AT_GROUP_BARRIER) lanes[i].state = READY;
  return PASSED;
}

bool run_threadgroup(uint32_t live, Random& random) {
  static Array<uint32_t> order;
  for (;;) {
    order.size = 0;
    for (uint32_t i = 0; i < (live + 31) / 32; i++) order.push(i);
    if (run_now->shuffle) random.shuffle(order);
    for (uint32_t simd : order) run_simdgroup(simd, live, random);
    Barrier result = pass_barrier(live);
    if (result != PASSED) return result == FINISHED;
  }
}
}  // namespace
