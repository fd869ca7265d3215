// A product by Intel's matrix unit, of the same packed weights: sixteen pairs of inputs by sixteen columns are a tile.

#pragma once

#include <type_traits>
#include <vector>

#include "amx.h"
#include "product.h"

namespace {

constexpr int64_t TILE_ROWS = 16;
constexpr int64_t TILE_INPUTS = 32;

// Tiles 0 and 1 are sums of `top` rows, 2 and 3 of `bottom` rows; 4 and 5 the inputs of those; 6 and 7 weights.
inline TileShapes product_tiles(int64_t top, int64_t bottom) {
  return TileShapes({{top, 64}, {top, 64}, {bottom, 64}, {bottom, 64}, {top, 64}, {bottom, 64}, {16, 64}, {16, 64}});
}

// Fetches of a panel, with the tiles of the inputs from `input` on, as many bytes as their weights would be in int8: half
// of a panel in bfloat16. With more than that, what is multiplied now waits.
template <class Weight>
void prefetch(const Weight* panel, int64_t input) {
  const char* from = (const char*)panel + input * PANEL;
  for (int64_t i = 0; i < TILE_INPUTS * PANEL; i += 64) _mm_prefetch(from + i, _MM_HINT_T1);
}

// A panel in int8 that becomes one in bfloat16 tile by tile, while the one before is multiplied.
struct Turning {
  const int8_t* from = nullptr;
  BFloat16* to = nullptr;

  void operator()(int64_t input) const {
    for (int64_t i = input * PANEL; i < (input + TILE_INPUTS) * PANEL; i += 2 * LANES)
      _mm512_storeu_si512(to + i, (__m512i)load_pairs(from + i));
  }
};

// `top` and `bottom` rows of x, sixteen at most, from `row` on, times one panel of weights; the panel `ahead`, if there is
// one, is fetched. Inputs pass by the first cache, so that weights stay there for the next rows, and the lines
// of y are fetched for writing before they are written.
template <class Kind>
void multiply_tiles(const Product<Kind>& p, int64_t row, int64_t top, int64_t bottom, int64_t panel,
                    const BFloat16* weights, const typename Kind::Weight* ahead, const Turning& turning) {
  const BFloat16 *x = p.x + row * p.x_stride, *below = x + TILE_ROWS * p.x_stride;
  BFloat16* y = p.y + row * p.y_stride + panel * PANEL;
  const int64_t x_bytes = p.x_stride * 2, weight_bytes = 2 * PANEL * 2;
  _tile_zero(0);
  _tile_zero(1);
  if (bottom) {
    _tile_zero(2);
    _tile_zero(3);
  }
  if (turning.from) turning(0);
  int64_t fetched = 0;
  for (int64_t input = 0; input < 2 * p.pairs; input += TILE_INPUTS) {
    if (ahead) prefetch(ahead, input);
    if (turning.from && input + TILE_INPUTS < 2 * p.pairs) turning(input + TILE_INPUTS);
    for (int64_t i = 0; i < 2 && fetched < top + bottom; ++i) __builtin_prefetch(y + fetched++ * p.y_stride, 1);
    _tile_loadd(6, weights + input * PANEL, weight_bytes);
    _tile_loadd(7, weights + input * PANEL + 2 * LANES, weight_bytes);
    _tile_stream_loadd(4, x + input, x_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (bottom) {
      _tile_stream_loadd(5, below + input, x_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  alignas(64) float sums[2 * TILE_ROWS][PANEL];
  _tile_stored(0, sums[0], sizeof sums[0]);
  _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
  if (bottom) {
    _tile_stored(2, sums[TILE_ROWS], sizeof sums[0]);
    _tile_stored(3, sums[TILE_ROWS] + LANES, sizeof sums[0]);
  }
  for (int64_t r = 0; r < top + bottom; ++r)
    for (int64_t half = 0; half < PANEL; half += LANES)
      store_bf16(y + r * p.y_stride + half, Kind::scaled(load(sums[r] + half), p.scales + panel * PANEL + half));
}

// All rows times all panels.
template <class Kind>
void multiply_by_amx(const Product<Kind>& product, int64_t rows, int64_t panels) {
  const int64_t panel_size = product.pairs * 2 * PANEL;
  const int64_t threads = at::get_num_threads();
  share_out(panels, [&](const auto& take) {
    constexpr bool INT8 = std::is_same_v<Kind, Int8>;
    std::vector<BFloat16> room(INT8 ? panel_size : 0);
    int64_t shaped = 0;
    for (int64_t panel = take(); panel < panels; panel = take()) {
      const auto* packed = product.weights + panel * panel_size;
      const auto* ahead = panel + threads < panels ? packed + threads * panel_size : nullptr;
      const BFloat16* weights;
      Turning turning;
      if constexpr (INT8) {
        turning = {packed, room.data()};
        weights = room.data();
      } else {
        weights = packed;
      }
      for (int64_t row = 0; row < rows; row += 2 * TILE_ROWS, ahead = nullptr, turning = {}) {
        const int64_t count = std::min(2 * TILE_ROWS, rows - row);
        const int64_t top = std::min(TILE_ROWS, count), bottom = count - top;
        if (shaped != count) {
          load_shapes(product_tiles(top, bottom));
          shaped = count;
        }
        multiply_tiles(product, row, top, bottom, panel, weights, ahead, turning);
      }
    }
    release_tiles();
  });
}

}  // namespace
