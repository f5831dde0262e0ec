"""Device functions that generated kernels of both C++ backends use: plain C++, with DEVICE as each prelude defines it.

`philox`: `ir.philox` names the source, and says which words it takes.
"""

from __future__ import annotations

FLOOR_DIV = """
DEVICE int floor_div(int x, int y) { return x / y - (x % y != 0 && (x < 0) != (y < 0)); }
"""
FLOOR_MOD = """
DEVICE int floor_mod(int x, int y) { return x - floor_div(x, y) * y; }
"""
PHILOX = """
// Philox4x32-10 with key (seed low, seed high + offset) and counter (k, q, h, b): upper 24 bits of a word, in [0, 1).
DEVICE float philox(long long seed, long long offset, unsigned b, unsigned h, unsigned q, unsigned k) {
  unsigned x = k, y = q, z = h, w = b, low = (unsigned)seed, high = (unsigned)(seed >> 32) + (unsigned)offset;
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const unsigned long long first = 0xd2511f53ull * x, second = 0xcd9e8d57ull * z;
    x = (unsigned)(second >> 32) ^ y ^ low;
    z = (unsigned)(first >> 32) ^ w ^ high;
    y = (unsigned)second, w = (unsigned)first;
    low += 0x9e3779b9u, high += 0xbb67ae85u;
  }
  return (float)(x >> 8) * 0x1p-24f;
}
"""
