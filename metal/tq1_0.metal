// TQ1_0: 256 weights d (digit - 1). 54 bytes: 48 of five digits to the base 3, 4 of four, d. A byte
// is a fraction of 256: its digits come out at the top as it is multiplied by 3.
constant uint POWERS_OF_3[5] = {1, 3, 9, 27, 81};

struct Weight {
  enum { block = 256, bytes = 54 };

  static uint place(uint part, uint quad) {
    return 16 * part + 4 * quad;
  }

  // Digit n of each of four bytes.
  static uint digits(uint word, uint n) {
    uint power = POWERS_OF_3[n];
    uint even = (word & 0x00ff00ff) * power & 0x00ff00ff;
    uint odd = (word >> 8 & 0x00ff00ff) * power & 0x00ff00ff;
    return (even * 3 >> 8 & 0x00030003) | (odd * 3 & 0x03000300);
  }

  // Parts 0 to 9 are the first 32 bytes, two parts to a digit; 10 to 14 the next 16 bytes, one to a
  // digit; 15 is the last four bytes, a quad to a digit.
  static void decode(thread const Planes& planes, uint row, uint index, uint part,
                     thread float4* w) {
    const device uchar* b = block_at(planes, row, index, bytes);
    float d = half_at(b + 52);
    uint start = part < 10 ? 16 * (part & 1) : part < 15 ? 32 : 48;
    uint n = part < 10 ? part >> 1 : part < 15 ? part - 10 : 0;
    uint word = 0;
    for (uint i = 0; i < 4; i++) {
      if (part < 15 || i == 0) {
        word = word_of_shorts(b + start + 4 * i);
      }
      w[i] = scaled(unsigned4(digits(word, part < 15 ? n : i)), d, -d);
    }
  }
};
