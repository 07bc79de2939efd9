// The largest scores of a chunk of columns, equal ones by their column, lowest first, in the order
// of their columns. A threadgroup holds the chunk in registers, so it is read once: each thread
// has every THREADS-th column of it. The least key that is kept is found by its bits, eight at a
// time from the top, with a count of the keys for each value of the eight.

static constant constexpr const uint NUM_BINS = 256;

struct Cut {
  uint key;   // the least that is kept
  uint ties;  // how many of those that are equal to it
};

// Which key is the count-th largest of all threads.
template <int EACH, int THREADS>
inline Cut cut_at(const thread uint* keys, uint count, threadgroup uint* bins,
                  threadgroup uint* found, uint thread_of_group, uint simdgroup, uint lane) {
  constexpr uint of_lane = NUM_BINS / 32;
  Cut cut = {0, count};
  for (int shift = 24; shift >= 0; shift -= 8) {
    const uint known = shift == 24 ? 0 : 0xFFFFFFFF << (shift + 8);
    for (uint bin = thread_of_group; bin < NUM_BINS; bin += THREADS) {
      bins[bin] = 0;
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // bins are empty
    for (int i = 0; i < EACH; i++) {
      if ((keys[i] & known) == cut.key) {
        threadgroup uint* bin = bins + (keys[i] >> shift & (NUM_BINS - 1));
        atomic_fetch_add_explicit((threadgroup atomic_uint*)bin, 1, memory_order_relaxed);
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // bins are full
    if (simdgroup == 0) {
      uint inside[of_lane];
      uint sum = 0;
      for (uint i = 0; i < of_lane; i++) {
        inside[i] = bins[NUM_BINS - 1 - (lane * of_lane + i)];
        sum += inside[i];
      }
      uint above = simd_prefix_exclusive_sum(sum);
      for (uint i = 0; i < of_lane; i++) {
        if (above < cut.ties && cut.ties <= above + inside[i]) {
          found[0] = NUM_BINS - 1 - (lane * of_lane + i);
          found[1] = cut.ties - above;
        }
        above += inside[i];
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // the bin is found
    cut.key |= found[0] << shift;
    cut.ties = found[1];
  }
  return cut;
}

// How many of the chunk are chosen, and for each of a thread's, how many stand before it.
template <int EACH, int THREADS>
inline uint ranked(const thread bool* chosen, thread uint* before, threadgroup uint* counts,
                   uint simdgroup, uint lane) {
  constexpr uint simdgroups = THREADS / 32;
  constexpr uint of_lane = EACH * simdgroups / 32;
  for (int i = 0; i < EACH; i++) {
    const uint one = chosen[i] ? 1 : 0;
    before[i] = simd_prefix_exclusive_sum(one);
    if (lane == 31) {
      counts[i * simdgroups + simdgroup] = before[i] + one;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);  // counts are written
  if (simdgroup == 0) {
    uint sum = 0;
    for (uint i = 0; i < of_lane; i++) {
      sum += counts[lane * of_lane + i];
    }
    uint running = simd_prefix_exclusive_sum(sum);
    for (uint i = 0; i < of_lane; i++) {
      const uint count = counts[lane * of_lane + i];
      counts[lane * of_lane + i] = running;
      running += count;
    }
    if (lane == 31) {
      counts[EACH * simdgroups] = running;
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);  // counts are added up
  for (int i = 0; i < EACH; i++) {
    before[i] += counts[i * simdgroups + simdgroup];
  }
  const uint all = counts[EACH * simdgroups];
  threadgroup_barrier(mem_flags::mem_threadgroup);  // counts are read
  return all;
}

// `count` scores of a chunk and their ids, -1 behind the last where there are fewer. NAMED: the
// columns have ids of their own, -1 where there is nothing; else the columns are the ids.
template <int EACH, int THREADS, bool NAMED, typename S, typename I>
inline void chunk_best(S scores, I ids, device float* best, device int* best_ids, uint first,
                       uint columns, uint count, threadgroup uint* bins,
                       threadgroup uint* found, threadgroup uint* counts, uint thread_of_group,
                       uint simdgroup, uint lane) {
  uint keys[EACH];
  for (int i = 0; i < EACH; i++) {
    const uint column = first + i * THREADS + thread_of_group;
    const bool present = column < columns && (!NAMED || ids[column] >= 0);
    keys[i] = present ? key_of(float(scores[column])) : NO_KEY;
  }
  const Cut cut =
      cut_at<EACH, THREADS>(keys, count, bins, found, thread_of_group, simdgroup, lane);
  bool chosen[EACH];
  uint before[EACH];
  for (int i = 0; i < EACH; i++) {
    chosen[i] = keys[i] == cut.key && cut.key != NO_KEY;
  }
  ranked<EACH, THREADS>(chosen, before, counts, simdgroup, lane);
  for (int i = 0; i < EACH; i++) {
    chosen[i] = keys[i] > cut.key || (chosen[i] && before[i] < cut.ties);
  }
  const uint all = ranked<EACH, THREADS>(chosen, before, counts, simdgroup, lane);
  for (int i = 0; i < EACH; i++) {
    if (chosen[i]) {
      const uint column = first + i * THREADS + thread_of_group;
      best[before[i]] = score_of(keys[i]);
      best_ids[before[i]] = NAMED ? int(ids[column]) : int(column);
    }
  }
  for (uint i = all + thread_of_group; i < count; i += THREADS) {
    best[i] = -INFINITY;
    best_ids[i] = -1;
  }
}
