// Multiplies rows with packed weights. Intel's matrix unit does it if the processor has one. Otherwise SIMD code does, which is
// optimised for few rows.

#pragma once

#include <array>
#include <type_traits>
#include <utility>
#include <vector>

#include "interleaved.h"
#include "product.h"
#ifdef __AMX_BF16__
#include "linear_amx.h"
#include "linear_amx_few.h"
#endif
#ifndef __AVX512F__
#include "linear_avx2.h"
#endif

namespace {

// Whether the rows that are multiplied together are interleaved pair by pair in memory, instead of one after the other.
constexpr bool INTERLEAVED = std::is_same_v<Factor, float>;

// The processor's own prefetching ends at each page of memory. So weights are prefetched two pages ahead.
constexpr int64_t AHEAD = 2 * 4096;

constexpr int COLUMNS = PANEL / LANES;

template <int ROWS>
void clear(Lanes (&sums)[ROWS][COLUMNS]) {
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) sums[r][c] = all(0.0f);
}

// Adds the products of a group of inputs to `sums`. A row's pairs are `step` apart, and rows are `stride` apart.
template <int ROWS, class Weight>
void add_group(Lanes (&sums)[ROWS][COLUMNS], const Factor* x, int64_t, int64_t stride, const Weight* weights) {
  add_products(sums, x, stride, [&](int c) { return load_pairs(weights + c * 2 * LANES); });
}

template <int ROWS>
void add_group(Lanes (&sums)[ROWS][COLUMNS], const Factor* x, int64_t step, int64_t stride, const Int4Group* group) {
  Lanes products[ROWS][COLUMNS];
  clear(products);
  for (int word = 0; word < 4; ++word)
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair, x += step)
      add_products(products, x, stride, [&](int c) { return load_pairs(group->words[c][word], pair); });
#pragma GCC unroll 16
  for (int c = 0; c < COLUMNS; ++c) {
    const Lanes scales = load_floats(group->scales + c * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) sums[r][c] = fma(products[r][c], scales, sums[r][c]);
  }
}

// Multiplies `ROWS` rows of x from `row` on with a panel. Prefetches weights if `fresh`, that is, if this thread has not
// read the panel yet.
template <class Kind, int ROWS>
void multiply_panel(const Product<Kind>& p, const Factor* rows, int64_t row, int64_t panel, bool fresh) {
  const Factor* x = rows + row * (INTERLEAVED ? p.pairs * 2 : p.x_stride);
  const int64_t step = INTERLEAVED ? ROWS * 2 : 2, stride = INTERLEAVED ? 2 : p.x_stride;
  const typename Kind::Weight* weights = p.panel(panel);
  Lanes sums[ROWS][COLUMNS];
  clear(sums);
  for (int64_t pair = 0; pair < p.pairs; pair += Kind::INPUTS / 2, weights += Kind::WEIGHTS) {
    if (fresh)
      for (int64_t byte = 0; byte < Kind::WEIGHTS * (int64_t)sizeof *weights; byte += 64)
        _mm_prefetch((const char*)weights + AHEAD + byte, _MM_HINT_T1);
    add_group(sums, x + pair * step, step, stride, weights);
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) {
      const int64_t column = panel * PANEL + c * LANES;
      store_bf16(p.y + (row + r) * p.y_stride + column, p.result(sums[r][c], column));
    }
}

// Multiplies a fixed number of rows with one panel.
template <class Kind>
using Multiply = void (*)(const Product<Kind>&, const Factor*, int64_t, int64_t, bool);

template <class Kind, int... BEFORE>
constexpr std::array<Multiply<Kind>, MAX_ROWS> kernels(std::integer_sequence<int, BEFORE...>) {
  return {{multiply_panel<Kind, BEFORE + 1>...}};
}

// Multiplies all rows with all panels.
template <class Kind>
void multiply_by_lanes(const Product<Kind>& product, int64_t rows, int64_t panels) {
#ifndef __AVX512F__
  if (rows > MAX_ROWS) return multiply_by_columns(product, rows, panels);
#endif
  static constexpr auto KERNELS = kernels<Kind>(std::make_integer_sequence<int, MAX_ROWS>());
  const int64_t tiles = (rows + MAX_ROWS - 1) / MAX_ROWS;
  Tensor floats;
  const Factor* factors;
  if constexpr (INTERLEAVED) {
    floats = interleaved(product, rows, tiles);
    factors = floats.const_data_ptr<Factor>();
  } else {
    factors = product.x;
  }
  share_out(panels, [&](Tasks& tasks) {
    tasks.each_with_next([&](int64_t panel, int64_t) {
      for (int64_t t = 0; t < tiles; ++t) {
        const Tile tile(rows, tiles, t);
        KERNELS[tile.count - 1](product, factors, tile.first, panel, t == 0);
      }
    });
  });
}

// Whether the matrix unit multiplies rows of so many inputs.
bool uses_amx(int64_t inputs) {
#ifdef __AMX_BF16__
  return inputs % TILE_INPUTS == 0 && may_use_amx();
#else
  return false;
#endif
}

// Multiplies all rows with all panels of y by the fastest means. Only the matrix unit takes gates.
template <bool GATED, class Kind>
void multiply_rows(const Product<Kind>& product, int64_t rows, int64_t panels) {
#ifdef __AMX_BF16__
  if (uses_amx(2 * product.pairs)) {
    if constexpr (!std::is_same_v<Kind, Bf16>)
      if (rows <= FEW_ROWS) return multiply_few<GATED, Kind>({{product, rows, 0}}, panels);
    return multiply_by_amx<GATED>(product, rows, panels);
  }
#endif
  multiply_by_lanes(product, rows, panels);
}

// Multiplies the rows of each expert with all of its panels by the fastest means.
template <class Kind>
void multiply_experts(const std::vector<RowsOfExpert<Kind>>& experts, int64_t panels) {
#ifdef __AMX_BF16__
  if (!experts.empty() && uses_amx(2 * experts[0].product.pairs)) {
    if constexpr (std::is_same_v<Kind, Bf16>) {
      multiply_experts_by_amx(experts, panels);
    } else {
      std::vector<RowsOfExpert<Kind>> few, many;
      for (const RowsOfExpert<Kind>& each : experts) (each.rows <= FEW_ROWS ? few : many).push_back(each);
      multiply_few<false>(few, panels);
      multiply_experts_by_amx(many, panels);
    }
    return;
  }
#endif
  for (const RowsOfExpert<Kind>& each : experts) multiply_by_lanes(each.product, each.rows, panels);
}

}  // namespace
