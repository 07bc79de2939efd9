// Q2_K: 256 weights in groups of 16, d scale code - dmin minimum. 84 bytes: 16 with a scale in the
// low and a minimum in the high nibble, 64 of pairs of bits, d, dmin. Each half of the block has
// four runs of 32 weights.
struct Weight {
  enum { block = 256, bytes = 84 };

  static uint place(uint part, uint quad) {
    return 128 * (part >> 3) + 4 * (part & 7) + 32 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    uint h = part >> 3;
    uint i = part & 7;
    uint codes = word_at(b + 16 + 32 * h + 4 * i);
    const device uchar* steps = b + 8 * h + (i >> 2);
    float d = half_at(b + 80);
    float dmin = half_at(b + 82);
    for (uint j = 0; j < 4; j++) {
      uint step = steps[2 * j];
      w[j] = scaled(unsigned4(codes >> (2 * j) & 0x03030303), d * float(step & 15),
                    -dmin * float(step >> 4));
    }
  }
};
