// The pages of a sequence in one attention task. They are read part by part; a part has several SIMD groups of 16 tokens.

#pragma once

#include "lanes.h"

namespace {

// PART is the number of SIMD groups in a part, whose scores fit into the L1 cache. PART_STRIDE is the distance between rows
// of scores. It is chosen so that rows do not compete for the same sets of the cache.
constexpr int64_t PART = 16, PART_STRIDE = PART * LANES + LANES;

struct Pages {
  const BFloat16* keys;
  const BFloat16* values;
  const int64_t* table;
  int64_t block_size, head_offset_k, head_offset_v, block_stride_k, block_stride_v, width_k, width_v;
  int64_t lanes;  // The number of SIMD groups in the sequence.
  bool first_touch;  // Whether these rows are the first to read the pages, which must be prefetched then.

  // Keys and values of the 16 tokens from 16 * index on.
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
