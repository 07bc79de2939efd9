// Probabilities in proportion to 2^(scale (x - peak)), in two passes over the scores x of a row.
// The first leaves the peak of each chunk of columns and its sum relative to that peak; the second
// makes the peak and the sum of the row of these. A threadgroup takes a chunk, and each of its
// threads every THREADS-th column of it.

// Largest score and sum of one chunk of columns, into part[0] and part[1].
template <int EACH, int THREADS, typename S>
inline void chunk_part(S scores, float scale, device float* part, uint first, uint columns,
                       threadgroup uint* peaks, threadgroup float* sums, uint thread_of_group,
                       uint simdgroup, uint lane) {
  constexpr uint simdgroups = THREADS / 32;
  float held[EACH];
  uint key = NO_KEY;
  for (int i = 0; i < EACH; i++) {
    const uint column = first + i * THREADS + thread_of_group;
    held[i] = column < columns ? float(scores[column]) : -INFINITY;
    key = max(key, key_of(held[i]));
  }
  key = simd_max(key);
  if (lane == 0) {
    peaks[simdgroup] = key;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);  // peaks are written
  const float peak = score_of(simd_max(lane < simdgroups ? peaks[lane] : NO_KEY));
  float sum = 0.0f;
  for (int i = 0; i < EACH; i++) {
    // Where all are -inf, there is nothing to add.
    sum += held[i] == -INFINITY ? 0.0f : exp2((held[i] - peak) * scale);
  }
  sum = lane_sum(sum);
  if (lane == 0) {
    sums[simdgroup] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);  // sums are written
  sum = lane_sum(lane < simdgroups ? sums[lane] : 0.0f);
  if (thread_of_group == 0) {
    part[0] = peak;
    part[1] = sum;
  }
}

struct RowPart {
  float peak;
  float sum;
};

// Peak and sum of a row of all its chunks, the same in every lane.
template <typename P>
inline RowPart row_part(P parts, float scale, uint chunks, uint lane) {
  uint key = NO_KEY;
  for (uint chunk = lane; chunk < chunks; chunk += 32) {
    key = max(key, key_of(parts[2 * chunk]));
  }
  const float peak = score_of(simd_max(key));
  float sum = 0.0f;
  for (uint chunk = lane; chunk < chunks; chunk += 32) {
    const float of_chunk = parts[2 * chunk];
    sum += of_chunk == -INFINITY ? 0.0f : parts[2 * chunk + 1] * exp2((of_chunk - peak) * scale);
  }
  return {peak, lane_sum(sum)};
}

// The probabilities of one chunk of columns.
template <int EACH, int THREADS, typename S>
inline void chunk_probs(S scores, RowPart row, float scale, device float* probs, uint first,
                        uint columns, uint thread_of_group) {
  for (int i = 0; i < EACH; i++) {
    const uint column = first + i * THREADS + thread_of_group;
    if (column < columns) {
      probs[column] = exp2((float(scores[column]) - row.peak) * scale) / row.sum;
    }
  }
}
