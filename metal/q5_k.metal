// Q5_K: 256 weights in groups of 32, d scale code - dmin minimum. 176 bytes: d, dmin, scales and
// minima, 32 bytes with the fifth bit of a group in each bit, nibbles as in Q4_K.
struct Weight {
  enum { block = 256, bytes = 176 };

  static uint place(uint part, uint quad) {
    return 64 * (part >> 2) + 8 * (part & 3) + 4 * (quad & 1) + 32 * (quad >> 1);
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    uint g = part >> 2;
    uint2 steps = k_scales(b + 4, g);
    float d = half_at(b);
    float dmin = half_at(b + 2);
    float2 scale = d * float2(steps.x & 255, steps.x >> 8);
    float2 minimum = -dmin * float2(steps.y & 255, steps.y >> 8);
    for (uint i = 0; i < 2; i++) {
      uint codes = word_at(b + 48 + 8 * part + 4 * i);
      uint fifth = word_at(b + 16 + 8 * (part & 3) + 4 * i) >> (2 * g);
      uint low = (codes & 0x0f0f0f0f) | (fifth & 0x01010101) << 4;
      uint high = (codes >> 4 & 0x0f0f0f0f) | (fifth & 0x02020202) << 3;
      w[i] = scaled(unsigned4(low), scale.x, minimum.x);
      w[i + 2] = scaled(unsigned4(high), scale.y, minimum.y);
    }
  }
};
