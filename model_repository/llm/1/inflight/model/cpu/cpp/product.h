// The operands of a product, and the kinds of weights.

#pragma once

#include "lanes.h"

namespace {

constexpr int64_t PANEL = 2 * LANES;

struct Bf16 {
  using Weight = BFloat16;
  static Lanes scaled(Lanes sum, const float*) { return sum; }
};

// Weights are integers up to 127, with a scale for each column.
struct Int8 {
  using Weight = int8_t;
  static Lanes scaled(Lanes sum, const float* scales) { return sum * load(scales); }
};

// The operands: first rows and strides of the input x and the output y, packed weights, and their scales if they are int8.
template <class Kind>
struct Product {
  const BFloat16* x;
  int64_t x_stride;
  const typename Kind::Weight* weights;
  int64_t pairs;
  BFloat16* y;
  int64_t y_stride;
  const float* scales;
};

}  // namespace
