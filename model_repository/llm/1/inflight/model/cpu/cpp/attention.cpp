// Attention over a paged KV cache in bfloat16, as in vLLM (arXiv 2309.06180), for decodes and prompt chunks alike.
//
// A block of 16 n tokens of one KV head is, for keys, [n][D / 2][16][2]: sixteen tokens in lanes, pairs of dimensions to
// sum over; for values, [n][8][D][2]: dimensions in lanes, pairs of tokens to sum over. So neither product adds across
// lanes. Keys and values may lie anywhere; side by side, memory brings them faster. A task is a tile of query rows (tokens
// times the query heads of a KV head) with one KV head.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "pages.h"
#ifdef __AMX_BF16__
#include "attention_amx.h"
#endif

namespace {

constexpr int64_t MOST_TILE_TOKENS = 4;

// Scores of `ROWS` queries (each `width_k` long, `stride` apart) with the tokens of lanes first..last.
template <int ROWS, int AT_ONCE>
int64_t score_lanes(const Factor* queries, int64_t stride, const Pages& pages, int64_t lane, int64_t last,
                    float* scores, int64_t scores_stride) {
  for (; lane + AT_ONCE <= last; lane += AT_ONCE) {
    const BFloat16 *keys[AT_ONCE], *next_keys[AT_ONCE], *values[AT_ONCE];
    Lanes sums[ROWS][AT_ONCE];
#pragma GCC unroll 8
    for (int l = 0; l < AT_ONCE; ++l) {
      keys[l] = pages.key_lanes(lane + l);
      values[l] = pages.value_lanes(lane + l);
      next_keys[l] = pages.key_lanes(std::min(lane + l + AT_ONCE, last - 1));
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) sums[r][l] = all(0.0f);
    }
    for (int64_t d = 0; d < pages.width_k; d += 2) {
#pragma GCC unroll 8
      for (int l = 0; l < AT_ONCE; ++l) {
        _mm_prefetch(next_keys[l] + d * LANES, _MM_HINT_T0);
        _mm_prefetch(values[l] + d * LANES, _MM_HINT_T1);
      }
      add_products(sums, queries + d, stride, [&](int l) { return load_pairs(keys[l] + d * LANES); });
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
      for (int l = 0; l < AT_ONCE; ++l) store(scores + r * scores_stride + (lane + l) * LANES, sums[r][l]);
  }
  return lane;
}

template <int ROWS>
void score(const Factor* queries, int64_t stride, const Pages& pages, int64_t first, int64_t last, float* scores,
           int64_t scores_stride) {
  const int64_t rest = score_lanes<ROWS, keys_at_once(ROWS)>(queries, stride, pages, first, last, scores, scores_stride);
  score_lanes<ROWS, 1>(queries, stride, pages, rest, last, scores, scores_stride);
}

// Adds up the values of lanes first..last by probability, `CHUNKS` times 16 dimensions from `d` on.
template <int ROWS, int CHUNKS>
void mix(const Factor* probabilities, int64_t stride, const Pages& pages, int64_t first, int64_t last, int64_t d,
         const float* scale, BFloat16* const* outputs) {
  Lanes sums[ROWS][CHUNKS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < CHUNKS; ++c) sums[r][c] = all(0.0f);
  for (int64_t lane = first; lane < last; ++lane) {
    const BFloat16* values = pages.value_lanes(lane) + d * 2;
    const BFloat16* next_values = pages.value_lanes(std::min(lane + 1, last - 1)) + d * 2;
    for (int64_t token = 0; token < LANES; token += 2, values += 2 * pages.width_v, next_values += 2 * pages.width_v) {
#pragma GCC unroll 8
      for (int c = 0; c < CHUNKS; ++c) _mm_prefetch(next_values + c * 2 * LANES, _MM_HINT_T0);
      add_products(sums, probabilities + lane * LANES + token, stride,
                   [&](int c) { return load_pairs(values + c * 2 * LANES); });
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < CHUNKS; ++c) store_bf16(outputs[r] + d + c * LANES, sums[r][c] * all(scale[r]));
}

template <int ROWS>
void mix(const Factor* probabilities, int64_t stride, const Pages& pages, int64_t first, int64_t last,
         const float* scale, BFloat16* const* outputs) {
  constexpr int WIDE = values_at_once(ROWS);
  int64_t d = 0;
  for (; d + WIDE * LANES <= pages.width_v; d += WIDE * LANES)
    mix<ROWS, WIDE>(probabilities, stride, pages, first, last, d, scale, outputs);
  for (; d < pages.width_v; d += LANES) mix<ROWS, 1>(probabilities, stride, pages, first, last, d, scale, outputs);
}

// The two products for some number of rows.
struct Kernel {
  void (*score)(const Factor*, int64_t, const Pages&, int64_t, int64_t, float*, int64_t);
  void (*mix)(const Factor*, int64_t, const Pages&, int64_t, int64_t, const float*, BFloat16* const*);
};

template <int... BEFORE>
constexpr std::array<Kernel, MOST_QUERIES> kernels(std::integer_sequence<int, BEFORE...>) {
  return {{{score<BEFORE + 1>, mix<BEFORE + 1>}...}};
}

// The two products, a few rows at a time.
struct ByLanes {
  static constexpr auto KERNELS = kernels(std::make_integer_sequence<int, MOST_QUERIES>());

  void score(const Factor* queries, int64_t rows, const Pages& pages, int64_t first, int64_t last, float* scores,
             int64_t scores_stride) const {
    for (int64_t r = 0; r < rows; r += MOST_QUERIES)
      KERNELS[std::min<int64_t>(MOST_QUERIES, rows - r) - 1].score(queries + r * pages.width_k, pages.width_k, pages, first,
                                                                   last, scores + r * scores_stride, scores_stride);
  }

  void mix(const Factor* probabilities, int64_t rows, int64_t stride, const Pages& pages, int64_t first, int64_t last,
           const float* scale, BFloat16* const* outputs) const {
    for (int64_t r = 0; r < rows; r += MOST_QUERIES)
      KERNELS[std::min<int64_t>(MOST_QUERIES, rows - r) - 1].mix(probabilities + r * stride, stride, pages, first, last,
                                                                 scale + r, outputs + r);
  }
};

struct Softmax {
  float scaling, softcap;
  bool has_sink;
};

// Turns the scores of tokens start..end into unnormalised probabilities, everything else within lanes first..last into
// zeros; returns their sum.
float soften(float* scores, Factor* probabilities, int64_t first, int64_t last, int64_t start, int64_t end,
             const Softmax& how, float sink) {
  float largest = how.has_sink ? sink : -std::numeric_limits<float>::infinity();
  Lanes most = all(largest);
  const auto visible = [&](int64_t lane) {
    const int64_t from = std::clamp<int64_t>(start - lane * LANES, 0, LANES);
    const int64_t to = std::clamp<int64_t>(end - lane * LANES, 0, LANES);
    return (Mask)(((1u << to) - 1) & ~((1u << from) - 1));
  };
  for (int64_t lane = first; lane < last; ++lane) {
    Lanes s = load(scores + lane * LANES) * all(how.scaling);
    if (how.softcap > 0) {
      alignas(64) float capped[LANES];
      store(capped, s);
      for (float& value : capped) value = how.softcap * std::tanh(value / how.softcap);
      s = load(capped);
    }
    store(scores + lane * LANES, s);
    most = select(visible(lane), maximum(most, s), most);
  }
  largest = largest_of(most);
  Lanes sum = all(0.0f);
  for (int64_t lane = first; lane < last; ++lane) {
    const Lanes e = exp_nonpositive(load(scores + lane * LANES) - all(largest));
    const Lanes seen = select(visible(lane), e, all(0.0f));
    sum = sum + seen;
    store_factors(probabilities + lane * LANES, seen);
  }
  return sum_of(sum) + (how.has_sink ? std::exp(sink - largest) : 0.0f);
}

// Stores new keys and values [1, heads, T, width] at `slots` [T] of the pages. Pages of the blocks `begun` are new: what
// their values hold past the tokens written must be finite, as it counts 0 times.
void write_pages(const Tensor& key, const Tensor& value, const Tensor& keys, const Tensor& values, const Tensor& slots,
                 const Tensor& begun, int64_t block_size) {
  const int64_t heads = key.size(1), width_k = key.size(3), width_v = value.size(3);
  const int64_t* slot_of = slots.const_data_ptr<int64_t>();
  const BFloat16 *from_k = key.const_data_ptr<BFloat16>(), *from_v = value.const_data_ptr<BFloat16>();
  BFloat16 *to_k = keys.mutable_data_ptr<BFloat16>(), *to_v = values.mutable_data_ptr<BFloat16>();
  for (int64_t i = 0; i < begun.size(0); ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      BFloat16* page = to_v + begun.const_data_ptr<int64_t>()[i] * values.stride(0) + h * values.stride(1);
      std::fill(page, page + block_size * width_v, BFloat16(0));
    }
  }
  at::parallel_for(0, slots.size(0), ROWS_OF_A_THREAD, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const int64_t block = slot_of[t] / block_size, place = slot_of[t] % block_size;
      const int64_t lanes = place / LANES * LANES, lane = place % LANES;
      for (int64_t h = 0; h < heads; ++h) {
        const BFloat16* k = from_k + t * key.stride(2) + h * key.stride(1);
        BFloat16* page_k = to_k + block * keys.stride(0) + h * keys.stride(1) + lanes * width_k + lane * 2;
        for (int64_t d = 0; d < width_k; d += 2) {
          page_k[d * LANES] = k[d];
          page_k[d * LANES + 1] = k[d + 1];
        }
        const BFloat16* v = from_v + t * value.stride(2) + h * value.stride(1);
        BFloat16* page_v = to_v + block * values.stride(0) + h * values.stride(1) + (lanes + lane / 2 * 2) * width_v + lane % 2;
        for (int64_t d = 0; d < width_v; ++d) page_v[d * 2] = v[d];
      }
    }
  });
}

// What there is to attend to, see `paged_attention`.
struct Attention {
  const Tensor &query, &keys, &values, &block_tables, &tiles;
  int64_t heads, width_k, width_v, block_size, window;
  Softmax softmax;
  const float* sinks;
  BFloat16* output;

  int64_t group() const { return query.size(1) / heads; }
};

// Attends for tile after tile, which `take` gives out.
template <class Products, class Take>
void attend(const Attention& a, const Take& take) {
  Products products;
  const int64_t group = a.group(), most_rows = MOST_TILE_TOKENS * group, most = a.block_tables.size(1) * a.block_size;
  std::vector<Factor> queries(most_rows * a.width_k), probabilities(most_rows * most);
  std::vector<float> scores(most_rows * most), scale(most_rows);
  std::vector<BFloat16*> outputs(most_rows);
  const int64_t tasks = a.tiles.size(0) * a.heads;
  for (int64_t taken = take(); taken < tasks; taken = take()) {
    const int64_t task = tasks - 1 - taken;  // The long ones, which come last, first.
    const int64_t* tile = a.tiles.const_data_ptr<int64_t>() + task / a.heads * 4;
    const int64_t h = task % a.heads, tokens = tile[2], rows = tokens * group;
    const Pages pages{a.keys.const_data_ptr<BFloat16>(), a.values.const_data_ptr<BFloat16>(),
                      a.block_tables.const_data_ptr<int64_t>() + tile[0] * a.block_tables.stride(0), a.block_size,
                      h * a.keys.stride(1), h * a.values.stride(1), a.keys.stride(0), a.values.stride(0),
                      a.width_k, a.width_v};
    const auto start_of = [&](int64_t end) { return a.window > 0 ? std::max<int64_t>(0, end - a.window) : 0; };
    const int64_t first = start_of(tile[3] + 1) / LANES, last = (tile[3] + tokens + LANES - 1) / LANES;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t token = tile[1] + r / group, head = h * group + r % group;
      const BFloat16* from = a.query.const_data_ptr<BFloat16>() + token * a.query.stride(2) + head * a.query.stride(1);
      std::copy(from, from + a.width_k, queries.data() + r * a.width_k);
      outputs[r] = a.output + (token * a.query.size(1) + head) * a.width_v;
    }
    products.score(queries.data(), rows, pages, first, last, scores.data(), most);
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t end = tile[3] + r / group + 1;
      scale[r] = 1.0f / soften(scores.data() + r * most, probabilities.data() + r * most, first, last, start_of(end), end,
                               a.softmax, a.sinks ? a.sinks[h * group + r % group] : 0.0f);
    }
    products.mix(probabilities.data(), rows, most, pages, first, last, scale.data(), outputs.data());
  }
}

// Writes the step's keys and values into the pages, then attends: [1, T, query heads, value width].
//
// query [1, query heads, T, D], key [1, KV heads, T, D] and value [1, KV heads, T, DV] with any strides but the last;
// keys [blocks, KV heads, block size * D], values [blocks, KV heads, block size * DV], likewise; slots [T]; begun [blocks];
// block_tables [R, most blocks]; tiles [tiles, 4]: row, first token, number of tokens, place of the first in its
// sequence. A token sees `window` tokens, itself included, or all before it if that is 0; softcap 0 is none.
Tensor paged_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& keys,
                       const Tensor& values, const Tensor& slots, const Tensor& begun,
                       const Tensor& block_tables, const Tensor& tiles, double scaling, int64_t window, double softcap,
                       const std::optional<Tensor>& sinks) {
  const int64_t heads = key.size(1), width_k = key.size(3), width_v = value.size(3), block_size = keys.size(2) / width_k;
  TORCH_CHECK(width_k % 2 == 0 && width_v % LANES == 0 && block_size % LANES == 0, "widths ", width_k, ", ", width_v,
              " or block size ", block_size, " don't fit");
  TORCH_CHECK(query.stride(3) == 1 && key.stride(3) == 1 && value.stride(3) == 1, "heads must be in one piece");
  TORCH_CHECK(keys.stride(2) == 1 && values.stride(2) == 1, "a head's part of a block must be in one piece");
  write_pages(key, value, keys, values, slots, begun, block_size);
  Tensor output = at::empty({1, query.size(2), query.size(1), width_v}, query.options());
  const Attention attention{query, keys, values, block_tables, tiles, heads, width_k, width_v, block_size, window,
                            Softmax{(float)scaling, (float)softcap, sinks.has_value()},
                            sinks ? sinks->const_data_ptr<float>() : nullptr, output.mutable_data_ptr<BFloat16>()};
  share_out(tiles.size(0) * heads, [&](const auto& take) {
#ifdef __AMX_BF16__
    if (may_use_amx() && width_k % DIMENSIONS == 0) return attend<ByAmx>(attention, take);
#endif
    attend<ByLanes>(attention, take);
  });
  return output;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def(
      "paged_attention(Tensor query, Tensor key, Tensor value, Tensor(a!) keys, Tensor(b!) values, Tensor slots, "
      "Tensor begun, Tensor block_tables, Tensor tiles, float scaling, int window, float softcap, Tensor? sinks) -> Tensor",
      paged_attention);
}
