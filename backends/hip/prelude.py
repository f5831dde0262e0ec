"""Types and device functions that generated kernels use; the source includes no header.

Only those that a kernel uses are printed.  Sources: AMD Instinct MI300 ISA reference (buffer_load_dword with lds, s_waitcnt,
v_perm_b32, v_exp_f32, manually inserted wait states); LLVM AMDGPU usage (builtins, amdgpu_flat_work_group_size,
amdgpu_waves_per_eu).
"""

from __future__ import annotations

import re

from tilec.backends.cpp.functions import FLOOR_DIV, FLOOR_MOD, PHILOX
from tilec.backends.runtime.settings import Rounding

TYPES = """typedef short s16x4 __attribute__((ext_vector_type(4)));
typedef _Float16 f16x4 __attribute__((ext_vector_type(4)));
typedef unsigned u32x2 __attribute__((ext_vector_type(2)));
typedef unsigned u32x4 __attribute__((ext_vector_type(4)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef float f32x16 __attribute__((ext_vector_type(16)));

#define DEVICE static __attribute__((device)) __attribute__((always_inline)) inline
#define KERNEL(threads, waves) \\
  extern "C" __attribute__((global, amdgpu_flat_work_group_size(threads, threads), amdgpu_waves_per_eu(waves, waves))) void
#define SHARED __attribute__((address_space(3)))
#define INF __builtin_inff()
"""

# Of a pair of floats to bf16, low one in the low half.  A float NaN of hardware stays NaN in each.
PACK_BF16: dict[Rounding, str] = {
    "nearest": """
// Rounded to nearest, ties to even.
DEVICE unsigned pack_bf16(float low, float high) {
  unsigned x = __builtin_bit_cast(unsigned, low), y = __builtin_bit_cast(unsigned, high);
  x += (x >> 16 & 1) + 0x7fff;
  y += (y >> 16 & 1) + 0x7fff;
  return __builtin_amdgcn_perm(y, x, 0x07060302);
}
""",
    "away": """
// Rounded to nearest, ties away from zero.
DEVICE unsigned pack_bf16(float low, float high) {
  return __builtin_amdgcn_perm(
      __builtin_bit_cast(unsigned, high) + 0x8000, __builtin_bit_cast(unsigned, low) + 0x8000, 0x07060302);
}
""",
    "zero": """
// Rounded towards zero.
DEVICE unsigned pack_bf16(float low, float high) {
  return __builtin_amdgcn_perm(__builtin_bit_cast(unsigned, high), __builtin_bit_cast(unsigned, low), 0x07060302);
}
""",
}

FUNCTIONS: dict[str, str] = {
    # ------------------------------------------------------------------ scalars
    "uniform": """
// The value of the first lane, known to the compiler to be that of the whole wave.
DEVICE int uniform(int x) { return __builtin_amdgcn_readfirstlane(x); }
""",
    "any_lane": """
// Whether it is so in some lane of the wave.
DEVICE bool any_lane(bool x) { return __builtin_amdgcn_ballot_w64(x) != 0; }
""",
    "recomputed": """
// What depends on `x` is computed anew behind this, rather than kept in registers around a loop.
DEVICE void recomputed(unsigned& x) { asm volatile("" : "+v"(x)); }
""",
    "held": """
// What depends on `x` is computed behind this.
template <class T>
DEVICE void held(T& x) { asm volatile("" : "+v"(x)); }
""",
    "floor_div": FLOOR_DIV,
    "floor_mod": FLOOR_MOD,
    "min": """
DEVICE int min(int x, int y) { return x < y ? x : y; }
""",
    "max": """
DEVICE int max(int x, int y) { return x > y ? x : y; }
""",
    "abs": """
DEVICE int abs(int x) { return x < 0 ? -x : x; }
""",
    # ------------------------------------------------------------------ floats
    "exp2_": """
DEVICE float exp2_(float x) { return __builtin_amdgcn_exp2f(x); }
""",
    "log2_": """
DEVICE float log2_(float x) { return __builtin_amdgcn_logf(x); }
""",
    "exp_": """
DEVICE float exp_(float x) { return exp2_(x * 1.44269504f); }
""",
    "log_": """
DEVICE float log_(float x) { return log2_(x) * 0.69314718f; }
""",
    "tanh_": """
DEVICE float tanh_(float x) { return 1.0f - 2.0f * __builtin_amdgcn_rcpf(1.0f + exp2_(x * 2.88539008f)); }
""",
    "sqrt_": """
DEVICE float sqrt_(float x) { return __builtin_amdgcn_sqrtf(x); }
""",
    "divide": """
DEVICE float divide(float x, float y) { return x * __builtin_amdgcn_rcpf(y); }
""",
    "power": """
DEVICE float power(float x, float y) {
  const float size = exp2_(y * log2_(__builtin_fabsf(x)));
  const bool whole = __builtin_floorf(y) == y, odd = whole && __builtin_floorf(y * 0.5f) != y * 0.5f;
  return y == 0.0f ? 1.0f : x >= 0.0f ? size : whole ? (odd ? -size : size) : __builtin_nanf("");
}
""",
    "bf16_value": """
DEVICE float bf16_value(unsigned short x) { return __builtin_bit_cast(float, (unsigned)x << 16); }
""",
    "f16_value": """
DEVICE float f16_value(unsigned short x) { return (float)__builtin_bit_cast(_Float16, x); }
""",
    "pack_bf16": PACK_BF16["nearest"],
    "pack_f16": """
// Rounded to nearest, ties to even.
DEVICE unsigned pack_f16(float low, float high) {
  const unsigned short x = __builtin_bit_cast(unsigned short, (_Float16)low);
  const unsigned short y = __builtin_bit_cast(unsigned short, (_Float16)high);
  return x | (unsigned)y << 16;
}
""",
    "philox": PHILOX,
    # ------------------------------------------------------------------ lanes that share a row
    "lane_value": """
// Of the lane whose number differs in these bits.
DEVICE float lane_value(float x, unsigned bits) {
  const int lane = __builtin_amdgcn_mbcnt_hi(~0u, __builtin_amdgcn_mbcnt_lo(~0u, 0));
  return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute((lane ^ bits) << 2, __builtin_bit_cast(int, x)));
}
""",
    "across_max": """
// Over the lanes N apart.
template <int N>
DEVICE float across_max(float x) {
#pragma unroll
  for (int n = 32; n >= N; n /= 2) x = __builtin_fmaxf(x, lane_value(x, n));
  return x;
}
""",
    "across_min": """
template <int N>
DEVICE float across_min(float x) {
#pragma unroll
  for (int n = 32; n >= N; n /= 2) x = __builtin_fminf(x, lane_value(x, n));
  return x;
}
""",
    "across_sum": """
template <int N>
DEVICE float across_sum(float x) {
#pragma unroll
  for (int n = 32; n >= N; n /= 2) x += lane_value(x, n);
  return x;
}
""",
    "down": """
// Row of an accumulator's element e, less the first one of its lane: runs of 4, then those of the other lanes of a row.
template <int N>
DEVICE constexpr int down(int e) { return e / 4 * (256 / N) + e % 4; }
""",
    # ------------------------------------------------------------------ memory
    "resource": """
// A buffer of `rows` rows, `step` bytes apart, of `width` bytes: what is read beyond the last one is 0.
DEVICE i32x4 resource(const void* from, int rows, unsigned step, unsigned width) {
  const unsigned long long base = (unsigned long long)from;
  const unsigned bytes = rows > 0 ? (rows - 1) * step + width : 0;
  return i32x4{uniform((int)base), uniform((int)(base >> 32) & 0xffff), uniform((int)bytes), 0x00020000};
}
""",
    "looked_up": """
// Of a table that no kernel writes, at an address that is the whole wave's: a scalar load, which no other load waits for.
DEVICE int looked_up(const int* from) {
  return *(const __attribute__((address_space(4))) int*)(unsigned long long)from;
}
""",
    "inside": """
// A place in a row of `width` bytes; what is beyond them is beyond any buffer, and read as 0.
DEVICE unsigned inside(unsigned at, unsigned width) { return at < width ? at : 0x80000000; }
""",
    "settled": """
// The buffer, for instructions that the compiler does not see: those of memory read a scalar register 5 wait states after a
// vector instruction wrote it.
DEVICE i32x4 settled(i32x4 of) {
  asm volatile("s_nop 4" : "+s"(of));
  return of;
}
""",
    "buffer": """
DEVICE __amdgpu_buffer_rsrc_t buffer(i32x4 of) {
  const unsigned long long base = (unsigned long long)(unsigned)of.y << 32 | (unsigned)of.x;
  return __builtin_amdgcn_make_buffer_rsrc((void*)base, 0, of.z, 0x00020000);
}
""",
    "load_8": """
DEVICE u32x2 load_8(i32x4 of, unsigned at) { return __builtin_amdgcn_raw_buffer_load_b64(buffer(of), at, 0, 0); }
""",
    "load_16": """
DEVICE u32x4 load_16(i32x4 of, unsigned at) { return __builtin_amdgcn_raw_buffer_load_b128(buffer(of), at, 0, 0); }
""",
    "copy_lines": """
// 4 bytes to each lane's place in 256 bytes of shared memory, asynchronously.  The compiler does not see the access: it would
// wait for it before the next read of shared memory.
DEVICE void copy_lines(unsigned to, i32x4 of, unsigned at) {
  asm volatile(
      "s_mov_b32 m0, %0\\n\\ts_nop 0\\n\\tbuffer_load_dword %1, %2, 0 offen lds" ::"s"(uniform(to)), "v"(at), "s"(of)
      : "memory");
}
""",
    "read_8": """
DEVICE u32x2 read_8(SHARED char* from) { return *(SHARED u32x2*)from; }
""",
    "read_16": """
DEVICE u32x4 read_16(SHARED char* from) { return *(SHARED u32x4*)from; }
""",
    "write_8": """
DEVICE void write_8(SHARED char* to, u32x2 x) { *(SHARED u32x2*)to = x; }
""",
    "column_of": """
// Column i of a block of 4 x 4 values of 16 bits.
DEVICE u32x2 column_of(const u32x2 (&rows)[4], int i) {
  const unsigned pick = i % 2 ? 0x07060302 : 0x05040100;
  return u32x2{
      __builtin_amdgcn_perm(rows[1][i / 2], rows[0][i / 2], pick),
      __builtin_amdgcn_perm(rows[3][i / 2], rows[2][i / 2], pick)};
}
""",
    # ------------------------------------------------------------------ order
    "edge": """
// No instruction is moved across here.
DEVICE void edge() { __builtin_amdgcn_sched_barrier(0); }
""",
    "barrier": """
DEVICE void barrier() {
  edge();
  asm volatile("s_barrier" ::: "memory");
  edge();
}
""",
    "loads_pending": """
template <int N>
DEVICE void loads_pending() { asm volatile("s_waitcnt vmcnt(%0)" ::"n"(N) : "memory"); }
""",
    "shared_pending": """
template <int N>
DEVICE void shared_pending() { asm volatile("s_waitcnt lgkmcnt(%0)" ::"n"(N) : "memory"); }
""",
    "priority": """
template <int N>
DEVICE void priority() { __builtin_amdgcn_s_setprio(N); }
""",
    "issue": """
// The next N instructions of these kinds (LLVM AMDGPU usage, sched_group_barrier).
template <int KINDS, int N>
DEVICE void issue() { __builtin_amdgcn_sched_group_barrier(KINDS, N, 0); }
""",
    # ------------------------------------------------------------------ matrix products
    "mma_bf16_32": """
DEVICE f32x16 mma_bf16_32(u32x2 a, u32x2 b, f32x16 c) {
  return __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(
      __builtin_bit_cast(s16x4, a), __builtin_bit_cast(s16x4, b), c, 0, 0, 0);
}
""",
    "mma_f16_32": """
DEVICE f32x16 mma_f16_32(u32x2 a, u32x2 b, f32x16 c) {
  return __builtin_amdgcn_mfma_f32_32x32x8f16(
      __builtin_bit_cast(f16x4, a), __builtin_bit_cast(f16x4, b), c, 0, 0, 0);
}
""",
    "mma_bf16_16": """
DEVICE f32x4 mma_bf16_16(u32x2 a, u32x2 b, f32x4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(
      __builtin_bit_cast(s16x4, a), __builtin_bit_cast(s16x4, b), c, 0, 0, 0);
}
""",
    "mma_f16_16": """
DEVICE f32x4 mma_f16_16(u32x2 a, u32x2 b, f32x4 c) {
  return __builtin_amdgcn_mfma_f32_16x16x16f16(
      __builtin_bit_cast(f16x4, a), __builtin_bit_cast(f16x4, b), c, 0, 0, 0);
}
""",
}


def prelude(body: str, rounding: Rounding = "nearest") -> str:
    """Types, and the functions that `body` needs, in the order of the table above."""
    texts = {**FUNCTIONS, "pack_bf16": PACK_BF16[rounding]}
    needed: set[str] = set()
    todo = [body]
    while todo:
        words = set(re.findall(r"\w+", todo.pop()))
        new = (words & texts.keys()) - needed
        needed |= new
        todo += [texts[name] for name in new]
    return TYPES + "".join(text for name, text in texts.items() if name in needed)
