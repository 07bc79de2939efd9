// NVFP4 of GGUF: 64 weights in groups of 16. 36 bytes: four scales in E4M3 without a sign, then for
// each group 8 bytes of E2M1, the low nibbles first.
struct Weight {
  enum { block = 64, bytes = 36 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * (quad & 1) + 8 * (quad >> 1);
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    float d = e4m3(b[part] & 127) * E2M1_UNIT;
    for (uint i = 0; i < 2; i++) {
      e2m1_by_nibble(word_at(b + 4 + 8 * part + 4 * i), d, w[i], w[i + 2]);
    }
  }
};
