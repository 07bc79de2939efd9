// y[i, :] = W[ids[i], :] times the row's multiplier. A thread makes one part of one row.
template <typename W, typename T, bool SCALED, typename A>
inline void gather(thread const Planes& planes, uint row, A multiplier, device T* y, uint i) {
  constexpr uint parts = W::block / 16;
  const uint index = i / parts;
  const uint part = i % parts;
  float4 w[4];
  W::decode(planes, row, index, part, w);
  const float scale = SCALED ? multiplier[row] : 1.0f;
  for (int quad = 0; quad < 4; quad++) {
    device T* to = y + index * W::block + W::place(part, quad);
    for (int j = 0; j < 4; j++) {
      to[j] = T(w[quad][j] * scale);
    }
  }
}
