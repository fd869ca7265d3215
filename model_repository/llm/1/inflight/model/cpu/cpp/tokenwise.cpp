// The operators that a decoder applies to each token between its matrix products. Each takes one pass and rounds once.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <optional>
#include <string>
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

// Returns (x - mean(x)) / sqrt(variance(x) + eps) * weight + bias over the last dimension of x (arXiv 1607.06450).
Tensor layer_norm(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, double eps) {
  const Rows rows(x);
  const int64_t width = rows.width;
  TORCH_CHECK(weight.dim() == 1 && weight.size(0) == width && width % LANES == 0, "rows of ", width, ", weight ",
              weight.sizes());
  const BFloat16 *scale = weight.const_data_ptr<BFloat16>(), *shift = bias ? bias->const_data_ptr<BFloat16>() : nullptr;
  Tensor y = empty_rows(x.sizes(), x.options());
  BFloat16* out = y.mutable_data_ptr<BFloat16>();
  const int64_t stride = row_stride(y);
  share_out_rows(rows.count, ROWS_OF_A_THREAD, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const BFloat16* from = rows[row];
      BFloat16* to = out + row * stride;
      Lanes sum = all(0.0f), squares = all(0.0f);
      for (int64_t d = 0; d < width; d += LANES) sum = sum + load_floats(from + d);
      const Lanes mean = all(sum_of(sum) / (float)width);
      for (int64_t d = 0; d < width; d += LANES) {
        const Lanes value = load_floats(from + d) - mean;
        squares = fma(value, value, squares);
      }
      const Lanes by = all(1.0f / std::sqrt(sum_of(squares) / (float)width + (float)eps));
      for (int64_t d = 0; d < width; d += LANES) {
        const Lanes normed = (load_floats(from + d) - mean) * by;
        store_bf16(to + d, fma(normed, load_floats(scale + d), shift ? load_floats(shift + d) : all(0.0f)));
      }
    }
  });
  return y;
}

// The heads of some tokens, and what they are rotated by.
struct Rotation {
  const BFloat16* from;
  int64_t tokens, heads, width, token_stride, head_stride;
  BFloat16* to;

  // `angle(a, t, d, lanes)` returns the cosines (a = 0) or sines (a = 1) of token t from dimension d on.
  template <class Angle>
  void rotate(const Angle& angle) const {
    const int64_t half = width / 2;
    const Lanes zero = all(0.0f);
    share_out_rows(tokens, ROWS_OF_A_THREAD, [&](int64_t first, int64_t last) {
      for (int64_t t = first; t < last; ++t)
        for (int64_t h = 0; h < heads; ++h) {
          const BFloat16* in = from + h * head_stride + t * token_stride;
          BFloat16* out = to + (t * heads + h) * width;
          for (int64_t d = 0; d < half; d += LANES) {
            const Mask lanes = lanes_below(half - d);
            const Lanes left = load_floats(in + d, lanes), right = load_floats(in + half + d, lanes);
            store_bf16(out + d, fma(zero - right, angle(1, t, d, lanes), left * angle(0, t, d, lanes)), lanes);
            store_bf16(out + half + d, fma(left, angle(1, t, half + d, lanes), right * angle(0, t, half + d, lanes)), lanes);
          }
        }
    });
  }
};

// Returns x * cos + (-x's second half, x's first half) * sin, rounded once (RoPE, arXiv 2104.09864, with the halves of
// GPT-NeoX). x is [1, heads, T, width] in bfloat16, and cos and sin are [1, 1, T, width], in bfloat16 or float32. Or the
// second and the third dimension of all are exchanged, as in Gemma 4.
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const bool tokens_first = cos.sizes() == std::vector<int64_t>{1, x.size(1), 1, x.size(3)};
  const int token_dim = tokens_first ? 1 : 2, head_dim = 3 - token_dim;
  const int64_t heads = x.size(head_dim), tokens = x.size(token_dim), width = x.size(3);
  TORCH_CHECK(x.size(0) == 1 && x.stride(3) == 1 && width % 2 == 0, "x is ", x.sizes());
  const std::vector<int64_t> angles{1, tokens_first ? tokens : 1, tokens_first ? 1 : tokens, width};
  TORCH_CHECK(cos.sizes() == angles && sin.sizes() == angles, "x is ", x.sizes(), ", cos ", cos.sizes());
  // The heads of a token are next to each other, as attention reads them.
  Tensor y = at::empty({1, tokens, heads, width}, x.options());
  const Rotation rotation{x.const_data_ptr<BFloat16>(), tokens, heads, width, x.stride(token_dim), x.stride(head_dim),
                          y.mutable_data_ptr<BFloat16>()};
  if (cos.scalar_type() == at::kFloat) {
    // The last group of lanes reads beyond the end.
    Tensor both = at::empty({2 * tokens * width + LANES}, cos.options());
    both.narrow(0, 0, tokens * width).view(cos.sizes()).copy_(cos);
    both.narrow(0, tokens * width, tokens * width).view(cos.sizes()).copy_(sin);
    const float* of = both.const_data_ptr<float>();
    rotation.rotate([=](int64_t a, int64_t t, int64_t d, Mask) { return load(of + (a * tokens + t) * width + d); });
  } else {
    const Tensor cosines = cos.contiguous(), sines = sin.contiguous();
    const BFloat16* of[] = {cosines.const_data_ptr<BFloat16>(), sines.const_data_ptr<BFloat16>()};
    rotation.rotate([&](int64_t a, int64_t t, int64_t d, Mask lanes) { return load_floats(of[a] + t * width + d, lanes); });
  }
  return tokens_first ? y : y.transpose(1, 2);
}

constexpr float LARGEST_POWER = 126;  // 2^x of a larger x is no float.

// The approximation of `gelu` with a tanh: x / (1 + e^-2u), where u is sqrt(2 / pi) (x + 0.044715 x^3).
inline Lanes gelu_tanh(Lanes x) {
  constexpr float TWICE = 2 * 0.79788456f * LOG2_E;
  const Lanes power = x * fma(x * x, all(-0.044715f * TWICE), all(-TWICE));
  const Lanes value = x / (all(1.0f) + two_to(maximum(power, all(-LARGEST_POWER))));
  return select(less(all(LARGEST_POWER), power), all(0.0f), value);
}

// x times the normal distribution function (arXiv 1606.08415), with the error function of Abramowitz and Stegun, 7.1.26.
inline Lanes gelu_erf(Lanes x) {
  const Lanes size = maximum(x, all(0.0f) - x), z = size * all(0.70710678f);
  const Lanes t = all(1.0f) / fma(z, all(0.3275911f), all(1.0f));
  Lanes p = all(1.061405429f);
  for (const float c : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = fma(p, t, all(c));
  const Lanes power = maximum(z * z * all(-LOG2_E), all(-LARGEST_POWER));
  const Lanes tail = size * all(0.5f) * p * t * two_to(power);
  return maximum(x, all(0.0f)) - select(less(all(1e4f), size), all(0.0f), tail);
}

// Computes a function of each number of x, and of another tensor's where there is one. Rounds once.
template <class Function>
Tensor elementwise(const Tensor& x, const std::optional<Tensor>& other, const Function& function) {
  TORCH_CHECK(!other || x.sizes() == other->sizes(), "x is ", x.sizes(), ", the other ", other ? other->sizes() : x.sizes());
  const Rows rows(x), others(other ? *other : x);
  const int64_t width = rows.width;
  Tensor y = empty_rows(x.sizes(), x.options());
  BFloat16* out = y.mutable_data_ptr<BFloat16>();
  const int64_t stride = row_stride(y);
  share_out_rows(rows.count, ROWS_OF_A_THREAD / 4, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      for (int64_t d = 0; d < width; d += LANES) {
        const Mask lanes = lanes_below(width - d);
        const Lanes value = load_floats(rows[row] + d, lanes), another = load_floats(others[row] + d, lanes);
        store_bf16(out + row * stride + d, function(value, another), lanes);
      }
  });
  return y;
}

// Returns gelu(gate) * up, or gelu(gate) without `up`. `approximate` is "tanh" or "none", as in torch.
Tensor gelu_of(const Tensor& gate, const std::optional<Tensor>& up, const std::string& approximate) {
  TORCH_CHECK(approximate == "tanh" || approximate == "none", "approximate is ", approximate);
  const bool by_tanh = approximate == "tanh";
  if (up)
    return by_tanh ? elementwise(gate, up, [](Lanes x, Lanes y) { return gelu_tanh(x) * y; })
                   : elementwise(gate, up, [](Lanes x, Lanes y) { return gelu_erf(x) * y; });
  return by_tanh ? elementwise(gate, up, [](Lanes x, Lanes) { return gelu_tanh(x); })
                 : elementwise(gate, up, [](Lanes x, Lanes) { return gelu_erf(x); });
}

Tensor gelu(const Tensor& x, const std::string& approximate) { return gelu_of(x, std::nullopt, approximate); }

Tensor gelu_mul(const Tensor& gate, const Tensor& up, const std::string& approximate) {
  return gelu_of(gate, up, approximate);
}

}  // namespace

// Returns gate / (1 + e^-gate) * up, rounded once. Both are [..., width].
Tensor silu_mul(const Tensor& gate, const Tensor& up) {
  return elementwise(gate, up, [](Lanes x, Lanes y) { return silu(x) * y; });
}

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", rms_norm);
  library.def("add_rms_norm(Tensor x, Tensor y, Tensor weight, float eps) -> (Tensor, Tensor)", add_rms_norm);
  library.def("layer_norm(Tensor x, Tensor weight, Tensor? bias, float eps) -> Tensor", layer_norm);
  library.def("gelu(Tensor x, str approximate) -> Tensor", gelu);
  library.def("gelu_mul(Tensor gate, Tensor up, str approximate) -> Tensor", gelu_mul);
  library.def("silu_mul(Tensor gate, Tensor up) -> Tensor", silu_mul);
  library.def("rotate(Tensor x, Tensor cos, Tensor sin) -> Tensor", rotate);
}
