// Chooses a token for each row of logits. Each row is computed by one thread, and by itself.

#include <torch/library.h>

#include "logit_edits.h"
#include "nucleus.h"
#include "token_masks.h"

namespace {

// The columns of the parameters. A temperature of 0 means the likeliest token, a top_k of 0 no limit.
enum Parameter { TEMPERATURE, TOP_K, TOP_P, MIN_P, UNIFORM, NUM_PARAMETERS };

constexpr int64_t NO_TOKEN = -1, WRONG_EDIT = -2;

// The tokens that may be drawn: those with a weight that a cut leaves.
struct Kept {
  Weight weight;
  Cut cut;

  // The weights of 16 tokens, 0 for those that may not be drawn. Lowers `ties` by those that equal the cut.
  Lanes operator()(Lanes x, int64_t& ties) const {
    Mask in = less(all(cut.above), x);
    if (ties > 0) {
      Mask equals = equal(x, all(cut.above));
      while (__builtin_popcount(equals) > ties) equals &= ~(1u << (31 - __builtin_clz(equals)));
      ties -= __builtin_popcount(equals);
      in |= equals;
    }
    return weight(x, in);
  }
};

// The weight of a block's tokens, and how many ties of the cut are left before it.
struct BlockSum {
  float weight;
  int64_t ties_before;
};

// What a thread needs for a row. It is kept for the next rows.
struct Scratch {
  std::vector<float> edited;
  Candidates candidates;
  std::vector<BlockSum> sums;
};

// Adds up the weights of each block. Returns the sum of all.
template <class Number>
double sum_blocks(const LogitsRow<Number>& row, const Kept& kept, std::vector<BlockSum>& sums) {
  sums.resize(row.num_blocks);
  int64_t ties = kept.cut.ties;
  double total = 0;
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    const int64_t ties_before = ties;
    Lanes sum = all(0.0f);
    if (row.largest_in(b) >= kept.cut.above)
      for (int64_t i = 0; i < BLOCK; i += LANES) sum = sum + kept(load_floats(row.block(b) + i), ties);
    sums[b] = {sum_of(sum), ties_before};
    total += sums[b].weight;
  }
  return total;
}

// Returns the first of `count` weights that exceeds `left` together with all weights before it, and lowers `left` by the
// weights before it. If rounding leaves a rest after all weights, it is the largest one, as others may be next to
// impossible.
template <class WeightOf>
int64_t find(double& left, int64_t count, const WeightOf& weight_of) {
  int64_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const float weight = weight_of(i);
    if (left < weight) return i;
    left -= weight;
    if (weight > weight_of(largest)) largest = i;
  }
  return largest;
}

// Draws a token: in the order of their ids, the first whose weight and those before it exceed a share `uniform` of all.
template <class Number>
int64_t draw(const LogitsRow<Number>& row, const Kept& kept, double uniform, std::vector<BlockSum>& sums) {
  double left = uniform * sum_blocks(row, kept, sums);
  const int64_t b = find(left, row.num_blocks, [&](int64_t i) { return sums[i].weight; });
  float weights[BLOCK];
  int64_t ties = sums[b].ties_before;
  for (int64_t i = 0; i < BLOCK; i += LANES) store(weights + i, kept(load_floats(row.block(b) + i), ties));
  return b * BLOCK + find(left, BLOCK, [&](int64_t i) { return weights[i]; });
}

template <class Number>
int64_t token_of(LogitsRow<Number>& row, const double* parameters, Scratch& scratch) {
  if (row.has_nan || row.largest == -INF) return NO_TOKEN;
  const double temperature = parameters[TEMPERATURE], top_k = parameters[TOP_K], top_p = parameters[TOP_P];
  if (temperature == 0 || row.largest == INF) return row.argmax();
  const Weight weight(row.largest, temperature);
  Cut cut;
  if (top_k > 0 && top_k < (double)row.width) cut = cut_at_top_k(row, (int64_t)top_k, scratch.candidates);
  if (top_p < 1) {
    const double total = sum_blocks(row, {weight, cut}, scratch.sums);
    cut = cut_at_top_p(row, top_p, total, temperature, weight, cut, scratch.candidates);
  }
  const Kept kept{Weight(row.largest, temperature, parameters[MIN_P]), cut};
  return draw(row, kept, parameters[UNIFORM], scratch.sums);
}

template <class Number>
int64_t choose(const Number* logits, int64_t width, const double* parameters, const LogitEdits& edits,
               const TokenMasks& masks, int64_t number) {
  static thread_local Scratch scratch;
  static thread_local LogitsRow<Number> row;
  static thread_local LogitsRow<float> edited_row;
  if (!edits.has(number) && !masks.has(number)) {
    row.open(logits, width);
    return token_of(row, parameters, scratch);
  }
  scratch.edited.resize(width);
  std::copy(logits, logits + width, scratch.edited.begin());
  if (!edits.apply(number, scratch.edited.data(), width)) return WRONG_EDIT;
  masks.apply(number, scratch.edited.data(), width);
  edited_row.open(scratch.edited.data(), width);
  return token_of(edited_row, parameters, scratch);
}

// Returns a token for each row of logits [S, vocabulary], -1 for a row that has NaN or no possible token. The edits, see
// LogitEdits, come first, then the masks, see TokenMasks. The parameters [S, 5] say how to draw: divide the logits by the temperature and rank the tokens
// by their logits, of equal ones the smaller id first. Leave the top_k first tokens; of these, each token before which
// the probabilities add up to less than top_p; of these, each whose probability is at least min_p times the largest. Then
// draw from the rest in the order of ids, with the random number `uniform` in [0, 1).
Tensor sample(const Tensor& logits, const Tensor& parameters, const Tensor& rows, at::TensorList tokens,
              const Tensor& penalties, at::TensorList biases, const Tensor& mask_index, const Tensor& mask_bits) {
  const int64_t count = logits.size(0), width = logits.size(1);
  TORCH_CHECK(parameters.scalar_type() == at::kDouble && parameters.is_contiguous() &&
                  parameters.numel() == count * NUM_PARAMETERS, "parameters are ", parameters.sizes());
  const LogitEdits edits(rows, tokens, penalties, biases, count);
  const TokenMasks masks(mask_index, mask_bits, count, width);
  Tensor chosen = at::empty({count}, logits.options().dtype(at::kLong));
  int64_t* out = chosen.mutable_data_ptr<int64_t>();
  const double* how = parameters.const_data_ptr<double>();
  for_each_row(logits, count, [&](const auto* from, int64_t row) {
    out[row] = choose(from + row * logits.stride(0), width, how + row * NUM_PARAMETERS, edits, masks, row);
  });
  TORCH_CHECK(std::find(out, out + count, WRONG_EDIT) == out + count, "an edit has a token that is not below ", width);
  return chosen;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def(
      "sample(Tensor logits, Tensor parameters, Tensor rows, Tensor[] tokens, Tensor penalties, Tensor[] biases, "
      "Tensor mask_index, Tensor mask_bits) -> Tensor",
      sample);
}
