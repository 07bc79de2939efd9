// MLX's affine formats: scale code + bias in groups of GROUP weights, of type S. codes [N, K BITS /
// 8]: fields of BITS bits, the lowest first. scales, biases [N, K / GROUP]. CENTRED: there are no
// biases, and half the range of the codes stands for zero.
template <int BITS, int GROUP, bool CENTRED, typename S>
struct Affine {
  enum { block = GROUP };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  // Sixteen fields, four to a word, in bytes.
  static void fields(const device uchar* b, thread uint* quads) {
    if (BITS == 8) {
      for (uint i = 0; i < 4; i++) {
        quads[i] = word_of_shorts(b + 4 * i);
      }
    } else if (BITS == 4) {
      for (uint i = 0; i < 4; i++) {
        uint pairs = short_at(b + 2 * i);
        pairs = (pairs | pairs << 8) & 0x00ff00ff;
        quads[i] = (pairs | pairs << 4) & 0x0f0f0f0f;
      }
    } else if (BITS == 2) {
      uint word = word_of_shorts(b);
      for (uint i = 0; i < 4; i++) {
        quads[i] = spread_pairs(word >> (8 * i));
      }
    } else {
      uint shorts[BITS + 1];
      for (uint i = 0; i < BITS; i++) {
        shorts[i] = short_at(b + 2 * i);
      }
      shorts[BITS] = 0;
      for (uint i = 0; i < 4; i++) {
        quads[i] = 0;
        for (uint j = 0; j < 4; j++) {
          uint bit = BITS * (4 * i + j);
          uint both = shorts[bit / 16] | shorts[bit / 16 + 1] << 16;
          quads[i] |= (both >> (bit % 16) & ((1u << BITS) - 1)) << (8 * j);
        }
      }
    }
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, GROUP * BITS / 8) + 2 * BITS * part;
    const ulong group = ulong(row) * (planes.columns / GROUP) + index;
    float scale = float(((const device S*)planes.scales)[group]);
    float bias = CENTRED ? -scale * (1 << (BITS - 1)) : float(((const device S*)planes.biases)[group]);
    uint quads[4];
    fields(b, quads);
    for (uint i = 0; i < 4; i++) {
      w[i] = scaled(unsigned4(quads[i]), scale, bias);
    }
  }
};

#define Weight Affine<BITS, GROUP, CENTRED, S>
