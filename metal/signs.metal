// Signs of IQ2_XXS, IQ2_XS and IQ3_XXS: seven bits of eight are stored, and their number is even.
inline uint even_signs(uint bits) {
  bits &= 127;
  return bits | (popcount(bits) & 1) << 7;
}
