// y[m, k] = sum over n of x[m, n] multiplier[n] W[n, k], for up to M rows of x: a product with W
// itself, where all others are products with its transpose.
//
// A thread makes the columns that one part of a row stands for, and takes the rows of W in their
// order: each part is decoded once and applied to every row of x, which come out as single ones do.

// Rows from `m` of x [count, rows]; those of W from `first` on. A thread's part is the i-th.
template <typename W, typename T, int M, bool SCALED, typename A>
inline void turned(thread const Planes& planes, const device T* x, A multiplier, device T* y,
                   uint first, uint rows, uint m, uint count, uint i) {
  constexpr uint parts = W::block / 16;
  const uint index = i / parts;
  const uint part = i % parts;
  float4 sums[M][4];
  for (int r = 0; r < M; r++) {
    sums[r][0] = sums[r][1] = sums[r][2] = sums[r][3] = float4(0.0f);
  }
  for (uint n = 0; n < rows; n++) {
    float4 w[4];
    W::decode(planes, first + n, index, part, w);
    const float scale = SCALED ? multiplier[first + n] : 1.0f;
#pragma clang loop unroll(full)
    for (int r = 0; r < M; r++) {
      const float v = m + r < count ? float(x[(m + r) * rows + n]) * scale : 0.0f;
      for (int quad = 0; quad < 4; quad++) {
        sums[r][quad] = fma(w[quad], float4(v), sums[r][quad]);
      }
    }
  }
  for (int r = 0; r < M && m + r < count; r++) {
    device T* to = y + (m + r) * planes.columns + index * W::block;
    for (int quad = 0; quad < 4; quad++) {
      for (int j = 0; j < 4; j++) {
        to[W::place(part, quad) + j] = T(sums[r][quad][j]);
      }
    }
  }
}
