// What a decoder does to every token by itself between its matrix products, each in one pass and rounded once at its end.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "lanes.h"

namespace {

// x / sqrt(mean(x^2) + eps) * weight over the last dimension of x, rounded once at the end.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const int64_t width = weight.size(0);
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 && weight.scalar_type() == at::kBFloat16, "x and weight must be bfloat16");
  TORCH_CHECK(x.size(-1) == width && width % LANES == 0, "x is ", x.sizes(), ", weight [", width, "]");
  const Tensor flat = x.contiguous();
  Tensor y = at::empty(flat.sizes(), flat.options());
  const BFloat16 *in = flat.const_data_ptr<BFloat16>(), *scale = weight.const_data_ptr<BFloat16>();
  BFloat16* out = y.mutable_data_ptr<BFloat16>();
  at::parallel_for(0, flat.numel() / width, ROWS_OF_A_THREAD, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const BFloat16* from = in + row * width;
      Lanes squares = all(0.0f);
      for (int64_t d = 0; d < width; d += LANES) {
        const Lanes value = load_floats(from + d);
        squares = fma(value, value, squares);
      }
      const float mean = sum_of(squares) / (float)width;
      const Lanes by = all(1.0f / std::sqrt(mean + (float)eps));
      for (int64_t d = 0; d < width; d += LANES)
        store_bf16(out + row * width + d, load_floats(from + d) * by * load_floats(scale + d));
    }
  });
  return y;
}

// gate / (1 + e^-gate) * up, rounded once at the end; both [..., width].
Tensor silu_mul(const Tensor& gate, const Tensor& up) {
  const int64_t width = gate.size(-1);
  TORCH_CHECK(gate.scalar_type() == at::kBFloat16 && up.scalar_type() == at::kBFloat16, "gate and up must be bfloat16");
  TORCH_CHECK(gate.sizes() == up.sizes(), "gate is ", gate.sizes(), ", up ", up.sizes());
  Tensor y = at::empty(gate.sizes(), gate.options());
  const Tensor gates = gate.reshape({-1, width}), ups = up.reshape({-1, width});
  TORCH_CHECK(gates.stride(1) == 1 && ups.stride(1) == 1, "rows must be in one piece");
  const BFloat16 *from_gate = gates.const_data_ptr<BFloat16>(), *from_up = ups.const_data_ptr<BFloat16>();
  BFloat16* out = y.mutable_data_ptr<BFloat16>();
  const Lanes zero = all(0.0f), one = all(1.0f);
  at::parallel_for(0, gates.size(0), ROWS_OF_A_THREAD / 4, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row)
      for (int64_t d = 0; d < width; d += LANES) {
        const Mask lanes = lanes_below(width - d);
        const Lanes x = load_floats(from_gate + row * gates.stride(0) + d, lanes);
        // Of e^-|x| nothing overflows: 1 / (1 + e^-x) is e^x / (1 + e^x).
        const Lanes e = exp_nonpositive(zero - absolute(x));
        const Lanes sigmoid = select(less(x, zero), e, one) / (one + e);
        const Lanes other = load_floats(from_up + row * ups.stride(0) + d, lanes);
        store_bf16(out + row * width + d, x * sigmoid * other, lanes);
      }
  });
  return y;
}

// x * cos + (-x's second half, x's first half) * sin, rounded once at the end (RoPE, arXiv 2104.09864, with the halves
// of GPT-NeoX): x [1, heads, T, width], cos and sin [1, 1, T, width].
Tensor rotate(const Tensor& x, const Tensor& cos, const Tensor& sin) {
  const int64_t heads = x.size(1), tokens = x.size(2), width = x.size(3), half = width / 2;
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 && cos.scalar_type() == at::kBFloat16, "x and cos must be bfloat16");
  TORCH_CHECK(x.size(0) == 1 && x.stride(3) == 1 && width % 2 == 0, "x is ", x.sizes());
  const std::vector<int64_t> angles{1, 1, tokens, width};
  TORCH_CHECK(cos.sizes() == angles && sin.sizes() == angles, "x is ", x.sizes(), ", cos ", cos.sizes());
  const Tensor cosines = cos.contiguous(), sines = sin.contiguous();
  // Token by token, as attention reads it.
  Tensor y = at::empty({1, tokens, heads, width}, x.options());
  const BFloat16 *in = x.const_data_ptr<BFloat16>(), *c = cosines.const_data_ptr<BFloat16>(),
                 *s = sines.const_data_ptr<BFloat16>();
  const Lanes zero = all(0.0f);
  BFloat16* out = y.mutable_data_ptr<BFloat16>();
  at::parallel_for(0, tokens, ROWS_OF_A_THREAD, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const BFloat16* from = in + h * x.stride(1) + t * x.stride(2);
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
  return y.transpose(1, 2);
}

// The place of the largest of each row [S, V], the first of equal ones; what is not a number counts as larger than all.
Tensor argmax(const Tensor& x) {
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 && x.dim() == 2 && x.size(1) > 0 && x.stride(1) == 1, "x is ", x.sizes());
  const int64_t width = x.size(1);
  TORCH_CHECK(width <= 1 << 24, "rows of ", width, " are too long: their places must be whole numbers in float32");
  Tensor places = at::empty({x.size(0)}, x.options().dtype(at::kLong));
  const BFloat16* in = x.const_data_ptr<BFloat16>();
  int64_t* out = places.mutable_data_ptr<int64_t>();
  alignas(64) float numbers[LANES];
  std::iota(numbers, numbers + LANES, 0.0f);
  const auto place_in = [&](const BFloat16* row) -> int64_t {
    Lanes most = all(-std::numeric_limits<float>::infinity()), place = all(0.0f), here = load(numbers);
    for (int64_t d = 0; d < width; d += LANES) {
      const Mask lanes = lanes_below(width - d);
      const Lanes value = load_floats(row + d, lanes);
      const Mask spoiled = not_a_number(value);
      if (spoiled) return d + __builtin_ctz(spoiled);
      const Mask larger = less(most, value) & lanes;
      most = select(larger, value, most);
      place = select(larger, here, place);
      here = here + all(LANES);
    }
    const Mask largest = equal(most, all(largest_of(most)));
    return (int64_t)-largest_of(select(largest, all(0.0f) - place, all(-std::numeric_limits<float>::infinity())));
  };
  at::parallel_for(0, x.size(0), 1, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) out[row] = place_in(in + row * x.stride(0));
  });
  return places;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", rms_norm);
  library.def("silu_mul(Tensor gate, Tensor up) -> Tensor", silu_mul);
  library.def("argmax(Tensor x) -> Tensor", argmax);
  library.def("rotate(Tensor x, Tensor cos, Tensor sin) -> Tensor", rotate);
}
