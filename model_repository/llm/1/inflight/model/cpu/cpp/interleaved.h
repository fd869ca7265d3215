// Rows of x as floats, for processors that multiply floats. Rows that are multiplied together are interleaved.

#pragma once

#include <ATen/ops/empty.h>

#include <cstring>

#include "product.h"

namespace {

// The rows of tile number `tile`, if `tiles` tiles of equal size, up to one row, cover all rows.
struct Tile {
  int64_t first, count;

  Tile(int64_t rows, int64_t tiles, int64_t tile) : first(rows * tile / tiles), count(rows * (tile + 1) / tiles - first) {}
};

// Stores pairs as floats, `step` apart.
inline void spread_pairs(const BFloat16* from, int64_t pairs, float* to, int64_t step) {
  int64_t pair = 0;
  for (; pair + LANES / 2 <= pairs; pair += LANES / 2) {
    float some[LANES];
    store(some, load_floats(from + pair * 2));
#pragma GCC unroll 8
    for (int64_t i = 0; i < LANES / 2; ++i) std::memcpy(to + (pair + i) * step, some + 2 * i, 2 * sizeof *some);
  }
  for (; pair < pairs; ++pair) {
    to[pair * step] = from[pair * 2];
    to[pair * step + 1] = from[pair * 2 + 1];
  }
}

// Returns the rows of x as floats, tile after tile. Within a tile, rows are interleaved pair by pair.
template <class Kind>
Tensor interleaved(const Product<Kind>& product, int64_t rows, int64_t tiles) {
  const Tensor floats = at::empty({rows * product.pairs * 2}, at::kFloat);
  float* to = floats.mutable_data_ptr<float>();
  share_out_rows(tiles, std::max<int64_t>(1, ROWS_OF_A_THREAD * tiles / rows), [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const Tile tile(rows, tiles, t);
      for (int64_t r = 0; r < tile.count; ++r)
        spread_pairs(product.x + (tile.first + r) * product.x_stride, product.pairs,
                     to + tile.first * product.pairs * 2 + r * 2, tile.count * 2);
    }
  });
  return floats;
}

}  // namespace
