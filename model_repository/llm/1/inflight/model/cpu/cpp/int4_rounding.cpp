// Rounds weights to int4 when a model is loaded.

#include <torch/library.h>

#include <cmath>

#include "lanes.h"
#include "rows.h"

namespace {

constexpr int64_t GROUP = 32;  // Weights that share a scale.
constexpr int LEAST = -8, MOST = 7;
// What the weight with the largest absolute value may become. Below -8 and above 7 it is cut off, which leaves finer steps
// for the others. llama.cpp's format Q4_0 always takes the first.
constexpr float LARGEST[] = {-8.f, -7.f, -6.f, -5.f, -4.f, -3.f, -2.f, -1.f, 1.f,  2.f,  3.f, 4.f,
                             5.f,  6.f,  7.f,  -9.f, -8.5f, -7.5f, -6.5f, -5.5f, 8.5f, 8.f, 7.5f, 6.5f};

// Rounds to the nearest whole number; of two, to the even one. The sum has no bits left for a fraction.
inline float whole(float x) {
  constexpr float SHIFT = 0x1.8p23f;
  return (x + SHIFT) - SHIFT;
}

inline float code(float x) { return std::min(std::max(whole(x), (float)LEAST), (float)MOST); }

struct Fit {
  float scale, gain;  // The gain is by how much the squared error is less than without any weights.
};

// The scale with the least squared error for whole numbers that are weights times `by`.
Fit fit(const float* weights, float by) {
  float products[LANES] = {}, squares[LANES] = {};
  for (int64_t half = 0; half < GROUP; half += LANES)
    for (int64_t i = 0; i < LANES; ++i) {
      const float q = code(weights[half + i] * by);
      products[i] += q * weights[half + i];
      squares[i] += q * q;
    }
  float product = 0, square = 0;
  for (int64_t i = 0; i < LANES; ++i) product += products[i], square += squares[i];
  return square > 0 ? Fit{product / square, product * product / square} : Fit{0, 0};
}

// Returns the scale, and writes the whole numbers.
BFloat16 round_group(const BFloat16* from, int8_t* to) {
  float largest = 0;
  for (int64_t i = 0; i < GROUP; ++i)
    if (std::abs((float)from[i]) > std::abs(largest)) largest = from[i];
  Fit best{0, 0};
  if (largest != 0) {
    float weights[GROUP];  // Their squares would underflow if they were not near 1.
    for (int64_t i = 0; i < GROUP; ++i) weights[i] = (float)from[i] / largest;
    for (const float target : LARGEST)
      if (const Fit next = fit(weights, target); next.gain > best.gain) best = next;
  }
  const BFloat16 fitted = best.scale * largest, scale = (float)fitted == 0 ? 1.f : (float)fitted;
  for (int64_t i = 0; i < GROUP; ++i) to[i] = (int8_t)code((float)from[i] / (float)scale);
  return scale;
}

}  // namespace

// Returns weights [outputs, inputs] as whole numbers from -8 to 7, in int8, and bfloat16 scales [outputs, inputs / 32].
// Each group has the scale, of some, that leaves the least squared error.
std::tuple<Tensor, Tensor> round_to_int4(const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && weight.size(1) % GROUP == 0 && weight.is_contiguous() &&
                  weight.scalar_type() == at::kBFloat16,
              "weight is ", weight.scalar_type(), " ", weight.sizes(), ", not contiguous bfloat16 [n, 32 k]");
  const int64_t outputs = weight.size(0), groups = weight.size(1) / GROUP;
  Tensor codes = at::empty(weight.sizes(), weight.options().dtype(at::kChar)),
         scales = at::empty({outputs, groups}, weight.options());
  const BFloat16* from = weight.const_data_ptr<BFloat16>();
  int8_t* to = codes.mutable_data_ptr<int8_t>();
  BFloat16* scale = scales.mutable_data_ptr<BFloat16>();
  share_out_rows(outputs, ROWS_OF_A_THREAD, [&](int64_t first, int64_t last) {
    for (int64_t group = first * groups; group < last * groups; ++group)
      scale[group] = round_group(from + group * GROUP, to + group * GROUP);
  });
  return {codes, scales};
}

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def("round_to_int4(Tensor weight) -> (Tensor, Tensor)", round_to_int4);
}
