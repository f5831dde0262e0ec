"""Device functions over fragments: which row and column a register is of, and what a thread gathers of its rows.

Sources: PTX ISA (register fragments of wgmma and mma.sync).
A fragment of an m64nN accumulator holds row 16 w + lane / 4 + 8 i and column 8 j + 2 (lane % 4) + c of the tile in register
4 j + 2 i + c, w the warp in its warpgroup; i and c are 0 or 1.  An A fragment of 16-bit values is the same in pairs.
Where a warp has 32 rows of its own, a thread has R = 4 rows instead of 2: row lane / 4 + 8 i is in register 2 R j + 2 i + c.
"""

from __future__ import annotations

FRAGMENT_FUNCTIONS: dict[str, str] = {
    "row_of": """
// Which of the thread's R rows register e belongs to.
template <int R = 2>
DEVICE constexpr int row_of(int e) { return e / 2 % R; }
""",
    "column_of": """
// Column of register e, less the thread's first.
template <int R = 2>
DEVICE constexpr int column_of(int e) { return e / (2 * R) * 8 + e % 2; }
""",
    "place_of": """
// Which of the thread's columns register e belongs to.
template <int R = 2>
DEVICE constexpr int place_of(int e) { return e / (2 * R) * 2 + e % 2; }
""",
    "by_rows": """
// Register number x of a fragment of N, when all of row 0 come before those of row 1.
template <int N>
DEVICE constexpr int by_rows(int x) { return x % (N / 2) / 2 * 4 + x / (N / 2) * 2 + x % 2; }
""",
    "from_lanes": """
// Element c + col0 of a vector that lies over the lanes of each warp.  All lanes take part.
template <class T, int N>
DEVICE T from_lanes(const T (&x)[N], int c, int col0) { return __shfl_sync(0xffffffff, x[c / 32], c % 32 + col0); }
""",
    "row_max": """
// Of the thread's part of row i: four chains.
template <int R = 2, int N>
DEVICE float row_max(const float (&x)[N], int i) {
  float y[4] = {x[2 * i], x[2 * i + 1], x[2 * i + 2 * R], x[2 * i + 2 * R + 1]};
#pragma unroll
  for (int j = 2; j < N / (2 * R); ++j) {
    y[j % 2 * 2] = fmaxf(y[j % 2 * 2], x[2 * R * j + 2 * i]);
    y[j % 2 * 2 + 1] = fmaxf(y[j % 2 * 2 + 1], x[2 * R * j + 2 * i + 1]);
  }
  return fmaxf(fmaxf(y[0], y[1]), fmaxf(y[2], y[3]));
}
""",
    "row_sum": """
// Of the first GROUPS pairs of the thread's part of row i: four chains.
template <int GROUPS, int R = 2, int N>
DEVICE float row_sum(const float (&x)[N], int i) {
  if constexpr (GROUPS == 1) return x[2 * i] + x[2 * i + 1];
  float y[4] = {x[2 * i], x[2 * i + 1], x[2 * i + 2 * R], x[2 * i + 2 * R + 1]};
#pragma unroll
  for (int j = 2; j < GROUPS; ++j) {
    y[j % 2 * 2] += x[2 * R * j + 2 * i];
    y[j % 2 * 2 + 1] += x[2 * R * j + 2 * i + 1];
  }
  return (y[0] + y[1]) + (y[2] + y[3]);
}
""",
    "row_sum_in_two": """
// The same in two chains: sums follow exponentials, which come slower, and two leave less to add after the last of them.
template <int GROUPS, int R = 2, int N>
DEVICE float row_sum_in_two(const float (&x)[N], int i) {
  float even = x[2 * i], odd = x[2 * i + 1];
#pragma unroll
  for (int j = 1; j < GROUPS; ++j) even += x[2 * R * j + 2 * i], odd += x[2 * R * j + 2 * i + 1];
  return even + odd;
}
""",
}
