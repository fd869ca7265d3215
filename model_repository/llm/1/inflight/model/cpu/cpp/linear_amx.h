// The product by Intel's matrix unit, with the same packed weights. A tile of weights is 16 pairs of inputs by 16 columns.

#pragma once

#include <type_traits>
#include <vector>

#include "amx.h"
#include "product.h"

namespace {

constexpr int64_t TILE_ROWS = 16;
constexpr int64_t TILE_INPUTS = 32;

// Tiles 0 and 1 hold the sums of the `top` rows, tiles 2 and 3 those of the `bottom` rows. Tile 4 holds inputs of the
// `top` rows, tile 5 those of the `bottom` rows. Tiles 6 and 7 hold weights.
inline TileShapes product_tiles(int64_t top, int64_t bottom) {
  return TileShapes({{top, 64}, {top, 64}, {bottom, 64}, {bottom, 64}, {top, 64}, {bottom, 64}, {16, 64}, {16, 64}});
}

// Prefetches a part of a panel while the tiles of the inputs from `input` on are multiplied: their weights, but at most as
// many bytes as those have in int8, which is half of a panel in bfloat16. Prefetching more would delay the current product.
template <class Kind>
void prefetch(const typename Kind::Weight* panel, int64_t input) {
  constexpr int64_t WEIGHTS = TILE_INPUTS / Kind::INPUTS * Kind::WEIGHTS * sizeof(typename Kind::Weight);
  constexpr int64_t BYTES = std::min(WEIGHTS, TILE_INPUTS * PANEL);
  const char* from = (const char*)panel + input / TILE_INPUTS * BYTES;
  for (int64_t i = 0; i < BYTES; i += 64) _mm_prefetch(from + i, _MM_HINT_T1);
}

// Converts the weights of a tile from int8 to bfloat16.
inline void turn(const int8_t* panel, int64_t input, BFloat16* to) {
  for (int64_t i = 0; i < TILE_INPUTS * PANEL; i += 2 * LANES)
    _mm512_storeu_si512(to + i, (__m512i)load_pairs(panel + input * PANEL + i));
}

// Converts the weights of a tile from int4 to bfloat16, multiplied with their scales.
inline void turn(const Int4Group* panel, int64_t input, BFloat16* to) {
  static_assert(TILE_INPUTS == Int4::INPUTS);
  const Int4Group& group = panel[input / TILE_INPUTS];
  for (int pair = 0; pair < TILE_INPUTS / 2; ++pair)
    for (int64_t c = 0; c < PANEL / LANES; ++c) {
      const __m512i whole = (__m512i)load_pairs(group.words[c][pair / 4], pair % 4);
      const Lanes scales = load_floats(group.scales + c * LANES);
      const Lanes first = _mm512_castsi512_ps(_mm512_slli_epi32(whole, 16)) * scales;
      const Lanes second = _mm512_castsi512_ps(_mm512_and_si512(whole, _mm512_set1_epi32(0xffff0000))) * scales;
      const __m512i low = _mm512_cvtepu16_epi32(to_bf16(first)), high = _mm512_cvtepu16_epi32(to_bf16(second));
      _mm512_storeu_si512(to + pair * 2 * PANEL + c * 2 * LANES, _mm512_or_si512(low, _mm512_slli_epi32(high, 16)));
    }
}

// Converts a panel to bfloat16, one tile at a time, while the tile before it is multiplied.
template <class Kind>
struct Turning {
  const typename Kind::Weight* from = nullptr;
  BFloat16* to = nullptr;

  void operator()(int64_t input) const {
    if constexpr (!std::is_same_v<Kind, Bf16>) turn(from, input, to + input * PANEL);
  }
};

constexpr int64_t BLOCK_ROWS = 2 * TILE_ROWS;
using Sums = float[BLOCK_ROWS][PANEL];

// Finished sums of a block. They are scaled, rounded and stored a few rows at a time while the next block is multiplied,
// because data that a tile has just stored cannot be loaded at once. With gates, the sums are multiplied with silu(gate).
template <class Kind>
struct Leaving {
  const Product<Kind>* product = nullptr;
  const Sums *sums = nullptr, *gates = nullptr;
  BFloat16* y = nullptr;
  int64_t rows = 0, column = 0, gate_column = 0;
  int64_t stored = 0;

  void store(int64_t count) {
    for (const int64_t end = std::min(rows, stored + count); stored < end; ++stored)
      for (int64_t half = 0; half < PANEL; half += LANES) {
        Lanes value = product->result(load((*sums)[stored] + half), column + half);
        if (gates) value = silu(product->result(load((*gates)[stored] + half), gate_column + half)) * value;
        store_bf16(y + stored * product->y_stride + half, value);
      }
  }
};

// Multiplies `top` plus `bottom` rows of x, at most 16 each, with one panel of weights. Writes the result into `sums` after
// it has stored all rows of `leaving`. Prefetches the panel `ahead` if it is given. Inputs are loaded with a streaming hint,
// so that the weights stay in the L1 cache for the next rows.
template <class Kind>
void multiply_tiles(const Product<Kind>& p, const BFloat16* x, int64_t top, int64_t bottom, const BFloat16* weights,
                    const typename Kind::Weight* ahead, const Turning<Kind>& turning, Leaving<Kind>& leaving, Sums& sums) {
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
    if (ahead) prefetch<Kind>(ahead, input);
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

// Computes panel after panel of y, which has `rows` rows. With gates, the gates are the first half of all weights. Their
// sums are kept until the sums of the other half are computed, so the rows are computed in parts.
template <class Kind, bool GATED>
class Multiplier {
 public:
  Multiplier(const Product<Kind>& product, int64_t rows, int64_t panels)
      : p_(product), rows_(rows), panels_(panels), part_(GATED ? GATE_BLOCKS * BLOCK_ROWS : rows) {
    if constexpr (TURNED) turned_.resize(p_.pairs * 2 * PANEL);
  }

  // Computes panel `panel` of y. Prefetches panel `next` unless it is -1.
  void multiply(int64_t panel, int64_t next) {
    const Weight* after = next < 0 ? nullptr : p_.panel(next);
    for (int64_t first = 0; first < rows_; first += part_) {
      const bool again = first > 0;
      if constexpr (GATED) multiply_part<true>(panel, panel, first, again ? nullptr : p_.panel(panels_ + panel));
      multiply_part<false>(panel, GATED ? panels_ + panel : panel, first, again ? nullptr : after);
    }
  }

  void finish() {
    leaving_.store(BLOCK_ROWS);
    release_tiles();
  }

 private:
  using Weight = typename Kind::Weight;
  static constexpr bool TURNED = !std::is_same_v<Kind, Bf16>;
  static constexpr int64_t GATE_BLOCKS = 4;

  // Multiplies the part of the rows from `first` on with panel `of_weights`, for the gates or for panel `panel` of y.
  template <bool GATES>
  void multiply_part(int64_t panel, int64_t of_weights, int64_t first, const Weight* ahead) {
    const int64_t last = std::min(rows_, first + part_);
    const BFloat16* packed;
    Turning<Kind> turning;
    if constexpr (TURNED) {
      turning = {p_.panel(of_weights), turned_.data()};
      packed = turned_.data();
    } else {
      packed = p_.panel(of_weights);
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
        leaving_ = {&p_, sums, gates, y, count, of_weights * PANEL, panel * PANEL};
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

// Multiplies all rows with all panels of y.
template <bool GATED, class Kind>
void multiply_by_amx(const Product<Kind>& product, int64_t rows, int64_t panels) {
  share_out(panels, [&](Tasks& tasks) {
    Multiplier<Kind, GATED> multiplier(product, rows, panels);
    tasks.each_with_next([&](int64_t panel, int64_t next) { multiplier.multiply(panel, next); });
    multiplier.finish();
  });
}

}  // namespace
