// One threadgroup per row of x: the sum of squares over SIMD-groups, then over the threadgroup.
template <typename T>
inline void rms_norm(const device T* x, const device T* w, device T* out, int D, threadgroup float* partial,
                     threadgroup float* inverse, uint tid, uint threads, uint lane, uint simd, uint simds) {
  float sum = 0.0f;
  for (int i = tid; i < D; i += threads) {
    float v = float(x[i]);
    sum += v * v;
  }
  sum = simd_sum(sum);
  if (lane == 0) {
    partial[simd] = sum;
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);  // first
  if (simd == 0) {
    float all = lane < simds ? partial[lane] : 0.0f;
    all = simd_sum(all);
    if (lane == 0) {
      *inverse = metal::rsqrt(all / float(D) + 1e-5f);
    }
  }
  threadgroup_barrier(mem_flags::mem_threadgroup);  // second
  for (int i = tid; i < D; i += threads) {
    out[i] = T(float(x[i]) * *inverse * float(w[i]));
  }
}
