// The product of a few rows with int8 or int4 weights, by SIMD, with the same bits as by Intel's matrix unit.
//
// To convert the weights into tiles would take longer than to read them. The matrix unit sums the even and the odd inputs of
// a tile, each in their order, and then adds both sums to the result (TDPBF16PS in Intel's manual).

#pragma once

#include <ATen/ops/empty.h>

#include <vector>

#include "linear_amx_block.h"
#include "product.h"
#include "silu_mul.h"

namespace {

// More rows take longer by SIMD than by the matrix unit.
constexpr int64_t FEW_ROWS = 4;

// The weights of 16 columns for a pair of inputs.
struct FloatPairs {
  Lanes even, odd;
};

// Pair number `pair` of a tile, of the columns from 16 * `half` on.
inline FloatPairs float_pairs(const int8_t* tile, int pair, int half) {
  const __m512i words = _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i*)(tile + pair * 2 * PANEL) + half));
  return {_mm512_cvtepi32_ps(_mm512_srai_epi32(_mm512_slli_epi32(words, 24), 24)),
          _mm512_cvtepi32_ps(_mm512_srai_epi32(words, 8))};
}

inline FloatPairs float_pairs(const Int4Group* group, int pair, int half) {
  const Lanes table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
  const __m512i words = _mm512_loadu_si512(group->words[half][pair / 4]);
  return {_mm512_permutexvar_ps(_mm512_srli_epi32(words, 4 * (pair % 4)), table),
          _mm512_permutexvar_ps(_mm512_srli_epi32(words, 4 * (pair % 4) + 16), table)};
}

inline Lanes add_sums(const int8_t*, int, Lanes sum, Lanes of_tile) { return sum + of_tile; }
inline Lanes add_sums(const Int4Group* group, int half, Lanes sum, Lanes of_tile) {
  return fma(of_tile, load_floats(group->scales + half * LANES), sum);
}

// The sums of `ROWS` rows for a panel. Rows are floats, `inputs` apart.
template <class Kind, int ROWS>
void sum_panel(const float* x, int64_t inputs, const typename Kind::Weight* panel, Lanes (&sums)[ROWS][2]) {
  constexpr int64_t AHEAD = 2 * 4096;  // As for other instruction sets.
  constexpr int64_t WEIGHTS = TILE_INPUTS / Kind::INPUTS * Kind::WEIGHTS, BYTES = WEIGHTS * sizeof(typename Kind::Weight);
  for (int r = 0; r < ROWS; ++r) sums[r][0] = sums[r][1] = all(0.0f);
  for (int64_t input = 0; input < inputs; input += TILE_INPUTS, panel += WEIGHTS, x += TILE_INPUTS) {
    for (int64_t byte = 0; byte < BYTES; byte += 64) _mm_prefetch((const char*)panel + AHEAD + byte, _MM_HINT_T2);
    Lanes even[ROWS][2], odd[ROWS][2];
#pragma GCC unroll 16
    for (int pair = 0; pair < 16; ++pair)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half) {
        const FloatPairs weights = float_pairs(panel, pair, half);
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; ++r) {
          const float* const row = x + r * inputs + 2 * pair;
          even[r][half] = pair ? fma(weights.even, all(row[0]), even[r][half]) : weights.even * all(row[0]);
          odd[r][half] = pair ? fma(weights.odd, all(row[1]), odd[r][half]) : weights.odd * all(row[1]);
        }
      }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 2
      for (int half = 0; half < 2; ++half)
        sums[r][half] = add_sums(panel, half, sums[r][half], even[r][half] + odd[r][half]);
  }
}

// Multiplies `ROWS` rows, as floats, with the weights of panel `panel` of y, which has `panels`.
template <bool GATED, int ROWS, class Kind>
void multiply_few_rows(const Product<Kind>& p, const float* x, int64_t panels, int64_t panel) {
  const int64_t inputs = 2 * p.pairs, of_weights = GATED ? panels + panel : panel;
  Lanes gates[ROWS][2], sums[ROWS][2];
  if constexpr (GATED) sum_panel<Kind>(x, inputs, p.panel(panel), gates);
  sum_panel<Kind>(x, inputs, p.panel(of_weights), sums);
  for (int r = 0; r < ROWS; ++r)
    for (int64_t half = 0; half < 2; ++half) {
      Lanes value = p.result(sums[r][half], of_weights * PANEL + half * LANES);
      if constexpr (GATED) value = silu(p.result(gates[r][half], panel * PANEL + half * LANES)) * value;
      store_bf16(p.y + r * p.y_stride + panel * PANEL + half * LANES, value);
    }
}

// Multiplies the rows of each expert, up to `FEW_ROWS`, with all panels of y. The threads share the panels of all experts.
template <bool GATED, class Kind>
void multiply_few(const std::vector<RowsOfExpert<Kind>>& experts, int64_t panels) {
  if (experts.empty()) return;
  const int64_t inputs = 2 * experts[0].product.pairs, count = experts.size();
  const Tensor floats = at::empty({count, FEW_ROWS, inputs}, at::kFloat);
  float* const x = floats.mutable_data_ptr<float>();
  for (int64_t i = 0; i < count; ++i)
    for (int64_t r = 0; r < experts[i].rows; ++r)
      for (int64_t input = 0; input < inputs; input += LANES)
        store(x + (i * FEW_ROWS + r) * inputs + input,
              load_floats(experts[i].product.x + r * experts[i].product.x_stride + input));
  share_out(count * panels, [&](Tasks& tasks) {
    const NoDenormals no_denormals;
    tasks.each_with_next([&](int64_t task, int64_t) {
      const RowsOfExpert<Kind>& of = experts[task / panels];
      const float* const rows = x + task / panels * FEW_ROWS * inputs;
      switch (const int64_t panel = task % panels; of.rows) {
        case 1: return multiply_few_rows<GATED, 1>(of.product, rows, panels, panel);
        case 2: return multiply_few_rows<GATED, 2>(of.product, rows, panels, panel);
        case 3: return multiply_few_rows<GATED, 3>(of.product, rows, panels, panel);
        default: return multiply_few_rows<GATED, FEW_ROWS>(of.product, rows, panels, panel);
      }
    });
  });
}

}  // namespace
