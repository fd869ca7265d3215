// LoRA adapters: what they add to the output of a linear layer, each row by its own adapter.
//
// An adapter multiplies an input with `down` [rank, inputs] and the result with `up` [outputs, rank]. Both are packed in
// groups of 16 rows of theirs, the lanes, with pairs of the dimension of the sum: `down` as [rank / 16][inputs / 2][16][2],
// `up` as [outputs / 16][rank / 2][16][2]. A row's sums do not depend on other rows (the result is batch-invariant).
// All adapters of a layer have room for the same rank. Those with a smaller one leave groups at the end empty.

#include <torch/library.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <vector>

#include "lanes.h"
#include "rows.h"

namespace {

constexpr int64_t GROUP_SIZE = 2 * LANES;  // Numbers of a group for one pair.
constexpr int STRANDS = 4;                 // Sums that are computed at the same time, which hides the latency of additions.
constexpr int64_t WORK_OF_A_THREAD = 1 << 17;  // With fewer products, starting a second thread costs more than it saves.
constexpr int TOGETHER = 4;                // Rows with the same adapter that share the loads of its weights.

// Adapters of one linear layer.
struct Adapters {
  const BFloat16 *down, *up;
  int64_t rank, inputs, outputs;
  const int64_t* ranks;  // Of each adapter, in whole groups.

  const BFloat16* down_of(int64_t slot) const { return down + slot * rank * inputs; }
  const BFloat16* up_of(int64_t slot) const { return up + slot * ((outputs + LANES - 1) / LANES * LANES) * rank; }
};

// Multiplies rows with `down`. Strand s adds the pairs s, s + 4, s + 8 and so on.
template <int ROWS>
void multiply_down(const Adapters& of, int64_t slot, const Factor* x, Factor* ranks) {
  const int64_t pairs = of.inputs / 2;
  const BFloat16* down = of.down_of(slot);
  for (int64_t k = 0; k < of.ranks[slot]; k += LANES, down += pairs * GROUP_SIZE) {
    Lanes sums[STRANDS][ROWS][1];
    for (auto& strand : sums)
      for (auto& row : strand) row[0] = all(0.0f);
    const auto add = [&](int strand, int64_t pair) {
      add_products(sums[strand], x + pair * 2, of.inputs, [&](int) { return load_pairs(down + pair * GROUP_SIZE); });
    };
    int64_t pair = 0;
    for (; pair + STRANDS <= pairs; pair += STRANDS)
#pragma GCC unroll 4
      for (int strand = 0; strand < STRANDS; ++strand) add(strand, pair + strand);
    for (int strand = 0; pair < pairs; ++pair, ++strand) add(strand, pair);
    for (int r = 0; r < ROWS; ++r)
      store_factors(ranks + r * of.rank + k, (sums[0][r][0] + sums[1][r][0]) + (sums[2][r][0] + sums[3][r][0]));
  }
}

// Writes rows of y plus the products with `up`, rounded once.
template <int ROWS>
void multiply_up(const Adapters& of, int64_t slot, const Factor* ranks, const BFloat16* const* y, BFloat16* const* to) {
  const int64_t pairs = of.ranks[slot] / 2;
  const BFloat16* up = of.up_of(slot);
  for (int64_t d = 0; d < of.outputs; d += LANES, up += of.rank / 2 * GROUP_SIZE) {
    const Mask lanes = lanes_below(of.outputs - d);
    Lanes sums[ROWS][1];
    for (int r = 0; r < ROWS; ++r) sums[r][0] = load_floats(y[r] + d, lanes);
    for (int64_t pair = 0; pair < pairs; ++pair)
      add_products(sums, ranks + pair * 2, of.rank, [&](int) { return load_pairs(up + pair * GROUP_SIZE); });
    for (int r = 0; r < ROWS; ++r) store_bf16(to[r] + d, sums[r][0], lanes);
  }
}

// Adds what an adapter changes in the next rows, as many as `count` says but at most four.
template <int ROWS = TOGETHER>
void add(const Adapters& of, int64_t slot, int64_t count, const Factor* x, Factor* ranks, const BFloat16* const* y,
         BFloat16* const* to) {
  if constexpr (ROWS > 1)
    if (count < ROWS) return add<ROWS - 1>(of, slot, count, x, ranks, y, to);
  multiply_down<ROWS>(of, slot, x, ranks);
  multiply_up<ROWS>(of, slot, ranks, y, to);
}

// Copies rows next to each other, as what products take.
void copy_factors(const BFloat16* from, int64_t width, Factor* to) {
  if constexpr (std::is_same_v<Factor, BFloat16>)
    std::memcpy(to, from, width * sizeof(BFloat16));
  else
    for (int64_t d = 0; d < width; ++d) to[d] = (float)from[d];
}

}  // namespace

// Returns y [..., outputs] plus, for each row of x [..., inputs], the change by its adapter. `slots` [rows] has the
// position of each row's adapter in `down` [adapters, rank / 16, inputs / 2, 16, 2] and `up` [adapters, outputs / 16,
// rank / 2, 16, 2], or -1 for none. `ranks` [adapters] has their ranks, multiples of 16; 0 where one changes nothing.
Tensor add_lora(const Tensor& y, const Tensor& x, const Tensor& slots, const Tensor& down, const Tensor& up,
                const Tensor& ranks) {
  const Rows bases(y), inputs(x);
  const Adapters adapters{down.const_data_ptr<BFloat16>(), up.const_data_ptr<BFloat16>(), down.size(1) * LANES, inputs.width,
                          bases.width, ranks.const_data_ptr<int64_t>()};
  const std::vector<int64_t> downs{down.size(0), adapters.rank / LANES, adapters.inputs / 2, LANES, 2},
      ups{down.size(0), (adapters.outputs + LANES - 1) / LANES, adapters.rank / 2, LANES, 2};
  TORCH_CHECK(down.sizes() == downs && up.sizes() == ups && down.is_contiguous() && up.is_contiguous(), "x is ", x.sizes(),
              ", y ", y.sizes(), ", down ", down.sizes(), ", up ", up.sizes());
  TORCH_CHECK(adapters.inputs % 2 == 0 && bases.count == inputs.count && slots.numel() == bases.count && slots.is_contiguous(),
              slots.numel(), " slots for ", bases.count, " and ", inputs.count, " rows");
  TORCH_CHECK(ranks.numel() == down.size(0) && ranks.is_contiguous(), ranks.numel(), " ranks of ", down.size(0), " adapters");
  const int64_t* slot_of = slots.const_data_ptr<int64_t>();
  Tensor sum = empty_rows(y.sizes(), y.options());
  BFloat16* out = sum.mutable_data_ptr<BFloat16>();
  const int64_t stride = row_stride(sum);
  std::vector<int64_t> order;  // The rows that change, those of an adapter one after the other.
  for (int64_t row = 0; row < bases.count; ++row) {
    TORCH_CHECK(-1 <= slot_of[row] && slot_of[row] < down.size(0), "slot ", slot_of[row], " of ", down.size(0));
    const int64_t rank = slot_of[row] < 0 ? 0 : adapters.ranks[slot_of[row]];
    TORCH_CHECK(0 <= rank && rank <= adapters.rank && rank % LANES == 0, "rank ", rank, " of ", adapters.rank);
    if (rank > 0)
      order.push_back(row);
    else
      std::memcpy(out + row * stride, bases[row], bases.width * sizeof(BFloat16));
  }
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return slot_of[a] < slot_of[b]; });
  const int64_t least = std::max<int64_t>(1, WORK_OF_A_THREAD / (adapters.rank * (adapters.inputs + adapters.outputs)));
  share_out_rows((int64_t)order.size(), least, [&](int64_t first, int64_t last) {
    std::vector<Factor> factors(TOGETHER * adapters.inputs), ranks(TOGETHER * adapters.rank);
    for (int64_t i = first; i < last;) {
      const int64_t slot = slot_of[order[i]];
      const BFloat16* from[TOGETHER];
      BFloat16* to[TOGETHER];
      int64_t count = 0;
      for (; count < TOGETHER && i < last && slot_of[order[i]] == slot; ++count, ++i) {
        copy_factors(inputs[order[i]], inputs.width, factors.data() + count * inputs.width);
        from[count] = bases[order[i]];
        to[count] = out + order[i] * stride;
      }
      add(adapters, slot, count, factors.data(), ranks.data(), from, to);
    }
  });
  return sum;
}

TORCH_LIBRARY_FRAGMENT(inflight, library) {
  library.def("add_lora(Tensor y, Tensor x, Tensor slots, Tensor down, Tensor up, Tensor ranks) -> Tensor", add_lora);
}
