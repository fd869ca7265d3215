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

constexpr int64_t BLOCK_ROWS = 2 * TILE_ROWS;
using Sums = float[BLOCK_ROWS][PANEL];

// Sums that are scaled, rounded and stored a few rows at a time while the next block is multiplied: what tiles store can't
// be loaded at once. Where there are sums of gates they are multiplied by these and their sigmoids.
template <class Kind>
struct Leaving {
  const Sums *sums = nullptr, *gates = nullptr;
  BFloat16* y = nullptr;
  int64_t stride = 0, rows = 0;
  const float *scales = nullptr, *gate_scales = nullptr;
  int64_t stored = 0;

  void store(int64_t count) {
    for (const int64_t end = std::min(rows, stored + count); stored < end; ++stored)
      for (int64_t half = 0; half < PANEL; half += LANES) {
        Lanes value = Kind::scaled(load((*sums)[stored] + half), scales + half);
        if (gates) value = silu(Kind::scaled(load((*gates)[stored] + half), gate_scales + half)) * value;
        store_bf16(y + stored * stride + half, value);
      }
  }
};

// `top` and `bottom` rows of x, sixteen at most, times one panel of weights, into `sums`, once all that is `leaving` is
// stored. The panel `ahead`, if there is one, is fetched. Inputs pass by the first cache, so that weights stay there for the
// next rows.
template <class Kind>
void multiply_tiles(const Product<Kind>& p, const BFloat16* x, int64_t top, int64_t bottom, const BFloat16* weights,
                    const typename Kind::Weight* ahead, const Turning& turning, Leaving<Kind>& leaving, Sums& sums) {
  const BFloat16* below = x + TILE_ROWS * p.x_stride;
  const int64_t x_bytes = p.x_stride * 2, weight_bytes = 2 * PANEL * 2, inputs = 2 * p.pairs;
  const int64_t rows_of_tile = (BLOCK_ROWS * TILE_INPUTS + inputs - 1) / inputs;
  _tile_zero(0);
  _tile_zero(1);
  if (bottom) {
    _tile_zero(2);
    _tile_zero(3);
  }
  if (turning.from) turning(0);
  for (int64_t input = 0; input < inputs; input += TILE_INPUTS) {
    if (ahead) prefetch(ahead, input);
    if (turning.from && input + TILE_INPUTS < inputs) turning(input + TILE_INPUTS);
    leaving.store(rows_of_tile);
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
  _tile_stored(0, sums[0], sizeof sums[0]);
  _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
  if (bottom) {
    _tile_stored(2, sums[TILE_ROWS], sizeof sums[0]);
    _tile_stored(3, sums[TILE_ROWS] + LANES, sizeof sums[0]);
  }
}

// Multiplies panel after panel of y, of `rows` rows. With gates these are the first half of all weights; their sums wait
// until those of the other half are there, so rows are taken in parts.
template <class Kind, bool GATED>
class Multiplier {
 public:
  Multiplier(const Product<Kind>& product, int64_t rows, int64_t panels)
      : p_(product), rows_(rows), panels_(panels), part_(GATED ? GATE_BLOCKS * BLOCK_ROWS : rows) {
    if constexpr (INT8) turned_.resize(panel_size());
  }

  // `next`: the panel after it, if it is one of y's.
  void multiply(int64_t panel, int64_t next) {
    const Weight* after = next < panels_ ? weights(next) : nullptr;
    for (int64_t first = 0; first < rows_; first += part_) {
      const bool again = first > 0;
      if constexpr (GATED) multiply_part<true>(panel, panel, first, again ? nullptr : weights(panels_ + panel));
      multiply_part<false>(panel, GATED ? panels_ + panel : panel, first, again ? nullptr : after);
    }
  }

  void finish() {
    leaving_.store(BLOCK_ROWS);
    release_tiles();
  }

 private:
  using Weight = typename Kind::Weight;
  static constexpr bool INT8 = std::is_same_v<Kind, Int8>;
  static constexpr int64_t GATE_BLOCKS = 4;

  int64_t panel_size() const { return p_.pairs * 2 * PANEL; }
  const Weight* weights(int64_t panel) const { return p_.weights + panel * panel_size(); }

  // The part of rows from `first` on times a panel of weights, for gates or for panel `panel` of y.
  template <bool GATES>
  void multiply_part(int64_t panel, int64_t of_weights, int64_t first, const Weight* ahead) {
    const int64_t last = std::min(rows_, first + part_);
    const BFloat16* packed;
    Turning turning;
    if constexpr (INT8) {
      turning = {weights(of_weights), turned_.data()};
      packed = turned_.data();
    } else {
      packed = weights(of_weights);
    }
    for (int64_t row = first; row < last; row += BLOCK_ROWS, ahead = nullptr, turning = {}) {
      const int64_t count = std::min(BLOCK_ROWS, last - row), top = std::min(TILE_ROWS, count);
      Sums* const gates = GATED ? &gates_[(row - first) / BLOCK_ROWS] : nullptr;
      Sums* const sums = GATES ? gates : &sums_;
      shape(top, count - top);
      multiply_tiles(p_, p_.x + row * p_.x_stride, top, count - top, packed, ahead, turning, leaving_, *sums);
      leaving_ = {};
      if constexpr (!GATES) {
        BFloat16* const y = p_.y + row * p_.y_stride + panel * PANEL;
        leaving_ = {sums, gates, y, p_.y_stride, count, p_.scales + of_weights * PANEL, p_.scales + panel * PANEL};
      }
    }
  }

  void shape(int64_t top, int64_t bottom) {
    if (shaped_ != top + bottom) load_shapes(product_tiles(top, bottom));
    shaped_ = top + bottom;
  }

  const Product<Kind>& p_;
  const int64_t rows_, panels_, part_;
  std::vector<BFloat16> turned_;
  alignas(64) Sums sums_;
  alignas(64) Sums gates_[GATED ? GATE_BLOCKS : 1];
  Leaving<Kind> leaving_;
  int64_t shaped_ = 0;
};

// All rows times all panels of y.
template <bool GATED, class Kind>
void multiply_by_amx(const Product<Kind>& product, int64_t rows, int64_t panels) {
  const int64_t threads = at::get_num_threads();
  share_out(panels, [&](const auto& take) {
    Multiplier<Kind, GATED> multiplier(product, rows, panels);
    for (int64_t panel = take(); panel < panels; panel = take()) multiplier.multiply(panel, panel + threads);
    multiplier.finish();
  });
}

}  // namespace
