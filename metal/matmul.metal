// y[m, n] = multiplier[n] * sum over k of x[m, k] W[n, k] + bias[n], for many rows of x.
//
// A threadgroup of four SIMD-groups, two by two, makes a tile of BM x BN. Both operands go through
// threadgroup memory in the type of x, 32 weights of k at a time; since sums do not care for the
// order of k, those are two parts of a block, whose quads may lie apart.

enum { STRIDE = 40 };  // of a tile's row: 32 are used, so that rows start in different banks

// Rows from `first` of x, the quads that two parts from `i` stand for; zeros behind the last row.
template <typename W, typename T, int BM>
inline void load_rows(const device T* x, uint columns, uint first, uint rows, uint i,
                      threadgroup T* tile, uint thread_index) {
  constexpr uint parts = W::block / 16;
  for (uint t = thread_index; t < BM * 8; t += 128) {
    const uint m = t / 8;
    const uint at = i + t % 8 / 4;
    const uint k = at / parts * W::block + W::place(at % parts, t % 4);
    const bool inside = first + m < rows && at < columns / 16;
    for (uint j = 0; j < 4; j++) {
      tile[m * STRIDE + t % 8 * 4 + j] = inside ? x[(first + m) * columns + k + j] : T(0.0f);
    }
  }
}

template <typename W, typename T, int BN>
inline void load_weights(thread const Planes& planes, uint first, uint end, uint i,
                         threadgroup T* tile, uint thread_index) {
  constexpr uint parts = W::block / 16;
  for (uint t = thread_index; t < BN * 2; t += 128) {
    const uint n = t / 2;
    const uint at = i + t % 2;
    float4 w[4] = {float4(0.0f), float4(0.0f), float4(0.0f), float4(0.0f)};
    if (first + n < end && at < planes.columns / 16) {
      W::decode(planes, first + n, at / parts, at % parts, w);
    }
    for (uint j = 0; j < 16; j++) {
      tile[n * STRIDE + t % 2 * 16 + j] = T(w[j / 4][j % 4]);
    }
  }
}

// A tile of y: rows from `m` up to `rows`, columns from `n` up to `width`, which are rows of W from
// `first` on. xs: BM * STRIDE, ws: BN * STRIDE, sums: BM * BN.
template <typename W, typename T, int BM, int BN, bool SCALED, bool BIASED, typename A, typename B>
inline void matmul(thread const Planes& planes, const device T* x, A multiplier, B bias,
                   device T* y, uint m, uint rows, uint first, uint n, uint width,
                   threadgroup T* xs, threadgroup T* ws, threadgroup float* sums, uint thread_index,
                   uint simd) {
  constexpr int FM = BM / 16;
  constexpr int FN = BN / 16;
  simdgroup_matrix<float, 8, 8> acc[FM][FN];
  for (int i = 0; i < FM; i++) {
    for (int j = 0; j < FN; j++) {
      acc[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    }
  }
  const uint top = simd / 2 * (BM / 2);
  const uint left = simd % 2 * (BN / 2);
  for (uint part = 0; part < planes.columns / 16; part += 2) {
    load_rows<W, T, BM>(x, planes.columns, m, rows, part, xs, thread_index);
    load_weights<W, T, BN>(planes, first + n, first + width, part, ws, thread_index);
    threadgroup_barrier(mem_flags::mem_threadgroup);  // tiles are written
    for (int k = 0; k < 32; k += 8) {
      simdgroup_matrix<T, 8, 8> a[FM];
      simdgroup_matrix<T, 8, 8> b[FN];
      for (int i = 0; i < FM; i++) {
        simdgroup_load(a[i], xs + (top + 8 * i) * STRIDE + k, STRIDE);
      }
      for (int j = 0; j < FN; j++) {
        simdgroup_load(b[j], ws + (left + 8 * j) * STRIDE + k, STRIDE, ulong2(0, 0), true);
      }
      for (int i = 0; i < FM; i++) {
        for (int j = 0; j < FN; j++) {
          simdgroup_multiply_accumulate(acc[i][j], a[i], b[j], acc[i][j]);
        }
      }
    }
    threadgroup_barrier(mem_flags::mem_threadgroup);  // tiles are read
  }
  for (int i = 0; i < FM; i++) {
    for (int j = 0; j < FN; j++) {
      simdgroup_store(acc[i][j], sums + (top + 8 * i) * BN + left + 8 * j, BN);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);  // sums are written
  for (uint t = thread_index; t < BM * BN; t += 128) {
    const uint row = m + t / BN;
    const uint column = n + t % BN;
    if (row < rows && column < width) {
      float sum = sums[t];
      sum = SCALED ? sum * multiplier[first + column] : sum;
      sum = BIASED ? sum + bias[first + column] : sum;
      y[row * width + column] = T(sum);
    }
  }
}
