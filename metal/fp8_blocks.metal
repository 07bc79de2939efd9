// FP8 E4M3 with a scale for each ROWS x COLUMNS weights. codes [N, K], scales [N / ROWS, K / COLUMNS]
// of type S, both rounded up. COLUMNS is a multiple of 16.
template <typename S, int ROWS, int COLUMNS>
struct BlockScaled {
  enum { block = 16 };

  static uint place(uint, uint quad) {
    return 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint, thread float4* w) {
    const device uchar* b = block_at(planes, row, index, 16);
    const device S* scales = (const device S*)planes.scales;
    const ulong line = ulong(row / ROWS) * ((planes.columns + COLUMNS - 1) / COLUMNS);
    float scale = float(scales[line + index / (COLUMNS / 16)]);
    for (uint i = 0; i < 4; i++) {
      w[i] = e4m3x4(word_at(b + 4 * i)) * scale;
    }
  }
};

#define Weight BlockScaled<S, ROWS, COLUMNS>
