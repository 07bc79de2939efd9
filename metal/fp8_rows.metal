// FP8 E4M3 with one scale per tensor or per row, which is the multiplier of the sums. codes [N, K].
struct Weight {
  enum { block = 16 };

  static uint place(uint, uint quad) {
    return 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint, thread float4* w) {
    const device uchar* b = block_at(planes, row, index, 16);
    for (uint i = 0; i < 4; i++) {
      w[i] = e4m3x4(word_at(b + 4 * i));
    }
  }
};
