// IQ3_S: 256 weights in groups of 32, d (2 scale + 1) times signed entries of a codebook. 110
// bytes: d, 64 bytes of indices of four weights, 8 with the ninth bits of eight indices, 32 of
// signs, 4 of two scales.
struct Weight {
  enum { block = 256, bytes = 110 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    uint entries = word_of_shorts(b + 2 + 4 * part);
    uint ninth = uint(b[66 + (part >> 1)]) >> (4 * (part & 1));
    uint signs = short_at(b + 74 + 2 * part);
    uint step = b[106 + (part >> 2)] >> (4 * (part >> 1 & 1)) & 15;
    float scale = half_at(b) * float(2 * step + 1);
    for (uint i = 0; i < 4; i++) {
      uint quad = IQ3_S_ENTRIES[(entries >> (8 * i) & 255) | (ninth >> i & 1) << 8];
      w[i] = signed4(negated(quad, signs >> (4 * i))) * scale;
    }
  }
};
