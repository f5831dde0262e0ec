"""Device functions that generated kernels use: one PTX instruction each, or a few lines over fragments.

Only those that a kernel uses are printed.  Sources: PTX ISA (mbarrier, cp.async.bulk.tensor, wgmma, setmaxnreg, ldmatrix).
"""

from __future__ import annotations

import re

from tilec.backends.cpp.functions import FLOOR_DIV, FLOOR_MOD, PHILOX
from tilec.backends.cuda.fragment_functions import FRAGMENT_FUNCTIONS
from tilec.backends.cuda.warp_functions import WARP_FUNCTIONS

TYPES = """struct alignas(64) TensorMap { unsigned long long opaque[16]; };

#define INF __int_as_float(0x7f800000)
#define DEVICE __device__ __forceinline__
"""

FUNCTIONS: dict[str, str] = (
    FRAGMENT_FUNCTIONS
    | WARP_FUNCTIONS
    | {
        # ------------------------------------------------------------------ scalars
        "uniform": """
// The value of lane 0, known to the compiler to be that of the whole warp.
DEVICE int uniform(int x) { return __shfl_sync(0xffffffff, x, 0); }
""",
        "any_lane": """
// Whether it is so in some lane of the warp.
DEVICE bool any_lane(bool x) { return __any_sync(0xffffffff, x); }
""",
        "lanes_where": """
// The lanes of the warp where it is so, as bits.
DEVICE unsigned lanes_where(bool x) { return __ballot_sync(0xffffffff, x); }
""",
        "narrow": """
// A search from `low` to `end`, after lane i found whether the last place of part i has what is sought, or is behind it: to
// the places of the first part that does, but its last one, which `end` is then.
DEVICE void narrow(int& low, int& end, int part, unsigned found) {
  const int from = min(low + part * (found ? __ffs(found) - 1 : 32), end);
  end = found ? min(from + part, end) - 1 : from;
  low = from;
}
""",
        "floor_div": FLOOR_DIV,
        "floor_mod": FLOOR_MOD,
        "exp2_": """
DEVICE float exp2_(float x) { float y; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
""",
        "log2_": """
DEVICE float log2_(float x) { float y; asm("lg2.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
""",
        "tanh_": """
DEVICE float tanh_(float x) { float y; asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x)); return y; }
""",
        "bf16_value": """
DEVICE float bf16_value(unsigned short x) { return __uint_as_float((unsigned)x << 16); }
""",
        "f16_value": """
DEVICE float f16_value(unsigned short x) { float y; asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x)); return y; }
""",
        "pack_bf16": """
DEVICE unsigned pack_bf16(float low, float high) {
  unsigned y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
""",
        "pack_f16": """
DEVICE unsigned pack_f16(float low, float high) {
  unsigned y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}
""",
        "philox": PHILOX,
        # ------------------------------------------------------------------ shared memory
        "load_int": """
DEVICE int load_int(unsigned from) {
  int y;
  asm volatile("ld.shared.s32 %0, [%1];" : "=r"(y) : "r"(from) : "memory");
  return y;
}
""",
        "store_int": """
DEVICE void store_int(unsigned to, int x) { asm volatile("st.shared.s32 [%0], %1;" ::"r"(to), "r"(x) : "memory"); }
""",
        "clear_rows": """
// Zeros in the rows `from` ... ROWS of a tile that lies in panels of 128-byte rows, by a warp.
template <int ROWS, int PANELS>
DEVICE void clear_rows(unsigned tile, int from) {
#pragma unroll 1
  for (int x = max(from, 0) * 8 + threadIdx.x % 32; x < ROWS * 8; x += 32) {
#pragma unroll
    for (int p = 0; p < PANELS; ++p)
      asm volatile("st.shared.v4.b32 [%0], {%1, %1, %1, %1};" ::"r"(tile + p * (ROWS * 128) + x * 16), "r"(0) : "memory");
  }
}
""",
        "load_rows": """
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
""",
        # ------------------------------------------------------------------ barriers
        "barrier_init": """
DEVICE void barrier_init(unsigned bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
""",
        "barriers_ready": """
// Other threads and the TMA unit see the barriers.
DEVICE void barriers_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  __syncthreads();
}
""",
        "cluster_ready": """
// Every block of the cluster has its barriers, and the TMA unit sees them.
DEVICE void cluster_ready() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.aligned;\\nbarrier.cluster.wait.aligned;" ::: "memory");
}
""",
        "prefetch_map": """
// The TMA unit has the map at hand when it is first used.
DEVICE void prefetch_map(const TensorMap& map) { asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory"); }
""",
        "launch_early": """
// The next launch may set itself up; what the launches before this one wrote is visible from here on.
DEVICE void launch_early() {
  asm volatile("griddepcontrol.launch_dependents;\\ngriddepcontrol.wait;" ::: "memory");
}
""",
        "remote": """
// Where `at` of this block lies in block `rank` of the cluster.
DEVICE unsigned remote(unsigned at, int rank) {
  unsigned y;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(y) : "r"(at), "r"(rank));
  return y;
}
""",
        "wait": """
// Until the phase of this parity is complete.
DEVICE void wait(unsigned bar, int parity) {
  asm volatile(
      "{\\n"
      ".reg .pred done;\\n"
      "AGAIN:\\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\\n"
      "@done bra PASSED;\\n"
      "bra AGAIN;\\n"
      "PASSED:\\n"
      "}" ::"r"(bar), "r"(parity) : "memory");
}
""",
        "arrive": """
// One arrival of a warp, after what all its lanes did.
DEVICE void arrive(unsigned bar) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(bar) : "memory");
}
""",
        "arrive_remote": """
// Arrivals of a thread in another block.  Without .release.cluster, which would fence all memory: no data goes with them.
DEVICE void arrive_remote(unsigned bar, int rank, int count) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0], %1;" ::"r"(remote(bar, rank)), "r"(count) : "memory");
}
""",
        "arrive_at": """
// Arrivals of a warp on the barrier of block `rank`, after what all its lanes did.
DEVICE void arrive_at(unsigned bar, int rank, int count = 1) {
  __syncwarp();
  if (threadIdx.x % 32 == 0) arrive_remote(bar, rank, count);
}
""",
        "arrive_everywhere": """
// Arrivals of a warp on the barrier of each block of the cluster: a lane for each.
template <int BLOCKS>
DEVICE void arrive_everywhere(unsigned bar, int count = 1) {
  __syncwarp();
  if (threadIdx.x % 32 < BLOCKS) arrive_remote(bar, threadIdx.x % 32, count);
}
""",
        "send_int": """
// x to shared memory of each block of the cluster, with one arrival and its bytes on the barrier there.
template <int BLOCKS>
DEVICE void send_int(unsigned to, int x, unsigned bar) {
  const int rank = threadIdx.x % 32;
  if (rank < BLOCKS) {
    const unsigned there = remote(bar, rank);
    asm volatile("mbarrier.arrive.expect_tx.shared::cluster.b64 _, [%0], 4;" ::"r"(there) : "memory");
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.s32 [%0], %1, [%2];"
                 :
                 : "r"(remote(to, rank)), "r"(x), "r"(there)
                 : "memory");
  }
  __syncwarp();
}
""",
        "expect": """
// One arrival that makes the phase wait for so many bytes too.
DEVICE void expect(unsigned bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
""",
        "named_sync": """
DEVICE void named_sync(int bar, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(bar), "r"(threads) : "memory");
}
""",
        "named_arrive": """
DEVICE void named_arrive(int bar, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(bar), "r"(threads) : "memory");
}
""",
        "fence_async_proxy": """
DEVICE void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
""",
        # ------------------------------------------------------------------ roles and copies
        "registers_down": """
template <int N>
DEVICE void registers_down() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }
""",
        "registers_up": """
template <int N>
DEVICE void registers_up() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
""",
        "claim": """
// The next of `tiles` numbers, for all lanes of the warp; those before the number of clusters are taken.  Every tile is
// followed by one claim, so a launch makes `tiles` of them and leaves the counter as it found it: 0.
DEVICE int claim(int* counter, int tiles, int cluster = 1) {
  return gridDim.x / cluster + uniform(threadIdx.x % 32 == 0 ? atomicInc((unsigned*)counter, tiles - 1) : 0);
}
""",
        "copy_box": """
// One box of the map to shared memory; completes on `bar`.  Outside the tensor: zeros, which count as bytes.
DEVICE void copy_box(unsigned to, const TensorMap& map, unsigned bar, int x0, int x1, int x2, int x3, int x4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7];"
      :
      : "r"(to), "l"(&map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(bar)
      : "memory");
}
""",
        "copy_box_everywhere": """
// The same to that place of every block of the cluster, each with the bytes on its own barrier.
template <int BLOCKS>
DEVICE void copy_box_everywhere(unsigned to, const TensorMap& map, unsigned bar, int x0, int x1, int x2, int x3, int x4) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"
      " [%0], [%1, {%2, %3, %4, %5, %6}], [%7], %8;"
      :
      : "r"(to), "l"(&map), "r"(x0), "r"(x1), "r"(x2), "r"(x3), "r"(x4), "r"(bar), "h"((short)((1 << BLOCKS) - 1))
      : "memory");
}
""",
        # ------------------------------------------------------------------ fragments
        "quad_max": """
DEVICE float quad_max(float x) {
  x = fmaxf(x, __shfl_xor_sync(0xffffffff, x, 1));
  return fmaxf(x, __shfl_xor_sync(0xffffffff, x, 2));
}
""",
        "quad_sum": """
DEVICE float quad_sum(float x) {
  x += __shfl_xor_sync(0xffffffff, x, 1);
  return x + __shfl_xor_sync(0xffffffff, x, 2);
}
""",
        "pin": """
// What follows stays behind x: a store that is never made, but that the assembler must take for possible.  It moves a
// wait for products above arithmetic, and above a store under its own predicate, but not above one behind a branch.
DEVICE void pin(float x, unsigned scratch) {
  if (x < 0.0f) asm volatile("st.shared.f32 [%0], %1;" ::"r"(scratch), "f"(x) : "memory");
}
""",
        "quad_transpose": """
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
""",
        "store_16": """
DEVICE void store_16(unsigned short* to, const unsigned (&x)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3])
               : "memory");
}
""",
        "store_8": """
DEVICE void store_8(float* to, float x, float y) {
  asm volatile("st.global.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}
""",
        # ------------------------------------------------------------------ matrix products
        "descriptor": """
// Of a 128-byte swizzled operand in shared memory: 8 rows are 1024 bytes; `panel` bytes between panels of 64 columns.
// `uniform`: what the assembler cannot prove equal in a warp it keeps in each thread's registers, and then moves to
// uniform ones for every product anew, 6 instructions each.
DEVICE unsigned long long descriptor(unsigned at, unsigned panel) {
  const unsigned low = uniform((at & 0x3ffff) >> 4 | panel >> 4 << 16);
  return low | 64ull << 32 | 1ull << 62;
}
""",
        "settle": """
// Registers of products: nothing that reads or writes them moves across here.
template <int N>
DEVICE void settle(float (&x)[N]) {
#pragma unroll
  for (int e = 0; e < N; ++e) asm volatile("" : "+f"(x[e])::"memory");
}
""",
        "products_begin": """
DEVICE void products_begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
""",
        "products_commit": """
DEVICE void products_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
""",
        "products_pending": """
template <int N>
DEVICE void products_pending() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }
""",
    }
)


def prelude(body: str, products: dict[str, str]) -> str:
    """Types, and the functions that `body` needs, in the order of the table above."""
    texts = FUNCTIONS | products
    needed: set[str] = set()
    todo = [body]
    while todo:
        words = set(re.findall(r"\w+", todo.pop()))
        new = (words & texts.keys()) - needed
        needed |= new
        todo += [texts[name] for name in new]
    return TYPES + "".join(text for name, text in texts.items() if name in needed)
