// The state of the emulated GPU, and the few containers it needs: nothing of the C++ library is
// linked, so that building a kernel needs a compiler and nothing else.
#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "abi.h"

namespace {
template <class T>
struct Array {  // of plain data; grows, never shrinks
  T* data = nullptr;
  size_t size = 0, room = 0;
  T& operator[](size_t i) { return data[i]; }
  T* begin() { return data; }
  T* end() { return data + size; }
  void reserve(size_t n) {
    if (n <= room) return;
    room = n < 2 * room ? 2 * room : n;
    data = (T*)realloc((void*)data, room * sizeof(T));
    if (!data) abort();
  }
  void zeroed(size_t n) {
    reserve(n);
    size = n;
    if (n) memset((void*)data, 0, n * sizeof(T));
  }
  void push(const T& value) {
    reserve(size + 1);
    data[size++] = value;
  }
  void release() {
    free((void*)data);
    data = nullptr;
    size = room = 0;
  }
};

struct Random {  // splitmix64
  uint64_t state;
  uint64_t next() {
    uint64_t z = (state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  template <class T>
  void shuffle(Array<T>& a) {
    for (size_t i = a.size; i > 1; i--) {
      size_t j = next() % i;
      T t = a[i - 1];
      a[i - 1] = a[j];
      a[j] = t;
    }
  }
};

template <class T>
T least(T a, T b) {
  return b < a ? b : a;
}

mslh_launch* run_now;        // the launch that is running, or null
uint32_t group_now;          // the threadgroup that is running
uint32_t group_epoch[2];     // barriers passed: [0] device memory, [1] threadgroup memory
uint32_t simd_epoch[32][2];  // the same per SIMD-group
int in_atomic;
bool aborted;
}  // namespace
