// Sparse changes of logits: penalties, biases, forbidden tokens.

#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <vector>

namespace {

// The edits of all rows. Edit e changes the logits of `tokens[e]` in the row `rows[e]`: it adds `biases[e]`, or, if that is
// empty, divides positive logits by `penalties[e]` and multiplies the others with it. The rows must not fall.
class LogitEdits {
 public:
  LogitEdits(const at::Tensor& rows, at::TensorList tokens, const at::Tensor& penalties, at::TensorList biases,
             int64_t num_rows)
      : starts_(num_rows + 1) {
    const auto count = (int64_t)tokens.size();
    check(rows, at::kLong, count, "rows");
    check(penalties, at::kFloat, count, "penalties");
    TORCH_CHECK((int64_t)biases.size() == count, count, " edits have ", biases.size(), " biases");
    edits_.reserve(count);
    for (int64_t e = 0, last = 0; e < count; ++e) {
      const int64_t row = rows.const_data_ptr<int64_t>()[e], size = tokens[e].numel();
      TORCH_CHECK(last <= row && row < num_rows, "edit ", e, " is of row ", row, " of ", num_rows, ", after row ", last);
      last = row;
      check(tokens[e], at::kLong, size, "tokens");
      const bool adds = biases[e].numel() > 0;
      if (adds) check(biases[e], at::kFloat, size, "biases");
      starts_[row + 1] = e + 1;
      edits_.push_back({tokens[e].const_data_ptr<int64_t>(), size, penalties.const_data_ptr<float>()[e],
                        adds ? biases[e].const_data_ptr<float>() : nullptr});
    }
    for (int64_t row = 0; row < num_rows; ++row) starts_[row + 1] = std::max(starts_[row + 1], starts_[row]);
  }

  bool has(int64_t row) const { return starts_[row] < starts_[row + 1]; }

  // Returns false if a token is not one of the `width` of the row.
  bool apply(int64_t row, float* logits, int64_t width) const {
    bool valid = true;
    for (int64_t e = starts_[row]; e < starts_[row + 1]; ++e) {
      const Edit& edit = edits_[e];
      const auto change = [&](const auto& changed) {
        for (int64_t i = 0; i < edit.count && valid; ++i) {
          valid = (uint64_t)edit.tokens[i] < (uint64_t)width;
          if (valid) logits[edit.tokens[i]] = changed(logits[edit.tokens[i]], i);
        }
      };
      if (edit.biases) {
        change([&](float x, int64_t i) { return x + edit.biases[i]; });
      } else {
        change([&](float x, int64_t) { return x > 0 ? x / edit.penalty : x * edit.penalty; });
      }
    }
    return valid;
  }

 private:
  struct Edit {
    const int64_t* tokens;
    int64_t count;
    float penalty;
    const float* biases;
  };

  static void check(const at::Tensor& given, at::ScalarType type, int64_t count, const char* name) {
    TORCH_CHECK(given.scalar_type() == type && given.is_contiguous() && given.numel() == count, name, " of edits are ",
                given.sizes(), ", ", given.scalar_type());
  }

  std::vector<int64_t> starts_;  // Where the edits of each row start.
  std::vector<Edit> edits_;
};

}  // namespace
