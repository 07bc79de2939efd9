// The sixteen values of IQ4_NL and IQ4_XS.
constant float IQ4_VALUES[16] = {-127.0f, -104.0f, -83.0f, -65.0f, -49.0f, -35.0f, -22.0f, -10.0f,
                                 1.0f,    13.0f,   25.0f,  38.0f,  53.0f,  69.0f,  89.0f,  113.0f};

// What the low nibbles of a word stand for.
inline float4 iq4_values(uint word) {
  return float4(IQ4_VALUES[word & 15], IQ4_VALUES[word >> 8 & 15], IQ4_VALUES[word >> 16 & 15],
                IQ4_VALUES[word >> 24 & 15]);
}
