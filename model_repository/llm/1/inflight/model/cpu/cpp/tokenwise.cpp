// The operators that a decoder applies to each token between its matrix products. Each takes one pass and rounds once.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <tuple>
#include <vector>

#include "lanes.h"
#include "rows.h"
#include "silu_mul.h"

namespace {

// Divides a row by its root mean square and multiplies it with weights. The result is rounded once.
struct Norm {
  const BFloat16* weight;
  int64_t width;
  float eps;

  Norm(const Tensor& weights, int64_t row_width, double epsilon)
      : weight(weights.const_data_ptr<BFloat16>()), width(row_width), eps((float)epsilon) {
    TORCH_CHECK(weights.dim() == 1 && weights.size(0) == width && width % LANES == 0, "rows of ", width, ", weight ",
                weights.sizes());
  }

  void operator()(const BFloat16* from, BFloat16* to) const {
    Lanes squares = all(0.0f);
    for (int64_t d = 0; d < width; d += LANES) {
      const Lanes value = load_floats(from + d);
      squares = fma(value, value, squares);
    }
    const Lanes by = all(1.0f / std::sqrt(sum_of(squares) / (float)width + eps));
    for (int64_t d = 0; d < width; d += LANES)
      store_bf16(to + d, load_floats(from + d) * by * load_floats(weight + d));
  }
};

// Returns x / sqrt(mean(x^2) + eps) * weight over the last dimension of x.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const Rows rows(x);
  const Norm norm(weight, rows.width, eps);
  Tensor y = empty_rows(x.sizes(), x.options());
  BFloat16* out = y.mutable_data_ptr<BFloat16>();
  const int64_t stride = row_stride(y);
  share_out_rows(rows.count, ROWS_OF_A_THREAD, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) norm(rows[row], out + row * stride);
  });
  return y;
}

// Adds a residual and applies the norm above: returns the norm of x + y, and x + y. x and y have the same shape.
std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& y, const Tensor& weight, double eps) {
  TORCH_CHECK(x.sizes() == y.sizes(), "x is ", x.sizes(), ", y ", y.sizes());
  const Rows rows(x), others(y);
  const Norm norm(weight, rows.width, eps);
  Tensor sum = at::empty(x.sizes(), x.options()), normed = empty_rows(x.sizes(), x.options());
  BFloat16 *sums = sum.mutable_data_ptr<BFloat16>(), *out = normed.mutable_data_ptr<BFloat16>();
  const int64_t stride = row_stride(normed);
  share_out_rows(rows.count, ROWS_OF_A_THREAD, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      BFloat16* to = sums + row * rows.width;
      for (int64_t d = 0; d < rows.width; d += LANES)
        store_bf16(to + d, load_floats(rows[row] + d) + load_floats(others[row] + d));
      norm(to, out + row * stride);
    }
  });
  return {normed, sum};
}

// Returns x * cos + (-x's second half, x's first half) * sin, rounded once (RoPE, arXiv 2104.09864, with the halves of
// GPT-NeoX). x is [1, heads, T, width], and cos and sin are [1, 1, T, width]. Or the second and the third dimension of
// all are exchanged, as in Gemma 4.
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const bool tokens_first = cos.sizes() == std::vector<int64_t>{1, x.size(1), 1, x.size(3)};
  const int token_dim = tokens_first ? 1 : 2, head_dim = 3 - token_dim;
  const int64_t heads = x.size(head_dim), tokens = x.size(token_dim), width = x.size(3), half = width / 2;
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 && cos.scalar_type() == at::kBFloat16, "x and cos must be bfloat16");
  TORCH_CHECK(x.size(0) == 1 && x.stride(3) == 1 && width % 2 == 0, "x is ", x.sizes());
  const std::vector<int64_t> angles{1, tokens_first ? tokens : 1, tokens_first ? 1 : tokens, width};
  TORCH_CHECK(cos.sizes() == angles && sin.sizes() == angles, "x is ", x.sizes(), ", cos ", cos.sizes());
  const Tensor cosines = cos.contiguous(), sines = sin.contiguous();
  // The heads of a token are next to each other, as attention reads them.
  Tensor y = at::empty({1, tokens, heads, width}, x.options());
  const BFloat16 *in = x.const_data_ptr<BFloat16>(), *c = cosines.const_data_ptr<BFloat16>(),
                 *s = sines.const_data_ptr<BFloat16>();
  const Lanes zero = all(0.0f);
  BFloat16* out = y.mutable_data_ptr<BFloat16>();
  share_out_rows(tokens, ROWS_OF_A_THREAD, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const BFloat16* from = in + h * x.stride(head_dim) + t * x.stride(token_dim);
        BFloat16* to = out + (t * heads + h) * width;
        for (int64_t d = 0; d < half; d += LANES) {
          const Mask lanes = lanes_below(half - d);
          const auto angle = [&](const BFloat16* of) { return load_floats(of + t * width + d, lanes); };
          const Lanes left = load_floats(from + d, lanes), right = load_floats(from + half + d, lanes);
          store_bf16(to + d, fma(zero - right, angle(s), left * angle(c)), lanes);
          store_bf16(to + half + d, fma(left, angle(s + half), right * angle(c + half)), lanes);
        }
      }
  });
  return tokens_first ? y : y.transpose(1, 2);
}

}  // namespace

// Returns gate / (1 + e^-gate) * up, rounded once. Both are [..., width].
Tensor silu_mul(const Tensor& gate, const Tensor& up) {
  TORCH_CHECK(gate.sizes() == up.sizes(), "gate is ", gate.sizes(), ", up ", up.sizes());
  const Rows gates(gate), ups(up);
  const int64_t width = gates.width;
  Tensor y = empty_rows(gate.sizes(), gate.options());
  BFloat16* out = y.mutable_data_ptr<BFloat16>();
  const int64_t stride = row_stride(y);
  share_out_rows(gates.count, ROWS_OF_A_THREAD / 4, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      for (int64_t d = 0; d < width; d += LANES) {
        const Mask lanes = lanes_below(width - d);
        const Lanes other = load_floats(ups[row] + d, lanes);
        store_bf16(out + row * stride + d, silu(load_floats(gates[row] + d, lanes)) * other, lanes);
      }
  });
  return y;
}

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", rms_norm);
  library.def("add_rms_norm(Tensor x, Tensor y, Tensor weight, float eps) -> (Tensor, Tensor)", add_rms_norm);
  library.def("silu_mul(Tensor gate, Tensor up) -> Tensor", silu_mul);
  library.def("rotate(Tensor x, Tensor cos, Tensor sin) -> Tensor", rotate);
}
