// What is multiplied, and the kinds of weights.

#pragma once

#include "lanes.h"

namespace {

constexpr int64_t PANEL = 2 * LANES;

struct Bf16 {
  using Weight = BFloat16;
  static Lanes scaled(Lanes sum, const float*) { return sum; }
};

// Whole numbers up to 127, and a scale for each column.
struct Int8 {
  using Weight = int8_t;
  static Lanes scaled(Lanes sum, const float* scales) { return sum * load(scales); }
};

// What is multiplied: x and y by their first rows and strides, packed weights, and their scales if there are.
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
