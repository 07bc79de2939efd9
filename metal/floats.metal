// Floating-point numbers as they are. codes [N, K] of type S.
template <typename S>
struct Floats {
  enum { block = 16 };

  static uint place(uint, uint quad) {
    return 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint, thread float4* w) {
    const device S* b = (const device S*)block_at(planes, row, index, 16 * sizeof(S));
    for (uint i = 0; i < 4; i++) {
      w[i] = float4(*(const device vec<S, 4>*)(b + 4 * i));
    }
  }
};

#define Weight Floats<S>
