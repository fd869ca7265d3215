// What the kernels share. Lanes are sixteen floats side by side; pairs are two neighbouring bf16 for each of them.
//
// A product multiplies both of a pair with two others and adds them to the float of the lane. So what is summed over lies
// in pairs, and what is computed side by side lies in lanes. What pairs are multiplied with are factors, bf16 or floats:
// that, and how lanes are computed, is up to the processor.

#pragma once

#include <ATen/Parallel.h>
#include <immintrin.h>

#include <algorithm>
#include <atomic>

using at::BFloat16;
using at::Tensor;

constexpr int64_t LANES = 16;
constexpr int64_t ROWS_OF_A_THREAD = 32;  // Fewer are not worth the second thread's start.

#if defined(__AVX512BF16__)
#include "avx512_bf16.h"
#elif defined(__AVX512F__)
#include "avx512_float.h"
#else
#include "avx2.h"
#endif

// Those of sixteen lanes that are below `count`.
inline Mask lanes_below(int64_t count) { return (Mask)((1u << std::clamp<int64_t>(count, 0, LANES)) - 1); }

constexpr float LOG2_E = 1.44269504f;

// 2^x to about 3 ulp, by a polynomial for its fraction whose largest error is the least there is.
inline Lanes two_to(Lanes x) {
  const Lanes r = fraction(x);
  Lanes p = all(1.8745128e-3f);
  for (const float c : {9.0007987e-3f, 5.5811651e-2f, 2.4016152e-1f, 6.9315135e-1f, 1.0f}) p = fma(p, r, all(c));
  return times_two_to_floor(p, x);
}

// x / (1 + e^-x). Where e^-x is too large for a float it is 0.
inline Lanes silu(Lanes x) { return x / (all(1.0f) + two_to(x * all(-LOG2_E))); }

// Calls `work` on every thread with a function that gives out the numbers below `count`, and `count` when none is left.
// Each takes the next one when it is free, as another process may have taken its processor for a while.
template <class Work>
void share_out(int64_t count, const Work& work) {
  std::atomic<int64_t> next{0};
  const auto take = [&] { return std::min(next++, count); };
  at::parallel_for(0, std::min<int64_t>(count, at::get_num_threads()), 1, [&](int64_t, int64_t) { work(take); });
}
