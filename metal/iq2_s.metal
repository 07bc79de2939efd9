// IQ2_S: 256 weights in groups of 16, d (scale + 1/2) / 4 times signed entries of a codebook. 82
// bytes: d, 32 bytes of indices, 32 of signs, 8 with two high bits of four indices, 8 of two
// scales.
struct Weight {
  enum { block = 256, bytes = 82 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    uint low = short_at(b + 2 + 2 * part);
    uint signs = short_at(b + 34 + 2 * part);
    uint high = uint(b[66 + (part >> 1)]) >> (4 * (part & 1));
    uint step = b[74 + (part >> 1)] >> (4 * (part & 1)) & 15;
    float scale = half_at(b) * (float(step) + 0.5f) * 0.25f;
    iq2_octet(IQ2_S_ENTRIES[(low & 255) | (high & 3) << 8], signs, scale, w);
    iq2_octet(IQ2_S_ENTRIES[low >> 8 | (high >> 2 & 3) << 8], signs >> 8, scale, w + 2);
  }
};
