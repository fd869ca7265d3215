// Attention over a paged KV cache in bfloat16, as in vLLM (arXiv 2309.06180), for decodes and prompt chunks alike.
//
// A block has 16 n tokens of one KV head. Its keys are [n][D / 2][16][2]: sixteen tokens are the lanes of a SIMD group,
// and the sum runs over pairs of dimensions. Its values are [n][8][D][2]: the dimensions are lanes, and the sum runs over
// pairs of tokens. So neither product adds across lanes. Keys and values may be at any address, but memory reads them
// faster if they are next to each other.
//
// A task is one KV head with a tile of query rows (tokens times the query heads of the KV head). A thread takes a few
// rows at a time through their sequence, part by part, with an online softmax, as in FlashAttention (arXiv 2205.14135).
// So the data between the two products stays in the L1 cache.

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <cstring>
#include <optional>
#include <vector>

#include "attention_lanes.h"
#include "mixture.h"
#include "pages.h"
#include "softmax.h"
#ifdef __AMX_BF16__
#include "attention_amx.h"
#endif

namespace {

// Stores new keys and values [1, heads, T, width] at `slots` [T] of the pages. The blocks `partial` are new and have free
// slots. Their values are cleared first: a free slot has weight 0, but 0 times NaN would be NaN.
void write_pages(const Tensor& key, const Tensor& value, const Tensor& keys, const Tensor& values, const Tensor& slots,
                 const Tensor& partial, int64_t block_size) {
  const int64_t heads = key.size(1), width_k = key.size(3), width_v = value.size(3);
  const int64_t* slot_of = slots.const_data_ptr<int64_t>();
  const BFloat16 *from_k = key.const_data_ptr<BFloat16>(), *from_v = value.const_data_ptr<BFloat16>();
  BFloat16 *to_k = keys.mutable_data_ptr<BFloat16>(), *to_v = values.mutable_data_ptr<BFloat16>();
  for (int64_t i = 0; i < partial.size(0); ++i) {
    for (int64_t h = 0; h < heads; ++h) {
      BFloat16* page = to_v + partial.const_data_ptr<int64_t>()[i] * values.stride(0) + h * values.stride(1);
      std::fill(page, page + block_size * width_v, BFloat16(0));
    }
  }
  share_out_rows(slots.size(0), ROWS_OF_A_THREAD, [&](int64_t first, int64_t last) {
    for (int64_t t = first; t < last; ++t) {
      const int64_t block = slot_of[t] / block_size, offset = slot_of[t] % block_size;
      const int64_t group_start = offset / LANES * LANES, lane = offset % LANES;
      for (int64_t h = 0; h < heads; ++h) {
        const BFloat16* k = from_k + t * key.stride(2) + h * key.stride(1);
        BFloat16* page_k = to_k + block * keys.stride(0) + h * keys.stride(1) + group_start * width_k + lane * 2;
        for (int64_t d = 0; d < width_k; d += 2) std::memcpy(page_k + d * LANES, k + d, 2 * sizeof *k);
        const BFloat16* v = from_v + t * value.stride(2) + h * value.stride(1);
        BFloat16* page_v =
            to_v + block * values.stride(0) + h * values.stride(1) + (group_start + lane / 2 * 2) * width_v + lane % 2;
        for (int64_t d = 0; d < width_v; d += LANES) store_first_of_pairs(page_v + d * 2, v + d);
      }
    }
  });
}

// The arguments of `paged_attention`.
struct Attention {
  const Tensor &query, &keys, &values, &block_tables, &tiles;
  int64_t heads, width_k, width_v, block_size, window;
  Softmax softmax;
  const float* sinks;
  BFloat16* output;

  int64_t group() const { return query.size(1) / heads; }
  // The first place that a token sees, given the place after its own.
  int64_t start_of(int64_t next) const { return window > 0 ? std::max<int64_t>(0, next - window) : 0; }
  int64_t least_end(const int64_t* tile) const { return tiles.size(1) > 4 ? tile[4] : 0; }
};

// Computes attention in one thread, up to `ROWS` rows at a time, with buffers of its own.
template <class Products>
class Worker {
 public:
  explicit Worker(const Attention& attention)
      : a_(attention), group_(a_.group()), queries_(ROWS * a_.width_k), mixed_(ROWS * a_.width_v) {}

  void attend(const int64_t* tile, int64_t head) {
    Pages pages{a_.keys.const_data_ptr<BFloat16>(),
                a_.values.const_data_ptr<BFloat16>(),
                a_.block_tables.const_data_ptr<int64_t>() + tile[0] * a_.block_tables.stride(0),
                a_.block_size,
                head * a_.keys.stride(1),
                head * a_.values.stride(1),
                a_.keys.stride(0),
                a_.values.stride(0),
                a_.width_k,
                a_.width_v,
                (std::max(tile[3] + tile[2], a_.least_end(tile)) + LANES - 1) / LANES,
                true};
    const int64_t rows = tile[2] * group_;
    for (int64_t row = 0; row < rows; row += ROWS, pages.first_touch = false)
      attend_rows(tile, head, row, std::min(ROWS, rows - row), pages);
  }

 private:
  static constexpr int64_t ROWS = Products::ROWS;

  // Computes `rows` rows of the tile, from row `begin` on.
  void attend_rows(const int64_t* tile, int64_t head, int64_t begin, int64_t rows, const Pages& pages) {
    Seen seen[ROWS];
    int64_t start[ROWS], end[ROWS];
    BFloat16* outputs[ROWS];
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t offset = (begin + r) / group_, token = tile[1] + offset;
      const int64_t query_head = head * group_ + (begin + r) % group_;
      const BFloat16* from =
          a_.query.const_data_ptr<BFloat16>() + token * a_.query.stride(2) + query_head * a_.query.stride(1);
      std::copy(from, from + a_.width_k, queries_.data() + r * a_.width_k);
      outputs[r] = a_.output + (token * a_.query.size(1) + query_head) * a_.width_v;
      prefetch_for_writing(outputs[r]);
      start[r] = a_.start_of(tile[3] + offset + 1);
      end[r] = std::max(tile[3] + offset + 1, a_.least_end(tile));
      if (a_.sinks) seen[r] = {a_.sinks[query_head], 1};
    }
    const int64_t all_first = start[0] / LANES, all_last = (end[rows - 1] + LANES - 1) / LANES;
    for (int64_t first = all_first, last; first < all_last; first = last) {
      // Parts end at multiples of PART, so that the sums of a row do not depend on the other rows.
      last = std::min(all_last, (first / PART + 1) * PART);
      products_.score(queries_.data(), rows, pages, first, last, scores_);
      float kept[ROWS], scale[ROWS];
      for (int64_t r = 0; r < rows; ++r) {
        kept[r] = soften(scores_ + r * PART_STRIDE, probabilities_ + r * PART_STRIDE, first, last, start[r], end[r],
                         a_.softmax, seen[r]);
        scale[r] = 1 / seen[r].sum;
      }
      const Mixture mixture{mixed_.data(), a_.width_v, first == all_first, last == all_last, kept, scale, outputs};
      products_.mix(probabilities_, rows, pages, first, last, mixture);
    }
  }

  // Otherwise, the stores of the last part would wait for these lines.
  void prefetch_for_writing(const BFloat16* output) const {
    for (int64_t d = 0; d < a_.width_v; d += 64 / sizeof *output) __builtin_prefetch(output + d, 1);
  }

  const Attention& a_;
  const int64_t group_;
  Products products_;
  std::vector<Factor> queries_;
  std::vector<float> mixed_;
  alignas(64) float scores_[ROWS * PART_STRIDE];
  alignas(64) Factor probabilities_[ROWS * PART_STRIDE];
};

// Computes task after task, until none is left.
template <class Products>
void attend(const Attention& a, Tasks& take) {
  Worker<Products> worker(a);
  const int64_t tasks = a.tiles.size(0) * a.heads;
  for (int64_t taken = take(); taken < tasks; taken = take()) {
    const int64_t task = tasks - 1 - taken;  // The longest tasks have the highest numbers and must start first.
    worker.attend(a.tiles.const_data_ptr<int64_t>() + task / a.heads * a.tiles.size(1), task % a.heads);
  }
}

// Writes the step's keys and values into the pages, then computes attention. Returns [1, T, query heads, value width].
//
// query         [1, query heads, T, D]; in this and the next four tensors, only the last dimension must be contiguous
// key           [1, KV heads, T, D]
// value         [1, KV heads, T, DV]
// keys          [blocks, KV heads, block size * D]
// values        [blocks, KV heads, block size * DV]
// slots         [T]
// partial       [blocks]
// block_tables  [R, blocks]
// tiles         [tiles, 4]: row, first token, number of tokens, position of the first token in its sequence. Or
//               [tiles, 5]: and the place up to which all these tokens see, if it is after their own
// window        how many tokens a token sees, including itself; 0 if it sees all tokens before it
// softcap       0 for no cap
Tensor paged_attention(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& keys,
                       const Tensor& values, const Tensor& slots, const Tensor& partial,
                       const Tensor& block_tables, const Tensor& tiles, double scaling, int64_t window, double softcap,
                       const std::optional<Tensor>& sinks) {
  const int64_t heads = key.size(1), width_k = key.size(3), width_v = value.size(3), block_size = keys.size(2) / width_k;
  TORCH_CHECK(width_k % 2 == 0 && width_v % LANES == 0 && block_size % LANES == 0, "widths ", width_k, ", ", width_v,
              " or block size ", block_size, " don't fit");
  TORCH_CHECK(tiles.size(1) == 4 || tiles.size(1) == 5, "tiles are ", tiles.sizes());
  TORCH_CHECK(scaling > 0, "scaling is ", scaling, ", not positive");
  TORCH_CHECK(query.stride(3) == 1 && key.stride(3) == 1 && value.stride(3) == 1, "heads must be in one piece");
  TORCH_CHECK(keys.stride(2) == 1 && values.stride(2) == 1, "a head's part of a block must be in one piece");
  write_pages(key, value, keys, values, slots, partial, block_size);
  Tensor output = at::empty({1, query.size(2), query.size(1), width_v}, query.options());
  const Attention attention{query, keys, values, block_tables, tiles, heads, width_k, width_v, block_size, window,
                            Softmax{(float)scaling, (float)softcap},
                            sinks ? sinks->const_data_ptr<float>() : nullptr, output.mutable_data_ptr<BFloat16>()};
  share_out(tiles.size(0) * heads, [&](Tasks& take) {
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
      "Tensor partial, Tensor block_tables, Tensor tiles, float scaling, int window, float softcap, Tensor? sinks) -> Tensor",
      paged_attention);
}
