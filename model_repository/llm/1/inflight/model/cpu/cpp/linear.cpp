// A matrix product, with weights in bfloat16 or int8: by Intel's matrix unit where there is one, else made for few rows.
//
// Weights [N, K] are packed as [N / 32][K / 2][32][2]: a panel of 32 output columns, pair by pair of inputs. Every output
// is summed up in the order of its inputs, whatever else is computed: a row's result does not depend on its neighbours.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <vector>

#include "amx.h"
#include "lanes.h"

namespace {

constexpr int64_t PANEL = 2 * LANES;
constexpr int64_t MOST_ROWS = 12;  // 24 accumulators and two columns of weights fill the registers.
constexpr int64_t FEW_ROWS = 6;

struct Bf16 {
  using Weight = BFloat16;
  static __m512bh load(const Weight* from) { return load_pairs(from); }
  static __m512 scaled(__m512 sum, const float*) { return sum; }
  static constexpr bool IS_BF16 = true;
  static const BFloat16* panel(const Weight* weights, int64_t, BFloat16*) { return weights; }
};

// Whole numbers up to 127, which bfloat16 holds exactly, and a scale for each column.
struct Int8 {
  using Weight = int8_t;
  static __m512 floats(const Weight* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
  }
  static __m512bh load(const Weight* from) { return _mm512_cvtne2ps_pbh(floats(from + LANES), floats(from)); }
  static __m512 scaled(__m512 sum, const float* scales) { return _mm512_mul_ps(sum, _mm512_loadu_ps(scales)); }
  static constexpr bool IS_BF16 = false;
  static const BFloat16* panel(const Weight* weights, int64_t size, BFloat16* unpacked) {
    for (int64_t i = 0; i < size; i += 2 * LANES) _mm512_storeu_si512(unpacked + i, (__m512i)load(weights + i));
    return unpacked;
  }
};

// What is multiplied: x and y by their first rows and strides, packed weights, and their scales if there are.
template <class Kind>
struct Product {
  const BFloat16* x;
  int64_t x_stride;
  const typename Kind::Weight* weights;
  int64_t pairs;
  BFloat16* y;
  int64_t y_stride;
  const float* scales;
};

// `ROWS` rows of x from `row` on times `WIDTH` panels from `panel` on. Few rows take several panels at a time, to hide
// the latency of the sums.
template <class Kind, int ROWS, int WIDTH>
void multiply_panels(const Product<Kind>& p, int64_t row, int64_t panel) {
  __m512 sums[ROWS][WIDTH][2];
  const BFloat16* x = p.x + row * p.x_stride;
  const typename Kind::Weight* panels = p.weights + panel * p.pairs * 2 * PANEL;
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int w = 0; w < WIDTH; ++w) sums[r][w][0] = sums[r][w][1] = _mm512_setzero_ps();
  for (int64_t pair = 0; pair < p.pairs; ++pair) {
#pragma GCC unroll 8
    for (int w = 0; w < WIDTH; ++w) {
      const typename Kind::Weight* weights = panels + (w * p.pairs + pair) * 2 * PANEL;
      const __m512bh left = Kind::load(weights), right = Kind::load(weights + 2 * LANES);
#pragma GCC unroll 12
      for (int r = 0; r < ROWS; ++r) {
        const __m512bh inputs = repeat_pair(x + r * p.x_stride + pair * 2);
        sums[r][w][0] = _mm512_dpbf16_ps(sums[r][w][0], left, inputs);
        sums[r][w][1] = _mm512_dpbf16_ps(sums[r][w][1], right, inputs);
      }
    }
  }
#pragma GCC unroll 12
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int w = 0; w < WIDTH; ++w)
      for (int half = 0; half < 2; ++half) {
        const int64_t column = (panel + w) * PANEL + half * LANES;
        store_bf16(p.y + (row + r) * p.y_stride + column, Kind::scaled(sums[r][w][half], p.scales + column));
      }
}

template <class Kind>
struct Kernels {
  using Multiply = void (*)(const Product<Kind>&, int64_t, int64_t);

  static constexpr Multiply ONE_PANEL[MOST_ROWS + 1] = {
      nullptr,
      multiply_panels<Kind, 1, 1>,  multiply_panels<Kind, 2, 1>,  multiply_panels<Kind, 3, 1>,
      multiply_panels<Kind, 4, 1>,  multiply_panels<Kind, 5, 1>,  multiply_panels<Kind, 6, 1>,
      multiply_panels<Kind, 7, 1>,  multiply_panels<Kind, 8, 1>,  multiply_panels<Kind, 9, 1>,
      multiply_panels<Kind, 10, 1>, multiply_panels<Kind, 11, 1>, multiply_panels<Kind, 12, 1>,
  };

  struct Wide {
    int64_t width;
    Multiply multiply;
  };
  static constexpr Wide WIDE[FEW_ROWS + 1] = {
      {1, nullptr},
      {8, multiply_panels<Kind, 1, 8>}, {6, multiply_panels<Kind, 2, 6>}, {4, multiply_panels<Kind, 3, 4>},
      {3, multiply_panels<Kind, 4, 3>}, {2, multiply_panels<Kind, 5, 2>}, {2, multiply_panels<Kind, 6, 2>},
  };

  // All rows times all panels.
  static void multiply(const Product<Kind>& product, int64_t rows, int64_t panels) {
    const Wide wide = rows <= FEW_ROWS ? WIDE[rows] : Wide{1, nullptr};
    // Rows in equal shares of at most twelve.
    const int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
    const int64_t parts = (panels + wide.width - 1) / wide.width;
    share_out(parts, [&](const auto& take) {
      for (int64_t part = take(); part < parts; part = take()) {
        int64_t panel = part * wide.width;
        const int64_t last = std::min(panel + wide.width, panels);
        if (wide.multiply && panel + wide.width == last) {
          wide.multiply(product, 0, panel);
          continue;
        }
        for (; panel < last; ++panel) {
          int64_t row = 0;
          for (int64_t tile = 0; tile < tiles; ++tile) {
            const int64_t count = (rows - row) / (tiles - tile);
            ONE_PANEL[count](product, row, panel);
            row += count;
          }
        }
      }
    });
  }
};

// Intel's matrix unit takes the same packed weights: sixteen pairs of inputs by sixteen columns are a tile.
#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16")

constexpr int64_t TILE_ROWS = 16;
constexpr int64_t TILE_INPUTS = 32;

// Tiles 0 and 1 are sums of `top` rows, 2 and 3 of `bottom` rows; 4 and 5 the inputs of those; 6 and 7 weights.
TileShapes product_tiles(int64_t top, int64_t bottom) {
  return TileShapes({{top, 64}, {top, 64}, {bottom, 64}, {bottom, 64}, {top, 64}, {bottom, 64}, {16, 64}, {16, 64}});
}

// `top` and `bottom` rows of x, sixteen at most, from `row` on, times one panel of weights.
template <class Kind>
void multiply_tiles(const Product<Kind>& p, int64_t row, int64_t top, int64_t bottom, int64_t panel,
                    const BFloat16* weights) {
  const BFloat16 *x = p.x + row * p.x_stride, *below = x + TILE_ROWS * p.x_stride;
  const int64_t x_bytes = p.x_stride * 2, weight_bytes = 2 * PANEL * 2;
  _tile_zero(0);
  _tile_zero(1);
  if (bottom) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t input = 0; input < 2 * p.pairs; input += TILE_INPUTS) {
    _tile_loadd(6, weights + input * PANEL, weight_bytes);
    _tile_loadd(7, weights + input * PANEL + 2 * LANES, weight_bytes);
    _tile_loadd(4, x + input, x_bytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (bottom) {
      _tile_loadd(5, below + input, x_bytes);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  alignas(64) float sums[2 * TILE_ROWS][PANEL];
  _tile_stored(0, sums[0], sizeof sums[0]);
  _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
  if (bottom) {
    _tile_stored(2, sums[TILE_ROWS], sizeof sums[0]);
    _tile_stored(3, sums[TILE_ROWS] + LANES, sizeof sums[0]);
  }
  for (int64_t r = 0; r < top + bottom; ++r)
    for (int64_t half = 0; half < PANEL; half += LANES) {
      const int64_t column = panel * PANEL + half;
      store_bf16(p.y + (row + r) * p.y_stride + column, Kind::scaled(_mm512_load_ps(sums[r] + half), p.scales + column));
    }
}

// All rows times all panels.
template <class Kind>
void multiply_by_amx(const Product<Kind>& product, int64_t rows, int64_t panels) {
  const int64_t panel_size = product.pairs * 2 * PANEL;
  share_out(panels, [&](const auto& take) {
    std::vector<BFloat16> unpacked(Kind::IS_BF16 ? 0 : panel_size);
    int64_t shaped = 0;
    for (int64_t panel = take(); panel < panels; panel = take()) {
      const BFloat16* weights = Kind::panel(product.weights + panel * panel_size, panel_size, unpacked.data());
      for (int64_t row = 0; row < rows; row += 2 * TILE_ROWS) {
        const int64_t count = std::min(2 * TILE_ROWS, rows - row);
        const int64_t top = std::min(TILE_ROWS, count), bottom = count - top;
        if (shaped != count) {
          load_shapes(product_tiles(top, bottom));
          shaped = count;
        }
        multiply_tiles(product, row, top, bottom, panel, weights);
      }
    }
    release_tiles();
  });
}

#pragma GCC pop_options

// [N, K] to [N / 32, K / 2, 32, 2]; N is a multiple of 32 and K of 2.
Tensor pack_weight(const Tensor& weight) {
  const int64_t columns = weight.size(0), inputs = weight.size(1);
  TORCH_CHECK(columns % PANEL == 0 && inputs % 2 == 0, "weight is [", columns, ", ", inputs, "], not [32 n, 2 k]");
  return weight.view({columns / PANEL, PANEL, inputs / 2, 2}).transpose(1, 2).contiguous();
}

template <class Kind>
Tensor multiply(const Tensor& x, const Tensor& packed, const float* scales) {
  const int64_t columns = packed.size(0) * PANEL, inputs = packed.size(1) * 2;
  TORCH_CHECK(x.scalar_type() == at::kBFloat16, "x must be bfloat16, is ", x.scalar_type());
  TORCH_CHECK(x.size(-1) == inputs, "x has ", x.size(-1), " columns, weights take ", inputs);
  auto shape = x.sizes().vec();
  shape.back() = columns;
  Tensor y = at::empty(shape, x.options());
  const Tensor flat = x.reshape({-1, inputs}), rows = flat.stride(1) == 1 ? flat : flat.contiguous();
  if (rows.size(0) == 0) return y;
  const Product<Kind> product{rows.const_data_ptr<BFloat16>(),
                              rows.stride(0),
                              packed.const_data_ptr<typename Kind::Weight>(),
                              packed.size(1),
                              y.mutable_data_ptr<BFloat16>(),
                              columns,
                              scales};
  if (inputs % TILE_INPUTS == 0 && has_amx())
    multiply_by_amx(product, rows.size(0), packed.size(0));
  else
    Kernels<Kind>::multiply(product, rows.size(0), packed.size(0));
  return y;
}

// x [..., K] by packed weights of N columns in bfloat16: [..., N].
Tensor linear(const Tensor& x, const Tensor& packed) { return multiply<Bf16>(x, packed, nullptr); }

// x [..., K] by packed weights of N columns in int8 with scales [N]: [..., N].
Tensor linear_int8(const Tensor& x, const Tensor& packed, const Tensor& scales) {
  TORCH_CHECK(scales.numel() == packed.size(0) * PANEL, "there are ", scales.numel(), " scales for ", packed.size(0) * PANEL,
              " columns");
  return multiply<Int8>(x, packed, scales.const_data_ptr<float>());
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def("pack_weight(Tensor weight) -> Tensor", pack_weight);
  library.def("linear(Tensor x, Tensor packed) -> Tensor", linear);
  library.def("linear_int8(Tensor x, Tensor packed, Tensor scales) -> Tensor", linear_int8);
}
