// Q2_0: 64 weights d (code - 1). 18 bytes: d, 16 bytes of pairs of bits, the lowest first.
struct Weight {
  enum { block = 64, bytes = 18 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    float d = half_at(b);
    uint codes = word_of_shorts(b + 2 + 4 * part);
    for (uint i = 0; i < 4; i++) {
      w[i] = scaled(unsigned4(spread_pairs(codes >> (8 * i))), d, -d);
    }
  }
};
