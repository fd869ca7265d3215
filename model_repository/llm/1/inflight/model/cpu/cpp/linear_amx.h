// The product by Intel's matrix unit, with the same packed weights.

#pragma once

#include <optional>
#include <vector>

#include "linear_amx_block.h"
#include "linear_amx_int4.h"

namespace {

// The size of about equal parts of `count`: multiples of `unit`, and as few as possible if none has more than `most`.
inline int64_t even_part(int64_t count, int64_t most, int64_t unit) {
  const int64_t parts = (count + most - 1) / most, part = (count + parts - 1) / parts;
  return (part + unit - 1) / unit * unit;
}

// Computes group after group of panels of y, which has `rows` rows. In a group, a chunk of inputs is multiplied for all
// panels before the next chunk, and its part of x stays in the L2 cache meanwhile (blocking as in Goto and van de Geijn,
// 2008). Sums are kept in between, in floats, so the order of a sum's products does not change. With gates, the gates are
// the first half of all weights, and a group has the gates of its panels as well.
template <class Kind, bool GATED>
class Multiplier {
 public:
  Multiplier(const Product<Kind>& product, int64_t rows, int64_t panels, int64_t group)
      : p_(product),
        rows_(rows),
        panels_(panels),
        group_(group),
        part_(even_part(rows, MOST_ROWS, BLOCK_ROWS)),
        inputs_(2 * product.pairs),
        chunk_(even_part(inputs_, MOST_INPUTS, TILE_INPUTS)) {
    if constexpr (TURNED) turned_.resize(chunk_ * PANEL);
    const size_t blocks = part_ / BLOCK_ROWS * group * (GATED ? 2 : 1);
    if (kept_.size() < blocks) kept_.resize(blocks);
  }

  // Computes the panels of group `group` of y. Prefetches the first weights of the panel `next` of all weights unless it is -1.
  void multiply(int64_t group, int64_t next) {
    const int64_t first = group * group_, last = std::min(panels_, first + group_);
    for (int64_t row = 0; row < rows_; row += part_) {
      Chunk<Kind> after;
      if (row + part_ < rows_)
        after = chunk(first, 0);
      else if (next >= 0)
        after = chunk(next, 0);
      multiply_part(first, last, row, std::min(rows_, row + part_), after);
    }
  }

  void finish() {
    leaving_.store(BLOCK_ROWS);
    release_tiles();
  }

 private:
  static constexpr bool TURNED = !std::is_same_v<Kind, Bf16>;
  // A chunk of the inputs of so many rows, and their sums of a group, fit into the L2 cache.
  static constexpr int64_t MOST_ROWS = 256;

  // The weights of the inputs from `input` on in panel `panel` of all weights.
  Chunk<Kind> chunk(int64_t panel, int64_t input) const {
    return {p_.panel(panel) + input / Kind::INPUTS * Kind::WEIGHTS, std::min(chunk_, inputs_ - input)};
  }

  // Computes panels `first` to `last` - 1 for rows `begin` to `end` - 1. Prefetches chunk `after`.
  void multiply_part(int64_t first, int64_t last, int64_t begin, int64_t end, const Chunk<Kind>& after) {
    constexpr int64_t EACH = GATED ? 2 : 1;
    const int64_t count = (last - first) * EACH;
    auto weights_of = [&](int64_t i) { return GATED && i % 2 ? panels_ + first + i / 2 : first + i / EACH; };
    for (int64_t input = 0; input < inputs_; input += chunk_)
      for (int64_t i = 0; i < count; ++i) {
        const Chunk<Kind> next = i + 1 < count              ? chunk(weights_of(i + 1), input)
                                 : input + chunk_ < inputs_ ? chunk(first, input + chunk_)
                                                            : after;
        multiply_chunk(i, first + i / EACH, weights_of(i), input, begin, end, next);
      }
  }

  // Multiplies the inputs from `input` on with panel `weights` of all weights, which is number `i` of the group and belongs to
  // panel `panel` of y.
  void multiply_chunk(int64_t i, int64_t panel, int64_t weights, int64_t input, int64_t begin, int64_t end,
                      const Chunk<Kind>& next) {
    const Chunk<Kind> now = chunk(weights, input);
    const int64_t blocks = (end - begin + BLOCK_ROWS - 1) / BLOCK_ROWS;
    const bool gates = GATED && i % 2 == 0, ends = input + chunk_ >= inputs_;
    const bool kept = gates || chunk_ < inputs_;
    Meanwhile<Kind> meanwhile{{next, blocks * (now.inputs / TILE_INPUTS)}, {}, leaving_};
    const BFloat16* turned;
    if constexpr (TURNED) {
      meanwhile.turning = {now.weights, turned_.data()};
      turned = turned_.data();
    } else {
      turned = now.weights;
    }
    for (int64_t block = 0; block < blocks; ++block, meanwhile.turning = {}) {
      const int64_t row = begin + block * BLOCK_ROWS, count = std::min(BLOCK_ROWS, end - row);
      const int64_t top = std::min(TILE_ROWS, count);
      Sums& sums = kept ? kept_[i * blocks + block] : sums_;
      shape(top, count - top);
      const BFloat16* const x = p_.x + row * p_.x_stride + input;
      const Block<Kind> of{x, p_.x_stride, top, count - top, now.weights, turned, now.inputs, input == 0};
      multiply_block(of, meanwhile, sums);
      leaving_ = {};
      if (ends && !gates) {
        BFloat16* const y = p_.y + row * p_.y_stride + panel * PANEL;
        const Sums* const of_gates = GATED ? &kept_[(i - 1) * blocks + block] : nullptr;
        leaving_ = {&p_, &sums, of_gates, y, count, weights * PANEL, panel * PANEL};
      }
    }
  }

  void shape(int64_t top, int64_t bottom) {
    if (shaped_ != top + bottom) load_shapes(product_tiles(top, bottom));
    shaped_ = top + bottom;
  }

  // Sums that are kept for later chunks, or until those that they are the gates of are complete: 128 KB at most. To allocate
  // them for each product would take longer than some products.
  inline static thread_local std::vector<Sums> kept_;

  const Product<Kind>& p_;
  const int64_t rows_, panels_, group_, part_, inputs_, chunk_;
  std::vector<BFloat16> turned_;
  Sums sums_;
  Leaving<Kind> leaving_;
  int64_t shaped_ = 0;
};

// The number of panels in a group, of `panels` that the threads share. Each thread takes several groups, so that all finish
// together.
inline int64_t panels_in_group(int64_t panels, int64_t most) {
  return std::clamp<int64_t>(panels / (4 * ThreadPool::instance().threads()), 1, most);
}

// Multiplies all rows with all panels of y.
template <bool GATED, class Kind>
void multiply_by_amx(const Product<Kind>& product, int64_t rows, int64_t panels) {
  const int64_t group = panels_in_group(panels, GATED ? 2 : 4);
  share_out((panels + group - 1) / group, [&](Tasks& tasks) {
    const NoDenormals no_denormals;  // As in `multiply_few`, so that sums are scaled alike.
    Multiplier<Kind, GATED> multiplier(product, rows, panels, group);
    tasks.each_with_next([&](int64_t now, int64_t next) { multiplier.multiply(now, next < 0 ? -1 : next * group); });
    multiplier.finish();
  });
}

// Multiplies the rows of each expert with all of its panels. The threads share the panels of all experts together, because
// an expert has few. The weights of all experts lie one after the other.
template <class Kind>
void multiply_experts_by_amx(const std::vector<RowsOfExpert<Kind>>& experts, int64_t panels) {
  const int64_t count = experts.size(), group = panels_in_group(count * panels, 4), groups = (panels + group - 1) / group;
  share_out(count * groups, [&](Tasks& tasks) {
    const NoDenormals no_denormals;
    std::optional<Multiplier<Kind, false>> multiplier;
    const RowsOfExpert<Kind>* of = nullptr;
    tasks.each_with_next([&](int64_t now, int64_t next) {
      if (const RowsOfExpert<Kind>* const expert = &experts[now / groups]; expert != of) {
        if (multiplier) multiplier->finish();
        multiplier.emplace(expert->product, expert->rows, panels, group);
        of = expert;
      }
      const int64_t distance = next < 0 ? 0 : experts[next / groups].number - of->number;
      multiplier->multiply(now % groups, next < 0 ? -1 : distance * panels + next % groups * group);
    });
    if (multiplier) multiplier->finish();
  });
}

}  // namespace
