// Numbers of four and eight bits (OCP Microscaling Formats 1.0), by way of half, which has their
// exponents and mantissas in other places and with another bias.

// E2M1 in nibbles i and i + 4 of a word, times 2^-14: what scales them brings 2^14 back.
constant float E2M1_UNIT = 16384.0f;

inline float2 e2m1_pair(uint word, uint i) {
  uint pair = word >> (4 * i);
  return float2(as_type<half2>((pair & 0x00080008) << 12 | (pair & 0x00070007) << 9));
}

// Eight nibbles in the order of the weights. scale: times E2M1_UNIT.
inline void e2m1_in_order(uint word, float scale, thread float4* w) {
  for (uint i = 0; i < 4; i++) {
    float2 pair = e2m1_pair(word, i) * scale;
    w[0][i] = pair.x;
    w[1][i] = pair.y;
  }
}

// Four bytes whose low nibbles are one quad and whose high nibbles another. scale: times E2M1_UNIT.
inline void e2m1_by_nibble(uint word, float scale, thread float4& low, thread float4& high) {
  for (uint i = 0; i < 2; i++) {
    float2 even = e2m1_pair(word, 2 * i) * scale;
    float2 odd = e2m1_pair(word, 2 * i + 1) * scale;
    low[i] = even.x;
    low[i + 2] = even.y;
    high[i] = odd.x;
    high[i + 2] = odd.y;
  }
}

// E4M3 in bytes i and i + 2 of a word. 0x7f and 0xff are no numbers.
inline float2 e4m3_pair(uint word, uint i) {
  uint pair = word >> (8 * i);
  uint magnitude = pair & 0x007f007f;
  uint none = ((magnitude + 0x00010001) & 0x00800080) >> 7;
  uint bits = (pair & 0x00800080) << 8 | magnitude << 7 | none * 0x7c00;
  return float2(as_type<half2>(bits)) * 256.0f;
}

inline float4 e4m3x4(uint word) {
  float2 even = e4m3_pair(word, 0);
  float2 odd = e4m3_pair(word, 1);
  return float4(even.x, odd.x, even.y, odd.y);
}

inline float e4m3(uint byte) {
  return e4m3_pair(byte, 0).x;
}

// A power of two. 0xff is no number, and 0 is 2^-127.
inline float e8m0(uint byte) {
  uint bits = byte == 0 ? 0x00400000 : byte == 255 ? 0x7fc00000 : byte << 23;
  return as_type<float>(bits);
}
