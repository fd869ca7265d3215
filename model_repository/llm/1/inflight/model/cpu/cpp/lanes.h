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
inline Mask lanes_below(int64_t count) { return count >= LANES ? 0xffff : (Mask)((1u << count) - 1); }

// e^x to about 2 ulp for x <= 0, by 2^n * p(r): Cephes' polynomial.
inline Lanes exp_nonpositive(Lanes x) {
  x = maximum(x, all(-87.0f));
  const Lanes n = rounded(x * all(1.44269504f));
  Lanes r = fma(n, all(-0.693359375f), x);
  r = fma(n, all(2.12194440e-4f), r);
  Lanes p = all(1.9875691500e-4f);
  for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = fma(p, r, all(c));
  p = fma(p * r, r, r + all(1.0f));
  return times_power_of_two(p, n);
}

// x / (1 + e^-x). Of e^-|x| nothing overflows: 1 / (1 + e^-x) is e^x / (1 + e^x).
inline Lanes silu(Lanes x) {
  const Lanes zero = all(0.0f), one = all(1.0f), e = exp_nonpositive(zero - absolute(x));
  return x * (select(less(x, zero), e, one) / (one + e));
}

// Calls `work` on every thread with a function that gives out the numbers below `count`, and `count` when none is left.
// Each takes the next one when it is free, as another process may have taken its processor for a while.
template <class Work>
void share_out(int64_t count, const Work& work) {
  std::atomic<int64_t> next{0};
  const auto take = [&] { return std::min(next++, count); };
  at::parallel_for(0, std::min<int64_t>(count, at::get_num_threads()), 1, [&](int64_t, int64_t) { work(take); });
}
