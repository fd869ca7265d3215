// Finds the tokens that top_k and top_p leave, without sorting the row.

#pragma once

#include <cmath>

#include "logits_row.h"

namespace {

// What is left of a row: the tokens whose logits are over `above`, and the first `ties` tokens that have just this logit.
struct Cut {
  float above = -INF;
  int64_t ties = 0;
};

// Numbers over `low` and up to `high`.
struct Range {
  float low = -INF, high = INF;

  bool operator!=(const Range& other) const { return low != other.low || high != other.high; }
  bool is_single() const { return low == just_below(high); }

  // What two ranges have in common; the other one if that is nothing.
  Range within(const Range& other) const {
    const Range both{std::max(low, other.low), std::min(high, other.high)};
    return both.low < both.high ? both : other;
  }
};

// Counts tokens: the measure of top_k.
struct Count {
  Lanes operator()(Lanes) const { return all(1.0f); }
};

// exp((x - largest) / temperature): the measure of top_p. It is 0 if it is below `least`, or below 2^-126.
class Weight {
 public:
  Weight(float largest, double temperature, double least = 0)
      : largest_(all(largest)), scale_(all((float)(1.4426950408889634 / temperature))),
        lowest_power_(all((float)std::max(std::log2(least), -126.0))) {}

  Lanes operator()(Lanes x) const { return (*this)(x, (Mask)0xffff); }

  // The weights of `lanes`. The others are 0.
  Lanes operator()(Lanes x, Mask lanes) const {
    const Lanes power = (x - largest_) * scale_;
    return select(lanes & ~less(power, lowest_power_), two_to(power), all(0.0f));
  }

 private:
  Lanes largest_, scale_, lowest_power_;
};

template <class Measure>
float measure_of(float x, const Measure& measure) {
  float lanes[LANES];
  store(lanes, measure(all(x)));
  return lanes[0];
}

// The logits of a row that may be where it is cut, in blocks. -infinity fills up the last block.
class Candidates {
 public:
  // Makes room for the logits of a row.
  void reserve(int64_t width) {
    if ((int64_t)numbers_.size() < width + 2 * BLOCK) numbers_.resize(width + 2 * BLOCK);
  }

  float operator[](int64_t i) const { return numbers_[i]; }
  float* begin() { return numbers_.data(); }
  float* end() { return begin() + size; }
  const float* block(int64_t b) const { return numbers_.data() + b * BLOCK; }
  float largest_in(int64_t) const { return INF; }

  void end_at(const float* end) {
    size = end - begin();
    num_blocks = (size + BLOCK - 1) / BLOCK;
    std::fill(begin() + size, begin() + num_blocks * BLOCK, -INF);
  }

  int64_t size = 0, num_blocks = 0;

 private:
  std::vector<float> numbers_;
};

// The measure of the numbers over a range, and of those within.
struct Parts {
  double over = 0, within = 0;
};

template <class Number, class Measure>
void measure_block(const Number* block, const Range& range, const Measure& measure, Parts& parts) {
  const Lanes low = all(range.low), high = all(range.high), zero = all(0.0f);
  Lanes over = zero, within = zero;
  for (int64_t i = 0; i < BLOCK; i += LANES) {
    const Lanes x = load_floats(block + i), m = measure(x);
    const Mask above = less(high, x);
    over = over + select(above, m, zero);
    within = within + select(less(low, x) & ~above, m, zero);
  }
  parts.over += sum_of(over);
  parts.within += sum_of(within);
}

// Stores at `to` which logits of a block are in a range. Returns the end of what is stored.
template <class Number>
float* collect_block(const Number* block, const Range& range, float* to) {
  const Lanes low = all(range.low), high = all(range.high);
  for (int64_t i = 0; i < BLOCK; i += LANES) {
    const Lanes x = load_floats(block + i);
    to += store_some(to, x, less(low, x) & ~less(high, x));
  }
  return to;
}

// Makes those logits of a row, or of the candidates themselves, that are in a range the candidates.
template <class Blocks, class Measure>
Parts collect(const Blocks& blocks, const Range& range, const Measure& measure, Candidates& candidates) {
  Parts parts;
  float* to = candidates.begin();
  for (int64_t b = 0; b < blocks.num_blocks; ++b) {
    if (blocks.largest_in(b) <= range.low) continue;
    if (range.high < INF) measure_block(blocks.block(b), range, measure, parts);
    to = collect_block(blocks.block(b), range, to);
  }
  candidates.end_at(to);
  // With nothing over the range, only what has been collected needs to be measured, which is often little.
  if (range.high == INF)
    for (int64_t b = 0; b < candidates.num_blocks; ++b) measure_block(candidates.block(b), range, measure, parts);
  return parts;
}

constexpr int64_t SAMPLE = 64;
constexpr int MAX_ROUNDS = 30;  // Many more than are needed. What is left then is sorted.

// Guesses a range in which to cut `count` numbers such that `rest` of their measure is left out. It goes by a sample, and
// has a part of it.
template <class Numbers, class Measure>
Range guess(const Numbers& numbers, int64_t count, double rest, const Measure& measure) {
  float sample[SAMPLE], measures[SAMPLE];
  for (int64_t i = 0; i < SAMPLE; ++i) sample[i] = numbers[i * count / SAMPLE];
  std::sort(sample, sample + SAMPLE);
  for (int64_t i = 0; i < SAMPLE; i += LANES) store(measures + i, measure(load(sample + i)));
  rest *= (double)SAMPLE / (double)count;
  int64_t rank = 0;
  while (rank < SAMPLE && (rest -= measures[rank]) > 0) ++rank;
  // The sample is to be cut at this rank, give or take two standard deviations.
  const int64_t off = 2 + (int64_t)(2 * std::sqrt((double)(rank * (SAMPLE - rank)) / SAMPLE));
  const float low = sample[std::clamp<int64_t>(rank - off, 0, SAMPLE - 1)];
  const float high = low == sample[SAMPLE - 1] ? low : rank + off < SAMPLE ? sample[rank + off] : INF;
  return {low < high ? low : just_below(high), high};
}

// Ranks the logits of a row, largest first, and cuts them behind the first whose measures add up to `target`. `total` is
// the measure of the row. The logits up to `low` must not be needed for the target.
//
// This is a quickselect with weights (Floyd and Rivest, CACM 1975): guess a range that encloses the cut, measure what is
// over it and within, and go on with the logits within. If the guess was wrong, go on with the logits over it or below.
template <class Number, class Measure>
Cut cut_at(const LogitsRow<Number>& row, double target, double total, float low, const Measure& measure,
           Candidates& candidates) {
  candidates.reserve(row.width);
  Range range{low, INF};  // Encloses the cut.
  double above = 0;       // The measure of the logits over the range.
  Range part = guess(row, row.width, total - target, measure).within(range);
  Parts parts = collect(row, part, measure, candidates);
  for (int round = 0; round < MAX_ROUNDS; ++round) {
    const bool too_low = above + parts.over >= target, too_high = above + parts.over + parts.within < target;
    if (part != range && (too_low || too_high)) {
      part = range = too_low ? Range{part.high, range.high} : Range{range.low, part.low};
      above = 0;
      parts = collect(row, part, measure, candidates);
    }
    range = part;
    above += parts.over;
    if (range.is_single()) {
      const double ties = std::ceil((target - above) / measure_of(range.high, measure));
      return {range.high, (int64_t)std::clamp(ties, 0.0, (double)row.width)};
    }
    if (candidates.size <= SAMPLE) break;
    part = guess(candidates, candidates.size, parts.within - (target - above), measure);
    parts = collect(candidates, part, measure, candidates);
  }
  std::sort(candidates.begin(), candidates.end(), std::greater<float>());
  Cut cut{range.high, 0};
  for (const float* next = candidates.begin(); next < candidates.end() && above < target; ++next) {
    cut = {*next, *next == cut.above ? cut.ties + 1 : 1};
    above += measure_of(*next, measure);
  }
  return above < target ? Cut{range.low, 0} : cut;
}

// Leaves the k likeliest tokens.
template <class Number>
Cut cut_at_top_k(LogitsRow<Number>& row, int64_t k, Candidates& candidates) {
  return cut_at(row, (double)k, (double)row.width, just_below(row.reached_by(k)), Count(), candidates);
}

// Leaves the likeliest of the tokens that `before` leaves: each is left if all likelier ones make up less than a share of
// `top_p` of `total`, which is the weight of the tokens that `before` leaves.
template <class Number>
Cut cut_at_top_p(const LogitsRow<Number>& row, double top_p, double total, double temperature, const Weight& weight,
                 const Cut& before, Candidates& candidates) {
  // Together, the tokens up to this logit weigh less than half of what top_p leaves out.
  const double light = row.largest + temperature * std::log((1 - top_p) / 2 * total / (double)row.width);
  const float low = std::max(just_below(std::min((float)light, row.largest)), just_below(before.above));
  const double target = std::max(top_p * total, std::numeric_limits<double>::min());
  const Cut cut = cut_at(row, target, total, low, weight, candidates);
  if (cut.above > before.above) return cut;
  // Because of rounding, all tokens over `low` may weigh less than the target.
  if (cut.above < before.above) return before;
  return {before.above, std::min(before.ties, cut.ties)};
}

}  // namespace
