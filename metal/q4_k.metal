// Q4_K: 256 weights in groups of 32, d scale code - dmin minimum. 144 bytes: d, dmin, scales and
// minima, 128 bytes of nibbles: 32 bytes hold one group in their low and the next in their high
// ones.
struct Weight {
  enum { block = 256, bytes = 144 };

  static uint place(uint part, uint quad) {
    return 64 * (part >> 2) + 8 * (part & 3) + 4 * (quad & 1) + 32 * (quad >> 1);
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    uint2 steps = k_scales(b + 4, part >> 2);
    float d = half_at(b);
    float dmin = half_at(b + 2);
    float2 scale = d * float2(steps.x & 255, steps.x >> 8);
    float2 minimum = -dmin * float2(steps.y & 255, steps.y >> 8);
    for (uint i = 0; i < 2; i++) {
      uint codes = word_at(b + 16 + 8 * part + 4 * i);
      w[i] = scaled(unsigned4(codes & 0x0f0f0f0f), scale.x, minimum.x);
      w[i + 2] = scaled(unsigned4(codes >> 4 & 0x0f0f0f0f), scale.y, minimum.y);
    }
  }
};
