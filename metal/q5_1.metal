// Q5_1: 32 weights d code + m. 24 bytes: d, m, the fifth bits, 16 bytes of nibbles, the low ones
// first.
struct Weight {
  enum { block = 32, bytes = 24 };

  static uint place(uint part, uint quad) {
    return 8 * part + 4 * (quad & 1) + 16 * (quad >> 1);
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    float d = half_at(b);
    float m = half_at(b + 2);
    uint fifth = word_at(b + 4) >> (8 * part);
    for (uint i = 0; i < 2; i++) {
      uint codes = word_at(b + 8 + 8 * part + 4 * i);
      uint low = (codes & 0x0f0f0f0f) | spread_bits(fifth >> (4 * i)) << 4;
      uint high = (codes >> 4 & 0x0f0f0f0f) | spread_bits(fifth >> (16 + 4 * i)) << 4;
      w[i] = scaled(unsigned4(low), d, m);
      w[i + 2] = scaled(unsigned4(high), d, m);
    }
  }
};
