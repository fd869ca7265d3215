// The sums of values, weighted by probability, of some rows. They are computed part by part.

#pragma once

#include "lanes.h"

namespace {

// The weighted sums so far, `width` for each row. With the last part, they are scaled and written to `outputs`.
struct Mixture {
  float* so_far;
  int64_t width;
  bool begins, ends;
  const float *kept, *scale;
  BFloat16* const* outputs;

  // Multiplies the sums so far with `kept` and adds a part's values for the 16 dimensions from `d` on.
  void add(int64_t row, int64_t d, Lanes values) const {
    float* const before = so_far + row * width + d;
    if (!begins) values = fma(load(before), all(kept[row]), values);
    if (ends) {
      store_bf16(outputs[row] + d, values * all(scale[row]));
    } else {
      store(before, values);
    }
  }
};

}  // namespace
