// Pairs for AVX512 without BF16. They are multiplied as floats: first the first element of each pair, then the second.

#pragma once

#include "avx512.h"

using Pairs = __m512i;
using Factor = float;

struct BytePairs {
  __m256i bytes;
};

// Pairs of int4 weights, in the lowest bits of each half of a lane.
struct NibblePairs {
  __m512i words;
};

// Rounds to nearest, ties to even. NaN is handled separately, because the addition would overflow.
inline __m256i to_bf16(Lanes value) {
  const __m512i from = _mm512_castps_si512(value), high = _mm512_srli_epi32(from, 16);
  const __m512i even = _mm512_and_si512(high, _mm512_set1_epi32(1));
  const __m512i sum = _mm512_add_epi32(from, _mm512_add_epi32(even, _mm512_set1_epi32(0x7fff)));
  const __m512i nearest = _mm512_srli_epi32(sum, 16);
  return _mm512_cvtepi32_epi16(_mm512_mask_or_epi32(nearest, not_a_number(value), high, _mm512_set1_epi32(0x40)));
}

inline void store_factors(Factor* to, Lanes value) { store(to, value); }

inline Pairs load_pairs(const BFloat16* from) { return _mm512_loadu_si512(from); }

inline BytePairs load_pairs(const int8_t* from) { return {_mm256_loadu_si256((const __m256i*)from)}; }

// Pair number `pair` of the four in `words`.
inline NibblePairs load_pairs(const uint16_t* words, int pair) {
  return {_mm512_srli_epi32(_mm512_loadu_si512(words), 4 * pair)};
}

// The first or the second elements of all pairs, as floats.
template <bool SECOND>
inline Lanes one_of(Pairs pairs) {
  return _mm512_castsi512_ps(SECOND ? _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff0000)) : _mm512_slli_epi32(pairs, 16));
}

template <bool SECOND>
inline Lanes one_of(BytePairs pairs) {
  const __m512i words = _mm512_cvtepi8_epi16(pairs.bytes);
  return _mm512_cvtepi32_ps(_mm512_srai_epi32(SECOND ? words : _mm512_slli_epi32(words, 16), 16));
}

template <bool SECOND>
inline Lanes one_of(NibblePairs pairs) {
  const Lanes table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  return _mm512_permutexvar_ps(SECOND ? _mm512_srli_epi32(pairs.words, 16) : pairs.words, table);
}

template <bool SECOND, int ROWS, int COLUMNS, class Column>
inline void add_one_of_pairs(Lanes (&sums)[ROWS][COLUMNS], const Factor* rows, int64_t stride, const Column& column) {
  if constexpr (ROWS < COLUMNS) {
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) {
      const Lanes floats = one_of<SECOND>(column(c));
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) sums[r][c] = fma(floats, all(rows[r * stride + SECOND]), sums[r][c]);
    }
  } else {
    Lanes floats[COLUMNS];
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) floats[c] = one_of<SECOND>(column(c));
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const Lanes row = all(rows[r * stride + SECOND]);
#pragma GCC unroll 16
      for (int c = 0; c < COLUMNS; ++c) sums[r][c] = fma(floats[c], row, sums[r][c]);
    }
  }
}

// Multiplies one pair of each row with columns of pairs and adds the products to `sums`. Rows are `stride` apart;
// `column(c)` loads a column.
template <int ROWS, int COLUMNS, class Column>
inline void add_products(Lanes (&sums)[ROWS][COLUMNS], const Factor* rows, int64_t stride, const Column& column) {
  add_one_of_pairs<false>(sums, rows, stride, column);
  add_one_of_pairs<true>(sums, rows, stride, column);
}
