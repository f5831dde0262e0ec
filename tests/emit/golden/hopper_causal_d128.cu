// causal_gqa.forward, for sm90.
//
// tile    TQ = 128, TK = 128, D = 128, G = 4
// blocks  min(SMS, (M + TQ - 1) // TQ * H * B) for (M + TQ - 1) // TQ * H * B tiles, order longest_first
// One producer warp and two consumer warpgroups of 64 rows each; K and V in rings of two stages; Q in registers.
// QK of step j is in flight together with PV of step j + 1; the warpgroups take turns to issue.
// Tiles are claimed from a counter just before the last V load; the first tile of a CTA is its own number and uses no
//   slot.

struct alignas(64) TensorMap { unsigned long long opaque[16]; };

#define INF __int_as_float(0x7f800000)
#define DEVICE __device__ __forceinline__

// Which of the thread's R rows register e belongs to.
template <int R = 2>
DEVICE constexpr int row_of(int e) { return e / 2 % R; }

// Column of register e, less the thread's first.
template <int R = 2>
DEVICE constexpr int column_of(int e) { return e / (2 * R) * 8 + e % 2; }

// Register number x of a fragment of N, when all of row 0 come before those of row 1.
template <int N>
DEVICE constexpr int by_rows(int x) { return x % (N / 2) / 2 * 4 + x / (N / 2) * 2 + x % 2; }

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

// The value of lane 0, known to the compiler to be that of the whole warp.
DEVICE int uniform(int x) { return __shfl_sync(0xffffffff, x, 0); }

DEVICE float exp2_(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }

DEVICE unsigned pack_bf16(float low, float high) {
  unsigned y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

DEVICE int load_int(unsigned from) {
  int y;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(y) : "r"(from) : "memory");
  return y;
}

DEVICE void store_int(unsigned to, int x) { asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(x) : "memory"); }

// A fragments of the 64 x (16 STEPS) tile at `from`, which lies in panels of 64 columns, 128-byte swizzled.
template <int STEPS>
DEVICE void load_rows(unsigned (&a)[4 * STEPS], unsigned from) {
  const int lane = threadIdx.x % 32, r = threadIdx.x / 32 % 4 * 16 + lane % 16;
#pragma unroll
  for (int s = 0; s < STEPS; ++s) {
    const unsigned at = from + s / 4 * 8192 + r * 128 + ((s % 4 * 2 + lane / 16) ^ (r % 8)) * 16;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(a[4 * s]), "=r"(a[4 * s + 1]), "=r"(a[4 * s + 2]), "=r"(a[4 * s + 3])
                 : "r"(at)
                 : "memory");
  }
}

DEVICE void barrier_init(unsigned bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}

// Other threads and the TMA unit see the barriers.
DEVICE void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
}

// The TMA unit has the map at hand when it is first used.
DEVICE void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }

// Until the phase of this parity is complete.
DEVICE void wait(unsigned bar, int parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "AGAIN:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@done bra PASSED;\n"
      "bra AGAIN;\n"
      "PASSED:\n"
      "}" ::"r"(bar), "r"(parity) : "memory");
}

// One arrival of a warp, after what all its lanes did.
DEVICE void arrive(unsigned bar) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}

// One arrival that makes the phase wait for so many bytes too.
DEVICE void expect(unsigned bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}

DEVICE void named_sync(int bar, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(bar), "r"(threads) : "memory");
}

DEVICE void named_arrive(int bar, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(bar), "r"(threads) : "memory");
}

DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

template <int N>
DEVICE void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

template <int N>
DEVICE void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }

// The next of `tiles` numbers, for all lanes of the warp; those before the number of clusters are taken.  Every tile is
// followed by one claim, so a launch makes `tiles` of them and leaves the counter as it found it: 0.
DEVICE int claim(int* counter, int tiles, int cluster = 1) {
  return gridDim.x / cluster + uniform(threadIdx.x % 32 == 0 ? atomicInc((unsigned*)counter, tiles - 1) : 0);
}

// One box of the map to shared memory; completes on `bar`.  Outside the tensor: zeros, which count as bytes.
DEVICE void copy_box(unsigned to, const TensorMap& map, unsigned bar, int x0, int x1, int x2, int x3, int x4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
      :
      : "r"(to), "l"(&map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(bar)
      : "memory");
}

DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}

DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}

// What follows stays behind x: a store that is never made, but that the assembler must take for possible.  It moves a
// wait for products above arithmetic, and above a store under its own predicate, but not above one behind a branch.
DEVICE void pin(float x, unsigned scratch) {
  if (x < 0.0f) asm volatile("st.shared.f32 [%0], %1;" ::"r"(scratch), "f"(x) : "memory");
}

// x[y] of lane z of a quad becomes x[z] of lane y.
DEVICE void quad_transpose(unsigned (&x)[4]) {
  const bool odd = threadIdx.x & 1, upper = threadIdx.x & 2;
#pragma unroll
  for (int y = 0; y < 4; y += 2) {
    const unsigned got = __shfl_xor_sync(0xffffffff, odd ? x[y] : x[y + 1], 1);
    if (odd) x[y] = got; else x[y + 1] = got;
  }
#pragma unroll
  for (int y = 0; y < 2; ++y) {
    const unsigned got = __shfl_xor_sync(0xffffffff, upper ? x[y] : x[y + 2], 2);
    if (upper) x[y] = got; else x[y + 2] = got;
  }
}

DEVICE void store_16(unsigned short* to, const unsigned (&x)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}

// Of a 128-byte swizzled operand in shared memory: 8 rows are 1024 bytes; `panel` bytes between panels of 64 columns.
// `uniform`: what the assembler cannot prove equal in a warp it keeps in each thread's registers, and then moves to
// uniform ones for every product anew, 6 instructions each.
DEVICE unsigned long long descriptor(unsigned at, unsigned panel) {
  const unsigned low = uniform((at & 0x3ffff) >> 4 | panel >> 4 << 16);
  return low | 64ull << 32 | 1ull << 62;
}

// Registers of products: nothing that reads or writes them moves across here.
template <int N>
DEVICE void settle(float (&x)[N]) {
#pragma unroll
  for (int e = 0; e < N; ++e) asm volatile("" : "+f"(x[e])::"memory");
}

DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

template <int N>
DEVICE void products_pending() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

DEVICE void product_128_registers_bf16(float (&d)[64], const unsigned* a, unsigned long long b, bool keep) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
      "%60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 0;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)keep)
      : "memory");
}

DEVICE void product_128_registers_transposed_bf16(float (&d)[64], const unsigned* a, unsigned long long b, bool keep) {
  asm volatile(
      "{\n.reg .pred p;\nsetp.ne.b32 p, %69, 0;\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, "
      "%20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, "
      "%40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, "
      "%60, %61, %62, %63"
      "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)keep)
      : "memory");
}

extern "C" __global__ void __launch_bounds__(384, 1) causal_gqa_forward(
    const __grid_constant__ TensorMap K_map, const __grid_constant__ TensorMap Q_map,
    const __grid_constant__ TensorMap V_map, unsigned short* O_ptr, float* L_ptr, int* counter_ptr, long long O_s0,
    long long O_s1, long long O_s2, long long L_s0, long long L_s1, long long L_s2, int B, int H, int M, int N
) {
  constexpr int TQ = 128;
  constexpr int TK = 128;
  constexpr unsigned sQ = 0, sQ_stage = 16384;
  constexpr unsigned sK = 32768, sK_stage = 32768;
  constexpr unsigned sV = 98304, sV_stage = 32768;
  constexpr unsigned slots = 163840, slots_stage = 4;
  constexpr unsigned q_full = 163848, q_empty = 163864, k_full = 163880, k_empty = 163896, v_full = 163912,
      v_empty = 163928, slot_full = 163944, slot_empty = 163960, scratch = 163976;
  constexpr int turn = 1;
  extern __shared__ __align__(1024) unsigned char shared[];
  const unsigned smem = (unsigned)__cvta_generic_to_shared(shared);
  const int warp = uniform(threadIdx.x / 32), lane = threadIdx.x % 32;
  const int row0 = warp % 4 * 16 + lane / 4, col0 = lane % 4 * 2;
  const int cta = blockIdx.x;

  if (threadIdx.x == 0) {
    prefetch_map(K_map);
    prefetch_map(Q_map);
    prefetch_map(V_map);
    barrier_init(smem + q_full, 1);
    barrier_init(smem + q_full + 8, 1);
    barrier_init(smem + q_empty, 4);
    barrier_init(smem + q_empty + 8, 4);
    barrier_init(smem + k_full, 1);
    barrier_init(smem + k_full + 8, 1);
    barrier_init(smem + k_empty, 8);
    barrier_init(smem + k_empty + 8, 8);
    barrier_init(smem + v_full, 1);
    barrier_init(smem + v_full + 8, 1);
    barrier_init(smem + v_empty, 8);
    barrier_init(smem + v_empty + 8, 8);
    barrier_init(smem + slot_full, 1);
    barrier_init(smem + slot_full + 8, 1);
    barrier_init(smem + slot_empty, 8);
    barrier_init(smem + slot_empty + 8, 8);
  }
  barriers_ready();

  if (warp < 4) {
    registers_down<24>();
    if (warp == 0) {
      // role producer
      int tiles = (M + TQ - 1 >> 7) * H * B;
      int t = cta;
      int it = 0;
      int n = 0;
      while (t < tiles) {
        int m = (M + TQ - 1 >> 7) - 1 - t / (H * B);
        int h = t % H;
        int b = t / H % B;
        int hi = max(0, min((N + TK - 1 >> 7), (m * TQ + TQ + N - M + TK - 1 >> 7)));
        if (hi > 0) {
          // wait k_empty[n % 2] parity (n // 2 + 1) % 2
          wait(smem + k_empty + 8 * (n & 1), ((n >> 1) + 1 & 1));
          __syncwarp();
          // copy sK[n % 2] = K[b, (hi - 1) * TK + iota(k), h // G, iota(d)] where (hi - 1) * TK + iota(k) < N signal
          //   k_full[n % 2]
          if (lane == 0) {
            const unsigned bar = smem + k_full + 8 * (n & 1);
            expect(bar, 32768);
            copy_box(smem + sK + sK_stage * (n & 1), K_map, bar, 0, (hi - 1) * TK, 0, (h >> 2), b);
          }
          n = n + 1;
        }
        #pragma unroll 1
        for (int half = 0; half < 2; ++half) {
          // wait q_empty[half] parity (it + 1) % 2
          wait(smem + q_empty + 8 * half, (it + 1 & 1));
          __syncwarp();
          // copy sQ[half] = Q[b, m * TQ + 64 * half + iota(q), h, iota(d)] where m * TQ + 64 * half + iota(q) < M
          //   signal q_full[half]
          if (lane == 0) {
            const unsigned bar = smem + q_full + 8 * half;
            expect(bar, 16384);
            copy_box(smem + sQ + sQ_stage * half, Q_map, bar, 0, m * TQ + 64 * half, 0, h, b);
          }
        }
        #pragma unroll 1
        for (int j = hi - 1 - 1; j >= 0; --j) {
          // wait k_empty[n % 2] parity (n // 2 + 1) % 2
          wait(smem + k_empty + 8 * (n & 1), ((n >> 1) + 1 & 1));
          __syncwarp();
          // copy sK[n % 2] = K[b, j * TK + iota(k), h // G, iota(d)] where j * TK + iota(k) < N signal k_full[n % 2]
          if (lane == 0) {
            const unsigned bar = smem + k_full + 8 * (n & 1);
            expect(bar, 32768);
            copy_box(smem + sK + sK_stage * (n & 1), K_map, bar, 0, j * TK, 0, (h >> 2), b);
          }
          // wait v_empty[(n - 1) % 2] parity ((n - 1) // 2 + 1) % 2
          wait(smem + v_empty + 8 * (n - 1 & 1), ((n - 1 >> 1) + 1 & 1));
          __syncwarp();
          // copy sV[(n - 1) % 2] = V[b, (j + 1) * TK + iota(k), h // G, iota(d)] where (j + 1) * TK + iota(k) < N
          //   signal v_full[(n - 1) % 2]
          if (lane == 0) {
            const unsigned bar = smem + v_full + 8 * (n - 1 & 1);
            expect(bar, 32768);
            copy_box(smem + sV + sV_stage * (n - 1 & 1), V_map, bar, 0, (j + 1) * TK, 0, (h >> 2), b);
          }
          n = n + 1;
        }
        // claim t from counter
        t = claim(counter_ptr, (M + TQ - 1 >> 7) * H * B);
        it = it + 1;
        // wait slot_empty[(it - 1) % 2] parity ((it - 1) // 2 + 1) % 2
        wait(smem + slot_empty + 8 * (it - 1 & 1), ((it - 1 >> 1) + 1 & 1));
        __syncwarp();
        // slots[(it - 1) % 2] = t
        if (lane == 0) store_int(smem + slots + slots_stage * (it - 1 & 1), t);
        // arrive slot_full[(it - 1) % 2]
        arrive(smem + slot_full + 8 * (it - 1 & 1));
        if (hi > 0) {
          // wait v_empty[(n - 1) % 2] parity ((n - 1) // 2 + 1) % 2
          wait(smem + v_empty + 8 * (n - 1 & 1), ((n - 1 >> 1) + 1 & 1));
          __syncwarp();
          // copy sV[(n - 1) % 2] = V[b, iota(k), h // G, iota(d)] where iota(k) < N signal v_full[(n - 1) % 2]
          if (lane == 0) {
            const unsigned bar = smem + v_full + 8 * (n - 1 & 1);
            expect(bar, 32768);
            copy_box(smem + sV + sV_stage * (n - 1 & 1), V_map, bar, 0, 0, 0, (h >> 2), b);
          }
        }
      }
    }
  } else if (warp < 12) {
    registers_up<240>();
    const int wg = warp / 4 - 1;
    // role consumer
    unsigned Q[32];
    float S[64];
    unsigned P[32];
    float O[64];
    float top[2];
    float new_[2];
    float c[2];
    float l[2];
    int tiles = (M + TQ - 1 >> 7) * H * B;
    int t = cta;
    int it = 0;
    int n = 0;
    if (wg == 1) {
      // arrive turn
      named_arrive(turn, 256);
    }
    while (t < tiles) {
      int m = (M + TQ - 1 >> 7) - 1 - t / (H * B);
      int h = t % H;
      int b = t / H % B;
      int hi = max(0, min((N + TK - 1 >> 7), (m * TQ + TQ + N - M + TK - 1 >> 7)));
      int full = min(max(0, (m * TQ + N - M + 1 >> 7)), max(0, hi - 1));
      int row = m * TQ + 64 * wg;
      // wait q_full[wg] parity it % 2
      wait(smem + q_full + 8 * wg, (it & 1));
      // Q = @sQ[wg]
      load_rows<8>(Q, smem + sQ + sQ_stage * wg);
      // fence async_proxy
      fence_async_proxy();
      // arrive q_empty[wg]
      arrive(smem + q_empty + 8 * wg);
      // O = 0.0
      #pragma unroll
      for (int e = 0; e < 64; ++e) {
        O[e] = 0.0f;
      }
      // top = -inf
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        top[i] = -INF;
      }
      // l = 0.0
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        l[i] = 0.0f;
      }
      if (hi > 0) {
        // ---- prologue
        // wait k_full[n % 2] parity n // 2 % 2
        wait(smem + k_full + 8 * (n & 1), ((n >> 1) & 1));
        // mma S = Q . sK[n % 2] queue wgmma
        {
          const unsigned long long r = descriptor(smem + sK + sK_stage * (n & 1), 16);
          settle(S);
          products_begin();
          #pragma unroll
          for (int s = 0; s < 8; ++s) {
            product_128_registers_bf16(S, Q + 4 * s, r + (s / 4 * 1024 + s % 4 * 2), s > 0);
          }
          products_commit();
        }
        // await wgmma pending 0
        products_pending<0>();
        settle(S);
        // arrive k_empty[n % 2]
        arrive(smem + k_empty + 8 * (n & 1));
        n = n + 1;
        // S = where((hi - 1) * TK + iota(k) <= row + iota(q) + N - M and (hi - 1) * TK + iota(k) < N, @S, -inf)
        #pragma unroll
        for (int e = 0; e < 64; ++e) {
          S[e] = column_of(e) <= row + (row0 + 8 * row_of(e)) + N - (hi - 1) * TK - M - col0 && column_of(e) < N -
              (hi - 1) * TK - col0 ? S[e] : -INF;
        }
        // top = max[k](@S)
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          top[i] = quad_max(row_max(S, i));
        }
        // new = where(@top == -inf, 0.0, @top)
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          new_[i] = top[i] == -INF ? 0.0f : top[i];
        }
        // S = exp2(@S * 0.12751743 - @new * 0.12751743)
        #pragma unroll
        for (int e = 0; e < 64; ++e) {
          S[e] = exp2_(S[e] * 0.12751743f - new_[row_of(e)] * 0.12751743f);
        }
        // l = sum[k](@S)
        #pragma unroll
        for (int i = 0; i < 2; ++i) {
          l[i] = quad_sum(row_sum<16>(S, i));
        }
        // P = @S
        #pragma unroll
        for (int a = 0; a < 32; ++a) {
          P[a] = pack_bf16(S[2 * a], S[2 * a + 1]);
        }
        // right (masked): k <= q + N - M cuts tiles at or above (m * TQ + N - M + 1) // TK
        #pragma unroll 1
        for (int j = hi - 1 - 1; j >= full; --j) {
          // wait k_full[n % 2] parity n // 2 % 2
          wait(smem + k_full + 8 * (n & 1), ((n >> 1) & 1));
          // sync turn[wg]
          named_sync(turn + wg, 256);
          // mma S = Q . sK[n % 2] queue wgmma
          {
            const unsigned long long r = descriptor(smem + sK + sK_stage * (n & 1), 16);
            settle(S);
            products_begin();
            #pragma unroll
            for (int s = 0; s < 8; ++s) {
              product_128_registers_bf16(S, Q + 4 * s, r + (s / 4 * 1024 + s % 4 * 2), s > 0);
            }
            products_commit();
          }
          // wait v_full[(n - 1) % 2] parity (n - 1) // 2 % 2
          wait(smem + v_full + 8 * (n - 1 & 1), ((n - 1 >> 1) & 1));
          // mma O += P . sV[(n - 1) % 2] queue wgmma
          {
            const unsigned long long r = descriptor(smem + sV + sV_stage * (n - 1 & 1), 16384);
            settle(O);
            products_begin();
            #pragma unroll
            for (int s = 0; s < 8; ++s) {
              product_128_registers_transposed_bf16(O, P + 4 * s, r + s * 128, true);
            }
            products_commit();
          }
          // arrive turn[1 - wg]
          named_arrive(turn + 1 - wg, 256);
          // await wgmma pending 1
          products_pending<1>();
          settle(S);
          // arrive k_empty[n % 2]
          arrive(smem + k_empty + 8 * (n & 1));
          // S = where(j * TK + iota(k) <= row + iota(q) + N - M, @S, -inf)
          #pragma unroll
          for (int e = 0; e < 64; ++e) {
            S[e] = column_of(e) <= row + (row0 + 8 * row_of(e)) + N - j * TK - M - col0 ? S[e] : -INF;
          }
          // new = max(@top, max[k](@S))
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            new_[i] = fmaxf(top[i], quad_max(row_max(S, i)));
          }
          // c = where(@new == -inf, 1.0, exp2((@top - @new) * 0.12751743))
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            c[i] = new_[i] == -INF ? 1.0f : exp2_((top[i] - new_[i]) * 0.12751743f);
          }
          // top = @new
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            top[i] = new_[i];
          }
          // new = where(@top == -inf, 0.0, @top)
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            new_[i] = top[i] == -INF ? 0.0f : top[i];
          }
          // S = exp2(@S * 0.12751743 - @new * 0.12751743) after 8 of 32
          #pragma unroll
          for (int x = 0; x < 16; ++x) {
            const int e = by_rows<64>(x);
            S[e] = exp2_(S[e] * 0.12751743f - new_[row_of(e)] * 0.12751743f);
          }
          pin(row_sum<8>(S, 0), smem + scratch);
          // await wgmma pending 0
          products_pending<0>();
          settle(O);
          // arrive v_empty[(n - 1) % 2]
          arrive(smem + v_empty + 8 * (n - 1 & 1));
          #pragma unroll
          for (int x = 16; x < 64; ++x) {
            const int e = by_rows<64>(x);
            S[e] = exp2_(S[e] * 0.12751743f - new_[row_of(e)] * 0.12751743f);
          }
          // l = @l * @c + sum[k](@S)
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            l[i] = l[i] * c[i] + quad_sum(row_sum<16>(S, i));
          }
          // P = @S
          #pragma unroll
          for (int a = 0; a < 32; ++a) {
            P[a] = pack_bf16(S[2 * a], S[2 * a + 1]);
          }
          // O = @O * @c
          #pragma unroll
          for (int e = 0; e < 64; ++e) {
            O[e] = O[e] * c[row_of(e)];
          }
          n = n + 1;
        }
        // full (no mask): every key of a tile below (m * TQ + N - M + 1) // TK is at most the first row + N - M
        #pragma unroll 1
        for (int j = full - 1; j >= 0; --j) {
          // wait k_full[n % 2] parity n // 2 % 2
          wait(smem + k_full + 8 * (n & 1), ((n >> 1) & 1));
          // sync turn[wg]
          named_sync(turn + wg, 256);
          // mma S = Q . sK[n % 2] queue wgmma
          {
            const unsigned long long r = descriptor(smem + sK + sK_stage * (n & 1), 16);
            settle(S);
            products_begin();
            #pragma unroll
            for (int s = 0; s < 8; ++s) {
              product_128_registers_bf16(S, Q + 4 * s, r + (s / 4 * 1024 + s % 4 * 2), s > 0);
            }
            products_commit();
          }
          // wait v_full[(n - 1) % 2] parity (n - 1) // 2 % 2
          wait(smem + v_full + 8 * (n - 1 & 1), ((n - 1 >> 1) & 1));
          // mma O += P . sV[(n - 1) % 2] queue wgmma
          {
            const unsigned long long r = descriptor(smem + sV + sV_stage * (n - 1 & 1), 16384);
            settle(O);
            products_begin();
            #pragma unroll
            for (int s = 0; s < 8; ++s) {
              product_128_registers_transposed_bf16(O, P + 4 * s, r + s * 128, true);
            }
            products_commit();
          }
          // arrive turn[1 - wg]
          named_arrive(turn + 1 - wg, 256);
          // await wgmma pending 1
          products_pending<1>();
          settle(S);
          // arrive k_empty[n % 2]
          arrive(smem + k_empty + 8 * (n & 1));
          // new = max(@top, max[k](@S))
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            new_[i] = fmaxf(top[i], quad_max(row_max(S, i)));
          }
          // c = exp2((@top - @new) * 0.12751743)
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            c[i] = exp2_((top[i] - new_[i]) * 0.12751743f);
          }
          // top = @new
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            top[i] = new_[i];
          }
          // S = exp2(@S * 0.12751743 - @top * 0.12751743) after 8 of 32
          #pragma unroll
          for (int x = 0; x < 16; ++x) {
            const int e = by_rows<64>(x);
            S[e] = exp2_(S[e] * 0.12751743f - top[row_of(e)] * 0.12751743f);
          }
          pin(row_sum<8>(S, 0), smem + scratch);
          // await wgmma pending 0
          products_pending<0>();
          settle(O);
          // arrive v_empty[(n - 1) % 2]
          arrive(smem + v_empty + 8 * (n - 1 & 1));
          #pragma unroll
          for (int x = 16; x < 64; ++x) {
            const int e = by_rows<64>(x);
            S[e] = exp2_(S[e] * 0.12751743f - top[row_of(e)] * 0.12751743f);
          }
          // l = @l * @c + sum[k](@S)
          #pragma unroll
          for (int i = 0; i < 2; ++i) {
            l[i] = l[i] * c[i] + quad_sum(row_sum<16>(S, i));
          }
          // P = @S
          #pragma unroll
          for (int a = 0; a < 32; ++a) {
            P[a] = pack_bf16(S[2 * a], S[2 * a + 1]);
          }
          // O = @O * @c
          #pragma unroll
          for (int e = 0; e < 64; ++e) {
            O[e] = O[e] * c[row_of(e)];
          }
          n = n + 1;
        }
        // ---- epilogue
        // wait v_full[(n - 1) % 2] parity (n - 1) // 2 % 2
        wait(smem + v_full + 8 * (n - 1 & 1), ((n - 1 >> 1) & 1));
        // mma O += P . sV[(n - 1) % 2] queue wgmma
        {
          const unsigned long long r = descriptor(smem + sV + sV_stage * (n - 1 & 1), 16384);
          settle(O);
          products_begin();
          #pragma unroll
          for (int s = 0; s < 8; ++s) {
            product_128_registers_transposed_bf16(O, P + 4 * s, r + s * 128, true);
          }
          products_commit();
        }
        // await wgmma pending 0
        products_pending<0>();
        settle(O);
        // arrive v_empty[(n - 1) % 2]
        arrive(smem + v_empty + 8 * (n - 1 & 1));
      }
      // store O[b, row + iota(q), h, iota(d)] over q, d = where(@l == 0.0, 0.0, @O / @l) where row + iota(q) < M
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        unsigned short* to = O_ptr + (long long)b * O_s0 + (long long)(row + (row0 + 8 * i)) * O_s1 + (long long)h *
            O_s2 + lane % 4 * 8;
        const bool live = row + (row0 + 8 * i) < M;
        #pragma unroll
        for (int g = 0; g < 4; ++g) {
          unsigned v[4];
          #pragma unroll
          for (int y = 0; y < 4; ++y) {
            const int e = 16 * g + 4 * y + 2 * i;
            v[y] = pack_bf16(l[row_of(e)] == 0.0f ? 0.0f : __fdividef(O[e], l[row_of(e)]), l[row_of(e + 1)] == 0.0f ?
                0.0f : __fdividef(O[e + 1], l[row_of(e + 1)]));
          }
          quad_transpose(v);
          if (live) store_16(to + 32 * g, v);
        }
      }
      // store L[b, h, row + iota(q)] over q = where(@l == 0.0, -inf, @top * 0.088388346 + log(@l)) where row + iota(q)
      //   < M
      #pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float value = l[i] == 0.0f ? -INF : top[i] * 0.088388346f + __logf(l[i]);
        if (lane % 4 == 0 && row + (row0 + 8 * i) < M)
            L_ptr[(long long)b * L_s0 + (long long)h * L_s1 + (long long)(row + (row0 + 8 * i)) * L_s2] = value;
      }
      it = it + 1;
      // wait slot_full[(it - 1) % 2] parity (it - 1) // 2 % 2
      wait(smem + slot_full + 8 * (it - 1 & 1), ((it - 1 >> 1) & 1));
      t = uniform(lane == 0 ? load_int(smem + slots + slots_stage * (it - 1 & 1)) : 0);
      // arrive slot_empty[(it - 1) % 2]
      arrive(smem + slot_empty + 8 * (it - 1 & 1));
    }
  }
}
