// MXFP4 of GGUF: 32 weights. 17 bytes: the scale in E8M0, 16 bytes of E2M1, the low nibbles first.
struct Weight {
  enum { block = 32, bytes = 17 };

  static uint place(uint part, uint quad) {
    return 8 * part + 4 * (quad & 1) + 16 * (quad >> 1);
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    float d = e8m0(b[0]);
    for (uint i = 0; i < 2; i++) {
      e2m1_by_nibble(word_of_bytes(b + 1 + 8 * part + 4 * i), E2M1_UNIT, w[i], w[i + 2]);
    }
    for (uint i = 0; i < 4; i++) {
      w[i] *= d;  // by itself: the largest scales leave no room for 2^14
    }
  }
};
