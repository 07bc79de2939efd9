// Q3_K: 256 weights in groups of 16, d (scale - 32) (code - 4). 110 bytes: 32 of high bits, 64 of
// low pairs of bits, 12 of six-bit scales, d. Each half of the block has four runs of 32 weights.
struct Weight {
  enum { block = 256, bytes = 110 };

  static uint place(uint part, uint quad) {
    return 128 * (part >> 3) + 4 * (part & 7) + 32 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    uint h = part >> 3;
    uint i = part & 7;
    uint t = 8 * (i >> 2);  // each run has two groups
    uint high = word_of_shorts(b + 4 * i) >> (4 * h);
    uint low = word_of_shorts(b + 32 + 32 * h + 4 * i);
    uint2 nibbles = uint2(word_of_shorts(b + 96), word_of_shorts(b + 100)) >> (t + 4 * h);
    uint pairs = word_of_shorts(b + 104) >> (t + 4 * h);
    float d = half_at(b + 108);
    for (uint j = 0; j < 4; j++) {
      uint step = (nibbles[j >> 1] >> (16 * (j & 1)) & 15) |
                  (pairs >> (16 * (j & 1) + 2 * (j >> 1)) & 3) << 4;
      float scale = d * (float(step) - 32.0f);
      uint codes = (low >> (2 * j) & 0x03030303) | (high >> j & 0x01010101) << 2;
      w[j] = scaled(unsigned4(codes), scale, -4.0f * scale);
    }
  }
};
