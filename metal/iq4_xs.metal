// IQ4_XS: 256 weights in groups of 32, d (scale - 32) value[code]. 136 bytes: d, the high pairs of
// bits of the scales, their low nibbles, 128 bytes of nibbles, the low ones of a group first.
struct Weight {
  enum { block = 256, bytes = 136 };

  static uint place(uint part, uint quad) {
    return 32 * (part >> 1) + 8 * (part & 1) + 4 * (quad & 1) + 16 * (quad >> 1);
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    uint g = part >> 1;
    uint step = (word_at(b + 4) >> (4 * g) & 15) | (short_at(b + 2) >> (2 * g) & 3) << 4;
    float scale = half_at(b) * (float(step) - 32.0f);
    for (uint i = 0; i < 2; i++) {
      uint codes = word_at(b + 8 + 8 * part + 4 * i);
      w[i] = iq4_values(codes) * scale;
      w[i + 2] = iq4_values(codes >> 4) * scale;
    }
  }
};
