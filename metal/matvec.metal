// y[m, n] = multiplier[n] * sum over k of x[m, k] W[n, k] + bias[n], for M rows of x, 1 to 8.
//
// A SIMD-group makes R columns of y. Its lanes take the parts of the rows of W in turn: each part
// is read and decoded once, in registers, and applied to every row of x. The order in which a lane
// adds is that of k and the same for every M and R, so M rows come out as M single ones do.

// Rows `row` and R - 1 more of W, as far as they lie before `end`.
template <typename W, typename T, int M, int R>
inline void add_parts(thread const Planes& planes, const device T* x, uint row, uint end, uint lane,
                      thread float (&sums)[M][R]) {
  constexpr uint parts = W::block / 16;
  const uint all = planes.columns / 16;
  for (uint i = lane; i < all; i += 32) {
    const uint index = i / parts;
    const uint part = i % parts;
    float4 w[R][4];
#pragma clang loop unroll(full)
    for (int r = 0; r < R; r++) {
      if (row + r < end) {
        W::decode(planes, row + r, index, part, w[r]);
      } else {
        w[r][0] = w[r][1] = w[r][2] = w[r][3] = float4(0.0f);
      }
    }
    const device T* from = x + index * W::block;
#pragma clang loop unroll(full)
    for (int quad = 0; quad < 4; quad++) {
      const uint k = W::place(part, quad);
#pragma clang loop unroll(full)
      for (int m = 0; m < M; m++) {
        const float4 v = float4(*(const device vec<T, 4>*)(from + m * planes.columns + k));
#pragma clang loop unroll(full)
        for (int r = 0; r < R; r++) {
          float sum = sums[m][r];
          sum = fma(w[r][quad].x, v.x, sum);
          sum = fma(w[r][quad].y, v.y, sum);
          sum = fma(w[r][quad].z, v.z, sum);
          sums[m][r] = fma(w[r][quad].w, v.w, sum);
        }
      }
    }
  }
}

// Columns `column` and R - 1 more of a product that is `width` wide. They are rows of W from
// `first` on: W may be many matrices, one on top of the other. multiplier and bias have a value for
// each row of W and are left out where SCALED and BIASED say so. All is float32 up to the end: what
// is too large for T only before it is scaled comes out right.
template <typename W, typename T, int M, int R, bool SCALED, bool BIASED, typename A, typename B>
inline void matvec(thread const Planes& planes, const device T* x, A multiplier, B bias,
                   device T* y, uint first, uint column, uint width, uint lane) {
  float sums[M][R] = {{0}};
  add_parts<W, T, M, R>(planes, x, first + column, first + width, lane, sums);
  for (int m = 0; m < M; m++) {
    for (int r = 0; r < R; r++) {
      float sum = simd_sum(sums[m][r]);
      const uint at = column + r;
      if (lane == 0 && at < width) {
        sum = SCALED ? sum * multiplier[first + at] : sum;
        sum = BIASED ? sum + bias[first + at] : sum;
        y[m * width + at] = T(sum);
      }
    }
  }
}
