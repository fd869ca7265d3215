// A row of logits in blocks, with the largest logit of each block. What needs only large logits skips most blocks.

#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <vector>

#include "lanes.h"

namespace {

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr int64_t BLOCK = 16 * LANES;

inline float just_below(float x) { return std::nextafter(x, -INF); }

// `Number` is BFloat16 or float.
template <class Number>
class LogitsRow {
 public:
  // Looks at `count` logits, which must stay where they are. The memory of the last row is used again.
  void open(const Number* logits, int64_t count) {
    logits_ = logits, width = count, num_blocks = (width + BLOCK - 1) / BLOCK;
    const int64_t whole = width / BLOCK * BLOCK;
    std::fill(std::copy(logits + whole, logits + width, last_), last_ + BLOCK, Number(-INF));
    largest_in_.resize(num_blocks);
    Mask nans = 0;
    for (int64_t b = 0; b < num_blocks; ++b) {
      Lanes largest_here = all(-INF);
      for (int64_t i = 0; i < BLOCK; i += LANES) {
        const Lanes x = load_floats(block(b) + i);
        nans |= not_a_number(x);
        largest_here = maximum(x, largest_here);
      }
      largest_in_[b] = largest_of(largest_here);
    }
    largest = *std::max_element(largest_in_.begin(), largest_in_.end());
    has_nan = nans != 0;
  }

  float operator[](int64_t token) const { return (float)logits_[token]; }

  // The logits of a block. -infinity fills up the last one.
  const Number* block(int64_t b) const { return (b + 1) * BLOCK <= width ? logits_ + b * BLOCK : last_; }

  float largest_in(int64_t b) const { return largest_in_[b]; }

  // The first of the tokens with the largest logit.
  int64_t argmax() const {
    int64_t token = (std::find(largest_in_.begin(), largest_in_.end(), largest) - largest_in_.begin()) * BLOCK;
    while ((*this)[token] != largest) ++token;
    return token;
  }

  // A logit that at least k tokens reach, as k blocks do. -infinity if there are fewer blocks.
  float reached_by(int64_t k) {
    if (k > num_blocks) return -INF;
    ranked_ = largest_in_;
    std::nth_element(ranked_.begin(), ranked_.begin() + (k - 1), ranked_.end(), std::greater<float>());
    return ranked_[k - 1];
  }

  int64_t width = 0, num_blocks = 0;
  float largest = -INF;
  bool has_nan = false;

 private:
  const Number* logits_ = nullptr;
  Number last_[BLOCK];
  std::vector<float> largest_in_, ranked_;
};

// Calls `work(logits, i)` for the rows i of logits [rows, width], on all threads. The logits have their own type.
template <class Work>
void for_each_row(const Tensor& logits, int64_t count, const Work& work) {
  TORCH_CHECK(logits.dim() == 2 && logits.stride(1) == 1 && logits.size(1) > 0, "logits are ", logits.sizes());
  TORCH_CHECK(logits.size(1) <= 1 << 24, "float32 cannot count ", logits.size(1), " tokens exactly");
  const auto share = [&](const auto* from) {
    share_out(count, [&](Tasks& take) {
      for (int64_t i; (i = take()) < count;) work(from, i);
    });
  };
  if (logits.scalar_type() == at::kBFloat16) return share(logits.const_data_ptr<BFloat16>());
  TORCH_CHECK(logits.scalar_type() == at::kFloat, "logits are ", logits.scalar_type());
  share(logits.const_data_ptr<float>());
}

}  // namespace
