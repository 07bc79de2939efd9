// IQ1_S: 256 weights in groups of 32, d (2 scale + 1) (entry +- 1/8). 50 bytes: d, 32 bytes of
// indices, 8 words of four times three high bits, the scale and the sign of the shift.
struct Weight {
  enum { block = 256, bytes = 50 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    uint low = short_at(b + 2 + 2 * part);
    uint word = short_at(b + 34 + 2 * (part >> 1));
    uint high = word >> (6 * (part & 1));
    float scale = half_at(b) * float(2 * (word >> 12 & 7) + 1);
    float shift = word & 0x8000 ? -0.125f : 0.125f;
    iq1_octet(IQ1_ENTRIES[(low & 255) | (high & 7) << 8], shift, scale, w);
    iq1_octet(IQ1_ENTRIES[low >> 8 | (high >> 3 & 7) << 8], shift, scale, w + 2);
  }
};
