// Scores in their order as whole numbers, and sums that lanes make together.

// Of a place without a score: less than any score's.
static constant constexpr const uint NO_KEY = 0;

// -inf first, NaN last; both zeros are one.
inline uint key_of(float score) {
  if (isnan(score)) {
    return 0xFFFFFFFF;
  }
  const uint bits = as_type<uint>(score == 0.0f ? 0.0f : score);
  return (bits & 0x80000000) != 0 ? ~bits : bits | 0x80000000;
}

inline float score_of(uint key) {
  return as_type<float>((key & 0x80000000) != 0 ? key & 0x7FFFFFFF : ~key);
}

// The sum over the lanes of a SIMD-group, the same in each of them.
inline float lane_sum(float part) {
  for (ushort apart = 16; apart > 0; apart /= 2) {
    part += simd_shuffle_xor(part, apart);
  }
  return part;
}
