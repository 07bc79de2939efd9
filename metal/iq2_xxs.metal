// IQ2_XXS: 256 weights in groups of 32, d (scale + 1/2) / 4 times signed entries of a codebook. 66
// bytes: d, then for each group four indices of a byte and a word of four times seven signs and the
// scale.
struct Weight {
  enum { block = 256, bytes = 66 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    const device uchar* group = b + 2 + 8 * (part >> 1);
    uint entries = short_at(group + 2 * (part & 1));
    uint word = word_of_shorts(group + 4);
    float scale = half_at(b) * (float(word >> 28) + 0.5f) * 0.25f;
    uint signs = word >> (14 * (part & 1));
    iq2_octet(IQ2_XXS_ENTRIES[entries & 255], even_signs(signs), scale, w);
    iq2_octet(IQ2_XXS_ENTRIES[entries >> 8], even_signs(signs >> 7), scale, w + 2);
  }
};
