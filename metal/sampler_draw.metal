// A token from the positive part of w p - q (Leviathan et al., arXiv 2211.17192), or from p where
// nothing was drafted or that part has no mass. Two random numbers draw it: the first one of the
// segments of 256 columns, by their sums, and the second a column of that segment. Each SIMD-group
// is on its own. The part is made anew wherever it is looked at, and written nowhere.

static constant constexpr const uint SEGMENT = 256;

enum Proposal { NOTHING, EACH_COLUMN, ONE_TOKEN };

// Columns of a row of w p - q. PROPOSAL says what q is: a row, one token, or 0.
template <int PROPOSAL, typename P, typename Q>
struct Left {
  P p;
  Q q;
  uint token;
  float scale;
  bool refused;
  uint columns;

  float whole(uint column) const { return column < columns ? p[column] : 0.0f; }

  // Of what stands in a column of p.
  float part(float whole, uint column) const {
    if (PROPOSAL == NOTHING || !refused || column >= columns) {
      return whole;
    }
    const float taken = PROPOSAL == EACH_COLUMN ? q[column] : column == token ? 1.0f : 0.0f;
    return max(scale * whole - taken, 0.0f);
  }
};

// Of `row` among `rows`, of which the last has no proposal. q: `rows_of_q`, of which the last serves
// all rows behind it. tokens, scales: the token and w of each row but the last.
template <int PROPOSAL, typename P, typename Q, typename T, typename W>
inline Left<PROPOSAL, P, Q> left_of(P p, Q q, T tokens, W scales, uint row, uint rows,
                                    uint rows_of_q, uint columns) {
  const bool refused = PROPOSAL != NOTHING && row + 1 < rows;
  const uint token = refused && PROPOSAL == ONE_TOKEN ? uint(tokens[row]) : 0;
  const float scale = refused ? float(scales[row]) : 1.0f;
  const ulong of_q = PROPOSAL == EACH_COLUMN ? min(row, rows_of_q - 1) : 0;
  return {p + ulong(row) * columns, q + of_q * columns, token, scale, refused, columns};
}

// The sums of a segment of the columns: of what is left, into sums[0], and of p, `apart` behind.
template <typename L>
inline void segment_sums(L left, device float* sums, uint apart, uint segment, uint lane) {
  float some = 0.0f;
  float all = 0.0f;
  for (uint i = lane; i < SEGMENT; i += 32) {
    const uint column = segment * SEGMENT + i;
    const float weight = left.whole(column);
    some += left.part(weight, column);
    all += weight;
  }
  some = lane_sum(some);
  all = lane_sum(all);
  if (lane == 0) {
    sums[segment] = some;
    sums[apart + segment] = all;
  }
}

// Weights that stand in memory, and those of a segment's columns.
template <typename S>
struct OfSegments {
  S sums;
  uint count;

  float at(uint i) const { return i < count ? sums[i] : 0.0f; }
};

template <typename L>
struct OfColumns {
  L left;
  uint first;
  bool whole;

  float at(uint i) const {
    const float weight = left.whole(first + i);
    return whole ? weight : left.part(weight, first + i);
  }
};

// Which of `count` weights the number draws: the first whose running sum exceeds that share of
// the whole. One of weight 0 is never drawn; rounding can put the share on the whole, and then it
// is the last that weighs something. The same in every lane.
template <typename W>
inline uint first_past(W weights, uint count, float uniform, uint lane) {
  float whole = 0.0f;
  uint last = 0;
  for (uint from = 0; from < count; from += 32) {
    const float weight = weights.at(from + lane);
    whole += simd_shuffle(simd_prefix_inclusive_sum(weight), 31);
    last = max(last, simd_max(weight > 0.0f ? from + lane : 0u));
  }
  const float target = uniform * whole;
  float before = 0.0f;
  for (uint from = 0; from < count; from += 32) {
    const float weight = weights.at(from + lane);
    const float running = simd_prefix_inclusive_sum(weight);
    const bool past = weight > 0.0f && before + running > target;
    const uint found = simd_min(past ? from + lane : count);
    if (found < count) {
      return found;
    }
    before += simd_shuffle(running, 31);
  }
  return last;
}

template <typename S>
inline float whole_of(S sums, uint count, uint lane) {
  float sum = 0.0f;
  for (uint i = lane; i < count; i += 32) {
    sum += sums[i];
  }
  return lane_sum(sum);
}

// The token, and whether nothing was left. sums: those of the segments, as `segment_sums` made
// them. first, second: the two numbers.
template <typename L, typename S>
inline void choose(L left, S sums, uint segments, float first, float second, device int* token,
                   device int* empty, uint lane) {
  const bool whole = !(whole_of(sums, segments, lane) > 0.0f);
  const OfSegments<S> of_segments = {whole ? sums + segments : sums, segments};
  const uint segment = first_past(of_segments, segments, first, lane);
  const OfColumns<L> of_columns = {left, segment * SEGMENT, whole};
  const uint column = first_past(of_columns, SEGMENT, second, lane);
  if (lane == 0) {
    *token = int(segment * SEGMENT + column);
    *empty = whole && left.refused ? 1 : 0;
  }
}
