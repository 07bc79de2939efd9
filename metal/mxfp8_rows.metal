// MXFP8 (OCP Microscaling Formats 1.0): two planes. codes [N, K]: E4M3. scales [N, K / 32]: E8M0.
struct Weight {
  enum { block = 32 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, 32) + 16 * part;
    float d = e8m0(planes.scales[ulong(row) * (planes.columns / 32) + index]);
    for (uint i = 0; i < 4; i++) {
      w[i] = e4m3x4(word_at(b + 4 * i)) * d;
    }
  }
};
