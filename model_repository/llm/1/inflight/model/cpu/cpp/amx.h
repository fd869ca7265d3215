// Intel's matrix unit (AMX): eight tiles of up to 16 rows of 64 bytes, and their products in bfloat16.

#pragma once

#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

// Whether the system permits this process to use AMX. A sandbox may refuse it.
inline bool may_use_amx() {
  constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
  static const bool may = syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
  return may;
}

// The number of rows, and of bytes per row, of each of the eight tiles of a thread.
struct alignas(64) TileShapes {
  struct Shape {
    int64_t rows, bytes;
  };

  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes[16] = {};
  uint8_t rows[16] = {};

  explicit TileShapes(const Shape (&shapes)[8]) {
    for (int tile = 0; tile < 8; ++tile) {
      rows[tile] = (uint8_t)shapes[tile].rows;
      bytes[tile] = shapes[tile].rows ? (uint16_t)shapes[tile].bytes : 0;
    }
  }
};

inline void load_shapes(const TileShapes& shapes) {
  // GCC 12's intrinsic says that only the first 8 bytes are read, so the others might not be written before.
  asm volatile("" : : "m"(shapes));
  _tile_loadconfig(&shapes);
}
inline void release_tiles() { _tile_release(); }

// Makes SIMD take denormal numbers for 0 in this thread, as the matrix unit always does.
class NoDenormals {
 public:
  NoDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | FLUSH); }
  ~NoDenormals() { _mm_setcsr(before_); }
  NoDenormals(const NoDenormals&) = delete;

 private:
  static constexpr unsigned FLUSH = 0x8040;  // Results and operands.
  const unsigned before_;
};
