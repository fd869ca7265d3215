// Log-probabilities of some rows of logits. Each row is computed by one thread.

#include <ATen/ops/full.h>
#include <torch/library.h>

#include <tuple>
#include <utility>

#include "nucleus.h"

namespace {

// The logarithm of the sum of exp(x - largest).
template <class Number>
double log_sum(const LogitsRow<Number>& row) {
  const Weight weight(row.largest, 1);
  double total = 0;
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    Lanes sum = all(0.0f);
    for (int64_t i = 0; i < BLOCK; i += LANES) sum = sum + weight(load_floats(row.block(b) + i));
    total += sum_of(sum);
  }
  return std::log(total);
}

template <class Number>
int64_t num_larger(const LogitsRow<Number>& row, float than) {
  int64_t count = 0;
  for (int64_t b = 0; b < row.num_blocks; ++b)
    if (row.largest_in(b) > than)
      for (int64_t i = 0; i < BLOCK; i += LANES)
        count += __builtin_popcount(less(all(than), load_floats(row.block(b) + i)));
  return count;
}

// The tokens with the `count` largest logits over -infinity, likeliest first, of equal ones the smaller id first.
template <class Number>
std::vector<std::pair<float, int64_t>> likeliest(LogitsRow<Number>& row, int64_t count, Candidates& candidates) {
  std::vector<std::pair<float, int64_t>> found;
  if (count == 0) return found;
  Cut cut = cut_at_top_k(row, count, candidates);
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    if (row.largest_in(b) < cut.above) continue;
    for (int64_t token = b * BLOCK; token < std::min((b + 1) * BLOCK, row.width); ++token) {
      const float x = row[token];
      if (x > cut.above || (x == cut.above && cut.ties-- > 0)) found.emplace_back(-x, token);
    }
  }
  std::sort(found.begin(), found.end());
  return found;
}

// For the rows `rows` [R] of logits [S, vocabulary] and one token of each: the token's log-probability [R], its rank [R],
// and the `counts` [R] likeliest tokens [R, most] with their log-probabilities [R, most]. Behind the last
// token follow -1 and -infinity. Equally likely tokens have the same rank.
std::tuple<Tensor, Tensor, Tensor, Tensor> logprobs(const Tensor& logits, const Tensor& rows, const Tensor& tokens,
                                                    const Tensor& counts, int64_t most) {
  const int64_t count = rows.numel(), width = logits.size(1);
  for (const Tensor& each : {rows, tokens, counts})
    TORCH_CHECK(each.scalar_type() == at::kLong && each.is_contiguous() && each.numel() == count, "rows are ", rows.sizes());
  const int64_t *row_of = rows.const_data_ptr<int64_t>(), *token_of = tokens.const_data_ptr<int64_t>(),
                *count_of = counts.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) {
    TORCH_CHECK(0 <= row_of[i] && row_of[i] < logits.size(0) && 0 <= token_of[i] && token_of[i] < width, "token ",
                token_of[i], " of row ", row_of[i]);
    TORCH_CHECK(0 <= count_of[i] && count_of[i] <= most, count_of[i], " tokens");
  }
  const auto longs = rows.options(), floats = longs.dtype(at::kFloat);
  Tensor chosen = at::empty({count}, floats), ranks = at::empty({count}, longs);
  Tensor top = at::full({count, most}, -1, longs), top_logprobs = at::full({count, most}, -INF, floats);
  float *out = chosen.mutable_data_ptr<float>(), *top_out = top_logprobs.mutable_data_ptr<float>();
  int64_t *rank_out = ranks.mutable_data_ptr<int64_t>(), *top_tokens = top.mutable_data_ptr<int64_t>();
  for_each_row(logits, count, [&](const auto* from, int64_t i) {
    using Number = std::remove_const_t<std::remove_pointer_t<decltype(from)>>;
    static thread_local LogitsRow<Number> row;
    static thread_local Candidates candidates;
    row.open(from + row_of[i] * logits.stride(0), width);
    const double sum = log_sum(row);
    const auto logprob = [&](float x) { return (float)((double)x - row.largest - sum); };
    out[i] = logprob(row[token_of[i]]);
    rank_out[i] = num_larger(row, row[token_of[i]]) + 1;
    int64_t place = i * most;
    for (const auto& [negative, token] : likeliest(row, std::min(count_of[i], width), candidates)) {
      top_tokens[place] = token;
      top_out[place++] = logprob(-negative);
    }
  });
  return {chosen, ranks, top, top_logprobs};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def(
      "logprobs(Tensor logits, Tensor rows, Tensor tokens, Tensor counts, int most) -> (Tensor, Tensor, Tensor, Tensor)",
      logprobs);
}
