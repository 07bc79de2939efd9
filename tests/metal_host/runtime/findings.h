// Findings, each place reported once.
#pragma once
#include "fibers.h"

namespace {
bool seen(int kind, uint64_t pc, uint64_t other) {
  for (int i = 0; i < run_now->num_findings; i++) {
    mslh_finding& f = run_now->findings[i];
    if (f.kind == kind && f.pc == pc && f.other_pc == other) return true;
  }
  return false;
}

// A place to describe a finding, or null: seen before, or no room.
mslh_finding* find_new(int kind, uint64_t pc, uint64_t other = 0) {
  if (seen(kind, pc, other) || run_now->num_findings >= run_now->max_findings) return nullptr;
  mslh_finding* f = &run_now->findings[run_now->num_findings++];
  memset((void*)f, 0, sizeof *f);
  f->kind = kind;
  f->buffer = -1;
  f->group = group_now;
  f->thread = lane_now ? lane_now->index : 0;
  f->pc = pc;
  f->other_pc = other;
  return f;
}

void describe(mslh_finding* f, const char* text) {
  size_t n = least(strlen(text), sizeof f->text - 1);
  memcpy(f->text, text, n);
  f->text[n] = 0;
}

uint64_t place(int line, int column) { return (uint64_t)line << 32 | (uint32_t)column; }

// Two threads of one group that do not meet.
void apart(int kind, const Lane& a, const Lane& b, const char* text) {
  mslh_finding* f = find_new(kind, place(a.line, a.column), place(b.line, b.column));
  if (!f) return;
  f->thread = a.index;
  f->other_thread = b.index;
  f->other_group = group_now;
  f->line = a.line;
  f->column = a.column;
  f->other_line = b.line;
  describe(f, text);
}
}  // namespace
