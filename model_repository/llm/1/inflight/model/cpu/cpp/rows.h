// The rows of a tensor: all dimensions but the last are flattened into one.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/accumulate.h>

// Allocates a tensor. If all of its rows are in one dimension, their distance is an odd number of cache lines. A tile reads
// the same column of 16 neighbouring rows. If their distance were even, as most widths are, these would share at most half
// of the sets of a cache. What lies between rows must be numbers: torch's products may multiply the rest of a line with 0.
inline at::Tensor empty_rows(at::IntArrayRef sizes, const at::TensorOptions& options) {
  constexpr int64_t LINE = 32;  // bfloat16 numbers per cache line.
  const int64_t width = sizes.back(), lines = (width + LINE - 1) / LINE | 1;
  if (sizes.size() < 2 || c10::multiply_integers(sizes) != sizes[sizes.size() - 2] * width) return at::empty(sizes, options);
  auto longer = sizes.vec();
  longer.back() = lines * LINE;
  const at::Tensor all = at::empty(longer, options);
  if (width % LINE) all.narrow(-1, width, lines * LINE - width).zero_();
  return all.narrow(-1, 0, width);
}

// The distance between the rows of such a tensor.
inline int64_t row_stride(const at::Tensor& y) { return y.dim() < 2 ? y.size(-1) : y.stride(-2); }

class Rows {
 public:
  // Copies x only if its rows are not contiguous or not at equal distances.
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
  at::Tensor held_;  // Keeps the memory of the rows alive.
  const at::BFloat16* first_;
};
