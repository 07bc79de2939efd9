// Entries of the codebooks of IQ2: fields of two bits that stand for 8, 25 and 43.
inline uint iq2_quad(uint fields) {
  uint codes = spread_pairs(fields);
  return codes * 17 + 0x08080808 + (codes >> 1 & 0x01010101);
}

// Eight weights: an entry, with the signs in the bits of a byte.
inline void iq2_octet(uint entry, uint signs, float scale, thread float4* w) {
  w[0] = signed4(negated(iq2_quad(entry), signs)) * scale;
  w[1] = signed4(negated(iq2_quad(entry >> 8), signs >> 4)) * scale;
}
