// The operands of a product, and the kinds of weights.

#pragma once

#include <type_traits>

#include "lanes.h"

namespace {

constexpr int64_t PANEL = 2 * LANES;

struct Bf16 {
  using Weight = BFloat16;
};

// Weights are integers up to 127, with a scale for each column.
struct Int8 {
  using Weight = int8_t;
};

// The operands: first rows and strides of the input x and the output y, packed weights, their scales if they are int8, and
// the bias of each column if there is one.
template <class Kind>
struct Product {
  const BFloat16* x;
  int64_t x_stride;
  const typename Kind::Weight* weights;
  int64_t pairs;
  BFloat16* y;
  int64_t y_stride;
  const float *scales, *bias;

  // The result for the sums of the columns from `column` on.
  Lanes result(Lanes sum, int64_t column) const {
    if constexpr (std::is_same_v<Kind, Int8>) sum = sum * load(scales + column);
    return bias ? sum + load(bias + column) : sum;
  }
};

}  // namespace
