// Intel's matrix unit (AMX): eight tiles of up to sixteen rows of 64 bytes, and products of them in bfloat16.

#pragma once

#include <cpuid.h>
#include <immintrin.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdint>

// Whether this processor has it and the system lets this process use it.
inline bool has_amx() {
  static const bool has = [] {
    constexpr unsigned BF16 = 1u << 22, TILES = 1u << 24;
    constexpr long REQUEST_PERMISSION = 0x1023, TILE_DATA = 18;
    unsigned a, b, c, d;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & (BF16 | TILES)) != (BF16 | TILES)) return false;
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
  }();
  return has;
}

// How many rows, of how many bytes each, the eight tiles of a thread have.
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

#pragma GCC push_options
#pragma GCC target("amx-tile")
inline void load_shapes(const TileShapes& shapes) { _tile_loadconfig(&shapes); }
inline void release_tiles() { _tile_release(); }
#pragma GCC pop_options
