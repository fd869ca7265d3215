// A matrix product of few rows in bfloat16.
//
// Weights [N, K] are packed as [N / 32][K / 2][32][2]: a panel of 32 output columns, pair by pair of inputs. Every output
// is summed up in the order of its inputs, whatever else is computed: a row's result does not depend on its neighbours.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include "lanes.h"

namespace {

constexpr int64_t PANEL = 2 * LANES;
constexpr int64_t MOST_ROWS = 12;  // 24 accumulators and two columns of weights fill the registers.

// `ROWS` rows of x times `WIDTH` panels. Few rows take several panels at a time, to hide the latency of dpbf16.
template <int ROWS, int WIDTH>
void multiply_panels(const BFloat16* x, int64_t x_stride, const BFloat16* panels, int64_t pairs, BFloat16* y,
                     int64_t y_stride) {
  __m512 sums[ROWS][WIDTH][2];
  for (int r = 0; r < ROWS; ++r)
    for (int w = 0; w < WIDTH; ++w) sums[r][w][0] = sums[r][w][1] = _mm512_setzero_ps();
  for (int64_t p = 0; p < pairs; ++p) {
    __m512bh inputs[ROWS];
#pragma GCC unroll 12
    for (int r = 0; r < ROWS; ++r) inputs[r] = repeat_pair(x + r * x_stride + p * 2);
#pragma GCC unroll 8
    for (int w = 0; w < WIDTH; ++w) {
      const BFloat16* weights = panels + (w * pairs + p) * 2 * PANEL;
      const __m512bh left = load_pairs(weights), right = load_pairs(weights + 2 * LANES);
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; ++r) {
        sums[r][w][0] = _mm512_dpbf16_ps(sums[r][w][0], left, inputs[r]);
        sums[r][w][1] = _mm512_dpbf16_ps(sums[r][w][1], right, inputs[r]);
      }
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int w = 0; w < WIDTH; ++w)
      for (int half = 0; half < 2; ++half)
        store_bf16(y + r * y_stride + w * PANEL + half * LANES, sums[r][w][half]);
}

using Multiply = void (*)(const BFloat16*, int64_t, const BFloat16*, int64_t, BFloat16*, int64_t);

constexpr Multiply ONE_PANEL[MOST_ROWS + 1] = {
    nullptr,
    multiply_panels<1, 1>,  multiply_panels<2, 1>,  multiply_panels<3, 1>,  multiply_panels<4, 1>,
    multiply_panels<5, 1>,  multiply_panels<6, 1>,  multiply_panels<7, 1>,  multiply_panels<8, 1>,
    multiply_panels<9, 1>,  multiply_panels<10, 1>, multiply_panels<11, 1>, multiply_panels<12, 1>,
};

struct Wide {
  int64_t width;
  Multiply multiply;
};

constexpr Wide WIDE[] = {
    {1, nullptr},
    {8, multiply_panels<1, 8>}, {6, multiply_panels<2, 6>}, {4, multiply_panels<3, 4>},
    {3, multiply_panels<4, 3>}, {2, multiply_panels<5, 2>}, {2, multiply_panels<6, 2>},
};
constexpr int64_t FEW_ROWS = 6;

// [N, K] to [N / 32, K / 2, 32, 2]; N is a multiple of 32 and K of 2.
Tensor pack_weight(const Tensor& weight) {
  const int64_t columns = weight.size(0), inputs = weight.size(1);
  TORCH_CHECK(weight.scalar_type() == at::kBFloat16, "weight must be bfloat16, is ", weight.scalar_type());
  TORCH_CHECK(columns % PANEL == 0 && inputs % 2 == 0, "weight is [", columns, ", ", inputs, "], not [32 n, 2 k]");
  return weight.view({columns / PANEL, PANEL, inputs / 2, 2}).transpose(1, 2).contiguous();
}

// x [..., K] by packed weights of N columns: [..., N].
Tensor linear(const Tensor& x, const Tensor& packed) {
  const int64_t panels = packed.size(0), pairs = packed.size(1);
  TORCH_CHECK(x.scalar_type() == at::kBFloat16, "x must be bfloat16, is ", x.scalar_type());
  TORCH_CHECK(x.size(-1) == 2 * pairs, "x has ", x.size(-1), " columns, weights take ", 2 * pairs);
  auto shape = x.sizes().vec();
  shape.back() = panels * PANEL;
  Tensor y = at::empty(shape, x.options());
  const Tensor rows_of_x = x.reshape({-1, 2 * pairs});
  const Tensor flat = rows_of_x.stride(1) == 1 ? rows_of_x : rows_of_x.contiguous();
  const int64_t rows = flat.size(0);
  if (rows == 0) return y;
  const BFloat16* in = flat.const_data_ptr<BFloat16>();
  const BFloat16* weights = packed.const_data_ptr<BFloat16>();
  BFloat16* out = y.mutable_data_ptr<BFloat16>();
  const int64_t in_stride = flat.stride(0), out_stride = panels * PANEL;
  const int64_t panel_size = pairs * 2 * PANEL;
  const Wide wide = rows <= FEW_ROWS ? WIDE[rows] : Wide{1, nullptr};
  // Rows in equal shares of at most twelve.
  const int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
  const int64_t parts = (panels + wide.width - 1) / wide.width;
  share_out(parts, [&](const auto& take) {
    for (int64_t part = take(); part < parts; part = take()) {
      int64_t panel = part * wide.width;
      const int64_t last = std::min(panel + wide.width, panels);
      if (wide.multiply && panel + wide.width == last) {
        wide.multiply(in, in_stride, weights + panel * panel_size, pairs, out + panel * PANEL, out_stride);
        continue;
      }
      for (; panel < last; ++panel) {
        int64_t row = 0;
        for (int64_t tile = 0; tile < tiles; ++tile) {
          const int64_t count = (rows - row) / (tiles - tile);
          ONE_PANEL[count](in + row * in_stride, in_stride, weights + panel * panel_size, pairs,
                           out + row * out_stride + panel * PANEL, out_stride);
          row += count;
        }
      }
    }
  });
  return y;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def("pack_weight(Tensor weight) -> Tensor", pack_weight);
  library.def("linear(Tensor x, Tensor packed) -> Tensor", linear);
}
