// The two products of attention, computed by Intel's matrix unit.

#pragma once

#include "amx.h"
#include "mixture.h"
#include "pages.h"

namespace {

constexpr int64_t DIMENSIONS = 32;  // The number of dimensions in a tile of keys.

// Tiles 0 to 3 hold sums, tile 4 queries, tile 5 probabilities of the tokens of one SIMD group, tile 6 keys, tile 7 values.
inline TileShapes attention_tiles(int64_t rows) {
  return TileShapes({{rows, 64}, {rows, 64}, {rows, 64}, {rows, 64}, {rows, 64}, {rows, 32}, {16, 64}, {8, 64}});
}

// Prefetches the next keys in memory and the values of the current keys.
inline void prefetch_tiles(const BFloat16* next_keys, const BFloat16* values) {
  for (int64_t i = 0; i < DIMENSIONS * LANES; i += 2 * LANES) {
    _mm_prefetch(next_keys + i, _MM_HINT_T0);
    _mm_prefetch(values + i, _MM_HINT_T0);
  }
}

// Computes the scores with `COUNT` SIMD groups of tokens, at most four. Prefetches their values and the keys of as many
// groups after them.
template <int COUNT>
void score_lane_tiles(const BFloat16* queries, const Pages& pages, int64_t group, float* scores) {
  const BFloat16 *keys[COUNT], *next_keys[COUNT], *values[COUNT];
  for (int64_t l = 0; l < COUNT; ++l) {
    keys[l] = pages.key_lanes(group + l);
    next_keys[l] = pages.key_lanes(std::min(group + l + COUNT, pages.lanes - 1));
    values[l] = pages.value_lanes(group + l);
  }
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t d = 0; d < pages.width_k; d += DIMENSIONS) {
    const int64_t tile = d * LANES;
    _tile_loadd(4, queries + d, pages.width_k * 2);
    _tile_loadd(6, keys[0] + tile, 64);
    if (pages.first_touch) prefetch_tiles(next_keys[0] + tile, values[0] + tile);
    _tile_dpbf16ps(0, 4, 6);
    if constexpr (COUNT > 1) {
      _tile_loadd(6, keys[1] + tile, 64);
      if (pages.first_touch) prefetch_tiles(next_keys[1] + tile, values[1] + tile);
      _tile_dpbf16ps(1, 4, 6);
    }
    if constexpr (COUNT > 2) {
      _tile_loadd(6, keys[2] + tile, 64);
      if (pages.first_touch) prefetch_tiles(next_keys[2] + tile, values[2] + tile);
      _tile_dpbf16ps(2, 4, 6);
    }
    if constexpr (COUNT > 3) {
      _tile_loadd(6, keys[3] + tile, 64);
      if (pages.first_touch) prefetch_tiles(next_keys[3] + tile, values[3] + tile);
      _tile_dpbf16ps(3, 4, 6);
    }
  }
  _tile_stored(0, scores, PART_STRIDE * 4);
  if constexpr (COUNT > 1) _tile_stored(1, scores + LANES, PART_STRIDE * 4);
  if constexpr (COUNT > 2) _tile_stored(2, scores + 2 * LANES, PART_STRIDE * 4);
  if constexpr (COUNT > 3) _tile_stored(3, scores + 3 * LANES, PART_STRIDE * 4);
}

// Computes the scores as in attention_lanes.h, for as many rows as the tiles have.
inline void score_tiles(const BFloat16* queries, const Pages& pages, int64_t first, int64_t last, float* scores) {
  static constexpr decltype(&score_lane_tiles<4>) REST[] = {nullptr, score_lane_tiles<1>, score_lane_tiles<2>,
                                                            score_lane_tiles<3>};
  int64_t group = first;
  for (; group + 4 <= last; group += 4) score_lane_tiles<4>(queries, pages, group, scores + (group - first) * LANES);
  if (group < last) REST[last - group](queries, pages, group, scores + (group - first) * LANES);
}

// Adds values by probability as in attention_lanes.h, for as many rows as the tiles have.
inline void mix_tiles(const BFloat16* probabilities, int64_t rows, const Pages& pages, int64_t first, int64_t last,
                      const Mixture& mixture) {
  const int64_t pair_bytes = pages.width_v * 4;
  alignas(64) float sums[16][4 * LANES];
  for (int64_t d = 0; d < pages.width_v; d += 4 * LANES) {
    const int64_t chunks = std::min<int64_t>(4, (pages.width_v - d) / LANES);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t group = first; group < last; ++group) {
      const BFloat16* values = pages.value_lanes(group) + d * 2;
      _tile_loadd(5, probabilities + (group - first) * LANES, PART_STRIDE * 2);
      _tile_loadd(7, values, pair_bytes);
      _tile_dpbf16ps(0, 5, 7);
      if (chunks > 1) {
        _tile_loadd(7, values + 2 * LANES, pair_bytes);
        _tile_dpbf16ps(1, 5, 7);
      }
      if (chunks > 2) {
        _tile_loadd(7, values + 4 * LANES, pair_bytes);
        _tile_dpbf16ps(2, 5, 7);
      }
      if (chunks > 3) {
        _tile_loadd(7, values + 6 * LANES, pair_bytes);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, sums[0], sizeof sums[0]);
    _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
    _tile_stored(2, sums[0] + 2 * LANES, sizeof sums[0]);
    _tile_stored(3, sums[0] + 3 * LANES, sizeof sums[0]);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < chunks; ++c)
        mixture.add(r, d + c * LANES, load(sums[r] + c * LANES));
  }
}

// The two products for up to `ROWS` rows. A few rows also use the matrix unit, although SIMD is a little faster for them:
// the sums of a row must not depend on the number of other rows.
class ByAmx {
 public:
  static constexpr int64_t ROWS = 16;

  ByAmx() = default;
  ByAmx(const ByAmx&) = delete;
  ByAmx& operator=(const ByAmx&) = delete;
  ~ByAmx() {
    if (shaped_) release_tiles();
  }

  void score(const BFloat16* queries, int64_t rows, const Pages& pages, int64_t first, int64_t last, float* scores) {
    shape(rows);
    score_tiles(queries, pages, first, last, scores);
  }

  void mix(const BFloat16* probabilities, int64_t rows, const Pages& pages, int64_t first, int64_t last,
           const Mixture& mixture) const {
    mix_tiles(probabilities, rows, pages, first, last, mixture);
  }

 private:
  void shape(int64_t rows) {
    if (shaped_ != rows) load_shapes(attention_tiles(rows));
    shaped_ = rows;
  }

  int64_t shaped_ = 0;
};

}  // namespace
