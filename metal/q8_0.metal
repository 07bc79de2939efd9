// Q8_0: 32 weights d code. 34 bytes: d, 32 signed bytes.
struct Weight {
  enum { block = 32, bytes = 34 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    float d = half_at(b);
    for (uint i = 0; i < 4; i++) {
      w[i] = signed4(word_of_shorts(b + 2 + 16 * part + 4 * i)) * d;
    }
  }
};
