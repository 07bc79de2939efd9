// TQ2_0: 256 weights d (code - 1). 66 bytes: 64 of pairs of bits, d. Each half of the block has
// four runs of 32 weights.
struct Weight {
  enum { block = 256, bytes = 66 };

  static uint place(uint part, uint quad) {
    return 128 * (part >> 3) + 4 * (part & 7) + 32 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    uint codes = word_of_shorts(b + 32 * (part >> 3) + 4 * (part & 7));
    float d = half_at(b + 64);
    for (uint j = 0; j < 4; j++) {
      w[j] = scaled(unsigned4(codes >> (2 * j) & 0x03030303), d, -d);
    }
  }
};
