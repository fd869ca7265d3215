// Pairs for AVX512 with the extension BF16, which multiplies pairs in one instruction.

#pragma once

#include "avx512.h"

using Pairs = __m512bh;
using Factor = BFloat16;

inline __m256i to_bf16(Lanes value) { return (__m256i)_mm512_cvtneps_pbh(value); }

inline void store_factors(Factor* to, Lanes value) { store_bf16(to, value); }

inline Pairs load_pairs(const BFloat16* from) { return (Pairs)_mm512_loadu_si512(from); }

// Converts int8 weights to bfloat16, which represents integers up to 127 exactly.
inline Pairs load_pairs(const int8_t* from) {
  const auto floats = [](const int8_t* of) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)of)));
  };
  return _mm512_cvtne2ps_pbh(floats(from + LANES), floats(from));
}

// Converts pair number `pair` of the four in `words` from int4 to bfloat16. The table has the 16 values twice, because the
// index is the lowest five bits of a word, and the fifth is a bit of another weight.
inline Pairs load_pairs(const uint16_t* words, int pair) {
  const __m512i table = _mm512_broadcast_i64x4(_mm256_setr_epi32(0x3f800000, 0x40404000, 0x40a04080, 0x40e040c0,  // 0 to 7
                                                                 0xc0e0c100, 0xc0a0c0c0, 0xc040c080, 0xbf80c000));
  return (Pairs)_mm512_permutexvar_epi16(_mm512_srli_epi16(_mm512_loadu_si512(words), 4 * pair), table);
}

inline Pairs repeat_pair(const BFloat16* pair) { return (Pairs)_mm512_set1_epi32(*reinterpret_cast<const int32_t*>(pair)); }

// Multiplies one pair of each row with columns of pairs and adds the products to `sums`. Rows are `stride` apart;
// `column(c)` loads a column.
template <int ROWS, int COLUMNS, class Column>
inline void add_products(Lanes (&sums)[ROWS][COLUMNS], const BFloat16* rows, int64_t stride, const Column& column) {
  if constexpr (ROWS < COLUMNS) {
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) {
      const Pairs pairs = column(c);
#pragma GCC unroll 16
      for (int r = 0; r < ROWS; ++r) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], pairs, repeat_pair(rows + r * stride));
    }
  } else {
    Pairs pairs[COLUMNS];
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) pairs[c] = column(c);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      const Pairs row = repeat_pair(rows + r * stride);
#pragma GCC unroll 16
      for (int c = 0; c < COLUMNS; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], pairs[c], row);
    }
  }
}
