// Q1_0: 128 weights, d where a bit is set and -d elsewhere. 18 bytes: d, 16 bytes of bits, the
// lowest first.
struct Weight {
  enum { block = 128, bytes = 18 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    float d = half_at(b);
    uint bits = short_at(b + 2 + 2 * part);
    for (uint i = 0; i < 4; i++) {
      w[i] = scaled(unsigned4(spread_bits(bits >> (4 * i))), 2.0f * d, -d);
    }
  }
};
