// FP8 E4M3 with a scale for each 128 x 128 weights. codes [N, K], scales [N / 128, K / 128] of type
// S, both rounded up.
template <typename S>
struct BlockScaled {
  enum { block = 16 };

  static uint place(uint, uint quad) {
    return 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint, thread float4* w) {
    const device uchar* b = block_at(planes, row, index, 16);
    const device S* scales = (const device S*)planes.scales;
    float scale = float(scales[row / 128 * ((planes.columns + 127) / 128) + index / 8]);
    for (uint i = 0; i < 4; i++) {
      w[i] = e4m3x4(word_at(b + 4 * i)) * scale;
    }
  }
};

#define Weight BlockScaled<S>
