// IQ3_XXS: 256 weights in groups of 32, d (scale + 1/2) / 2 times signed entries of a codebook. 98
// bytes: d, 64 bytes of indices of four weights, for each group a word of four times seven signs
// and the scale.
struct Weight {
  enum { block = 256, bytes = 98 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    uint entries = word_of_shorts(b + 2 + 4 * part);
    uint word = word_of_shorts(b + 66 + 4 * (part >> 1));
    float scale = half_at(b) * (float(word >> 28) + 0.5f) * 0.5f;
    uint signs = word >> (14 * (part & 1));
    signs = even_signs(signs) | even_signs(signs >> 7) << 8;
    for (uint i = 0; i < 4; i++) {
      uint quad = IQ3_XXS_ENTRIES[entries >> (8 * i) & 255];
      w[i] = signed4(negated(quad, signs >> (4 * i))) * scale;
    }
  }
};
