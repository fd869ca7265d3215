// An online softmax: it takes the scores of a row part by part and rescales earlier results (arXiv 1805.02867).

#pragma once

#include <cmath>
#include <limits>

#include "lanes.h"

namespace {

struct Softmax {
  float scaling, softcap;
};

// The state of a row: its largest score so far, and the sum of exp(score - largest) over its scores so far.
struct Seen {
  float largest = -std::numeric_limits<float>::infinity(), sum = 0;
};

// Turns the scores of the tokens start..end within the SIMD groups first..last into probabilities, and all other scores
// there into zeros. Returns the factor by which earlier probabilities must be multiplied.
float soften(float* scores, Factor* probabilities, int64_t first, int64_t last, int64_t start, int64_t end,
             const Softmax& how, Seen& seen) {
  const auto visible = [&](int64_t group) {
    const int64_t from = group * LANES, to = from + LANES;
    return from >= start && to <= end ? (Mask)0xffff : (Mask)(lanes_below(end - from) & ~lanes_below(start - from));
  };
  float scaling = how.scaling;
  if (how.softcap > 0) {
    for (int64_t i = 0; i < (last - first) * LANES; ++i) scores[i] = how.softcap * std::tanh(scores[i] * scaling / how.softcap);
    scaling = 1;
  }
  Lanes max_scores = all(-std::numeric_limits<float>::infinity());
  for (int64_t group = first; group < last; ++group)
    max_scores = select(visible(group), maximum(max_scores, load(scores + (group - first) * LANES)), max_scores);
  const float before = seen.largest;
  seen.largest = std::max(before, largest_of(max_scores) * scaling);
  // If the row's window begins after this part, no score is visible yet and seen.largest is still -infinity.
  const float largest = std::max(seen.largest, std::numeric_limits<float>::lowest());
  Lanes sum = all(0.0f);
  for (int64_t group = first; group < last; ++group) {
    const Lanes power = fma(load(scores + (group - first) * LANES), all(scaling * LOG2_E), all(-largest * LOG2_E));
    const Lanes probable = select(visible(group), two_to(power), all(0.0f));
    sum = sum + probable;
    store_factors(probabilities + (group - first) * LANES, probable);
  }
  const float kept = seen.sum > 0 ? std::exp(before - largest) : 0;
  seen.sum = sum_of(sum) + kept * seen.sum;
  return kept;
}

}  // namespace
