// The pages of a sequence, as a task of attention sees them: part after part of some lanes, sixteen tokens each.

#pragma once

#include "lanes.h"

namespace {

// As many lanes as have scores that fit into the first cache, and how far apart rows of these do not meet in its sets.
constexpr int64_t PART = 16, PART_STRIDE = PART * LANES + LANES;

struct Pages {
  const BFloat16* keys;
  const BFloat16* values;
  const int64_t* table;
  int64_t block_size, head_offset_k, head_offset_v, block_stride_k, block_stride_v, width_k, width_v;
  int64_t lanes;  // As many as the sequence has.
  bool first_touch;     // Whether no rows have been here before these.

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

}  // namespace
