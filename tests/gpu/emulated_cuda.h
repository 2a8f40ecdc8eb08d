// CUDA C++ as C++ for the host: a block's threads run in turns, as fibers where they wait for each other.
#include <ucontext.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#undef INFINITY
#undef NAN
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
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

namespace emulator {

struct Entry {
  const char *name;
  unsigned threads;  // of __launch_bounds__
  bool waits;        // whether it has barriers
  std::vector<unsigned> sizes;
  std::function<void(void **)> call;
};

template <class... A, std::size_t... I>
void apply(void (*kernel)(A...), void **parameters, std::index_sequence<I...>) {
  kernel(*static_cast<A *>(parameters[I])...);
}

template <class... A>
Entry entry(const char *name, void (*kernel)(A...), unsigned threads, bool waits) {
  auto call = [kernel](void **parameters) { apply(kernel, parameters, std::index_sequence_for<A...>()); };
  return {name, threads, waits, {static_cast<unsigned>(sizeof(A))...}, call};
}

constexpr std::size_t STACK = 128 << 10;
enum State { READY, WAITING, DONE };
struct Fiber {
  ucontext_t context;
  State state;
  std::unique_ptr<char[]> stack;
};
static std::vector<Fiber> fibers;
static ucontext_t home;
static std::size_t current;
static const Entry *running;
static void **arguments;

static void wait_for_block() {
  fibers[current].state = WAITING;
  swapcontext(&fibers[current].context, &home);
}

static void run_fiber() {
  running->call(arguments);
  fibers[current].state = DONE;
}

static position place(std::size_t n, const unsigned size[3]) {
  return {unsigned(n % size[0]), unsigned(n / size[0] % size[1]), unsigned(n / size[0] / size[1])};
}

// False if some threads of a block end while others wait for them.
static bool run_block(const unsigned block[3]) {
  std::size_t count = std::size_t(block[0]) * block[1] * block[2];
  while (fibers.size() < count) fibers.push_back({{}, DONE, std::unique_ptr<char[]>(new char[STACK])});
  for (std::size_t n = 0; n < count; n++) {
    Fiber &fiber = fibers[n];
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = STACK;
    fiber.context.uc_link = &home;
    fiber.state = READY;
    makecontext(&fiber.context, run_fiber, 0);
  }
  for (std::size_t done = 0; done < count;) {
    for (current = 0; current < count; current++) {
      threadIdx = place(current, block);
      swapcontext(&home, &fibers[current].context);
    }
    for (std::size_t n = 0; n < count; n++) done += fibers[n].state == DONE;
    if (done && done < count) return false;
  }
  return true;
}

static bool run(const Entry &kernel, const unsigned grid[3], const unsigned block[3], void **parameters) {
  running = &kernel;
  arguments = parameters;
  for (std::size_t b = 0; b < std::size_t(grid[0]) * grid[1] * grid[2]; b++) {
    blockIdx = place(b, grid);
    if (kernel.waits) {
      if (!run_block(block)) return false;
      continue;
    }
    for (std::size_t n = 0; n < std::size_t(block[0]) * block[1] * block[2]; n++) {
      threadIdx = place(n, block);
      kernel.call(parameters);
    }
  }
  return true;
}

}  // namespace emulator
