// A workgroup on one CPU thread: each lane is a fiber, and what a wave or the group does together waits for all of it.
//
// Asynchronous copies are made when they are waited for and not before, so a wait that is missing is seen.  Shared memory that
// was never written gives NaN.  Matrix instructions are those of the AMD matrix instruction calculator, cdna3: element by element.
#include <math.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <deque>
#include <functional>
#include <vector>

typedef short s16x4 __attribute__((ext_vector_type(4)));
typedef _Float16 f16x4 __attribute__((ext_vector_type(4)));
typedef unsigned u32x2 __attribute__((ext_vector_type(2)));
typedef unsigned u32x4 __attribute__((ext_vector_type(4)));
typedef int i32x4 __attribute__((ext_vector_type(4)));
typedef float f32x4 __attribute__((ext_vector_type(4)));
typedef float f32x16 __attribute__((ext_vector_type(16)));

#define DEVICE static inline
#define KERNEL(threads, waves) extern "C" void
#define SHARED
#define INF __builtin_inff()

namespace host {

struct Copy {
  unsigned to, value;
};
struct Meeting {
  int count = 0, phase = 0;
};
struct Lane {
  ucontext_t context;  // of the first switch; the others jump, which leaves signals alone
  jmp_buf place;
  bool begun = false;
  std::vector<char> stack;
  bool done = false;
  std::deque<Copy> open;
};

inline std::vector<Lane> lanes;
inline std::vector<char> memory;
inline jmp_buf scheduler;
inline int current, group_number;
inline Meeting waves[16], group;
inline std::function<void()> body;

inline void yield() {
  if (!_setjmp(lanes[current].place)) _longjmp(scheduler, 1);
}
inline void resume(Lane& t) {
  if (_setjmp(scheduler)) return;
  if (t.begun) _longjmp(t.place, 1);
  t.begun = true;
  setcontext(&t.context);
}

inline void meet(Meeting& m, int size) {
  const int phase = m.phase;
  if (++m.count == size) {
    m.count = 0;
    ++m.phase;
    return;
  }
  for (long spins = 0; m.phase == phase; ++spins) {
    if (spins > 1000000) { fprintf(stderr, "lane %d waits for ever\n", current); abort(); }
    yield();
  }
}

// Words that lanes of a wave give, as all of them see them; nobody is two exchanges ahead.
inline unsigned given[2][16][64][4];
template <int N, class F>
void exchange(const unsigned (&mine)[N], F together) {
  auto& all = given[waves[current / 64].phase % 2][current / 64];
  memcpy(all[current % 64], mine, sizeof(mine));
  meet(waves[current / 64], 64);
  together(all);
}

inline void start() {
  body();
  lanes[current].done = true;
  _longjmp(scheduler, 1);
}

inline void run(int groups, int count, int shared, const std::function<void()>& kernel) {
  body = kernel;
  for (group_number = 0; group_number < groups; ++group_number) {
    memory.assign(shared, (char)0xff);
    lanes.clear();
    lanes.resize(count);
    for (Lane& t : lanes) {
      t.stack.resize(1 << 16);
      getcontext(&t.context);
      t.context.uc_stack.ss_sp = t.stack.data();
      t.context.uc_stack.ss_size = t.stack.size();
      t.context.uc_link = nullptr;
      makecontext(&t.context, start, 0);
    }
    for (bool left = true; left;) {
      left = false;
      for (current = 0; current < count; ++current)
        if (!lanes[current].done) {
          left = true;
          resume(lanes[current]);
        }
    }
    for (const Lane& t : lanes)
      if (!t.open.empty()) { fprintf(stderr, "a copy was never waited for\n"); abort(); }
  }
}

inline float value(unsigned pair, int half, bool bf16) {
  const unsigned short bits = pair >> 16 * half;
  if (!bf16) return (float)__builtin_bit_cast(_Float16, bits);
  return __builtin_bit_cast(float, (unsigned)bits << 16);
}

// N x N over 64 * 4 / N: lane l has row or column l % N, and elements 4 * (l / N) ... along the contracted axis.
template <int N, class C>
C product(u32x2 a, u32x2 b, C c, bool bf16) {
  const unsigned mine[4] = {a.x, a.y, b.x, b.y};
  exchange(mine, [&](unsigned (&all)[64][4]) {
    const int lane = current % 64;
    for (int r = 0; r < N * N / 64; ++r) {
      const int row = r / 4 * (256 / N) + lane / N * 4 + r % 4;
      float sum = c[r];
      for (int k = 0; k < 256 / N; ++k) {
        const float x = value(all[row + N * (k / 4)][k % 4 / 2], k % 2, bf16);
        sum += x * value(all[lane % N + N * (k / 4)][2 + k % 4 / 2], k % 2, bf16);
      }
      c[r] = sum;
    }
  });
  return c;
}

}  // namespace host

static inline int workitem() { return host::current; }
static inline int workgroup() { return host::group_number; }

DEVICE int uniform(int x) { return x; }
DEVICE bool any_lane(bool x) {
  bool y = false;
  const unsigned mine[1] = {x};
  host::exchange(mine, [&](unsigned (&all)[64][4]) {
    for (auto& one : all) y |= one[0] != 0;
  });
  return y;
}
DEVICE float lane_value(float x, unsigned bits) {
  float y = 0;
  const unsigned mine[1] = {__builtin_bit_cast(unsigned, x)};
  host::exchange(mine, [&](unsigned (&all)[64][4]) {
    y = __builtin_bit_cast(float, all[host::current % 64 ^ bits][0]);
  });
  return y;
}
// abs() is that of the C library.
DEVICE void recomputed(unsigned&) {}
template <class T>
DEVICE void held(T&) {}
DEVICE float exp2_(float x) { return exp2f(x); }
DEVICE float log2_(float x) { return log2f(x); }
DEVICE float tanh_(float x) { return tanhf(x); }
DEVICE float sqrt_(float x) { return sqrtf(x); }
DEVICE float divide(float x, float y) { return x / y; }
DEVICE unsigned permute(unsigned high, unsigned low, unsigned pick) {
  const unsigned long long both = (unsigned long long)high << 32 | low;
  unsigned y = 0;
  for (int i = 0; i < 4; ++i) y |= (unsigned)(both >> 8 * (pick >> 8 * i & 7) & 0xff) << 8 * i;
  return y;
}

DEVICE unsigned fetched(i32x4 of, unsigned at) {
  const unsigned long long base = (unsigned long long)(unsigned)of.y << 32 | (unsigned)of.x;
  unsigned y = 0;
  if (at + 4ull <= (unsigned)of.z) memcpy(&y, (const char*)base + at, 4);
  return y;
}
DEVICE u32x2 load_8(i32x4 of, unsigned at) { return u32x2{fetched(of, at), fetched(of, at + 4)}; }
DEVICE u32x4 load_16(i32x4 of, unsigned at) {
  return u32x4{fetched(of, at), fetched(of, at + 4), fetched(of, at + 8), fetched(of, at + 12)};
}
DEVICE i32x4 settled(i32x4 of) { return of; }
DEVICE int looked_up(const int* from) { return *from; }

DEVICE void copy_lines(unsigned to, i32x4 of, unsigned at) {
  host::lanes[host::current].open.push_back({to + 4 * (host::current % 64), fetched(of, at)});
}
template <int N>
DEVICE void loads_pending() {
  auto& open = host::lanes[host::current].open;
  for (; open.size() > N; open.pop_front()) memcpy(&host::memory[open.front().to], &open.front().value, 4);
}
template <int N>
DEVICE void shared_pending() {}
template <int N>
DEVICE void priority() {}
template <int KINDS, int N>
DEVICE void issue() {}
DEVICE void edge() {}
DEVICE void barrier() { host::meet(host::group, (int)host::lanes.size()); }

DEVICE f32x16 mma_bf16_32(u32x2 a, u32x2 b, f32x16 c) { return host::product<32>(a, b, c, true); }
DEVICE f32x16 mma_f16_32(u32x2 a, u32x2 b, f32x16 c) { return host::product<32>(a, b, c, false); }
DEVICE f32x4 mma_bf16_16(u32x2 a, u32x2 b, f32x4 c) { return host::product<16>(a, b, c, true); }
DEVICE f32x4 mma_f16_16(u32x2 a, u32x2 b, f32x4 c) { return host::product<16>(a, b, c, false); }
