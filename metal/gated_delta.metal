// The gated delta rule (Yang et al., arXiv 2412.06464), on a block of tokens in their order:
//
//   S <- g S,   d = beta (v - S k),   S <- S + d k',   y = S q
//
// with a state S [rows, DK] in float32 for each value head. LANES lanes of a SIMD-group hold a row
// in registers and walk the tokens, so a block reads and writes the state once, and its tokens come
// out as they do one at a time. Nothing depends on another row: there is no barrier. What a token
// wrote, d, is kept; with it the state after any of the tokens is folded again without a sum over k.

struct DeltaShape {
  uint tokens;
  uint key_heads;
  uint heads;
  uint rows;
};

// Which head of q and k a head of v goes with: each serves consecutive ones (grouped), or every
// key_heads-th one (tiled).
template <bool TILED>
inline uint key_head(DeltaShape shape, uint head) {
  return TILED ? head % shape.key_heads : head / (shape.heads / shape.key_heads);
}

// The decay of four columns from `column` on: one for the whole head, or one for each column.
template <int DK, bool PER_KEY, typename G>
inline float4 decay_of(G g, uint at, uint column) {
  if (!PER_KEY) {
    return float4(float(g[at]));
  }
  const uint from = at * DK + column;
  return float4(g[from], g[from + 1], g[from + 2], g[from + 3]);
}

template <typename T>
inline float4 four_at(const device T* p) {
  return float4(*(const device vec<T, 4>*)p);
}

// The sum over the lanes that hold a row, the same in each of them.
template <int LANES>
inline float row_sum(float4 parts) {
  float sum = (parts.x + parts.y) + (parts.z + parts.w);
  for (ushort apart = 1; apart < LANES; apart *= 2) {
    sum += simd_shuffle_xor(sum, apart);
  }
  return sum;
}

// One row of one head's state, from thread number `thread` of those for the head; `head` counts
// through all sequences. q, k [B, tokens, key_heads, DK]; v, y, written [B, tokens, heads, rows];
// g [B, tokens, heads] or [.., DK]; beta [B, tokens, heads]; before, after [B, heads, rows, DK].
template <typename T, int DK, int LANES, bool TILED, bool PER_KEY, typename V, typename G,
          typename B>
inline void delta_step(const device T* q, const device T* k, V v, G g, B beta,
                       const device float* before, device T* y, device float* written,
                       device float* after, DeltaShape shape, uint thread_of_head, uint head) {
  constexpr int quads = DK / (4 * LANES);
  const uint lane = thread_of_head % LANES;
  const uint row = thread_of_head / LANES;
  if (row >= shape.rows) {
    return;  // together with every lane that it would add up with
  }
  const uint first = head / shape.heads * shape.tokens;
  const uint of_keys = key_head<TILED>(shape, head % shape.heads);
  const ulong at_state = (ulong(head) * shape.rows + row) * DK;
  float4 state[quads];
  for (int i = 0; i < quads; i++) {
    state[i] = four_at(before + at_state + 4 * (i * LANES + lane));
  }
  for (uint t = first; t < first + shape.tokens; t++) {
    const uint at = t * shape.heads + head % shape.heads;
    const uint at_keys = (t * shape.key_heads + of_keys) * DK;
    float4 found = 0.0f;
    for (int i = 0; i < quads; i++) {
      const uint column = 4 * (i * LANES + lane);
      state[i] = state[i] * decay_of<DK, PER_KEY>(g, at, column);
      found = fma(state[i], four_at(k + at_keys + column), found);
    }
    const float d = float(beta[at]) * (float(v[at * shape.rows + row]) - row_sum<LANES>(found));
    float4 out = 0.0f;
    for (int i = 0; i < quads; i++) {
      const uint column = 4 * (i * LANES + lane);
      state[i] = fma(four_at(k + at_keys + column), float4(d), state[i]);
      out = fma(state[i], four_at(q + at_keys + column), out);
    }
    const float sum = row_sum<LANES>(out);
    if (lane == 0) {
      y[at * shape.rows + row] = T(sum);
      written[at * shape.rows + row] = d;
    }
  }
  for (int i = 0; i < quads; i++) {
    *(device float4*)(after + at_state + 4 * (i * LANES + lane)) = state[i];
  }
}

// Four columns of a row of the state after the first `count` tokens of a block, from the state
// before it and what it wrote.
template <typename T, int DK, bool TILED, bool PER_KEY, typename W, typename G>
inline void delta_refold(const device T* k, W written, G g, const device float* before,
                         device float* after, DeltaShape shape, uint count, uint quad, uint row,
                         uint head) {
  const uint column = 4 * quad;
  const uint first = head / shape.heads * shape.tokens;
  const uint of_keys = key_head<TILED>(shape, head % shape.heads);
  const ulong at_state = (ulong(head) * shape.rows + row) * DK + column;
  float4 state = four_at(before + at_state);
  for (uint t = first; t < first + count; t++) {
    const uint at = t * shape.heads + head % shape.heads;
    const uint at_keys = (t * shape.key_heads + of_keys) * DK + column;
    state = state * decay_of<DK, PER_KEY>(g, at, column);
    state = fma(four_at(k + at_keys), float4(written[at * shape.rows + row]), state);
  }
  *(device float4*)(after + at_state) = state;
}
