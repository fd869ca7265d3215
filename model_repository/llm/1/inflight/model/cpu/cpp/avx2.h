// A SIMD group of 16 lanes in two AVX2 registers. Pairs are multiplied as floats: first the first element of each pair,
// then the second.

#pragma once

#include <array>
#include <cstring>

struct Lanes {
  __m256 low, high;
};

struct Pairs {
  __m256i low, high;
};

struct BytePairs {
  __m128i low, high;
};

// Pairs of int4 weights, in the lowest bits of each half of a lane.
struct Nibbles {
  __m256i words;
};

struct NibblePairs {
  Nibbles low, high;
};

using Mask = uint16_t;
using Factor = float;

// Sums, weights and an input must fit into 16 registers.
constexpr int MAX_ROWS = 3;
constexpr int MAX_QUERIES = 4;
constexpr int keys_at_once(int queries) { return queries <= 1 ? 4 : queries <= 3 ? 2 : 1; }
constexpr int values_at_once(int queries) { return keys_at_once(queries); }

inline Lanes operator+(Lanes a, Lanes b) { return {a.low + b.low, a.high + b.high}; }
inline Lanes operator-(Lanes a, Lanes b) { return {a.low - b.low, a.high - b.high}; }
inline Lanes operator*(Lanes a, Lanes b) { return {a.low * b.low, a.high * b.high}; }
inline Lanes operator/(Lanes a, Lanes b) { return {a.low / b.low, a.high / b.high}; }

inline Lanes all(float value) { return {_mm256_set1_ps(value), _mm256_set1_ps(value)}; }
inline Lanes load(const float* from) { return {_mm256_loadu_ps(from), _mm256_loadu_ps(from + 8)}; }
inline void store(float* to, Lanes value) {
  _mm256_storeu_ps(to, value.low);
  _mm256_storeu_ps(to + 8, value.high);
}
inline Lanes fma(Lanes a, Lanes b, Lanes c) {
  return {_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}
inline Lanes maximum(Lanes a, Lanes b) { return {_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)}; }
inline Lanes fraction(Lanes a) { return {a.low - _mm256_floor_ps(a.low), a.high - _mm256_floor_ps(a.high)}; }
// Powers below -126 count as -126, and powers of 128 or more as 127.
inline Lanes times_two_to_floor(Lanes a, Lanes power) {
  const auto two_to = [](__m256 n) {
    const __m256 bounded = _mm256_min_ps(_mm256_max_ps(_mm256_floor_ps(n), _mm256_set1_ps(-126)), _mm256_set1_ps(127));
    const __m256i exponent = _mm256_add_epi32(_mm256_cvtps_epi32(bounded), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(exponent, 23));
  };
  return a * Lanes{two_to(power.low), two_to(power.high)};
}
inline float sum_of(Lanes a) {
  const __m256 eight = a.low + a.high;
  __m128 four = _mm256_castps256_ps128(eight) + _mm256_extractf128_ps(eight, 1);
  four = four + _mm_movehl_ps(four, four);
  return _mm_cvtss_f32(_mm_add_ss(four, _mm_movehdup_ps(four)));
}
inline float largest_of(Lanes a) {
  const __m256 eight = _mm256_max_ps(a.low, a.high);
  __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  four = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(four, _mm_movehdup_ps(four)));
}

template <int HOW>
inline Mask compare(Lanes a, Lanes b) {
  return _mm256_movemask_ps(_mm256_cmp_ps(a.low, b.low, HOW)) | _mm256_movemask_ps(_mm256_cmp_ps(a.high, b.high, HOW)) << 8;
}
inline Mask less(Lanes a, Lanes b) { return compare<_CMP_LT_OQ>(a, b); }
inline Mask equal(Lanes a, Lanes b) { return compare<_CMP_EQ_OQ>(a, b); }
inline Mask not_a_number(Lanes a) { return compare<_CMP_UNORD_Q>(a, a); }
inline Lanes select(Mask mask, Lanes yes, Lanes no) {
  const auto lanes = [mask](int first) {
    const __m256i bit = _mm256_sllv_epi32(_mm256_set1_epi32(1 << first), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(_mm256_set1_epi32(mask), bit), bit));
  };
  return {_mm256_blendv_ps(no.low, yes.low, lanes(0)), _mm256_blendv_ps(no.high, yes.high, lanes(8))};
}

// For each mask of 8 lanes: its lanes in order, a byte for each.
constexpr std::array<uint64_t, 256> LANES_OF_MASK = [] {
  std::array<uint64_t, 256> lanes{};
  for (int mask = 0; mask < 256; ++mask)
    for (int lane = 7; lane >= 0; --lane)
      if (mask >> lane & 1) lanes[mask] = lanes[mask] << 8 | lane;
  return lanes;
}();

// Stores the lanes of `mask` next to each other and returns their number. It writes up to 16 floats; those behind the
// stored lanes mean nothing.
inline int64_t store_some(float* to, Lanes value, Mask mask) {
  const auto packed = [](__m256 of, int lanes) {
    return _mm256_permutevar8x32_ps(of, _mm256_cvtepu8_epi32(_mm_cvtsi64_si128((int64_t)LANES_OF_MASK[lanes])));
  };
  const int low = mask & 0xff, high = mask >> 8, first = __builtin_popcount(low);
  _mm256_storeu_ps(to, packed(value.low, low));
  _mm256_storeu_ps(to + first, packed(value.high, high));
  return first + __builtin_popcount(high);
}

inline Lanes load_floats(const BFloat16* from) {
  const auto half = [](const BFloat16* of) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)of)), 16));
  };
  return {half(from), half(from + 8)};
}

inline Lanes load_floats(const float* from) { return load(from); }

// `lanes` must be the first lanes without a gap.
inline Lanes load_floats(const BFloat16* from, Mask lanes) {
  if (lanes == 0xffff) return load_floats(from);
  BFloat16 some[LANES] = {};
  std::memcpy(some, from, __builtin_popcount(lanes) * sizeof *from);
  return load_floats(some);
}

// Stores 16 numbers as the first elements of 16 pairs. The second elements stay as they are.
inline void store_first_of_pairs(BFloat16* to, const BFloat16* from) {
  for (int64_t i = 0; i < LANES; ++i) to[2 * i] = from[i];
}

inline void store_bf16(BFloat16* to, Lanes value) {
  // Rounds to nearest, ties to even. NaN is handled separately, because the addition would overflow.
  const auto bits = [](__m256 floats) {
    const __m256i from = _mm256_castps_si256(floats), high = _mm256_srli_epi32(from, 16);
    const __m256i even = _mm256_and_si256(high, _mm256_set1_epi32(1));
    const __m256i sum = _mm256_add_epi32(from, _mm256_add_epi32(even, _mm256_set1_epi32(0x7fff)));
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(floats, floats, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(high, _mm256_set1_epi32(0x40));
    return _mm256_blendv_epi8(_mm256_srli_epi32(sum, 16), quiet, is_nan);
  };
  const __m256i mixed = _mm256_packus_epi32(bits(value.low), bits(value.high));
  _mm256_storeu_si256((__m256i*)to, _mm256_permute4x64_epi64(mixed, 0b11011000));
}

// `lanes` must be the first lanes without a gap.
inline void store_bf16(BFloat16* to, Lanes value, Mask lanes) {
  if (lanes == 0xffff) return store_bf16(to, value);
  BFloat16 some[LANES];
  store_bf16(some, value);
  std::memcpy(to, some, __builtin_popcount(lanes) * sizeof *to);
}

inline void store_factors(Factor* to, Lanes value) { store(to, value); }

inline Pairs load_pairs(const BFloat16* from) {
  return {_mm256_loadu_si256((const __m256i*)from), _mm256_loadu_si256((const __m256i*)(from + LANES))};
}

inline BytePairs load_pairs(const int8_t* from) {
  return {_mm_loadu_si128((const __m128i*)from), _mm_loadu_si128((const __m128i*)(from + LANES))};
}

// Pair number `pair` of the four in `words`.
inline NibblePairs load_pairs(const uint16_t* words, int pair) {
  const auto nibbles = [pair](const uint16_t* of) {
    return Nibbles{_mm256_srli_epi32(_mm256_loadu_si256((const __m256i*)of), 4 * pair)};
  };
  return {nibbles(words), nibbles(words + LANES)};
}

// The first or the second elements of all pairs, as floats.
template <bool SECOND>
inline __m256 one_of(__m256i pairs) {
  return _mm256_castsi256_ps(SECOND ? _mm256_and_si256(pairs, _mm256_set1_epi32(0xffff0000)) : _mm256_slli_epi32(pairs, 16));
}

template <bool SECOND>
inline __m256 one_of(__m128i pairs) {
  const __m256i words = _mm256_cvtepi8_epi16(pairs);
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(SECOND ? words : _mm256_slli_epi32(words, 16), 16));
}

template <bool SECOND>
inline __m256 one_of(Nibbles pairs) {
  return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(pairs.words, SECOND ? 12 : 28), 28));
}

template <bool SECOND, int ROWS, int COLUMNS, class Column>
inline void add_one_of_pairs(Lanes (&sums)[ROWS][COLUMNS], const Factor* rows, int64_t stride, const Column& column) {
#pragma GCC unroll 16
  for (int c = 0; c < COLUMNS; ++c) {
    const auto pairs = column(c);
    const __m256 low = one_of<SECOND>(pairs.low), high = one_of<SECOND>(pairs.high);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) {
      asm volatile("" ::: "memory");  // Keeps the compiler from loading rows early, as it would run out of registers.
      const __m256 row = _mm256_set1_ps(rows[r * stride + SECOND]);
      // In assembly, as compilers move sums between registers, of which there are too few, and so store some.
      asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sums[r][c].low) : "x"(low), "x"(row));
      asm volatile("vfmadd231ps %2, %1, %0" : "+x"(sums[r][c].high) : "x"(high), "x"(row));
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
