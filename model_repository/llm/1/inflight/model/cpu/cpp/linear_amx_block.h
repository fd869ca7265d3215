// A block of a product by Intel's matrix unit: up to 32 rows by the 32 columns of a panel, for some inputs. And what a thread
// does meanwhile: it fetches and converts weights, and stores the results of the block before. A tile of weights is 16 pairs
// of inputs by 16 columns.

#pragma once

#include <type_traits>

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

// Inputs that are multiplied with all rows before the next ones follow. Their weights are 40 KB of a panel at most, so they
// stay in the L1 cache meanwhile.
constexpr int64_t MOST_INPUTS = 640;

// The weights of some inputs of a panel.
template <class Kind>
struct Chunk {
  const typename Kind::Weight* weights = nullptr;
  int64_t inputs = 0;
};

// Prefetches a chunk, evenly while another one is multiplied, `CALLS` times for each tile of inputs. The loads of the products
// would wait for a burst.
template <class Kind>
class Prefetch {
 public:
  static constexpr int64_t CALLS = 4;

  Prefetch(const Chunk<Kind>& chunk, int64_t tiles)
      : at_((const char*)chunk.weights),
        end_(at_ + chunk.inputs / Kind::INPUTS * Kind::WEIGHTS * sizeof(typename Kind::Weight)),
        bytes_(((end_ - at_) / (CALLS * tiles) + 63) / 64 * 64) {}

  void operator()() {
    for (const char* const stop = std::min(end_, at_ + bytes_); at_ < stop; at_ += 64) _mm_prefetch(at_, _MM_HINT_T2);
  }

 private:
  const char *at_, *const end_;
  const int64_t bytes_;
};

// Converts the weights of a tile from int8 to bfloat16.
inline void turn(const int8_t* panel, int64_t input, BFloat16* to) {
  for (int64_t i = 0; i < TILE_INPUTS * PANEL; i += 2 * LANES)
    _mm512_storeu_si512(to + i, (__m512i)load_pairs(panel + input * PANEL + i));
}

// Converts the weights of a tile from int4 to bfloat16, without their scales.
inline void turn(const Int4Group* panel, int64_t input, BFloat16* to) {
  static_assert(TILE_INPUTS == Int4::INPUTS);
  const Int4Group& group = panel[input / TILE_INPUTS];
  for (int pair = 0; pair < TILE_INPUTS / 2; ++pair)
    for (int64_t c = 0; c < PANEL / LANES; ++c)
      _mm512_storeu_si512(to + pair * 2 * PANEL + c * 2 * LANES, (__m512i)load_pairs(group.words[c][pair / 4], pair % 4));
}

// Converts a chunk to bfloat16, one tile at a time, while the tile before it is multiplied.
template <class Kind>
struct Turning {
  const typename Kind::Weight* from = nullptr;
  BFloat16* to = nullptr;

  void operator()(int64_t input) const {
    if constexpr (!std::is_same_v<Kind, Bf16>)
      if (from) turn(from, input, to + input * PANEL);
  }
};

constexpr int64_t BLOCK_ROWS = 2 * TILE_ROWS;
struct alignas(64) Sums {
  float of[BLOCK_ROWS][PANEL];
};

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
        Lanes value = product->result(load(sums->of[stored] + half), column + half);
        if (gates) value = silu(product->result(load(gates->of[stored] + half), gate_column + half)) * value;
        store_bf16(y + stored * product->y_stride + half, value);
      }
  }
};

// What a thread does between the products of a block, tile after tile of its inputs.
template <class Kind>
struct Meanwhile {
  Prefetch<Kind> prefetch;
  Turning<Kind> turning;
  Leaving<Kind>& leaving;

  void begin() const { turning(0); }

  // Before the tile of inputs from `input` on of `inputs`.
  void next_tile(int64_t input, int64_t inputs) {
    if (input + TILE_INPUTS < inputs) turning(input + TILE_INPUTS);
    leaving.store((BLOCK_ROWS * TILE_INPUTS + inputs - 1) / inputs);
  }
};

// The operands of a block: `top` plus `bottom` rows of x, at most 16 each, and the weights of `inputs` inputs, also in
// bfloat16. The sums before are 0 if this is the `first` chunk.
template <class Kind>
struct Block {
  const BFloat16* x;
  int64_t x_stride, top, bottom;
  const typename Kind::Weight* weights;
  const BFloat16* turned;
  int64_t inputs;
  bool first;
};

// Adds the products of a block to `sums`. Writes them after it has stored all rows of the block before. Inputs are loaded with
// a streaming hint, so that the weights stay in the L1 cache for the next rows.
template <class Kind>
void multiply_block(const Block<Kind>& block, Meanwhile<Kind>& meanwhile, Sums& sums) {
  constexpr int64_t SUMS_BYTES = sizeof sums.of[0], WEIGHTS_BYTES = 2 * PANEL * 2;
  const BFloat16 *x = block.x, *below = x + TILE_ROWS * block.x_stride, *weights = block.turned;
  const int64_t x_bytes = block.x_stride * 2, inputs = block.inputs;
  const bool bottom = block.bottom > 0;
  float *const top_sums = sums.of[0], *const bottom_sums = sums.of[TILE_ROWS];
  if (block.first) {
    _tile_zero(0);
    _tile_zero(1);
    if (bottom) {
      _tile_zero(2);
      _tile_zero(3);
    }
  } else {
    _tile_loadd(0, top_sums, SUMS_BYTES);
    _tile_loadd(1, top_sums + LANES, SUMS_BYTES);
    if (bottom) {
      _tile_loadd(2, bottom_sums, SUMS_BYTES);
      _tile_loadd(3, bottom_sums + LANES, SUMS_BYTES);
    }
  }
  meanwhile.begin();
  for (int64_t input = 0; input < inputs; input += TILE_INPUTS) {
    meanwhile.next_tile(input, inputs);
    meanwhile.prefetch();
    _tile_loadd(6, weights + input * PANEL, WEIGHTS_BYTES);
    _tile_stream_loadd(4, x + input, x_bytes);
    _tile_dpbf16ps(0, 4, 6);
    meanwhile.prefetch();
    _tile_loadd(7, weights + input * PANEL + 2 * LANES, WEIGHTS_BYTES);
    _tile_dpbf16ps(1, 4, 7);
    meanwhile.prefetch();
    if (bottom) {
      _tile_stream_loadd(5, below + input, x_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    meanwhile.prefetch();
  }
  _tile_stored(0, top_sums, SUMS_BYTES);
  _tile_stored(1, top_sums + LANES, SUMS_BYTES);
  if (bottom) {
    _tile_stored(2, bottom_sums, SUMS_BYTES);
    _tile_stored(3, bottom_sums + LANES, SUMS_BYTES);
  }
}

}  // namespace
