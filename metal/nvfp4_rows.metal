// NVFP4 of ModelOpt and compressed-tensors: two planes. codes [N, K / 2]: E2M1, the earlier weight
// in the low nibble. scales [N, K / 16]: E4M3 without a sign. The tensor's scale is the multiplier
// of the sums.
struct Weight {
  enum { block = 16 };

  static uint place(uint, uint quad) {
    return 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint, thread float4* w) {
    const device uchar* b = block_at(planes, row, index, 8);
    float d = e4m3(planes.scales[ulong(row) * (planes.columns / 16) + index] & 127) * E2M1_UNIT;
    e2m1_in_order(word_at(b), d, w);
    e2m1_in_order(word_at(b + 4), d, w + 2);
  }
};
