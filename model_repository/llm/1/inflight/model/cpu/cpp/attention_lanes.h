// The two products of attention, computed with SIMD on any processor.

#pragma once

#include <array>
#include <utility>

#include "mixture.h"
#include "pages.h"

namespace {

// Computes the scores of `ROWS` queries, each `width_k` long, with the SIMD groups of tokens from `group` up to `last`,
// `AT_ONCE` groups at a time. Returns the first group that it did not compute.
template <int ROWS, int AT_ONCE>
int64_t score_lanes(const Factor* queries, const Pages& pages, int64_t group, int64_t last, float* scores) {
  for (; group + AT_ONCE <= last; group += AT_ONCE, scores += AT_ONCE * LANES) {
    const BFloat16 *keys[AT_ONCE], *next_keys[AT_ONCE], *values[AT_ONCE];
    Lanes sums[ROWS][AT_ONCE];
#pragma GCC unroll 8
    for (int l = 0; l < AT_ONCE; ++l) {
      keys[l] = pages.key_lanes(group + l);
      values[l] = pages.value_lanes(group + l);
      next_keys[l] = pages.key_lanes(std::min(group + l + AT_ONCE, pages.lanes - 1));
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) sums[r][l] = all(0.0f);
    }
    for (int64_t d = 0; d < pages.width_k; d += 2) {
#pragma GCC unroll 8
      for (int l = 0; l < AT_ONCE; ++l) {
        if (pages.first_touch) {
          _mm_prefetch(next_keys[l] + d * LANES, _MM_HINT_T0);
          _mm_prefetch(values[l] + d * LANES, _MM_HINT_T1);
        }
      }
      add_products(sums, queries + d, pages.width_k, [&](int l) { return load_pairs(keys[l] + d * LANES); });
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
      for (int l = 0; l < AT_ONCE; ++l) store(scores + r * PART_STRIDE + l * LANES, sums[r][l]);
  }
  return group;
}

template <int ROWS>
void score(const Factor* queries, const Pages& pages, int64_t first, int64_t last, float* scores) {
  const int64_t rest = score_lanes<ROWS, keys_at_once(ROWS)>(queries, pages, first, last, scores);
  score_lanes<ROWS, 1>(queries, pages, rest, last, scores + (rest - first) * LANES);
}

// Adds the values of the SIMD groups first..last, weighted by probability, to a mixture: `CHUNKS` times 16 dimensions
// from `d` on.
template <int ROWS, int CHUNKS>
void mix(const Factor* probabilities, const Pages& pages, int64_t first, int64_t last, int64_t d, const Mixture& mixture) {
  Lanes sums[ROWS][CHUNKS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < CHUNKS; ++c) sums[r][c] = all(0.0f);
  for (int64_t group = first; group < last; ++group) {
    const BFloat16* values = pages.value_lanes(group) + d * 2;
    const BFloat16* next_values = pages.value_lanes(std::min(group + 1, last - 1)) + d * 2;
    for (int64_t token = 0; token < LANES; token += 2, values += 2 * pages.width_v, next_values += 2 * pages.width_v) {
#pragma GCC unroll 8
      for (int c = 0; c < CHUNKS; ++c) _mm_prefetch(next_values + c * 2 * LANES, _MM_HINT_T0);
      add_products(sums, probabilities + (group - first) * LANES + token, PART_STRIDE,
                   [&](int c) { return load_pairs(values + c * 2 * LANES); });
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < CHUNKS; ++c) mixture.add(r, d + c * LANES, sums[r][c]);
}

template <int ROWS>
void mix(const Factor* probabilities, const Pages& pages, int64_t first, int64_t last, const Mixture& mixture) {
  constexpr int WIDE = values_at_once(ROWS);
  int64_t d = 0;
  for (; d + WIDE * LANES <= pages.width_v; d += WIDE * LANES)
    mix<ROWS, WIDE>(probabilities, pages, first, last, d, mixture);
  for (; d < pages.width_v; d += LANES) mix<ROWS, 1>(probabilities, pages, first, last, d, mixture);
}

// The two products for a fixed number of rows.
struct Kernel {
  void (*score)(const Factor*, const Pages&, int64_t, int64_t, float*);
  void (*mix)(const Factor*, const Pages&, int64_t, int64_t, const Mixture&);
};

template <int... BEFORE>
constexpr std::array<Kernel, MAX_QUERIES> kernels(std::integer_sequence<int, BEFORE...>) {
  return {{{score<BEFORE + 1>, mix<BEFORE + 1>}...}};
}

// The two products for up to `ROWS` rows.
struct ByLanes {
  static constexpr int64_t ROWS = MAX_QUERIES;
  static constexpr auto KERNELS = kernels(std::make_integer_sequence<int, MAX_QUERIES>());

  void score(const Factor* queries, int64_t rows, const Pages& pages, int64_t first, int64_t last, float* scores) const {
    KERNELS[rows - 1].score(queries, pages, first, last, scores);
  }

  void mix(const Factor* probabilities, int64_t rows, const Pages& pages, int64_t first, int64_t last,
           const Mixture& mixture) const {
    KERNELS[rows - 1].mix(probabilities, pages, first, last, mixture);
  }
};

}  // namespace
