// Eight weights of IQ1: an entry of the codebook, fields of two bits that are one more than -1, 0
// and 1, moved by `shift`.
inline void iq1_octet(uint entry, float shift, float scale, thread float4* w) {
  w[0] = (unsigned4(spread_pairs(entry)) + (shift - 1.0f)) * scale;
  w[1] = (unsigned4(spread_pairs(entry >> 8)) + (shift - 1.0f)) * scale;
}
