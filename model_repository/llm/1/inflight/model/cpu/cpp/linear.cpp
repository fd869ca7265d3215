// A matrix product with weights in bfloat16, int8 or int4. Intel's matrix unit computes it if the processor has one. Otherwise
// SIMD code does, which is optimised for few rows.
//
// Weights [N, K] are packed as [N / 32][K / 2][32][2]: panels of 32 output columns, with pairs of inputs. In int4, panels
// have groups of 32 inputs (`Int4Group`). Each output is summed in the order of its inputs, so a row's result does not
// depend on other rows (the product is batch-invariant).

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <type_traits>
#include <utility>

#include "interleaved.h"
#include "product.h"
#include "rows.h"
#include "silu_mul.h"
#ifdef __AMX_BF16__
#include "linear_amx.h"
#include "linear_amx_few.h"
#endif
#ifndef __AVX512F__
#include "linear_avx2.h"
#endif

namespace {

// Whether the rows that are multiplied together are interleaved pair by pair in memory, instead of one after the other.
constexpr bool INTERLEAVED = std::is_same_v<Factor, float>;

// The processor's own prefetching ends at each page of memory. So weights are prefetched two pages ahead.
constexpr int64_t AHEAD = 2 * 4096;

constexpr int COLUMNS = PANEL / LANES;

template <int ROWS>
void clear(Lanes (&sums)[ROWS][COLUMNS]) {
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) sums[r][c] = all(0.0f);
}

// Adds the products of a group of inputs to `sums`. A row's pairs are `step` apart, and rows are `stride` apart.
template <int ROWS, class Weight>
void add_group(Lanes (&sums)[ROWS][COLUMNS], const Factor* x, int64_t, int64_t stride, const Weight* weights) {
  add_products(sums, x, stride, [&](int c) { return load_pairs(weights + c * 2 * LANES); });
}

template <int ROWS>
void add_group(Lanes (&sums)[ROWS][COLUMNS], const Factor* x, int64_t step, int64_t stride, const Int4Group* group) {
  Lanes products[ROWS][COLUMNS];
  clear(products);
  for (int word = 0; word < 4; ++word)
#pragma GCC unroll 4
    for (int pair = 0; pair < 4; ++pair, x += step)
      add_products(products, x, stride, [&](int c) { return load_pairs(group->words[c][word], pair); });
#pragma GCC unroll 16
  for (int c = 0; c < COLUMNS; ++c) {
    const Lanes scales = load_floats(group->scales + c * LANES);
#pragma GCC unroll 16
    for (int r = 0; r < ROWS; ++r) sums[r][c] = fma(products[r][c], scales, sums[r][c]);
  }
}

// Multiplies `ROWS` rows of x from `row` on with a panel. Prefetches weights if `fresh`, that is, if this thread has not
// read the panel yet.
template <class Kind, int ROWS>
void multiply_panel(const Product<Kind>& p, const Factor* rows, int64_t row, int64_t panel, bool fresh) {
  const Factor* x = rows + row * (INTERLEAVED ? p.pairs * 2 : p.x_stride);
  const int64_t step = INTERLEAVED ? ROWS * 2 : 2, stride = INTERLEAVED ? 2 : p.x_stride;
  const typename Kind::Weight* weights = p.panel(panel);
  Lanes sums[ROWS][COLUMNS];
  clear(sums);
  for (int64_t pair = 0; pair < p.pairs; pair += Kind::INPUTS / 2, weights += Kind::WEIGHTS) {
    if (fresh)
      for (int64_t byte = 0; byte < Kind::WEIGHTS * (int64_t)sizeof *weights; byte += 64)
        _mm_prefetch((const char*)weights + AHEAD + byte, _MM_HINT_T1);
    add_group(sums, x + pair * step, step, stride, weights);
  }
#pragma GCC unroll 16
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 16
    for (int c = 0; c < COLUMNS; ++c) {
      const int64_t column = panel * PANEL + c * LANES;
      store_bf16(p.y + (row + r) * p.y_stride + column, p.result(sums[r][c], column));
    }
}

// Multiplies a fixed number of rows with one panel.
template <class Kind>
using Multiply = void (*)(const Product<Kind>&, const Factor*, int64_t, int64_t, bool);

template <class Kind, int... BEFORE>
constexpr std::array<Multiply<Kind>, MAX_ROWS> kernels(std::integer_sequence<int, BEFORE...>) {
  return {{multiply_panel<Kind, BEFORE + 1>...}};
}

// Multiplies all rows with all panels.
template <class Kind>
void multiply_by_lanes(const Product<Kind>& product, int64_t rows, int64_t panels) {
#ifndef __AVX512F__
  if (rows > MAX_ROWS) return multiply_by_columns(product, rows, panels);
#endif
  static constexpr auto KERNELS = kernels<Kind>(std::make_integer_sequence<int, MAX_ROWS>());
  const int64_t tiles = (rows + MAX_ROWS - 1) / MAX_ROWS;
  Tensor floats;
  const Factor* factors;
  if constexpr (INTERLEAVED) {
    floats = interleaved(product, rows, tiles);
    factors = floats.const_data_ptr<Factor>();
  } else {
    factors = product.x;
  }
  share_out(panels, [&](Tasks& tasks) {
    tasks.each_with_next([&](int64_t panel, int64_t) {
      for (int64_t t = 0; t < tiles; ++t) {
        const Tile tile(rows, tiles, t);
        KERNELS[tile.count - 1](product, factors, tile.first, panel, t == 0);
      }
    });
  });
}

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
#ifdef __AMX_BF16__
  const bool by_amx = inputs % TILE_INPUTS == 0 && may_use_amx();
#else
  constexpr bool by_amx = false;
#endif
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
#ifdef __AMX_BF16__
  if (by_amx) {
    if constexpr (!std::is_same_v<Kind, Bf16>)
      if (rows.count <= FEW_ROWS) {
        multiply_few<GATED>(product, rows.count, panels);
        return y;
      }
    multiply_by_amx<GATED>(product, rows.count, panels);
    return y;
  }
#endif
  multiply_by_lanes(product, rows.count, panels);
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
