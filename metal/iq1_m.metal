// IQ1_M: 256 weights in groups of 16, d (2 scale + 1) (entry +- 1/8). 56 bytes: 32 of indices, 16
// with three high bits and the sign of the shift for two indices each, 4 words of four scales of
// three bits. The top nibbles of those words are d, the lowest first.
struct Weight {
  enum { block = 256, bytes = 56 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    uint low = short_at(b + 2 * part);
    uint high = b[32 + part];
    uint2 words = uint2(word_at(b + 48), word_at(b + 52));
    uint d = (words.x >> 12 & 15) | (words.x >> 24 & 0xf0) | (words.y >> 4 & 0xf00) |
             (words.y >> 16 & 0xf000);
    uint word = (part < 8 ? words.x : words.y) >> (16 * (part >> 2 & 1));
    float scale = float(as_type<half>(ushort(d))) * float(2 * (word >> (3 * (part & 3)) & 7) + 1);
    iq1_octet(IQ1_ENTRIES[(low & 255) | (high & 7) << 8], high & 8 ? -0.125f : 0.125f, scale, w);
    iq1_octet(IQ1_ENTRIES[low >> 8 | (high >> 4 & 7) << 8], high & 128 ? -0.125f : 0.125f, scale,
              w + 2);
  }
};
