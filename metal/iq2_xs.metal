// IQ2_XS: 256 weights in groups of 16, d (scale + 1/2) / 4 times signed entries of a codebook. 74
// bytes: d, 32 words of a nine-bit index and seven signs, 8 bytes of two scales.
struct Weight {
  enum { block = 256, bytes = 74 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    uint words = word_of_shorts(b + 2 + 4 * part);
    uint step = b[66 + (part >> 1)] >> (4 * (part & 1)) & 15;
    float scale = half_at(b) * (float(step) + 0.5f) * 0.25f;
    iq2_octet(IQ2_XS_ENTRIES[words & 511], even_signs(words >> 9), scale, w);
    iq2_octet(IQ2_XS_ENTRIES[words >> 16 & 511], even_signs(words >> 25), scale, w + 2);
  }
};
