// Q4_0: 32 weights d (code - 8). 18 bytes: d, 16 bytes of nibbles, the low ones first.
struct Weight {
  enum { block = 32, bytes = 18 };

  static uint place(uint part, uint quad) {
    return 8 * part + 4 * (quad & 1) + 16 * (quad >> 1);
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    float d = half_at(b);
    for (uint i = 0; i < 2; i++) {
      uint codes = word_of_shorts(b + 2 + 8 * part + 4 * i);
      w[i] = scaled(unsigned4(codes & 0x0f0f0f0f), d, -8.0f * d);
      w[i + 2] = scaled(unsigned4(codes >> 4 & 0x0f0f0f0f), d, -8.0f * d);
    }
  }
};
