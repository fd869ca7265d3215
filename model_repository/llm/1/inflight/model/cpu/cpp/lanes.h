// What the kernels share. A lane is one of the sixteen floats of a register.
//
// `dpbf16` multiplies two neighbouring bf16 of a lane with two others and adds both products to the lane's float. So what
// is summed over lies in pairs, and what is computed side by side lies in lanes.

#pragma once

#include <ATen/Parallel.h>
#include <immintrin.h>

#include <algorithm>
#include <atomic>

using at::BFloat16;
using at::Tensor;

constexpr int64_t LANES = 16;
constexpr int64_t ROWS_OF_A_THREAD = 32;  // Fewer are not worth the second thread's start.


inline __m512bh load_pairs(const BFloat16* from) { return (__m512bh)_mm512_loadu_si512(from); }

inline __m512bh repeat_pair(const BFloat16* pair) {
  return (__m512bh)_mm512_set1_epi32(*reinterpret_cast<const int32_t*>(pair));
}

inline void store_bf16(BFloat16* to, __m512 value) { _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(value)); }

inline __m512 load_floats(const BFloat16* from, __mmask16 lanes = 0xffff) {
  const __m256i bits = _mm256_maskz_loadu_epi16(lanes, from);
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
}

inline void store_floats(BFloat16* to, __m512 value, __mmask16 lanes) {
  _mm256_mask_storeu_epi16(to, lanes, (__m256i)_mm512_cvtneps_pbh(value));
}

// Those of sixteen lanes that are below `count`.
inline __mmask16 lanes_below(int64_t count) { return count >= LANES ? 0xffff : (__mmask16)((1u << count) - 1); }

// e^x to about 2 ulp for x <= 0, by 2^n * p(r): Cephes' polynomial.
inline __m512 exp_nonpositive(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  return _mm512_scalef_ps(p, n);
}

// Calls `work` on every thread with a function that gives out the numbers below `count`, and `count` when none is left.
// Each takes the next one when it is free, as another process may have taken its processor for a while.
template <class Work>
void share_out(int64_t count, const Work& work) {
  std::atomic<int64_t> next{0};
  const auto take = [&] { return std::min(next++, count); };
  at::parallel_for(0, std::min<int64_t>(count, at::get_num_threads()), 1, [&](int64_t, int64_t) { work(take); });
}
