// Definitions that all kernels share.
//
// `Lanes` is a SIMD group of 16 floats. `Pairs` is a pair of neighbouring bf16 numbers for each of these lanes. A product
// multiplies both elements of a pair with two factors and adds the results to the float of the lane. So the dimension of
// the sum is stored in pairs, and the dimension that is computed in parallel is stored in lanes. A `Factor` is a bf16 or
// a float, depending on the processor, and so is the implementation of the operations.

#pragma once

#include <ATen/core/Tensor.h>
#include <immintrin.h>

#include <algorithm>

#include "thread_pool.h"

using at::BFloat16;
using at::Tensor;

constexpr int64_t LANES = 16;
constexpr int64_t ROWS_OF_A_THREAD = 32;  // With fewer rows, starting a second thread costs more than it saves.

#if defined(__AVX512BF16__)
#include "avx512_bf16.h"
#elif defined(__AVX512F__)
#include "avx512_float.h"
#else
#include "avx2.h"
#endif

// The mask of the lanes 0 to `count` - 1.
inline Mask lanes_below(int64_t count) { return (Mask)((1u << std::clamp<int64_t>(count, 0, LANES)) - 1); }

constexpr float LOG2_E = 1.44269504f;

// 2^x to about 3 ulp. A minimax polynomial computes the power of the fraction of x.
inline Lanes two_to(Lanes x) {
  const Lanes r = fraction(x);
  Lanes p = all(1.8745128e-3f);
  for (const float c : {9.0007987e-3f, 5.5811651e-2f, 2.4016152e-1f, 6.9315135e-1f, 1.0f}) p = fma(p, r, all(c));
  return times_two_to_floor(p, x);
}

// x / (1 + e^-x). The result is 0 if e^-x is too large for a float.
inline Lanes silu(Lanes x) { return x / (all(1.0f) + two_to(x * all(-LOG2_E))); }

// The hyperbolic tangent, with an absolute error of about 1e-7.
inline Lanes tanh_of(Lanes x) { return all(1.0f) - all(2.0f) / (all(1.0f) + two_to(x * all(2 * LOG2_E))); }
