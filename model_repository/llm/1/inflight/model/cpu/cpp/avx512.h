// A SIMD group of 16 lanes in one AVX512 register.

#pragma once

using Lanes = __m512;
using Mask = __mmask16;

// Sums, weights and an input must fit into 32 registers.
constexpr int MAX_ROWS = 12;
constexpr int MAX_QUERIES = 8;
constexpr int keys_at_once(int queries) { return queries <= 2 ? 4 : queries <= 4 ? 3 : 2; }
constexpr int values_at_once(int queries) { return queries <= 6 ? 4 : 2; }

inline Lanes all(float value) { return _mm512_set1_ps(value); }
inline Lanes load(const float* from) { return _mm512_loadu_ps(from); }
inline void store(float* to, Lanes value) { _mm512_storeu_ps(to, value); }
inline Lanes fma(Lanes a, Lanes b, Lanes c) { return _mm512_fmadd_ps(a, b, c); }
inline Lanes maximum(Lanes a, Lanes b) { return _mm512_max_ps(a, b); }
inline Lanes fraction(Lanes a) { return _mm512_reduce_ps(a, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
inline Lanes times_two_to_floor(Lanes a, Lanes power) { return _mm512_scalef_ps(a, power); }
inline float sum_of(Lanes a) { return _mm512_reduce_add_ps(a); }
inline float largest_of(Lanes a) { return _mm512_reduce_max_ps(a); }

inline Mask less(Lanes a, Lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ); }
inline Mask equal(Lanes a, Lanes b) { return _mm512_cmp_ps_mask(a, b, _CMP_EQ_OQ); }
inline Mask not_a_number(Lanes a) { return _mm512_cmp_ps_mask(a, a, _CMP_UNORD_Q); }
inline Lanes select(Mask mask, Lanes yes, Lanes no) { return _mm512_mask_mov_ps(no, mask, yes); }

// Stores the lanes of `mask` next to each other and returns their number. It writes 16 floats, of which the rest are 0:
// the instruction that writes only what is needed takes many times as long on Zen 4.
inline int64_t store_some(float* to, Lanes value, Mask mask) {
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(mask, value));
  return __builtin_popcount(mask);
}

inline Lanes load_floats(const float* from) { return load(from); }
inline Lanes to_floats(__m256i bf16) { return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bf16), 16)); }

inline Lanes load_floats(const BFloat16* from) { return to_floats(_mm256_loadu_si256((const __m256i*)from)); }

inline Lanes load_floats(const BFloat16* from, Mask lanes) { return to_floats(_mm256_maskz_loadu_epi16(lanes, from)); }

// Stores 16 numbers as the first elements of 16 pairs. The second elements stay as they are.
inline void store_first_of_pairs(BFloat16* to, const BFloat16* from) {
  const __m512i spread = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
  _mm512_mask_storeu_epi16(to, 0x55555555, spread);
}

inline __m256i to_bf16(Lanes value);

inline void store_bf16(BFloat16* to, Lanes value) { _mm256_storeu_si256((__m256i*)to, to_bf16(value)); }

inline void store_bf16(BFloat16* to, Lanes value, Mask lanes) { _mm256_mask_storeu_epi16(to, lanes, to_bf16(value)); }
