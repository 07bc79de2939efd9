// The eight scales and minima of Q4_K and Q5_K, six bits each, in 12 bytes.

// Those of groups 2 g and 2 g + 1, as two bytes each: .x the scales, .y the minima. Every lane of a
// block makes the same reads, so the bytes are fetched once.
inline uint2 k_scales(const device uchar* packed, uint g) {
  uint a = short_at(packed + 2 * (g & 1));
  uint b = short_at(packed + 4 + 2 * (g & 1));
  uint c = short_at(packed + 8 + 2 * (g & 1));
  if (g < 2) {
    return uint2(a & 0x3f3f, b & 0x3f3f);
  }
  return uint2((c & 0x0f0f) | (a >> 2 & 0x3030), (c >> 4 & 0x0f0f) | (b >> 2 & 0x3030));
}
