// Which tokens a grammar allows.

#pragma once

#include <ATen/core/Tensor.h>

#include "logits_row.h"

namespace {

// The masks of some rows of logits. `index` [S] is the mask of each row, or -1 if all tokens are allowed. In `bits`
// [M, vocabulary / 32, rounded up], bit t % 32 of word t / 32 tells whether token t is allowed.
class TokenMasks {
 public:
  TokenMasks(const Tensor& index, const Tensor& bits, int64_t num_rows, int64_t width)
      : index_(index.const_data_ptr<int64_t>()), bits_(bits.const_data_ptr<int32_t>()), words_((width + 31) / 32) {
    TORCH_CHECK(index.is_contiguous() && index.numel() == num_rows, "the index of masks is ", index.sizes());
    TORCH_CHECK(bits.is_contiguous() && bits.dim() == 2 && bits.size(1) == words_, "masks are ", bits.sizes());
    for (int64_t row = 0; row < num_rows; ++row)
      TORCH_CHECK(-1 <= index_[row] && index_[row] < bits.size(0), "row ", row, " has the mask ", index_[row]);
  }

  bool has(int64_t row) const { return index_[row] >= 0; }

  // Makes the other tokens of a row impossible.
  void apply(int64_t row, float* logits, int64_t width) const {
    if (!has(row)) return;
    const int32_t* words = bits_ + index_[row] * words_;
    const Lanes impossible = all(-INF);
    int64_t i = 0;
    for (; i + LANES <= width; i += LANES) {
      const Mask allowed = (Mask)((uint32_t)words[i / 32] >> (i % 32));
      store(logits + i, select(allowed, load_floats(logits + i), impossible));
    }
    for (; i < width; ++i)
      if (!((uint32_t)words[i / 32] >> (i % 32) & 1)) logits[i] = -INF;
  }

 private:
  const int64_t* index_;
  const int32_t* bits_;
  int64_t words_;
};

}  // namespace
