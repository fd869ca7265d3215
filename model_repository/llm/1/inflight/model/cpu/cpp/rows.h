// The rows of a tensor: all of its dimensions but the last, as one.

#pragma once

#include <ATen/ATen.h>

class Rows {
 public:
  // Copies only what does not lie as rows of one piece each, at equal distances.
  explicit Rows(const at::Tensor& x) {
    TORCH_CHECK(x.scalar_type() == at::kBFloat16, "rows are ", x.scalar_type(), ", not bfloat16");
    width = x.size(-1);
    count = width ? x.numel() / width : 0;
    const bool leading_ones = x.dim() == 1 || x.size(-2) == count;
    held_ = leading_ones ? x : x.reshape({count, width});
    if (held_.stride(-1) != 1) held_ = held_.contiguous();
    stride = held_.dim() == 1 ? width : held_.stride(-2);
    first_ = held_.const_data_ptr<at::BFloat16>();
  }

  const at::BFloat16* operator[](int64_t row) const { return first_ + row * stride; }

  int64_t count, width, stride;

 private:
  at::Tensor held_;  // What the rows are read from lives as long as these.
  const at::BFloat16* first_;
};
