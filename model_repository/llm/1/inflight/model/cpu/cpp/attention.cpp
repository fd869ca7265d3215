// Attention over a paged KV cache in bfloat16, as in vLLM (arXiv 2309.06180), for decodes and prompt chunks alike.
//
// A block of 16 n tokens of one KV head is, for keys, [n][D / 2][16][2]: sixteen tokens in lanes, pairs of dimensions to
// sum over; for values, [n][8][D][2]: dimensions in lanes, pairs of tokens to sum over. So neither product adds across
// lanes. A task is a tile of query rows (tokens times the query heads of a KV head) with one KV head.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cmath>
#include <limits>
#include <optional>
#include <vector>

#include "amx.h"
#include "lanes.h"

namespace {

constexpr int64_t MOST_TILE_TOKENS = 4;
constexpr int64_t MOST_GROUP = 8;  // Rows whose sums are in registers at the same time.

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
template <int ROWS, int AT_ONCE>
int64_t score_lanes(const BFloat16* queries, int64_t stride, const Pages& pages, int64_t lane, int64_t last,
                    float* scores, int64_t scores_stride) {
  for (; lane + AT_ONCE <= last; lane += AT_ONCE) {
    const BFloat16 *keys[AT_ONCE], *next_keys[AT_ONCE], *values[AT_ONCE];
    __m512 sums[ROWS][AT_ONCE];
#pragma GCC unroll 8
    for (int l = 0; l < AT_ONCE; ++l) {
      keys[l] = pages.key_lanes(lane + l);
      values[l] = pages.value_lanes(lane + l);
      next_keys[l] = pages.key_lanes(std::min(lane + l + AT_ONCE, last - 1));
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) sums[r][l] = _mm512_setzero_ps();
    }
    for (int64_t d = 0; d < pages.width_k; d += 2) {
      __m512bh key[AT_ONCE];
#pragma GCC unroll 8
      for (int l = 0; l < AT_ONCE; ++l) {
        key[l] = load_pairs(keys[l] + d * LANES);
        _mm_prefetch(next_keys[l] + d * LANES, _MM_HINT_T0);
        _mm_prefetch(values[l] + d * LANES, _MM_HINT_T1);
      }
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) {
        const __m512bh query = repeat_pair(queries + r * stride + d);
#pragma GCC unroll 8
        for (int l = 0; l < AT_ONCE; ++l) sums[r][l] = _mm512_dpbf16_ps(sums[r][l], key[l], query);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
      for (int l = 0; l < AT_ONCE; ++l)
        _mm512_storeu_ps(scores + r * scores_stride + (lane + l) * LANES, sums[r][l]);
  }
  return lane;
}

template <int ROWS>
void score(const BFloat16* queries, int64_t stride, const Pages& pages, int64_t first, int64_t last, float* scores,
           int64_t scores_stride) {
  // Few rows leave the processor waiting for each sum; sums of several lanes are independent.
  constexpr int AT_ONCE = ROWS <= 2 ? 4 : ROWS <= 4 ? 3 : 2;
  const int64_t rest = score_lanes<ROWS, AT_ONCE>(queries, stride, pages, first, last, scores, scores_stride);
  score_lanes<ROWS, 1>(queries, stride, pages, rest, last, scores, scores_stride);
}

// Adds up the values of lanes first..last by probability, `CHUNKS` times 16 dimensions from `d` on.
template <int ROWS, int CHUNKS>
void mix(const BFloat16* probabilities, int64_t stride, const Pages& pages, int64_t first, int64_t last, int64_t d,
         const float* scale, BFloat16* const* outputs) {
  __m512 sums[ROWS][CHUNKS];
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
    for (int c = 0; c < CHUNKS; ++c) sums[r][c] = _mm512_setzero_ps();
  for (int64_t lane = first; lane < last; ++lane) {
    const BFloat16* values = pages.value_lanes(lane) + d * 2;
    const BFloat16* next_values = pages.value_lanes(std::min(lane + 1, last - 1)) + d * 2;
    for (int64_t token = 0; token < LANES; token += 2, values += 2 * pages.width_v, next_values += 2 * pages.width_v) {
      __m512bh value[CHUNKS];
#pragma GCC unroll 8
      for (int c = 0; c < CHUNKS; ++c) {
        value[c] = load_pairs(values + c * 2 * LANES);
        _mm_prefetch(next_values + c * 2 * LANES, _MM_HINT_T0);
      }
#pragma GCC unroll 8
      for (int r = 0; r < ROWS; ++r) {
        const __m512bh probability = repeat_pair(probabilities + r * stride + lane * LANES + token);
#pragma GCC unroll 8
        for (int c = 0; c < CHUNKS; ++c) sums[r][c] = _mm512_dpbf16_ps(sums[r][c], value[c], probability);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < ROWS; ++r)
#pragma GCC unroll 8
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

#pragma GCC push_options
#pragma GCC target("amx-tile,amx-bf16")

constexpr int64_t DIMENSIONS = 32;  // Of a tile of keys.

// Tiles 0 to 3 are sums; 4 queries by dimensions, 5 probabilities by the tokens of a lane; 6 keys, 7 values.
TileShapes attention_tiles(int64_t rows) { return TileShapes({{rows, 64}, {rows, 64}, {rows, 64}, {rows, 64}, {rows, 64}, {rows, 32}, {16, 64}, {8, 64}}); }

// What follows a tile of keys in memory's order and in the order of use: the next keys, and the values of these.
inline void prefetch_tiles(const BFloat16* next_keys, const BFloat16* values) {
  for (int64_t i = 0; i < DIMENSIONS * LANES; i += 2 * LANES) {
    _mm_prefetch(next_keys + i, _MM_HINT_T0);
    _mm_prefetch(values + i, _MM_HINT_T1);
  }
}

// As `score`, for as many rows as the tiles have.
void score_by_amx(const BFloat16* queries, int64_t stride, const Pages& pages, int64_t first, int64_t last,
                  float* scores, int64_t scores_stride) {
  int64_t lane = first;
  for (; lane + 4 <= last; lane += 4) {
    const BFloat16 *keys[4], *next_keys[4], *values[4];
    for (int64_t l = 0; l < 4; ++l) {
      keys[l] = pages.key_lanes(lane + l);
      next_keys[l] = pages.key_lanes(std::min(lane + l + 4, last - 1));
      values[l] = pages.value_lanes(lane + l);
    }
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t d = 0; d < pages.width_k; d += DIMENSIONS) {
      const int64_t tile = d * LANES;
      _tile_loadd(4, queries + d, stride * 2);
      _tile_loadd(6, keys[0] + tile, 64);
      prefetch_tiles(next_keys[0] + tile, values[0] + tile);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(6, keys[1] + tile, 64);
      prefetch_tiles(next_keys[1] + tile, values[1] + tile);
      _tile_dpbf16ps(1, 4, 6);
      _tile_loadd(6, keys[2] + tile, 64);
      prefetch_tiles(next_keys[2] + tile, values[2] + tile);
      _tile_dpbf16ps(2, 4, 6);
      _tile_loadd(6, keys[3] + tile, 64);
      prefetch_tiles(next_keys[3] + tile, values[3] + tile);
      _tile_dpbf16ps(3, 4, 6);
    }
    float* to = scores + lane * LANES;
    _tile_stored(0, to, scores_stride * 4);
    _tile_stored(1, to + LANES, scores_stride * 4);
    _tile_stored(2, to + 2 * LANES, scores_stride * 4);
    _tile_stored(3, to + 3 * LANES, scores_stride * 4);
  }
  for (; lane < last; ++lane) {
    const BFloat16* keys = pages.key_lanes(lane);
    _tile_zero(0);
    for (int64_t d = 0; d < pages.width_k; d += DIMENSIONS) {
      _tile_loadd(4, queries + d, stride * 2);
      _tile_loadd(6, keys + d * LANES, 64);
      _tile_dpbf16ps(0, 4, 6);
    }
    _tile_stored(0, scores + lane * LANES, scores_stride * 4);
  }
}

// As `mix`, for as many rows as the tiles have.
void mix_by_amx(const BFloat16* probabilities, int64_t rows, int64_t stride, const Pages& pages, int64_t first,
                int64_t last, const float* scale, BFloat16* const* outputs) {
  const int64_t pair_bytes = pages.width_v * 4;
  alignas(64) float sums[16][4 * LANES];
  for (int64_t d = 0; d < pages.width_v; d += 4 * LANES) {
    const int64_t chunks = std::min<int64_t>(4, (pages.width_v - d) / LANES);
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t lane = first; lane < last; ++lane) {
      const BFloat16* values = pages.value_lanes(lane) + d * 2;
      _tile_loadd(5, probabilities + lane * LANES, stride * 2);
      _tile_loadd(7, values, pair_bytes);
      _tile_dpbf16ps(0, 5, 7);
      if (chunks > 1) {
        _tile_loadd(7, values + 2 * LANES, pair_bytes);
        _tile_dpbf16ps(1, 5, 7);
      }
      if (chunks > 2) {
        _tile_loadd(7, values + 4 * LANES, pair_bytes);
        _tile_dpbf16ps(2, 5, 7);
      }
      if (chunks > 3) {
        _tile_loadd(7, values + 6 * LANES, pair_bytes);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
    _tile_stored(0, sums[0], sizeof sums[0]);
    _tile_stored(1, sums[0] + LANES, sizeof sums[0]);
    _tile_stored(2, sums[0] + 2 * LANES, sizeof sums[0]);
    _tile_stored(3, sums[0] + 3 * LANES, sizeof sums[0]);
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < chunks; ++c)
        store_bf16(outputs[r] + d + c * LANES, _mm512_mul_ps(_mm512_load_ps(sums[r] + c * LANES), _mm512_set1_ps(scale[r])));
  }
}

#pragma GCC pop_options

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

// Stores new keys and values [T, heads, width] at `slots` [T] of the pages. Pages of the blocks `begun` are new: what
// their values hold past the tokens written must be finite, as it counts 0 times.
void write_pages(const Tensor& key, const Tensor& value, const Tensor& keys, const Tensor& values, const Tensor& slots,
                 const Tensor& begun, int64_t block_size) {
  const int64_t heads = key.size(1), width_k = key.size(2), width_v = value.size(2);
  const int64_t* slot_of = slots.const_data_ptr<int64_t>();
  const BFloat16 *from_k = key.const_data_ptr<BFloat16>(), *from_v = value.const_data_ptr<BFloat16>();
  BFloat16 *to_k = keys.mutable_data_ptr<BFloat16>(), *to_v = values.mutable_data_ptr<BFloat16>();
  for (int64_t i = 0; i < begun.size(0); ++i) {
    BFloat16* page = to_v + begun.const_data_ptr<int64_t>()[i] * values.stride(0);
    std::fill(page, page + values.stride(0), BFloat16(0));
  }
  at::parallel_for(0, slots.size(0), ROWS_OF_A_THREAD, [&](int64_t first, int64_t last) {
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
// query [T, query heads, D], key [T, KV heads, D] and value [T, KV heads, DV] with any strides but the last;
// keys [blocks, KV heads, block size * D], values [blocks, KV heads, block size * DV]; slots [T]; begun [blocks];
// block_tables [R, most blocks]; tiles [tiles, 4]: row, first token, number of tokens, place of the first in its
// sequence. A token sees `window` tokens, itself included, or all before it if that is 0; softcap 0 is none.
Tensor paged_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& keys,
                       const Tensor& values, const Tensor& slots, const Tensor& begun,
                       const Tensor& block_tables, const Tensor& tiles, double scaling, int64_t window, double softcap, const std::optional<Tensor>& sinks) {
  const int64_t heads = key.size(1), group = query.size(1) / heads;
  const int64_t width_k = key.size(2), width_v = value.size(2), block_size = keys.size(2) / width_k;
  TORCH_CHECK(width_k % 2 == 0 && width_v % LANES == 0 && block_size % LANES == 0, "widths ", width_k, ", ", width_v,
              " or block size ", block_size, " don't fit");
  TORCH_CHECK(query.stride(2) == 1 && key.stride(2) == 1 && value.stride(2) == 1, "heads must be in one piece");
  write_pages(key, value, keys, values, slots, begun, block_size);
  Tensor output = at::empty({query.size(0), query.size(1), width_v}, query.options());
  BFloat16* out = output.mutable_data_ptr<BFloat16>();
  const int64_t* tile_of = tiles.const_data_ptr<int64_t>();
  const float* sink_of = sinks ? sinks->const_data_ptr<float>() : nullptr;
  const Softmax how{(float)scaling, (float)softcap, sink_of != nullptr};
  const int64_t most = block_tables.size(1) * block_size;
  const int64_t tasks = tiles.size(0) * heads;
  const bool amx = has_amx() && width_k % DIMENSIONS == 0;
  share_out(tasks, [&](const auto& take) {
    int64_t shaped = 0;
    const auto shape_tiles = [&](int64_t rows) {
      if (shaped != rows) load_shapes(attention_tiles(rows));
      shaped = rows;
    };
    const int64_t most_rows = MOST_TILE_TOKENS * group;
    std::vector<BFloat16> queries(most_rows * width_k), probabilities(most_rows * most);
    std::vector<float> scores(most_rows * most), scale(most_rows);
    std::vector<BFloat16*> outputs(most_rows);
    for (int64_t taken = take(); taken < tasks; taken = take()) {
      const int64_t task = tasks - 1 - taken;  // The long ones, which come last, first.
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
      if (amx)
        for (int64_t r = 0; r < rows; r += 16) {
          shape_tiles(std::min<int64_t>(16, rows - r));
          score_by_amx(queries.data() + r * width_k, width_k, pages, first, last, scores.data() + r * most, most);
        }
      else
        for (int64_t r = 0; r < rows; r += MOST_GROUP)
          ROWS[std::min(MOST_GROUP, rows - r)](false, queries.data() + r * width_k, width_k, pages, first, last,
                                               scores.data() + r * most, most, nullptr, nullptr);
      for (int64_t r = 0; r < rows; ++r) {
        const int64_t own_end = tile[3] + r / group + 1;
        const int64_t own_start = window > 0 ? std::max<int64_t>(0, own_end - window) : 0;
        scale[r] = 1.0f / soften(scores.data() + r * most, probabilities.data() + r * most, first, last, own_start,
                                 own_end, how, sink_of ? sink_of[h * group + r % group] : 0.0f);
      }
      if (amx)
        for (int64_t r = 0; r < rows; r += 16) {
          const int64_t count = std::min<int64_t>(16, rows - r);
          shape_tiles(count);
          mix_by_amx(probabilities.data() + r * most, count, most, pages, first, last, scale.data() + r, outputs.data() + r);
        }
      else
        for (int64_t r = 0; r < rows; r += MOST_GROUP)
          ROWS[std::min(MOST_GROUP, rows - r)](true, probabilities.data() + r * most, most, pages, first, last, nullptr,
                                               0, scale.data() + r, outputs.data() + r);
    }
    if (shaped) release_tiles();
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
