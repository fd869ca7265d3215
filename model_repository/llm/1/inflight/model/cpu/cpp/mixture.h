// Values by probability, of some rows, part after part.

#pragma once

#include "lanes.h"

namespace {

// Values mixed so far for some rows, `width` of each. With the last part they are scaled and leave.
struct Mixture {
  float* so_far;
  int64_t width;
  bool begins, ends;
  const float *kept, *scale;
  BFloat16* const* outputs;

  // Adds a part's sixteen values from `d` on to `kept` times what there is.
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
