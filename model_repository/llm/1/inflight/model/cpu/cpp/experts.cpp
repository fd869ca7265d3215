// The experts of a mixture. Each row of their products is of a token and one of its experts, and the rows are sorted by expert.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "linear_rows.h"
#include "rows.h"

namespace {

// The tokens' rows of x [T, K] for the sorted pairs of a token and one of its `chosen` experts: pair `order[i]` is in row i
// and belongs to token `order[i] / chosen`. Returns [S, K].
Tensor rows_of_pairs(const Tensor& x, const Tensor& order, int64_t chosen) {
  TORCH_CHECK(x.dim() == 2 && order.is_contiguous() && order.numel() == x.size(0) * chosen, "x is ", x.sizes(), ", order ",
              order.sizes());
  Tensor y = empty_rows({order.numel(), x.size(1)}, x.options());
  const Rows rows(x);
  const int64_t* const pair_of = order.const_data_ptr<int64_t>();
  BFloat16* const to = y.mutable_data_ptr<BFloat16>();
  const int64_t stride = row_stride(y);
  share_out_rows(order.numel(), ROWS_OF_A_THREAD, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i)
      std::memcpy(to + i * stride, rows[pair_of[i] / chosen], rows.width * sizeof(BFloat16));
  });
  return y;
}

// Multiplies each row of x [S, K] with the weights of its expert. `experts` [S] must ascend. The packed weights of each of E
// experts, of N columns, lie one after the other. `scales` and `bias` are float32 [E, N]. Returns [S, N].
template <class Kind>
Tensor multiply_of_experts(const Tensor& x, const Tensor& experts, const Tensor& packed, const std::optional<Tensor>& scales,
                           const std::optional<Tensor>& bias) {
  const int64_t count = packed.size(0), panels = packed.size(1), inputs = packed.size(2) * Kind::INPUTS;
  const int64_t columns = panels * PANEL, weights = panels * packed.size(2) * Kind::WEIGHTS;
  TORCH_CHECK(packed.is_contiguous() && packed.nbytes() == count * weights * sizeof(typename Kind::Weight), "weights are ",
              packed.scalar_type(), " ", packed.sizes());
  TORCH_CHECK(x.dim() == 2 && x.size(1) == inputs, "x is ", x.sizes(), ", weights take ", inputs, " columns");
  TORCH_CHECK(experts.sizes() == x.sizes().slice(0, 1) && experts.is_contiguous(), "experts are ", experts.sizes());
  const auto floats_of = [&](const std::optional<Tensor>& floats, int64_t expert) -> const float* {
    if (!floats) return nullptr;
    TORCH_CHECK(floats->numel() == count * columns && floats->scalar_type() == at::kFloat && floats->is_contiguous(),
                "there are ", floats->numel(), " ", floats->scalar_type(), " for ", count, " experts of ", columns, " columns");
    return floats->const_data_ptr<float>() + expert * columns;
  };
  Tensor y = empty_rows({x.size(0), columns}, x.options());
  const Rows rows(x);
  const int64_t* const of_row = experts.const_data_ptr<int64_t>();
  const auto* const first_weights = static_cast<const typename Kind::Weight*>(packed.const_data_ptr());
  BFloat16* const to = y.mutable_data_ptr<BFloat16>();
  std::vector<RowsOfExpert<Kind>> shares;
  for (int64_t first = 0, last; first < rows.count; first = last) {
    const int64_t expert = of_row[first];
    TORCH_CHECK(expert >= 0 && expert < count, "expert ", expert, " of ", count);
    last = std::upper_bound(of_row + first, of_row + rows.count, expert) - of_row;
    const Product<Kind> product{rows[first],
                                rows.stride,
                                first_weights + expert * weights,
                                inputs / 2,
                                to + first * row_stride(y),
                                row_stride(y),
                                floats_of(scales, expert),
                                floats_of(bias, expert)};
    shares.push_back({product, last - first, expert});
  }
  multiply_experts(shares, panels);
  return y;
}

// With bfloat16 weights, [E, N / 32, K / 2, 32, 2].
Tensor linear_of_experts(const Tensor& x, const Tensor& experts, const Tensor& packed, const std::optional<Tensor>& bias) {
  TORCH_CHECK(packed.dim() == 5 && packed.scalar_type() == at::kBFloat16, "weights are ", packed.scalar_type());
  return multiply_of_experts<Bf16>(x, experts, packed, std::nullopt, bias);
}

// With int8 weights, [E, N / 32, K / 2, 32, 2], and scales.
Tensor linear_of_experts_int8(const Tensor& x, const Tensor& experts, const Tensor& packed, const Tensor& scales,
                              const std::optional<Tensor>& bias) {
  TORCH_CHECK(packed.dim() == 5 && packed.scalar_type() == at::kChar, "weights are ", packed.scalar_type());
  return multiply_of_experts<Int8>(x, experts, packed, scales, bias);
}

// With int4 weights, bytes [E, N / 32, K / 32, 576].
Tensor linear_of_experts_int4(const Tensor& x, const Tensor& experts, const Tensor& packed, const std::optional<Tensor>& bias) {
  TORCH_CHECK(packed.dim() == 4 && packed.scalar_type() == at::kByte, "weights are ", packed.scalar_type());
  return multiply_of_experts<Int4>(x, experts, packed, std::nullopt, bias);
}

// Adds the rows of each token's pairs, weighted by weights [T, k], in the order of its experts. rows [S, H] are sorted as in
// `rows_of_pairs`. Returns [T, H].
Tensor sum_of_pairs(const Tensor& rows, const Tensor& order, const Tensor& weights) {
  const int64_t tokens = weights.size(0), chosen = weights.size(1), width = rows.size(1), pairs = tokens * chosen;
  TORCH_CHECK(rows.size(0) == pairs && order.numel() == pairs && order.is_contiguous() && width % LANES == 0, "rows are ",
              rows.sizes(), ", order ", order.sizes(), ", weights ", weights.sizes());
  const Tensor floats = weights.to(at::kFloat).contiguous();
  const Rows from(rows);
  const float* const weight_of = floats.const_data_ptr<float>();
  const int64_t* const pair_of = order.const_data_ptr<int64_t>();
  std::vector<int64_t> row_of(pairs);
  for (int64_t i = 0; i < pairs; ++i) row_of[pair_of[i]] = i;
  Tensor y = empty_rows({tokens, width}, rows.options());
  BFloat16* const to = y.mutable_data_ptr<BFloat16>();
  const int64_t stride = row_stride(y);
  share_out_rows(tokens, ROWS_OF_A_THREAD, [&](int64_t first, int64_t last) {
    for (int64_t pair = first * chosen; pair < last * chosen; pair += chosen)
      for (int64_t column = 0; column < width; column += LANES) {
        Lanes sum = all(0.0f);
        for (int64_t i = pair; i < pair + chosen; ++i)
          sum = fma(load_floats(from[row_of[i]] + column), all(weight_of[i]), sum);
        store_bf16(to + pair / chosen * stride + column, sum);
      }
  });
  return y;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def("rows_of_pairs(Tensor x, Tensor order, int chosen) -> Tensor", rows_of_pairs);
  library.def("linear_of_experts(Tensor x, Tensor experts, Tensor packed, Tensor? bias=None) -> Tensor", linear_of_experts);
  library.def(
      "linear_of_experts_int8(Tensor x, Tensor experts, Tensor packed, Tensor scales, Tensor? bias=None) -> Tensor",
      linear_of_experts_int8);
  library.def("linear_of_experts_int4(Tensor x, Tensor experts, Tensor packed, Tensor? bias=None) -> Tensor",
              linear_of_experts_int4);
  library.def("sum_of_pairs(Tensor rows, Tensor order, Tensor weights) -> Tensor", sum_of_pairs);
}
