// The operands of a product, and the kinds of weights.

#pragma once

#include <type_traits>

#include "lanes.h"

namespace {

constexpr int64_t PANEL = 2 * LANES;

// A panel has groups of `INPUTS` inputs, one after the other. Each group has `WEIGHTS` elements of type `Weight`.
struct Bf16 {
  using Weight = BFloat16;
  static constexpr int64_t INPUTS = 2, WEIGHTS = 2 * PANEL;
};

// Weights are integers up to 127, with a scale for each column.
struct Int8 {
  using Weight = int8_t;
  static constexpr int64_t INPUTS = 2, WEIGHTS = 2 * PANEL;
};

// 32 inputs of a panel. A word has four weights of a column, from pairs that follow each other, the first in the lowest
// bits: `words[c][i]` has the pairs 4 i to 4 i + 3 of the columns 16 c to 16 c + 15.
struct Int4Group {
  uint16_t words[PANEL / LANES][4][2 * LANES];
  BFloat16 scales[PANEL];
};

// Weights are integers from -8 to 7, with a scale for each column of each group of inputs.
struct Int4 {
  using Weight = Int4Group;
  static constexpr int64_t INPUTS = 32, WEIGHTS = 1;
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

  // The weights of a panel.
  const typename Kind::Weight* panel(int64_t number) const {
    return weights + number * (2 * pairs / Kind::INPUTS) * Kind::WEIGHTS;
  }

  // The result for the sums of the columns from `column` on.
  Lanes result(Lanes sum, int64_t column) const {
    if constexpr (std::is_same_v<Kind, Int8>) sum = sum * load(scales + column);
    return bias ? sum + load(bias + column) : sum;
  }
};

// The product of the rows that one expert of a mixture computes.
template <class Kind>
struct RowsOfExpert {
  Product<Kind> product;
  int64_t rows, number;
};

}  // namespace
