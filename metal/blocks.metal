// What every weight format is made of: packed planes of a matrix, and reads from them.
//
// A format's file defines `Weight`:
//   block                    weights that lie together in memory
//   place(part, quad)        where in its block a quad of consecutive weights starts
//   decode(planes, row, block, part, w)
//                            sixteen weights of a row: the four quads of one part of a block
// The parts of a block have no overlap and leave nothing out.

struct Planes {
  const device uchar* codes;   // [rows, row_bytes]
  const device uchar* scales;  // as the format stores them, if not with the codes
  const device uchar* biases;
  uint columns;
  uint row_bytes;
};

inline const device uchar* block_at(thread const Planes& planes, uint row, uint block, uint bytes) {
  return planes.codes + ulong(row) * planes.row_bytes + block * bytes;
}

inline float half_at(const device uchar* p) {  // blocks of even size
  return float(*(const device half*)p);
}

inline uint short_at(const device uchar* p) {
  return *(const device ushort*)p;
}

// Four bytes, by the largest reads that their alignment allows.
inline uint word_of_bytes(const device uchar* p) {
  return uint(p[0]) | uint(p[1]) << 8 | uint(p[2]) << 16 | uint(p[3]) << 24;
}

inline uint word_of_shorts(const device uchar* p) {
  const device ushort* s = (const device ushort*)p;
  return uint(s[0]) | uint(s[1]) << 16;
}

inline uint word_at(const device uchar* p) {
  return *(const device uint*)p;
}

// The bytes of a word as four numbers.
inline float4 unsigned4(uint word) {
  return float4(as_type<uchar4>(word));
}

inline float4 signed4(uint word) {
  return float4(as_type<char4>(word));
}

inline float4 scaled(float4 codes, float scale, float offset) {
  return fma(codes, float4(scale), float4(offset));
}

// The lowest four bits, one to each byte.
inline uint spread_bits(uint bits) {
  return ((bits & 15) * 0x00204081) & 0x01010101;
}

// The four fields of two bits in the lowest byte, one to each byte.
inline uint spread_pairs(uint byte) {
  byte &= 0xff;
  return (byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303;
}

// Bytes that are not zero, negated where the bits say so.
inline uint negated(uint bytes, uint bits) {
  uint sign = spread_bits(bits);
  return (bytes ^ (sign * 255)) + sign;
}
