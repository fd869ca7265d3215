// A block with int4 weights. Each group of inputs, which is a tile, has scales. So its sums leave the matrix unit, and
// SIMD scales and adds them. Scaled weights would have to be rounded to bfloat16.

#pragma once

#include "linear_amx_block.h"

namespace {

// The sums of the last groups, for 16 rows and columns. Data that a tile has just stored cannot be loaded at once, so they are
// added some groups later.
struct alignas(64) GroupSums {
  static constexpr int64_t COUNT = 4;
  float of[COUNT][TILE_ROWS][LANES] = {};
};

// Multiplies the top or the bottom rows of a block with the columns from `column` on. `sums` are those of its first row. Calls
// `prefetch` `calls` times for each tile of inputs.
template <bool BOTTOM>
void multiply_quarter(const Block<Int4>& block, int64_t column, int64_t calls, Meanwhile<Int4>& meanwhile, GroupSums& recent,
                      float* sums) {
  const BFloat16* const x = block.x + (BOTTOM ? TILE_ROWS * block.x_stride : 0);
  const int64_t count = block.inputs / TILE_INPUTS;
  Lanes totals[TILE_ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < TILE_ROWS; ++r) totals[r] = block.first ? all(0.0f) : load(sums + r * PANEL);
  auto add = [&](int64_t group) {
    const Lanes scales = load_floats(block.weights[group].scales + column);
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; ++r)
      totals[r] = fma(load(recent.of[group % GroupSums::COUNT][r]), scales, totals[r]);
  };
  for (int64_t group = 0; group < count; ++group) {
    const int64_t input = group * TILE_INPUTS;
    meanwhile.next_tile(input, block.inputs);
    for (int64_t i = 0; i < calls; ++i) meanwhile.prefetch();
    if (group >= GroupSums::COUNT - 1) add(group - (GroupSums::COUNT - 1));
    float(*const of_group)[LANES] = recent.of[group % GroupSums::COUNT];
    _tile_loadd(6, block.turned + input * PANEL + 2 * column, 2 * PANEL * 2);
    if constexpr (BOTTOM) {
      _tile_zero(2);
      _tile_stream_loadd(5, x + input, block.x_stride * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_stored(2, of_group, sizeof *of_group);
    } else {
      _tile_zero(0);
      _tile_stream_loadd(4, x + input, block.x_stride * 2);
      _tile_dpbf16ps(0, 4, 6);
      _tile_stored(0, of_group, sizeof *of_group);
    }
  }
  for (int64_t group = std::max<int64_t>(0, count - (GroupSums::COUNT - 1)); group < count; ++group) add(group);
#pragma GCC unroll 16
  for (int r = 0; r < TILE_ROWS; ++r) store(sums + r * PANEL, totals[r]);
}

inline void multiply_block(const Block<Int4>& block, Meanwhile<Int4>& meanwhile, Sums& sums) {
  GroupSums recent;
  const int64_t calls = Prefetch<Int4>::CALLS / (block.bottom ? 4 : 2);
  meanwhile.begin();
  for (int64_t column = 0; column < PANEL; column += LANES) {
    multiply_quarter<false>(block, column, calls, meanwhile, recent, sums.of[0] + column);
    meanwhile.turning = {};
    if (block.bottom) multiply_quarter<true>(block, column, calls, meanwhile, recent, sums.of[TILE_ROWS] + column);
  }
}

}  // namespace
