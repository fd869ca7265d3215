// The operations of a decoder's step that torch has no fast CPU path for: a bf16 matrix product of few rows, attention over
// a paged KV cache, and RMSNorm in one pass. Built by torch's extension builder on processors with AVX512_BF16; everywhere else
// torch's own operators serve (packed_linear.py, paged_attention.py).
//
// Both keep their data as pairs: `dpbf16` multiplies two neighbouring bf16 of a lane with two others and adds both
// products to the lane's float. So what is summed over lies in pairs, and what is computed side by side lies in lanes.

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <immintrin.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

using at::BFloat16;
using at::Tensor;

namespace {

constexpr int64_t LANES = 16;

inline __m512bh load_pairs(const BFloat16* from) { return (__m512bh)_mm512_loadu_si512(from); }

inline __m512bh repeat_pair(const BFloat16* pair) {
  return (__m512bh)_mm512_set1_epi32(*reinterpret_cast<const int32_t*>(pair));
}

inline void store_bf16(BFloat16* to, __m512 value) { _mm256_storeu_si256((__m256i*)to, (__m256i)_mm512_cvtneps_pbh(value)); }

// -- matrix product ---------------------------------------------------------------------------------------------------
//
// Weights [N, K] are packed as [N / 32][K / 2][32][2]: a panel of 32 output columns, pair by pair of inputs. Every output
// is summed up in the order of its inputs, whatever else is computed: a row's result does not depend on its neighbours.

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

// x [M, K] by packed weights of N columns: [M, N].
Tensor linear(const Tensor& x, const Tensor& packed) {
  const int64_t rows = x.size(0), panels = packed.size(0), pairs = packed.size(1);
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 && x.stride(1) == 1, "x must be bfloat16 with rows in one piece");
  if (rows == 0) return at::empty({0, panels * PANEL}, x.options());
  TORCH_CHECK(x.size(1) == 2 * pairs, "x has ", x.size(1), " columns, weights take ", 2 * pairs);
  Tensor y = at::empty({rows, panels * PANEL}, x.options());
  const BFloat16* in = x.const_data_ptr<BFloat16>();
  const BFloat16* weights = packed.const_data_ptr<BFloat16>();
  BFloat16* out = y.mutable_data_ptr<BFloat16>();
  const int64_t in_stride = x.stride(0), out_stride = y.stride(0);
  const int64_t panel_size = pairs * 2 * PANEL;
  // Rows in equal shares of at most twelve.
  const int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
  at::parallel_for(0, panels, 1, [&](int64_t first, int64_t last) {
    int64_t panel = first;
    if (rows <= FEW_ROWS)
      for (const Wide& wide = WIDE[rows]; panel + wide.width <= last; panel += wide.width)
        wide.multiply(in, in_stride, weights + panel * panel_size, pairs, out + panel * PANEL, out_stride);
    for (; panel < last; ++panel) {
      int64_t row = 0;
      for (int64_t tile = 0; tile < tiles; ++tile) {
        const int64_t count = (rows - row) / (tiles - tile);
        ONE_PANEL[count](in + row * in_stride, in_stride, weights + panel * panel_size, pairs,
                         out + row * out_stride + panel * PANEL, out_stride);
        row += count;
      }
    }
  });
  return y;
}

// -- RMSNorm ----------------------------------------------------------------------------------------------------------

inline __m512 load_floats(const BFloat16* from) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from)), 16));
}

// x / sqrt(mean(x^2) + eps) * weight over the last dimension of x [M, width], rounded once at the end.
Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  const int64_t width = weight.size(0), rows = x.size(0);
  TORCH_CHECK(x.scalar_type() == at::kBFloat16 && weight.scalar_type() == at::kBFloat16, "x and weight must be bfloat16");
  TORCH_CHECK(x.size(1) == width && x.stride(1) == 1 && width % LANES == 0, "x is ", x.sizes(), ", weight [", width, "]");
  Tensor y = at::empty({rows, width}, x.options());
  const BFloat16 *in = x.const_data_ptr<BFloat16>(), *scale = weight.const_data_ptr<BFloat16>();
  BFloat16* out = y.mutable_data_ptr<BFloat16>();
  at::parallel_for(0, rows, 32, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      const BFloat16* from = in + row * x.stride(0);
      __m512 squares = _mm512_setzero_ps();
      for (int64_t d = 0; d < width; d += LANES) {
        const __m512 value = load_floats(from + d);
        squares = _mm512_fmadd_ps(value, value, squares);
      }
      const float mean = _mm512_reduce_add_ps(squares) / (float)width;
      const __m512 by = _mm512_set1_ps(1.0f / std::sqrt(mean + (float)eps));
      for (int64_t d = 0; d < width; d += LANES)
        store_bf16(out + row * width + d,
                   _mm512_mul_ps(_mm512_mul_ps(load_floats(from + d), by), load_floats(scale + d)));
    }
  });
  return y;
}

// -- attention --------------------------------------------------------------------------------------------------------
//
// A block of 16 n tokens of one KV head is, for keys, [n][D / 2][16][2]: sixteen tokens in lanes, pairs of dimensions to
// sum over; for values, [n][8][D][2]: dimensions in lanes, pairs of tokens to sum over. So neither product adds across
// lanes. A task is a tile of query rows (tokens times the query heads of a KV head) with one KV head.

constexpr int64_t MOST_TILE_TOKENS = 4;
constexpr int64_t MOST_GROUP = 8;  // Rows whose sums are in registers at the same time.

// e^x to about 2 ulp for x <= 0, by 2^n * p(r): Cephes' polynomial.
inline __m512 exp_nonpositive(__m512 x) {
  x = _mm512_max_ps(x, _mm512_set1_ps(-87.0f));
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 8);
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(0.693359375f), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(-2.12194440e-4f), r);
  __m512 p = _mm512_set1_ps(1.9875691500e-4f);
  for (const float c : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(c));
  p = _mm512_fmadd_ps(_mm512_mul_ps(p, r), r, _mm512_add_ps(r, _mm512_set1_ps(1.0f)));
  return _mm512_scalef_ps(p, n);
}

struct Pages {
  const BFloat16* keys;
  const BFloat16* values;
  const int64_t* table;
  int64_t block_size, head_offset_k, head_offset_v, block_stride_k, block_stride_v, width_k, width_v;

  // Keys and values of the sixteen tokens from 16 * index on.
  const BFloat16* key_lanes(int64_t index) const {
    const int64_t per_block = block_size / LANES;
    return keys + table[index / per_block] * block_stride_k + head_offset_k + index % per_block * LANES * width_k;
  }
  const BFloat16* value_lanes(int64_t index) const {
    const int64_t per_block = block_size / LANES;
    return values + table[index / per_block] * block_stride_v + head_offset_v + index % per_block * LANES * width_v;
  }
};

// Scores of `ROWS` queries (each `width` long, `stride` apart) with the tokens of lanes first..last.
template <int ROWS>
void score(const BFloat16* queries, int64_t stride, const Pages& pages, int64_t first, int64_t last, float* scores,
           int64_t scores_stride) {
  for (int64_t lane = first; lane < last; ++lane) {
    const BFloat16* keys = pages.key_lanes(lane);
    __m512 sums[ROWS];
    for (int r = 0; r < ROWS; ++r) sums[r] = _mm512_setzero_ps();
    for (int64_t d = 0; d < pages.width_k; d += 2) {
      const __m512bh key = load_pairs(keys + d * LANES);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) sums[r] = _mm512_dpbf16_ps(sums[r], key, repeat_pair(queries + r * stride + d));
    }
    for (int r = 0; r < ROWS; ++r) _mm512_storeu_ps(scores + r * scores_stride + lane * LANES, sums[r]);
  }
}

// Adds up the values of lanes first..last by probability, `CHUNKS` times 16 dimensions from `d` on.
template <int ROWS, int CHUNKS>
void mix(const BFloat16* probabilities, int64_t stride, const Pages& pages, int64_t first, int64_t last, int64_t d,
         const float* scale, BFloat16* const* outputs) {
  __m512 sums[ROWS][CHUNKS];
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < CHUNKS; ++c) sums[r][c] = _mm512_setzero_ps();
  for (int64_t lane = first; lane < last; ++lane) {
    const BFloat16* values = pages.value_lanes(lane) + d * 2;
    for (int64_t token = 0; token < LANES; token += 2, values += 2 * pages.width_v) {
      __m512bh value[CHUNKS];
      for (int c = 0; c < CHUNKS; ++c) value[c] = load_pairs(values + c * 2 * LANES);
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) {
        const __m512bh probability = repeat_pair(probabilities + r * stride + lane * LANES + token);
        for (int c = 0; c < CHUNKS; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], value[c], probability);
      }
    }
  }
  for (int r = 0; r < ROWS; ++r)
    for (int c = 0; c < CHUNKS; ++c)
      store_bf16(outputs[r] + d + c * LANES, _mm512_mul_ps(sums[r][c], _mm512_set1_ps(scale[r])));
}

template <int ROWS>
void score_and_mix_rows(bool mixing, const BFloat16* input, int64_t stride, const Pages& pages, int64_t first,
                        int64_t last, float* scores, int64_t scores_stride, const float* scale,
                        BFloat16* const* outputs) {
  if (!mixing) return score<ROWS>(input, stride, pages, first, last, scores, scores_stride);
  constexpr int WIDE = ROWS <= 6 ? 4 : 2;
  int64_t d = 0;
  for (; d + WIDE * LANES <= pages.width_v; d += WIDE * LANES)
    mix<ROWS, WIDE>(input, stride, pages, first, last, d, scale, outputs);
  for (; d < pages.width_v; d += LANES) mix<ROWS, 1>(input, stride, pages, first, last, d, scale, outputs);
}

using Rows = void (*)(bool, const BFloat16*, int64_t, const Pages&, int64_t, int64_t, float*, int64_t, const float*,
                      BFloat16* const*);
constexpr Rows ROWS[MOST_GROUP + 1] = {
    nullptr,
    score_and_mix_rows<1>, score_and_mix_rows<2>, score_and_mix_rows<3>, score_and_mix_rows<4>,
    score_and_mix_rows<5>, score_and_mix_rows<6>, score_and_mix_rows<7>, score_and_mix_rows<8>,
};

struct Softmax {
  float scaling, softcap;
  bool has_sink;
};

// Turns the scores of tokens start..end into unnormalised probabilities, everything else within lanes first..last into
// zeros; returns their sum.
float soften(float* scores, BFloat16* probabilities, int64_t first, int64_t last, int64_t start, int64_t end,
             const Softmax& how, float sink) {
  float largest = how.has_sink ? sink : -std::numeric_limits<float>::infinity();
  __m512 most = _mm512_set1_ps(largest);
  const auto visible = [&](int64_t lane) {
    const int64_t from = std::clamp<int64_t>(start - lane * LANES, 0, LANES);
    const int64_t to = std::clamp<int64_t>(end - lane * LANES, 0, LANES);
    return (__mmask16)(((1u << to) - 1) & ~((1u << from) - 1));
  };
  for (int64_t lane = first; lane < last; ++lane) {
    __m512 s = _mm512_mul_ps(_mm512_loadu_ps(scores + lane * LANES), _mm512_set1_ps(how.scaling));
    if (how.softcap > 0) {
      alignas(64) float capped[LANES];
      _mm512_store_ps(capped, s);
      for (float& value : capped) value = how.softcap * std::tanh(value / how.softcap);
      s = _mm512_load_ps(capped);
    }
    _mm512_storeu_ps(scores + lane * LANES, s);
    most = _mm512_mask_max_ps(most, visible(lane), most, s);
  }
  largest = _mm512_reduce_max_ps(most);
  __m512 sum = _mm512_setzero_ps();
  for (int64_t lane = first; lane < last; ++lane) {
    const __m512 s = _mm512_sub_ps(_mm512_loadu_ps(scores + lane * LANES), _mm512_set1_ps(largest));
    const __m512 e = _mm512_maskz_mov_ps(visible(lane), exp_nonpositive(s));
    sum = _mm512_add_ps(sum, e);
    store_bf16(probabilities + lane * LANES, e);
  }
  return _mm512_reduce_add_ps(sum) + (how.has_sink ? std::exp(sink - largest) : 0.0f);
}

// Stores new keys and values [T, heads, width] at `slots` [T] of the pages.
void write_pages(const Tensor& key, const Tensor& value, const Tensor& keys, const Tensor& values, const Tensor& slots,
                 int64_t block_size) {
  const int64_t heads = key.size(1), width_k = key.size(2), width_v = value.size(2);
  const int64_t* slot_of = slots.const_data_ptr<int64_t>();
  const BFloat16 *from_k = key.const_data_ptr<BFloat16>(), *from_v = value.const_data_ptr<BFloat16>();
  BFloat16 *to_k = keys.mutable_data_ptr<BFloat16>(), *to_v = values.mutable_data_ptr<BFloat16>();
  at::parallel_for(0, slots.size(0), 32, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const int64_t block = slot_of[t] / block_size, place = slot_of[t] % block_size;
      const int64_t lanes = place / LANES * LANES, lane = place % LANES;
      for (int64_t h = 0; h < heads; ++h) {
        const BFloat16* k = from_k + t * key.stride(0) + h * key.stride(1);
        BFloat16* page_k = to_k + ((block * heads + h) * block_size + lanes) * width_k + lane * 2;
        for (int64_t d = 0; d < width_k; d += 2) {
          page_k[d * LANES] = k[d];
          page_k[d * LANES + 1] = k[d + 1];
        }
        const BFloat16* v = from_v + t * value.stride(0) + h * value.stride(1);
        BFloat16* page_v = to_v + ((block * heads + h) * block_size + lanes) * width_v + lane / 2 * 2 * width_v + lane % 2;
        for (int64_t d = 0; d < width_v; ++d) page_v[d * 2] = v[d];
      }
    }
  });
}

// Writes the step's keys and values into the pages, then attends: [T, query heads, value width].
//
// Pages of `begun` blocks are new: what their values hold past the tokens written must be finite, as it counts 0 times.
// query [T, query heads, D], key [T, KV heads, D] and value [T, KV heads, DV] with any strides but the last;
// keys [blocks, KV heads, block size * D], values [blocks, KV heads, block size * DV]; slots [T];
// block_tables [R, most blocks]; tiles [tiles, 4]: row, first token, number of tokens, place of the first in its
// sequence. A token sees `window` tokens, itself included, or all before it if that is 0; softcap 0 is none.
Tensor paged_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& keys,
                       const Tensor& values, const Tensor& slots, const std::optional<Tensor>& begun,
                       const Tensor& block_tables, const Tensor& tiles,
                       double scaling, int64_t window, double softcap, const std::optional<Tensor>& sinks) {
  const int64_t heads = key.size(1), group = query.size(1) / heads;
  const int64_t width_k = key.size(2), width_v = value.size(2), block_size = keys.size(2) / width_k;
  TORCH_CHECK(width_k % 2 == 0 && width_v % LANES == 0 && block_size % LANES == 0, "widths ", width_k, ", ", width_v,
              " or block size ", block_size, " don't fit");
  TORCH_CHECK(query.stride(2) == 1 && key.stride(2) == 1 && value.stride(2) == 1, "heads must be in one piece");
  if (begun) values.index_fill_(0, *begun, 0);
  write_pages(key, value, keys, values, slots, block_size);
  Tensor output = at::empty({query.size(0), query.size(1), width_v}, query.options());
  BFloat16* out = output.mutable_data_ptr<BFloat16>();
  const int64_t* tile_of = tiles.const_data_ptr<int64_t>();
  const float* sink_of = sinks ? sinks->const_data_ptr<float>() : nullptr;
  const Softmax how{(float)scaling, (float)softcap, sink_of != nullptr};
  const int64_t most = block_tables.size(1) * block_size;
  at::parallel_for(0, tiles.size(0) * heads, 1, [&](int64_t first_task, int64_t last_task) {
    const int64_t most_rows = MOST_TILE_TOKENS * group;
    std::vector<BFloat16> queries(most_rows * width_k), probabilities(most_rows * most);
    std::vector<float> scores(most_rows * most), scale(most_rows);
    std::vector<BFloat16*> outputs(most_rows);
    for (int64_t task = first_task; task < last_task; ++task) {
      const int64_t* tile = tile_of + task / heads * 4;
      const int64_t h = task % heads, tokens = tile[2], rows = tokens * group;
      const Pages pages{keys.const_data_ptr<BFloat16>(), values.const_data_ptr<BFloat16>(),
                        block_tables.const_data_ptr<int64_t>() + tile[0] * block_tables.stride(0), block_size,
                        h * block_size * width_k, h * block_size * width_v, keys.stride(0), values.stride(0),
                        width_k, width_v};
      const int64_t end = tile[3] + tokens, start = window > 0 ? std::max<int64_t>(0, tile[3] + 1 - window) : 0;
      const int64_t first = start / LANES, last = (end + LANES - 1) / LANES;
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t token = tile[1] + r / group, head = h * group + r % group;
        const BFloat16* from = query.const_data_ptr<BFloat16>() + token * query.stride(0) + head * query.stride(1);
        std::copy(from, from + width_k, queries.data() + r * width_k);
        outputs[r] = out + (token * query.size(1) + head) * width_v;
      }
      for (int64_t r = 0; r < rows; r += MOST_GROUP)
        ROWS[std::min(MOST_GROUP, rows - r)](false, queries.data() + r * width_k, width_k, pages, first, last,
                                             scores.data() + r * most, most, nullptr, nullptr);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t own_end = tile[3] + r / group + 1;
        const int64_t own_start = window > 0 ? std::max<int64_t>(0, own_end - window) : 0;
        scale[r] = 1.0f / soften(scores.data() + r * most, probabilities.data() + r * most, first, last, own_start,
                                 own_end, how, sink_of ? sink_of[h * group + r % group] : 0.0f);
      }
      for (int64_t r = 0; r < rows; r += MOST_GROUP)
        ROWS[std::min(MOST_GROUP, rows - r)](true, probabilities.data() + r * most, most, pages, first, last, nullptr,
                                             0, scale.data() + r, outputs.data() + r);
    }
  });
  return output;
}

}  // namespace

TORCH_LIBRARY(inflight, library) {
  library.def("pack_weight(Tensor weight) -> Tensor", pack_weight);
  library.def("linear(Tensor x, Tensor packed) -> Tensor", linear);
  library.def("rms_norm(Tensor x, Tensor weight, float eps) -> Tensor", rms_norm);
  library.def(
      "paged_attention(Tensor query, Tensor key, Tensor value, Tensor(a!) keys, Tensor(b!) values, Tensor slots, "
      "Tensor? begun, Tensor block_tables, Tensor tiles, float scaling, int window, float softcap, Tensor? sinks) -> Tensor",
      paged_attention);
}
