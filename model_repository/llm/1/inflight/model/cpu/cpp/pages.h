// The pages of a sequence, as a task of attention sees them.

#pragma once

#include "lanes.h"

namespace {

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

}  // namespace
