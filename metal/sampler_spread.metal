// A chunk of a row of probabilities that are 0 but for a few columns: probs[i] at column ids[i],
// which are `count`, in ascending order.
template <int EACH, int THREADS, typename P, typename I>
inline void chunk_spread(P probs, I ids, device float* row, uint first, uint columns, uint count,
                         uint thread_of_group) {
  const uint end = min(first + EACH * THREADS, columns);
  for (uint column = first + thread_of_group; column < end; column += THREADS) {
    row[column] = 0.0f;
  }
  uint from = 0;  // of the ids, the first that is in the chunk
  for (uint until = count; from < until;) {
    const uint middle = (from + until) / 2;
    if (uint(ids[middle]) < first) {
      from = middle + 1;
    } else {
      until = middle;
    }
  }
  threadgroup_barrier(mem_flags::mem_device);  // zeros are written
  for (uint i = from + thread_of_group; i < count && uint(ids[i]) < end; i += THREADS) {
    row[ids[i]] = probs[i];
  }
}
