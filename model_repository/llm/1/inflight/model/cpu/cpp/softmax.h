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

// The SIMD groups of a part in which a row sees some tokens (edges) or all of them (inner).
class Visible {
 public:
  Visible(int64_t first, int64_t last, int64_t start, int64_t end)
      : first_(first),
        last_(last),
        start_(start),
        end_(end),
        inner_(std::clamp((start + LANES - 1) / LANES, first, last)),
        inner_end_(std::clamp(end / LANES, inner_, last)) {}

  // Calls `edge(group, mask)` or `inner(group)` for each group, in order.
  template <class Edge, class Inner>
  void each(const Edge& edge, const Inner& inner) const {
    for (int64_t group = first_; group < inner_; ++group) edge(group, mask(group));
    for (int64_t group = inner_; group < inner_end_; ++group) inner(group);
    for (int64_t group = inner_end_; group < last_; ++group) edge(group, mask(group));
  }

 private:
  Mask mask(int64_t group) const {
    const int64_t from = group * LANES;
    return (Mask)(lanes_below(end_ - from) & ~lanes_below(start_ - from));
  }

  const int64_t first_, last_, start_, end_, inner_, inner_end_;
};

// Turns the scores of the tokens start..end within the SIMD groups first..last into probabilities, and all other scores
// there into zeros. Returns the factor by which earlier probabilities must be multiplied.
float soften(float* scores, Factor* probabilities, int64_t first, int64_t last, int64_t start, int64_t end,
             const Softmax& how, Seen& seen) {
  const Visible visible(first, last, start, end);
  float scaling = how.scaling;
  if (how.softcap > 0) {
    const Lanes cap = all(how.softcap), to_cap = all(scaling / how.softcap);
    for (int64_t i = 0; i < (last - first) * LANES; i += LANES) store(scores + i, tanh_of(load(scores + i) * to_cap) * cap);
    scaling = 1;
  }
  const auto score = [&](int64_t group) { return load(scores + (group - first) * LANES); };
  Lanes max_scores = all(-std::numeric_limits<float>::infinity());
  visible.each(
      [&](int64_t group, Mask mask) { max_scores = select(mask, maximum(max_scores, score(group)), max_scores); },
      [&](int64_t group) { max_scores = maximum(max_scores, score(group)); });
  const float before = seen.largest;
  seen.largest = std::max(before, largest_of(max_scores) * scaling);
  // If the row's window begins after this part, no score is visible yet and seen.largest is still -infinity.
  const float largest = std::max(seen.largest, std::numeric_limits<float>::lowest());
  const Lanes factor = all(scaling * LOG2_E), offset = all(-largest * LOG2_E);
  Lanes sum = all(0.0f);
  const auto keep = [&](int64_t group, Lanes probable) {
    sum = sum + probable;
    store_factors(probabilities + (group - first) * LANES, probable);
  };
  const auto probable = [&](int64_t group) { return two_to(fma(score(group), factor, offset)); };
  visible.each([&](int64_t group, Mask mask) { keep(group, select(mask, probable(group), all(0.0f))); },
               [&](int64_t group) { keep(group, probable(group)); });
  const float kept = seen.sum > 0 ? std::exp(before - largest) : 0;
  seen.sum = sum_of(sum) + kept * seen.sum;
  return kept;
}

}  // namespace
