// What the memory and the processor can do at most: all threads read from memory, or all compute products.

#include <immintrin.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <memory>
#include <thread>
#include <vector>

namespace {

constexpr int64_t HUGE_PAGE = 2 << 20;

// Two megabytes or more of this thread's own memory.
struct Memory {
  explicit Memory(int64_t bytes) : bytes((bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE) {
    start = static_cast<char*>(std::aligned_alloc(HUGE_PAGE, this->bytes));
    madvise(start, this->bytes, MADV_HUGEPAGE);
    std::memset(start, 1, this->bytes);
  }
  ~Memory() { std::free(start); }

  int64_t bytes;
  char* start;
};

// Seconds of the fastest of several rounds, in each of which all threads start together. `prepare` returns the work of a
// thread, which takes the number of the round. Rounds of about a millisecond escape most of what else runs.
template <class Prepare>
double fastest_round(int threads, int rounds, Prepare prepare) {
  using Clock = std::chrono::steady_clock;
  double fastest = std::numeric_limits<double>::infinity();
  std::barrier together(threads);
  auto run = [&](bool times) {
    auto work = prepare();
    for (int round = 0; round < rounds; ++round) {
      together.arrive_and_wait();
      const auto started = Clock::now();
      work(round);
      together.arrive_and_wait();
      if (times) fastest = std::min(fastest, std::chrono::duration<double>(Clock::now() - started).count());
    }
  };
  std::vector<std::thread> others;
  for (int thread = 1; thread < threads; ++thread) others.emplace_back(run, false);
  run(true);
  for (std::thread& other : others) other.join();
  return fastest;
}

using Line = int64_t __attribute__((vector_size(64)));

// The compiler must not leave out a loop whose result nobody needs.
template <class Value>
void keep(const Value& value) {
  asm volatile("" : : "m"(value));
}

// Rounds read one part after the other, so that no cache has a part when its turn comes again.
constexpr int64_t PARTS = 16;

void read(const char* start, int64_t bytes) {
  constexpr int SUMS = 8;
  const Line* lines = reinterpret_cast<const Line*>(start);
  Line sums[SUMS] = {};
  for (int64_t line = 0; line < bytes / int64_t(sizeof(Line)); line += SUMS)
#pragma GCC unroll 8
    for (int sum = 0; sum < SUMS; ++sum) sums[sum] ^= lines[line + sum];
  keep(sums);
}

#ifdef __AMX_BF16__

// Each step loads four tiles and computes four products, as a matrix product in the second cache does.
constexpr int64_t TILE = 1024, TILES_OF_STEP = 4, BYTES_IN_SECOND_CACHE = 512 << 10;
constexpr double OPERATIONS_OF_STEP = TILES_OF_STEP * 2.0 * 16 * 16 * 32;

struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_row[16] = {};
  uint8_t rows[16] = {};
};

// Linux gives a process the tiles' registers only if it asks for them.
bool ready() {
  constexpr long ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18;
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

class Products {
 public:
  Products() : operands_(BYTES_IN_SECOND_CACHE) {}

  void compute(int64_t steps) const {
    TileShapes shapes;
    std::fill_n(shapes.bytes_of_row, 8, 64);
    std::fill_n(shapes.rows, 8, 16);
    _tile_loadconfig(&shapes);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t step = 0; step < steps; ++step) {
      const char* tiles = operands_.start + step * TILES_OF_STEP * TILE % BYTES_IN_SECOND_CACHE;
      _tile_loadd(4, tiles, 64);
      _tile_loadd(5, tiles + TILE, 64);
      _tile_loadd(6, tiles + 2 * TILE, 64);
      _tile_loadd(7, tiles + 3 * TILE, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_release();
  }

 private:
  Memory operands_;
};

#else

#if defined(__AVX512BF16__)
using Sum = __m512;
constexpr int SUMS = 24;
constexpr double OPERATIONS = 2 * 32;
Sum add_product(Sum sum, Sum factor) { return _mm512_dpbf16_ps(sum, (__m512bh)factor, (__m512bh)factor); }
#elif defined(__AVX512F__)
using Sum = __m512;
constexpr int SUMS = 24;
constexpr double OPERATIONS = 2 * 16;
Sum add_product(Sum sum, Sum factor) { return _mm512_fmadd_ps(factor, factor, sum); }
#else
using Sum = __m256;
constexpr int SUMS = 12;
constexpr double OPERATIONS = 2 * 8;
Sum add_product(Sum sum, Sum factor) { return _mm256_fmadd_ps(factor, factor, sum); }
#endif
constexpr double OPERATIONS_OF_STEP = SUMS * OPERATIONS;

bool ready() { return true; }

class Products {
 public:
  void compute(int64_t steps) const {
    // Each sum starts with another number. If they were equal, the compiler would compute only one of them.
    Sum sums[SUMS], factor = Sum{} + 1.0f;
#pragma GCC unroll 24
    for (int sum = 0; sum < SUMS; ++sum) sums[sum] = Sum{} + float(sum);
    for (int64_t step = 0; step < steps; ++step)
#pragma GCC unroll 24
      for (int sum = 0; sum < SUMS; ++sum) sums[sum] = add_product(sums[sum], factor);
#pragma GCC unroll 24
    for (int sum = 0; sum < SUMS; ++sum) keep(sums[sum]);
  }
};

#endif

}  // namespace

extern "C" {

// Bytes that all threads together read from memory in a second. In a round each reads `bytes`, a multiple of 512.
double bandwidth(int threads, int64_t bytes, int rounds) {
  const double seconds = fastest_round(threads, rounds, [bytes] {
    return [memory = std::make_shared<Memory>(PARTS * bytes), bytes](int round) {
      read(memory->start + round % PARTS * bytes, bytes);
    };
  });
  return threads * bytes / seconds;
}

// Operations in a second of all threads together. In a round each computes `operations`. Negative if the system does not
// permit these instructions.
double products(int threads, int64_t operations, int rounds) {
  if (!ready()) return -1;
  const int64_t steps = operations / OPERATIONS_OF_STEP;
  const double seconds = fastest_round(threads, rounds, [steps] {
    return [products = std::make_shared<Products>(), steps](int) { products->compute(steps); };
  });
  return threads * steps * OPERATIONS_OF_STEP / seconds;
}
}
