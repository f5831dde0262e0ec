// A block of CUDA threads on one CPU thread: each is a fiber, and what a warp or the block does together waits for all of it.
//
// Asynchronous copies are made when they are waited for and not before, so a wait that is missing is seen.  Shared addresses
// are offsets; reads of shared memory that was never written give NaN.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <vector>

using std::max;
using std::min;

#define __device__
#define __forceinline__ inline
#define __global__
#define __launch_bounds__(...)
#define __grid_constant__

namespace host {

struct Copy {
  unsigned to;
  const void* from;
  bool live;
};

// What some threads do together: the last to come does it for all.
struct Meeting {
  int count = 0, phase = 0;
};

struct Thread {
  ucontext_t context;
  std::vector<char> stack;
  bool done = false;
  std::vector<Copy> open;
  std::deque<std::vector<Copy>> groups;
};

inline std::vector<Thread> threads;
inline std::vector<unsigned char> memory;
inline ucontext_t scheduler;
inline int current, block_number;
inline Meeting warps[32], block;
inline std::function<void()> body;

inline void yield() { swapcontext(&threads[current].context, &scheduler); }

inline void meet(Meeting& m, int size, const std::function<void()>& together = [] {}) {
  const int phase = m.phase;
  if (++m.count == size) {
    together();
    m.count = 0;
    ++m.phase;
    return;
  }
  for (long spins = 0; m.phase == phase; ++spins) {
    if (spins > 1000000) { fprintf(stderr, "thread %d waits for ever\n", current); abort(); }
    yield();
  }
}

inline int lane() { return current % 32; }
inline Meeting& warp() { return warps[current / 32]; }

// Words that lanes of a warp give, as all of them see them.
inline unsigned given[32][32][12];
template <int N, class F>
void exchange(const unsigned (&mine)[N], F together) {
  memcpy(given[current / 32][lane()], mine, sizeof(mine));
  meet(warp(), 32);
  together(given[current / 32]);
  meet(warp(), 32);
}

inline void start() {
  body();
  threads[current].done = true;
  swapcontext(&threads[current].context, &scheduler);
}

inline void run(int blocks, int count, int shared, const std::function<void()>& kernel) {
  body = kernel;
  for (block_number = 0; block_number < blocks; ++block_number) {
    memory.assign(shared, 0xff);
    threads.clear();
    threads.resize(count);
    for (Thread& t : threads) {
      t.stack.resize(1 << 16);
      getcontext(&t.context);
      t.context.uc_stack.ss_sp = t.stack.data();
      t.context.uc_stack.ss_size = t.stack.size();
      t.context.uc_link = &scheduler;
      makecontext(&t.context, start, 0);
    }
    for (bool left = true; left;) {
      left = false;
      for (current = 0; current < count; ++current)
        if (!threads[current].done) {
          left = true;
          swapcontext(&scheduler, &threads[current].context);
        }
    }
    for (const Thread& t : threads)
      if (!t.groups.empty() || !t.open.empty()) { fprintf(stderr, "a copy that nobody waited for\n"); abort(); }
  }
}

inline float as_float(unsigned x) {
  float y;
  memcpy(&y, &x, 4);
  return y;
}
inline unsigned as_word(float x) {
  unsigned y;
  memcpy(&y, &x, 4);
  return y;
}
inline float bf16(unsigned short x) { return as_float((unsigned)x << 16); }
inline float f16(unsigned short x) {
  _Float16 y;
  memcpy(&y, &x, 2);
  return (float)y;
}
inline unsigned short to_bf16(float x) {
  const unsigned w = as_word(x);
  return x != x ? 0x7fff : (w + 0x7fff + (w >> 16 & 1)) >> 16;
}
inline unsigned short to_f16(float x) {
  const _Float16 y = (_Float16)x;
  unsigned short w;
  memcpy(&w, &y, 2);
  return w;
}

// m16n8k16 of PTX: fragments of a (4 words), b (2) and the sums (4) over the lanes.
template <float (*VALUE)(unsigned short)>
void multiply(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) {
  exchange<6>({a[0], a[1], a[2], a[3], b0, b1}, [&](const unsigned (&w)[32][12]) {
    const auto half = [](unsigned word, int n) { return VALUE(word >> 16 * (n % 2)); };
    for (int e = 0; e < 4; ++e) {
      const int row = lane() / 4 + e / 2 * 8, column = lane() % 4 * 2 + e % 2;
      double sum = d[e];
      for (int k = 0; k < 16; ++k)
        sum += (double)half(w[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k) * half(w[column * 4 + k % 8 / 2][4 + k / 8], k);
      d[e] = (float)sum;
    }
  });
}

template <bool TRANSPOSED>
void load_matrices(unsigned (&x)[4], unsigned from) {
  if (from % 16) { fprintf(stderr, "ldmatrix at %u\n", from); abort(); }
  exchange<1>({from}, [&](const unsigned (&w)[32][12]) {
    for (int m = 0; m < 4; ++m) {
      unsigned short pair[2];
      for (int c = 0; c < 2; ++c) {
        const int row = TRANSPOSED ? lane() % 4 * 2 + c : lane() / 4, column = TRANSPOSED ? lane() / 4 : lane() % 4 * 2 + c;
        memcpy(&pair[c], &memory.at(w[8 * m + row][0] + 2 * column), 2);
      }
      x[m] = pair[0] | (unsigned)pair[1] << 16;
    }
  });
}

inline void copies_pending(int n) {
  Thread& t = threads[current];
  for (; (int)t.groups.size() > n; t.groups.pop_front())
    for (const Copy& c : t.groups.front()) {
      if (c.to % 16) { fprintf(stderr, "cp.async to %u\n", c.to); abort(); }
      if (c.live) memcpy(&memory.at(c.to), c.from, 16);
      else memset(&memory.at(c.to), 0, 16);
    }
  meet(warp(), 32);
}

struct Number {
  int x;
};
}  // namespace host

#define threadIdx (host::Number{host::current})
#define blockIdx (host::Number{host::block_number})
#define INF INFINITY
#define DEVICE static inline

static inline float __shfl_xor_sync(unsigned, float x, int mask) {
  float y;
  host::exchange<1>({host::as_word(x)}, [&](const unsigned (&w)[32][12]) { y = host::as_float(w[host::lane() ^ mask][0]); });
  return y;
}
static inline unsigned __shfl_xor_sync(unsigned, unsigned x, int mask) {
  unsigned y;
  host::exchange<1>({x}, [&](const unsigned (&w)[32][12]) { y = w[host::lane() ^ mask][0]; });
  return y;
}
static inline int __shfl_sync(unsigned, int x, int from) {
  int y;
  host::exchange<1>({(unsigned)x}, [&](const unsigned (&w)[32][12]) { y = (int)w[from][0]; });
  return y;
}
static inline float __shfl_sync(unsigned, float x, int from) { return host::as_float(__shfl_sync(0, (int)host::as_word(x), from)); }
static inline unsigned __ballot_sync(unsigned, bool x) {
  unsigned y = 0;
  host::exchange<1>({(unsigned)x}, [&](const unsigned (&w)[32][12]) {
    for (int i = 0; i < 32; ++i) y |= w[i][0] << i;
  });
  return y;
}
static inline int __ffs(unsigned x) { return __builtin_ffs((int)x); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline float __host_expf(float x) { return expf(x); }
static inline float __host_logf(float x) { return logf(x); }
static inline float __uint_as_float(unsigned x) { return host::as_float(x); }
static inline float __int_as_float(int x) { return host::as_float(x); }
static inline unsigned __umulhi(unsigned x, unsigned y) { return (unsigned)((unsigned long long)x * y >> 32); }
#define __expf __host_expf
#define __logf __host_logf

DEVICE float exp2_(float x) { return exp2f(x); }
DEVICE float log2_(float x) { return log2f(x); }
DEVICE float tanh_(float x) { return tanhf(x); }
DEVICE float f16_value(unsigned short x) { return host::f16(x); }
DEVICE unsigned pack_bf16(float low, float high) { return host::to_bf16(low) | (unsigned)host::to_bf16(high) << 16; }
DEVICE unsigned pack_f16(float low, float high) { return host::to_f16(low) | (unsigned)host::to_f16(high) << 16; }
DEVICE void named_sync(int, int threads) { host::meet(host::block, threads); }
DEVICE void copy_unit(unsigned to, const unsigned short* from) { host::threads[host::current].open.push_back({to, from, true}); }
DEVICE void copy_live_unit(unsigned to, const unsigned short* from, bool live) {
  host::threads[host::current].open.push_back({to, from, live});
}
DEVICE void copies_commit() {
  host::Thread& t = host::threads[host::current];
  t.groups.push_back(std::move(t.open));
  t.open.clear();
}
template <int N>
DEVICE void copies_pending() { host::copies_pending(N); }
DEVICE void load_matrices(unsigned (&x)[4], unsigned from) { host::load_matrices<false>(x, from); }
DEVICE void load_transposed(unsigned (&x)[4], unsigned from) { host::load_matrices<true>(x, from); }
DEVICE void mma_bf16(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) { host::multiply<host::bf16>(d, a, b0, b1); }
DEVICE void mma_f16(float* d, const unsigned (&a)[4], unsigned b0, unsigned b1) { host::multiply<host::f16>(d, a, b0, b1); }
DEVICE void store_8(float* to, float x, float y) { to[0] = x, to[1] = y; }
DEVICE void store_16(unsigned short* to, const unsigned (&x)[4]) { memcpy(to, x, 16); }
