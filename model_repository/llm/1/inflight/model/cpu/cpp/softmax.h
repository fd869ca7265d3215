// A softmax that takes the scores of a row part after part, and corrects what it has (arXiv 1805.02867).

#pragma once

#include <cmath>
#include <limits>

#include "lanes.h"

namespace {

struct Softmax {
  float scaling, softcap;
};

// What a row has seen: its largest score, and the sum of probabilities, which are 1 there.
struct Seen {
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
};

// Turns the scores of tokens start..end into probabilities, everything else within lanes first..last into zeros; returns
// what those before are to be multiplied with.
float soften(float* scores, Factor* probabilities, int64_t first, int64_t last, int64_t start, int64_t end,
             const Softmax& how, Seen& seen) {
  const auto visible = [&](int64_t lane) {
    const int64_t from = lane * LANES, to = from + LANES;
    return from >= start && to <= end ? (Mask)0xffff : (Mask)(lanes_below(end - from) & ~lanes_below(start - from));
  };
  float scaling = how.scaling;
  if (how.softcap > 0) {
    for (int64_t i = 0; i < (last - first) * LANES; ++i) scores[i] = how.softcap * std::tanh(scores[i] * scaling / how.softcap);
    scaling = 1;
  }
  Lanes most = all(-std::numeric_limits<float>::infinity());
  for (int64_t lane = first; lane < last; ++lane)
    most = select(visible(lane), maximum(most, load(scores + (lane - first) * LANES)), most);
  const float before = seen.largest;
  seen.largest = std::max(before, largest_of(most) * scaling);
  // Where a window begins later nothing is seen yet.
  const float largest = std::max(seen.largest, std::numeric_limits<float>::lowest());
  Lanes sum = all(0.0f);
  for (int64_t lane = first; lane < last; ++lane) {
    const Lanes power = fma(load(scores + (lane - first) * LANES), all(scaling * LOG2_E), all(-largest * LOG2_E));
    const Lanes probable = select(visible(lane), two_to(power), all(0.0f));
    sum = sum + probable;
    store_factors(probabilities + (lane - first) * LANES, probable);
  }
  const float kept = seen.sum > 0 ? std::exp(before - largest) : 0;
  seen.sum = sum_of(sum) + kept * seen.sum;
  return kept;
}

}  // namespace
