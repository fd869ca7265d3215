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
    if constexpr (!std::is_same_v<Kind, Bf16>) turn(from, input, to + input * PANEL);
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

// Adds the products of `top` plus `bottom` rows of x, at most 16 each, with the weights of `inputs` inputs to `sums`, which
// are 0 if this is the `first` chunk. Writes them after it has stored all rows of `leaving`. Inputs are loaded with a
// streaming hint, so that the weights stay in the L1 cache for the next rows.
template <class Kind>
void multiply_tiles(const Product<Kind>& p, const BFloat16* x, int64_t top, int64_t bottom, const BFloat16* weights,
                    int64_t inputs, bool first, Prefetch<Kind>& prefetch, const Turning<Kind>& turning, Leaving<Kind>& leaving,
                    Sums& sums) {
  constexpr int64_t SUMS_BYTES = sizeof sums.of[0], WEIGHTS_BYTES = 2 * PANEL * 2;
  const BFloat16* below = x + TILE_ROWS * p.x_stride;
  float *const top_sums = sums.of[0], *const bottom_sums = sums.of[TILE_ROWS];
  const int64_t x_bytes = p.x_stride * 2, rows_of_tile = (BLOCK_ROWS * TILE_INPUTS + inputs - 1) / inputs;
  if (first) {
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
  if (turning.from) turning(0);
  for (int64_t input = 0; input < inputs; input += TILE_INPUTS) {
    if (turning.from && input + TILE_INPUTS < inputs) turning(input + TILE_INPUTS);
    leaving.store(rows_of_tile);
    prefetch();
    _tile_loadd(6, weights + input * PANEL, WEIGHTS_BYTES);
    _tile_stream_loadd(4, x + input, x_bytes);
    _tile_dpbf16ps(0, 4, 6);
    prefetch();
    _tile_loadd(7, weights + input * PANEL + 2 * LANES, WEIGHTS_BYTES);
    _tile_dpbf16ps(1, 4, 7);
    prefetch();
    if (bottom) {
      _tile_stream_loadd(5, below + input, x_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    prefetch();
  }
  _tile_stored(0, top_sums, SUMS_BYTES);
  _tile_stored(1, top_sums + LANES, SUMS_BYTES);
  if (bottom) {
    _tile_stored(2, bottom_sums, SUMS_BYTES);
    _tile_stored(3, bottom_sums + LANES, SUMS_BYTES);
  }
}

// The sums of the last groups of int4 weights, for 16 rows and columns.
struct alignas(64) GroupSums {
  static constexpr int64_t COUNT = 4;
  float of[COUNT][TILE_ROWS][LANES] = {};
};

// Like `multiply_tiles`, for at most 16 rows, the columns from `column` on and int4 weights. Each group of inputs has scales,
// so its sums leave the matrix unit, and SIMD scales and adds them. That happens some groups later, because data that a
// tile has just stored cannot be loaded at once.
template <bool BOTTOM>
void multiply_groups(const Product<Int4>& p, const BFloat16* x, const BFloat16* weights, const Int4Group* groups, int64_t column,
                     int64_t inputs, bool first, int fetches, Prefetch<Int4>& prefetch, const Turning<Int4>& turning,
                     Leaving<Int4>& leaving, GroupSums& recent, float* sums) {
  const int64_t count = inputs / TILE_INPUTS, rows_of_tile = (BLOCK_ROWS + count - 1) / count;
  Lanes totals[TILE_ROWS];
#pragma GCC unroll 16
  for (int r = 0; r < TILE_ROWS; ++r) totals[r] = first ? all(0.0f) : load(sums + r * PANEL);
  auto add = [&](int64_t group) {
    const Lanes scales = load_floats(groups[group].scales + column);
#pragma GCC unroll 16
    for (int r = 0; r < TILE_ROWS; ++r)
      totals[r] = fma(load(recent.of[group % GroupSums::COUNT][r]), scales, totals[r]);
  };
  if (turning.from) turning(0);
  for (int64_t group = 0; group < count; ++group) {
    const int64_t input = group * TILE_INPUTS;
    if (turning.from && group + 1 < count) turning(input + TILE_INPUTS);
    leaving.store(rows_of_tile);
    for (int i = 0; i < fetches; ++i) prefetch();
    if (group >= GroupSums::COUNT - 1) add(group - (GroupSums::COUNT - 1));
    float(*const of_group)[LANES] = recent.of[group % GroupSums::COUNT];
    _tile_loadd(6, weights + input * PANEL + 2 * column, 2 * PANEL * 2);
    if constexpr (BOTTOM) {
      _tile_zero(2);
      _tile_stream_loadd(5, x + input, p.x_stride * 2);
      _tile_dpbf16ps(2, 5, 6);
      _tile_stored(2, of_group, sizeof *of_group);
    } else {
      _tile_zero(0);
      _tile_stream_loadd(4, x + input, p.x_stride * 2);
      _tile_dpbf16ps(0, 4, 6);
      _tile_stored(0, of_group, sizeof *of_group);
    }
  }
  for (int64_t group = std::max<int64_t>(0, count - (GroupSums::COUNT - 1)); group < count; ++group) add(group);
#pragma GCC unroll 16
  for (int r = 0; r < TILE_ROWS; ++r) store(sums + r * PANEL, totals[r]);
}

// `count` things in as few parts of at most `most` as possible, which are multiples of `unit` and about equal.
inline int64_t even_part(int64_t count, int64_t most, int64_t unit) {
  const int64_t parts = (count + most - 1) / most, part = (count + parts - 1) / parts;
  return (part + unit - 1) / unit * unit;
}

// Computes group after group of panels of y, which has `rows` rows. In a group, a chunk of inputs is multiplied for all
// panels before the next chunk, and its part of x stays in the L2 cache meanwhile (blocking as in Goto and van de Geijn,
// 2008). Sums are kept in between, in floats, so the order of a sum's products does not change. With gates, the gates are
// the first half of all weights, and a group has the gates of its panels as well.
template <class Kind, bool GATED>
class Multiplier {
 public:
  Multiplier(const Product<Kind>& product, int64_t rows, int64_t panels, int64_t group)
      : p_(product),
        rows_(rows),
        panels_(panels),
        group_(group),
        part_(even_part(rows, MOST_ROWS, BLOCK_ROWS)),
        inputs_(2 * product.pairs),
        chunk_(even_part(inputs_, MOST_INPUTS, TILE_INPUTS)) {
    if constexpr (TURNED) turned_.resize(chunk_ * PANEL);
    const size_t blocks = part_ / BLOCK_ROWS * group * (GATED ? 2 : 1);
    if (kept_.size() < blocks) kept_.resize(blocks);
  }

  // Computes the panels of group `group` of y. Prefetches the first weights of group `next` unless it is -1.
  void multiply(int64_t group, int64_t next) {
    const int64_t first = group * group_, last = std::min(panels_, first + group_);
    for (int64_t row = 0; row < rows_; row += part_) {
      Chunk<Kind> after;
      if (row + part_ < rows_)
        after = chunk(first, 0);
      else if (next >= 0)
        after = chunk(next * group_, 0);
      multiply_part(first, last, row, std::min(rows_, row + part_), after);
    }
  }

  void finish() {
    leaving_.store(BLOCK_ROWS);
    release_tiles();
  }

 private:
  static constexpr bool TURNED = !std::is_same_v<Kind, Bf16>;
  // A chunk of the inputs of so many rows, and their sums of a group, fit into the L2 cache.
  static constexpr int64_t MOST_ROWS = 256;

  // The weights of the inputs from `input` on in panel `panel` of all weights.
  Chunk<Kind> chunk(int64_t panel, int64_t input) const {
    return {p_.panel(panel) + input / Kind::INPUTS * Kind::WEIGHTS, std::min(chunk_, inputs_ - input)};
  }

  // Computes panels `first` to `last` - 1 for rows `begin` to `end` - 1. Prefetches chunk `after`.
  void multiply_part(int64_t first, int64_t last, int64_t begin, int64_t end, const Chunk<Kind>& after) {
    constexpr int64_t EACH = GATED ? 2 : 1;
    const int64_t count = (last - first) * EACH;
    auto weights_of = [&](int64_t i) { return GATED && i % 2 ? panels_ + first + i / 2 : first + i / EACH; };
    for (int64_t input = 0; input < inputs_; input += chunk_)
      for (int64_t i = 0; i < count; ++i) {
        const Chunk<Kind> next = i + 1 < count              ? chunk(weights_of(i + 1), input)
                                 : input + chunk_ < inputs_ ? chunk(first, input + chunk_)
                                                            : after;
        multiply_chunk(i, first + i / EACH, weights_of(i), input, begin, end, next);
      }
  }

  // Multiplies the inputs from `input` on with panel `weights` of all weights, which is number `i` of the group and belongs to
  // panel `panel` of y.
  void multiply_chunk(int64_t i, int64_t panel, int64_t weights, int64_t input, int64_t begin, int64_t end,
                      const Chunk<Kind>& next) {
    const Chunk<Kind> now = chunk(weights, input);
    const int64_t blocks = (end - begin + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const bool gates = GATED && i % 2 == 0, ends = input + chunk_ >= inputs_;
    const bool kept = gates || chunk_ < inputs_;
    Prefetch<Kind> prefetch(next, blocks * (now.inputs / TILE_INPUTS));
    const BFloat16* packed;
    Turning<Kind> turning;
    if constexpr (TURNED) {
      turning = {now.weights, turned_.data()};
      packed = turned_.data();
    } else {
      packed = now.weights;
    }
    for (int64_t block = 0; block < blocks; ++block, turning = {}) {
      const int64_t row = begin + block * BLOCK_ROWS, count = std::min(BLOCK_ROWS, end - row);
      const int64_t top = std::min(TILE_ROWS, count);
      Sums& sums = kept ? kept_[i * blocks + block] : sums_;
      shape(top, count - top);
      const BFloat16* const x = p_.x + row * p_.x_stride + input;
      if constexpr (std::is_same_v<Kind, Int4>) {
        const int fetches = count > top ? 1 : 2;
        for (int64_t column = 0; column < PANEL; column += LANES, turning = {}) {
          multiply_groups<false>(p_, x, packed, now.weights, column, now.inputs, input == 0, fetches, prefetch, turning,
                                 leaving_, recent_, sums.of[0] + column);
          if (count > top)
            multiply_groups<true>(p_, x + TILE_ROWS * p_.x_stride, packed, now.weights, column, now.inputs, input == 0, fetches,
                                  prefetch, {}, leaving_, recent_, sums.of[TILE_ROWS] + column);
        }
      } else {
        multiply_tiles(p_, x, top, count - top, packed, now.inputs, input == 0, prefetch, turning, leaving_, sums);
      }
      leaving_ = {};
      if (ends && !gates) {
        BFloat16* const y = p_.y + row * p_.y_stride + panel * PANEL;
        const Sums* const of_gates = GATED ? &kept_[(i - 1) * blocks + block] : nullptr;
        leaving_ = {&p_, &sums, of_gates, y, count, weights * PANEL, panel * PANEL};
      }
    }
  }

  void shape(int64_t top, int64_t bottom) {
    if (shaped_ != top + bottom) load_shapes(product_tiles(top, bottom));
    shaped_ = top + bottom;
  }

  // Sums that are kept for later chunks, or until those that they are the gates of are complete: 128 KB at most. To allocate
  // them for each product would take longer than some products.
  inline static thread_local std::vector<Sums> kept_;

  const Product<Kind>& p_;
  const int64_t rows_, panels_, group_, part_, inputs_, chunk_;
  std::vector<BFloat16> turned_;
  GroupSums recent_;
  Sums sums_;
  Leaving<Kind> leaving_;
  int64_t shaped_ = 0;
};

// Multiplies all rows with all panels of y.
template <bool GATED, class Kind>
void multiply_by_amx(const Product<Kind>& product, int64_t rows, int64_t panels) {
  // Each thread takes several groups, so that all finish together.
  constexpr int64_t MOST = GATED ? 2 : 4;
  const int64_t group = std::clamp<int64_t>(panels / (4 * ThreadPool::instance().threads()), 1, MOST);
  share_out((panels + group - 1) / group, [&](Tasks& tasks) {
    const NoDenormals no_denormals;
    Multiplier<Kind, GATED> multiplier(product, rows, panels, group);
    tasks.each_with_next([&](int64_t now, int64_t next) { multiplier.multiply(now, next); });
    multiplier.finish();
  });
}

}  // namespace
