// One block of attention: 256 query rows of D = 128, 8 waves of 32 rows, tiles of 64 keys, scores transposed (S^T = K Q^T).
// K comes by LDS-DMA, its 16-byte units XORed by row; V through registers, transposed 4 by 4 into V^T.
// A macro makes each mutant that the emulator must catch: NO_SWIZZLE, NO_BARRIER, SAME_BUFFER, NO_WAIT.
#include "device.h"

#define ROWS 256
#define KEYS 64
#define DIM 128

static __device__ inline u32 rounded(float x) {
  u32 b = __builtin_bit_cast(u32, x);
  return b + ((b >> 16) & 1) + 0x7fff;
}
static __device__ inline u32 pack(float low, float high) {
  return __builtin_amdgcn_perm(rounded(high), rounded(low), 0x07060302);
}
static __device__ inline float other_half(float x) {
  return __builtin_bit_cast(float, __builtin_amdgcn_ds_bpermute((lane_id() ^ 32) * 4, __builtin_bit_cast(int, x)));
}
static __device__ inline u32 v_unit(u32 d, u32 unit) { return unit ^ (d & 15) ^ ((d >> 4) & 3); }
static __device__ inline i32x4 resource(const void* p, u32 bytes) {
  u64 a = (u64)p;
  return i32x4{(int)a, (int)(a >> 32), (int)bytes, 0x00020000};
}

// 8 rows of K a wave: lane t fetches the dword that belongs at byte 4 t of the swizzled row.
static __device__ inline void copy_keys(u16* to, i32x4 keys, u32 first) {
  u32 t = lane_id();
  for (u32 r = 0; r < 8; ++r) {
    u32 row = wave_id() * 8 + r;
#ifdef NO_SWIZZLE
    u32 unit = t / 4;
#else
    u32 unit = (t / 4) ^ (row & 7);
#endif
    u32 offset = (first + row) * (DIM * 2) + unit * 16 + (t & 3) * 4;
    u32 at = __builtin_amdgcn_readfirstlane((u32)(u64)(__attribute__((address_space(3))) u16*)to + row * 256);
    asm volatile("s_mov_b32 m0, %0\n\ts_nop 0\n\tbuffer_load_dword %1, %2, 0 offen lds" ::"s"(at), "v"(offset), "s"(keys) : "memory");
  }
}

extern "C" __global__ THREADS(512) void attention(
    const u16* q, const u16* k, const u16* v, u16* o, float* lse, int rows, int keys, float scale) {
#ifdef SAME_BUFFER
  const u32 buffers = 1;
#else
  const u32 buffers = 2;
#endif
  __shared__ __attribute__((aligned(16))) u16 sk[buffers][KEYS * DIM];
  __shared__ __attribute__((aligned(16))) u16 sv[buffers][KEYS * DIM];
  u32 l = lane_id(), half = l >> 5, thread = __builtin_amdgcn_workitem_id_x();
  int row = __builtin_amdgcn_workgroup_id_x() * ROWS + wave_id() * 32 + (l & 31);
  i32x4 rk = resource(k, keys * DIM * 2);
  u32x4 query[8];
  for (int s = 0; s < 8; ++s)
    query[s] = row < rows ? *(const u32x4*)(q + (u64)row * DIM + 16 * s + 8 * half) : u32x4{0, 0, 0, 0};
  f32x16 out[4] = {};
  float most = -1e30f, sum = 0;
  u32 d4 = thread & 31, kv4 = thread >> 5;
  u32x2 stage[4];
  auto load_values = [&](int first) {
    for (int r = 0; r < 4; ++r) {
      int at = first + kv4 * 4 + r;
      stage[r] = at < keys ? *(const u32x2*)(v + (u64)at * DIM + d4 * 4) : u32x2{0, 0};
    }
  };
  copy_keys(sk[0], rk, 0);
  load_values(0);
  int tiles = (keys + KEYS - 1) / KEYS;
#pragma clang loop unroll(disable)
  for (int j = 0; j < tiles; ++j) {
    u16 *tile_k = sk[j % buffers], *tile_v = sv[j % buffers];
    for (int d = 0; d < 4; ++d) {
      u32 pick = d & 1 ? 0x07060302 : 0x05040100;
      u32x2 column = {__builtin_amdgcn_perm(stage[1][d / 2], stage[0][d / 2], pick),
                      __builtin_amdgcn_perm(stage[3][d / 2], stage[2][d / 2], pick)};
      *(u32x2*)(tile_v + (d4 * 4 + d) * KEYS + v_unit(d4 * 4 + d, kv4) * 4) = column;
    }
#ifndef NO_WAIT
    asm volatile("s_waitcnt vmcnt(0)" ::: "memory");
#endif
#ifndef NO_BARRIER
    barrier();
#endif
    if (j + 1 < tiles) {
      copy_keys(sk[(j + 1) % buffers], rk, (j + 1) * KEYS);
      load_values((j + 1) * KEYS);
    }
    f32x16 score[2] = {};
    for (int b = 0; b < 2; ++b)
      for (int s = 0; s < 8; ++s) {
        u32 at = b * 32 + (l & 31);
#ifdef NO_SWIZZLE
        u32 unit = 2 * s + half;
#else
        u32 unit = (2 * s + half) ^ (at & 7);
#endif
        u32x4 key = *(const u32x4*)(tile_k + at * DIM + unit * 8);
        for (int e = 0; e < 2; ++e) {
          u32x2 a = {key[2 * e], key[2 * e + 1]}, c = {query[s][2 * e], query[s][2 * e + 1]};
          score[b] = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(s16x4, a), __builtin_bit_cast(s16x4, c), score[b], 0, 0, 0);
        }
      }
    float top = -1e30f;
    for (int b = 0; b < 2; ++b)
      for (int r = 0; r < 16; ++r) {
        int at = j * KEYS + b * 32 + 8 * (r / 4) + 4 * half + r % 4;
        score[b][r] = at < keys ? score[b][r] * scale : -1e30f;
        top = __builtin_fmaxf(top, score[b][r]);
      }
    top = __builtin_fmaxf(__builtin_fmaxf(top, other_half(top)), most);
    float factor = __builtin_amdgcn_exp2f(most - top);
    most = top;
    sum *= factor;
    for (int t = 0; t < 4; ++t) out[t] *= factor;
    u32 p[2][8];
    for (int b = 0; b < 2; ++b)
      for (int r = 0; r < 16; r += 2) {
        float x = __builtin_amdgcn_exp2f(score[b][r] - most), y = __builtin_amdgcn_exp2f(score[b][r + 1] - most);
        sum += x + y;
        p[b][r / 2] = pack(x, y);
      }
    for (int t = 0; t < 4; ++t)
      for (int g = 0; g < 8; ++g) {
        u32 d = t * 32 + (l & 31);
        u32x2 a = *(const u32x2*)(tile_v + d * KEYS + v_unit(d, 2 * g + half) * 4);
        u32x2 c = {p[g / 4][g % 4 * 2], p[g / 4][g % 4 * 2 + 1]};
        out[t] = __builtin_amdgcn_mfma_f32_32x32x8bf16_1k(__builtin_bit_cast(s16x4, a), __builtin_bit_cast(s16x4, c), out[t], 0, 0, 0);
      }
  }
  sum += other_half(sum);
  if (row < rows) {
    float inverse = __builtin_amdgcn_rcpf(sum);
    for (int t = 0; t < 4; ++t)
      for (int g = 0; g < 4; ++g) {
        u32x2 d = {pack(out[t][4 * g] * inverse, out[t][4 * g + 1] * inverse), pack(out[t][4 * g + 2] * inverse, out[t][4 * g + 3] * inverse)};
        *(u32x2*)(o + (u64)row * DIM + t * 32 + 8 * g + 4 * half) = d;
      }
    if (half == 0) lse[row] = (most + __builtin_amdgcn_logf(sum)) * 0.69314718056f;
  }
}
