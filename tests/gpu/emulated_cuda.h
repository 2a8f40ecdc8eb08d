// CUDA C++ as C++ for the host: a block's threads run in turns, as fibers where they wait for each other. So
// do blocks that meet, from one meeting to the next; each has its shared memory while it runs.
#include <ucontext.h>

#include <math.h>  // whose functions take float, too, as those of CUDA do
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

static const double INF_ = INFINITY, NAN_ = NAN;
#undef INFINITY
#undef NAN
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static __attribute__((section("shared_memory")))
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(threads, blocks)
#define __syncthreads() emulator::wait_for_block()

struct position {
  unsigned x, y, z;
};
static position blockIdx, threadIdx;

static inline float __int_as_float(int bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

extern "C" char __start_shared_memory[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_shared_memory[] __attribute__((weak, visibility("hidden")));

namespace emulator {

struct Entry {
  const char *name;
  unsigned threads;  // of __launch_bounds__
  bool waits;        // whether it has barriers
  bool meets;        // whether blocks wait for each other
  std::vector<unsigned> sizes;
  std::function<void(void **)> call;
};

template <class... A, std::size_t... I>
void apply(void (*kernel)(A...), void **parameters, std::index_sequence<I...>) {
  kernel(*static_cast<A *>(parameters[I])...);
}

template <class... A>
Entry entry(const char *name, void (*kernel)(A...), unsigned threads, bool waits, bool meets) {
  auto call = [kernel](void **parameters) { apply(kernel, parameters, std::index_sequence_for<A...>()); };
  return {name, threads, waits, meets, {static_cast<unsigned>(sizeof(A))...}, call};
}

constexpr std::size_t STACK = 128 << 10;
enum State { READY, WAITING, MEETING, DONE };
struct Fiber {
  ucontext_t context;
  State state;
  std::unique_ptr<char[]> stack;
};
struct Block {
  std::vector<Fiber> fibers;
  std::vector<char> shared;  // while others run
};
static std::vector<Block> blocks;
static Block *block;
static ucontext_t home;
static std::size_t current;
static const Entry *running;
static std::size_t running_blocks;
static void **arguments;

static void stop(State state) {
  Fiber &fiber = block->fibers[current];
  fiber.state = state;
  swapcontext(&fiber.context, &home);
}
static void wait_for_block() { stop(WAITING); }

// Products by tensor cores: each thread of a warp gives its fragments and takes what its sums need of the others'.
struct Fragments {
  std::uint32_t a[4], b[2];
};
static Fragments given[1024];

static double half(unsigned bits) {
  int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = exponent == 31 ? (fraction ? NAN_ : INF_)
                                : std::ldexp(fraction + 1024 * (exponent > 0), (exponent ? exponent : 1) - 25);
  return bits >> 15 ? -value : value;
}

static double bits32(std::uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

struct tf32 {
  static double product(std::uint32_t a, std::uint32_t b) { return bits32(a & ~0x1fffu) * bits32(b & ~0x1fffu); }
};
struct f16 {
  static double product(std::uint32_t a, std::uint32_t b) {
    return half(a & 0xffff) * half(b & 0xffff) + half(a >> 16) * half(b >> 16);
  }
};
struct bf16 {
  static double product(std::uint32_t a, std::uint32_t b) {
    return bits32(a << 16) * bits32(b << 16) + bits32(a & 0xffff0000) * bits32(b & 0xffff0000);
  }
};

template <class Values>
void multiply(float *c[4], const Fragments &own) {
  given[current] = own;
  wait_for_block();
  const Fragments *warp = given + current / 32 * 32;
  unsigned lane = current % 32;
  for (unsigned n = 0; n < 4; n++) {
    unsigned row = lane / 4 + 8 * (n / 2), column = lane % 4 * 2 + n % 2;
    double sum = *c[n];
    for (unsigned k = 0; k < 8; k++)
      sum += Values::product(warp[row % 8 * 4 + k % 4].a[row / 8 + 2 * (k / 4)], warp[column * 4 + k % 4].b[k / 4]);
    *c[n] = float(sum);
  }
  wait_for_block();
}

template <class T>
T exchange(T own, unsigned distance) {
  static T values[1024];
  values[current] = own;
  wait_for_block();
  T theirs = values[current ^ distance];
  wait_for_block();
  return theirs;
}

struct Copy {
  void *to;
  std::vector<char> bytes;
};
static std::vector<std::vector<Copy>> groups[1024];  // of each thread; the last one is open

static void copy(void *to, const void *from, bool there, std::size_t size) {
  const char *begin = static_cast<const char *>(from);
  if ((reinterpret_cast<std::uintptr_t>(to) | reinterpret_cast<std::uintptr_t>(from)) % size)
    throw std::logic_error("a copy that is not aligned");
  auto &own = groups[current];
  if (own.empty()) own.emplace_back();
  own.back().push_back({to, there ? std::vector<char>(begin, begin + size) : std::vector<char>(size)});
}

static void commit() {
  auto &own = groups[current];
  own.resize(own.size() + (own.empty() ? 2 : 1));
}

static void wait(std::size_t but) {
  auto &own = groups[current];
  while (own.size() > but + 1) {
    for (const Copy &one : own.front()) std::memcpy(one.to, one.bytes.data(), one.bytes.size());
    own.erase(own.begin());
  }
}

static void run_fiber() {
  running->call(arguments);
  block->fibers[current].state = DONE;
}

static position place(std::size_t n, const unsigned size[3]) {
  return {unsigned(n % size[0]), unsigned(n / size[0] % size[1]), unsigned(n / size[0] / size[1])};
}

static void begin_block(std::size_t threads) {
  std::vector<Fiber> &fibers = block->fibers;
  while (fibers.size() < threads) fibers.push_back({{}, DONE, std::unique_ptr<char[]>(new char[STACK])});
  for (std::size_t n = 0; n < threads; n++) {
    Fiber &fiber = fibers[n];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = &home;
    fiber.state = READY;
    groups[n].clear();
    makecontext(&fiber.context, run_fiber, 0);
  }
}

// Until all threads of the block meet those of others, or end; WAITING if some come to no barrier of the rest.
static State run_block(const unsigned size[3], std::size_t threads) {
  for (;;) {
    for (current = 0; current < threads; current++) {
      threadIdx = place(current, size);
      swapcontext(&home, &block->fibers[current].context);
    }
    State first = block->fibers[0].state;
    for (std::size_t n = 1; n < threads; n++)
      if (block->fibers[n].state != first) return WAITING;
    if (first != WAITING) return first;
  }
}

// False if some threads or blocks end while others wait for them.
static bool run_together(const unsigned grid[3], const unsigned size[3], std::size_t count, std::size_t threads) {
  char *shared = __start_shared_memory;
  running_blocks = count;
  std::size_t bytes = shared ? __stop_shared_memory - shared : 0;
  if (blocks.size() < count) blocks.resize(count);
  for (std::size_t b = 0; b < count; b++) {
    block = &blocks[b];
    begin_block(threads);
    block->shared.assign(bytes, char(0xCD));
  }
  for (State first = MEETING; first == MEETING;)
    for (std::size_t b = 0; b < count; b++) {
      blockIdx = place(b, grid);
      block = &blocks[b];
      if (bytes) std::memcpy(shared, block->shared.data(), bytes);
      State state = run_block(size, threads);
      if (bytes) std::memcpy(block->shared.data(), shared, bytes);
      if (b == 0) first = state;
      if (state == WAITING || state != first) return false;
    }
  return true;
}

static bool run(const Entry &kernel, const unsigned grid[3], const unsigned size[3], void **parameters) {
  std::size_t count = std::size_t(grid[0]) * grid[1] * grid[2], threads = std::size_t(size[0]) * size[1] * size[2];
  running = &kernel;
  arguments = parameters;
  if (kernel.meets) return run_together(grid, size, count, threads);
  if (blocks.empty()) blocks.resize(1);
  block = &blocks[0];
  for (std::size_t b = 0; b < count; b++) {
    blockIdx = place(b, grid);
    if (kernel.waits) {
      begin_block(threads);
      if (run_block(size, threads) != DONE) return false;
      continue;
    }
    for (std::size_t n = 0; n < threads; n++) {
      threadIdx = place(n, size);
      kernel.call(parameters);
    }
  }
  return true;
}

}  // namespace emulator

#define __shfl_xor_sync(threads, value, distance) emulator::exchange(value, distance)

#define MULTIPLY(kind) \
  static void mma_##kind(float &c0, float &c1, float &c2, float &c3, unsigned a0, unsigned a1, unsigned a2, \
                         unsigned a3, unsigned b0, unsigned b1) { \
    float *c[] = {&c0, &c1, &c2, &c3}; \
    emulator::multiply<emulator::kind>(c, {{a0, a1, a2, a3}, {b0, b1}}); \
  }
MULTIPLY(tf32)
MULTIPLY(f16)
MULTIPLY(bf16)

// Thread t says where row t mod 8 of matrix t / 8 is, and gets word t mod 4 of row t / 4 of each.
static void load_matrices(unsigned &r0, unsigned &r1, unsigned &r2, unsigned &r3, const unsigned *row) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16) throw std::logic_error("a row that is not aligned");
  static const unsigned *rows[1024];
  std::size_t lane = emulator::current % 32, warp = emulator::current - lane;
  rows[emulator::current] = row;
  emulator::wait_for_block();
  unsigned *r[] = {&r0, &r1, &r2, &r3};
  for (int n = 0; n < 4; n++) *r[n] = rows[warp + 8 * n + lane / 4][lane % 4];
  emulator::wait_for_block();
}

// Roundings to the nearest, ties to even; what is no number becomes the one that the GPU makes.
static unsigned short f32_to_f16(float a) {
  if (a != a) return 0x7fff;
  _Float16 half = (_Float16)a;
  unsigned short bits;
  std::memcpy(&bits, &half, sizeof bits);
  return bits;
}
static float f16_to_f32(unsigned short a) { return float(emulator::half(a)); }
static unsigned short f32_to_bf16(float a) {
  if (a != a) return 0x7fff;
  std::uint32_t bits;
  std::memcpy(&bits, &a, sizeof bits);
  std::uint32_t rest = bits & 0xffff, kept = bits >> 16;
  return (unsigned short)(kept + (rest > 0x8000 || (rest == 0x8000 && kept % 2)));
}

// Blocks count as on a GPU: the highest bit of the word must differ once all have come, and none of the others be left.
static void meet(int *arrivals) {
  unsigned *word = reinterpret_cast<unsigned *>(arrivals), before = *word;
  bool first = !(blockIdx.x || blockIdx.y || blockIdx.z);
  if (emulator::current == 0) *word += first ? 0x80000001u - unsigned(emulator::running_blocks) : 1u;
  emulator::stop(emulator::MEETING);
  if (first && emulator::current == 0 && (before << 1 || *word << 1 || before == *word))
    throw std::logic_error("the arrivals of blocks do not add up");
}

// Copies happen as late as they may: when their group is waited for.
static void copy_async_4(void *to, const void *from, bool there) { emulator::copy(to, from, there, 4); }
static void copy_async_8(void *to, const void *from, bool there) { emulator::copy(to, from, there, 8); }
static void copy_async_16(void *to, const void *from, bool there) { emulator::copy(to, from, there, 16); }
static void commit_copies() { emulator::commit(); }
static void wait_copies_0() { emulator::wait(0); }
static void wait_copies_1() { emulator::wait(1); }
static void wait_copies_2() { emulator::wait(2); }
