// MXFP4 of gpt-oss and compressed-tensors: two planes. codes [N, K / 2]: E2M1, the earlier weight
// in the low nibble. scales [N, K / 32]: E8M0.
struct Weight {
  enum { block = 32 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, 16) + 8 * part;
    float d = e8m0(planes.scales[ulong(row) * (planes.columns / 32) + index]);
    e2m1_in_order(word_at(b), E2M1_UNIT, w);
    e2m1_in_order(word_at(b + 4), E2M1_UNIT, w + 2);
    for (uint i = 0; i < 4; i++) {
      w[i] *= d;  // by itself: the largest scales leave no room for 2^14
    }
  }
};
