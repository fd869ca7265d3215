// A matrix product with weights in bfloat16, int8 or int4.
//
// Weights [N, K] are packed as [N / 32][K / 2][32][2]: panels of 32 output columns, with pairs of inputs. In int4, panels
// have groups of 32 inputs (`Int4Group`). Each output is summed in the order of its inputs, so a row's result does not
// depend on other rows (the product is batch-invariant).

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <optional>

#include "linear_rows.h"
#include "rows.h"
#include "silu_mul.h"

namespace {

// Packs weights [N, K] as [N / 32, K / 2, 32, 2]. N must be a multiple of 32 and K of 2.
Tensor pack_weight(const Tensor& weight) {
  const int64_t columns = weight.size(0), inputs = weight.size(1);
  TORCH_CHECK(columns % PANEL == 0 && inputs % 2 == 0, "weight is [", columns, ", ", inputs, "], not [32 n, 2 k]");
  return weight.view({columns / PANEL, PANEL, inputs / 2, 2}).transpose(1, 2).contiguous();
}

// Floats for each column, or null.
const float* of_columns(const std::optional<Tensor>& floats, const Tensor& packed) {
  if (!floats) return nullptr;
  TORCH_CHECK(floats->numel() == packed.size(0) * PANEL && floats->scalar_type() == at::kFloat, "there are ", floats->numel(),
              " ", floats->scalar_type(), " for ", packed.size(0) * PANEL, " columns");
  return floats->const_data_ptr<float>();
}

// With `GATED`, the first half of the columns are gates, and the result is silu(gate) times the second half.
template <class Kind, bool GATED = false>
Tensor multiply(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& scales, const std::optional<Tensor>& bias) {
  const int64_t panels = packed.size(0) / (GATED ? 2 : 1), columns = panels * PANEL, inputs = packed.size(1) * Kind::INPUTS;
  TORCH_CHECK(x.size(-1) == inputs, "x has ", x.size(-1), " columns, weights take ", inputs);
  TORCH_CHECK(!GATED || packed.size(0) % 2 == 0, "gates have half of ", packed.size(0), " panels");
  const bool by_amx = uses_amx(inputs);
  if (GATED && !by_amx) {
    const Tensor both = multiply<Kind>(x, packed, scales, bias);
    return silu_mul(both.narrow(-1, 0, columns), both.narrow(-1, columns, columns));
  }
  auto shape = x.sizes().vec();
  shape.back() = columns;
  Tensor y = empty_rows(shape, x.options());
  const Rows rows(x);
  if (rows.count == 0) return y;
  const Product<Kind> product{rows[0],
                              rows.stride,
                              static_cast<const typename Kind::Weight*>(packed.const_data_ptr()),
                              inputs / 2,
                              y.mutable_data_ptr<BFloat16>(),
                              row_stride(y),
                              of_columns(scales, packed),
                              of_columns(bias, packed)};
  multiply_rows<GATED>(product, rows.count, panels);
  return y;
}

// Multiplies x [..., K] with packed bfloat16 weights of N columns and adds the bias, float32 [N]. Returns [..., N].
Tensor linear(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& bias) {
  return multiply<Bf16>(x, packed, std::nullopt, bias);
}

// Multiplies x [..., K] with packed int8 weights of N columns and scales [N]. Returns [..., N].
Tensor linear_int8(const Tensor& x, const Tensor& packed, const Tensor& scales, const std::optional<Tensor>& bias) {
  return multiply<Int8>(x, packed, scales, bias);
}

// Multiplies x [..., K] with packed weights of N gate columns and N other columns. Returns silu(gate) * other [..., N],
// rounded once.
Tensor linear_silu_mul(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& bias) {
  return multiply<Bf16, true>(x, packed, std::nullopt, bias);
}

// The same with int8 weights and a scale for each of their columns.
Tensor linear_int8_silu_mul(const Tensor& x, const Tensor& packed, const Tensor& scales, const std::optional<Tensor>& bias) {
  return multiply<Int8, true>(x, packed, scales, bias);
}

void check_int4(const Tensor& packed) {
  TORCH_CHECK(packed.dim() == 3 && packed.size(2) == sizeof(Int4Group) && packed.scalar_type() == at::kByte,
              "weights are ", packed.scalar_type(), " ", packed.sizes(), ", not bytes [n, k, ", sizeof(Int4Group), "]");
}

// Multiplies x [..., K] with int4 weights of N columns, packed as bytes [N / 32, K / 32, 576]. Returns [..., N].
Tensor linear_int4(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& bias) {
  check_int4(packed);
  return multiply<Int4>(x, packed, std::nullopt, bias);
}

// `linear_silu_mul` with int4 weights.
Tensor linear_int4_silu_mul(const Tensor& x, const Tensor& packed, const std::optional<Tensor>& bias) {
  check_int4(packed);
  return multiply<Int4, true>(x, packed, std::nullopt, bias);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def("pack_weight(Tensor weight) -> Tensor", pack_weight);
  library.def("linear(Tensor x, Tensor packed, Tensor? bias=None) -> Tensor", linear);
  library.def("linear_int8(Tensor x, Tensor packed, Tensor scales, Tensor? bias=None) -> Tensor", linear_int8);
  library.def("linear_silu_mul(Tensor x, Tensor packed, Tensor? bias=None) -> Tensor", linear_silu_mul);
  library.def("linear_int8_silu_mul(Tensor x, Tensor packed, Tensor scales, Tensor? bias=None) -> Tensor", linear_int8_silu_mul);
  library.def("linear_int4(Tensor x, Tensor packed, Tensor? bias=None) -> Tensor", linear_int4);
  library.def("linear_int4_silu_mul(Tensor x, Tensor packed, Tensor? bias=None) -> Tensor", linear_int4_silu_mul);
}
