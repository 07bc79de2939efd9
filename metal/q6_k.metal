// Q6_K: 256 weights in groups of 16, d scale (code - 32). 210 bytes: 128 of low nibbles, 64 of high
// pairs of bits, 16 signed scales, d. Each half of the block has four runs of 32 weights.
struct Weight {
  enum { block = 256, bytes = 210 };

  static uint place(uint part, uint quad) {
    return 128 * (part >> 3) + 4 * (part & 7) + 32 * quad;
  }

  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    uint h = part >> 3;
    uint i = part & 7;
    uint first = word_of_shorts(b + 64 * h + 4 * i);
    uint second = word_of_shorts(b + 64 * h + 32 + 4 * i);
    uint high = word_of_shorts(b + 128 + 32 * h + 4 * i);
    uint codes[4] = {(first & 0x0f0f0f0f) | (high << 4 & 0x30303030),
                     (second & 0x0f0f0f0f) | (high << 2 & 0x30303030),
                     (first >> 4 & 0x0f0f0f0f) | (high & 0x30303030),
                     (second >> 4 & 0x0f0f0f0f) | (high >> 2 & 0x30303030)};
    const device char* steps = (const device char*)(b + 192 + 8 * h + (i >> 2));
    float d = half_at(b + 208);
    for (uint j = 0; j < 4; j++) {
      float scale = d * float(steps[2 * j]);
      w[j] = scaled(unsigned4(codes[j]), scale, -32.0f * scale);
    }
  }
};
