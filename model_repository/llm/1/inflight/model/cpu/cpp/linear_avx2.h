// Products of at least four rows in AVX2: up to six rows by sixteen columns at a time, whose sums occupy up to 12 of the 16
// registers. The loop is in assembly, as compilers move sums between registers and memory when so few are left.

#pragma once

#include <algorithm>
#include <vector>

#include "interleaved.h"
#include "product.h"

namespace {

constexpr int64_t MOST_ROWS = 6;

// What each step of the loop prefetches: bytes that are `step` apart.
struct Prefetching {
  const char* from;
  int64_t step;
};

alignas(32) constexpr uint32_t HIGH_HALVES[8] = {0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000,
                                                 0xffff0000, 0xffff0000, 0xffff0000, 0xffff0000};

// Adds the products of a row's element and 16 weights to the sums in the registers `low` and `high`, if there are so many rows.
#define ROW(number, element, low, high)                                                                               \
  ".if " #number " < %c[rows]\n"                                                                                      \
  "vbroadcastss 8*" #number "+4*" #element "(%[x]), %%ymm14\n"                                                        \
  "vfmadd231ps %%ymm14, %%ymm12, %%ymm" #low "\n"                                                                     \
  "vfmadd231ps %%ymm14, %%ymm13, %%ymm" #high "\n"                                                                    \
  ".endif\n"

#define ALL_ROWS(element)                                                                                             \
  ROW(0, element, 0, 1) ROW(1, element, 2, 3) ROW(2, element, 4, 5)                                                   \
  ROW(3, element, 6, 7) ROW(4, element, 8, 9) ROW(5, element, 10, 11)

#define ALL_SUMS(instruction)                                                                                         \
  ".irp i,0,1,2,3,4,5,6,7,8,9,10,11\n .if \\i < 2*%c[rows]\n" instruction "\n .endif\n .endr\n"

// Adds the products of `ROWS` rows, interleaved pair by pair, and 16 columns of a panel, pair by pair. If `SCALED`, adds them
// up first, and then adds their sums times `scales` to `sums`.
template <bool SCALED, int ROWS>
void add_columns(float (&sums)[ROWS][LANES], const float* x, const BFloat16* columns, int64_t pairs, const float* scales,
                 Prefetching ahead) {
  asm volatile(
      ".if %c[scaled]\n"
      ALL_SUMS("vxorps %%xmm\\i, %%xmm\\i, %%xmm\\i")
      ".else\n"
      ALL_SUMS("vmovaps 32*\\i(%[sums]), %%ymm\\i")
      ".endif\n"
      "1:\n"
      "prefetcht1 (%[from])\n"
      "add %[step], %[from]\n"
      // The first elements of the pairs as floats.
      "vmovups (%[columns]), %%ymm12\n"
      "vmovups 32(%[columns]), %%ymm13\n"
      "vpslld $16, %%ymm12, %%ymm12\n"
      "vpslld $16, %%ymm13, %%ymm13\n"
      ALL_ROWS(0)
      // The second ones.
      "vmovaps %[high_halves], %%ymm13\n"
      "vpand (%[columns]), %%ymm13, %%ymm12\n"
      "vpand 32(%[columns]), %%ymm13, %%ymm13\n"
      ALL_ROWS(1)
      "add %[bytes], %[columns]\n"
      "add $8*%c[rows], %[x]\n"
      "dec %[pairs]\n"
      "jnz 1b\n"
      ".if %c[scaled]\n"
      "vmovaps (%[scales]), %%ymm12\n"
      "vmovaps 32(%[scales]), %%ymm13\n"
      ALL_SUMS(".if \\i & 1\n vfmadd213ps 32*\\i(%[sums]), %%ymm13, %%ymm\\i\n .else\n"
               "vfmadd213ps 32*\\i(%[sums]), %%ymm12, %%ymm\\i\n .endif")
      ".endif\n"
      ALL_SUMS("vmovaps %%ymm\\i, 32*\\i(%[sums])")
      : [x] "+r"(x), [columns] "+r"(columns), [pairs] "+r"(pairs), [from] "+r"(ahead.from)
      : [sums] "r"(&sums), [step] "r"(ahead.step), [bytes] "i"(2 * PANEL * sizeof *columns), [rows] "i"(ROWS),
        [high_halves] "m"(HIGH_HALVES), [scaled] "i"(SCALED), [scales] "r"(scales)
      : "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10", "xmm11", "xmm12", "xmm13",
        "xmm14", "cc", "memory");
}

#undef ROW
#undef ALL_ROWS
#undef ALL_SUMS

// Integers of up to eight bits are exact in bfloat16.
template <class Half>
void store_bf16_pairs(BFloat16* to, Half integers) {
  const __m256i first = _mm256_castps_si256(one_of<false>(integers)), second = _mm256_castps_si256(one_of<true>(integers));
  _mm256_storeu_si256((__m256i*)to, _mm256_or_si256(_mm256_srli_epi32(first, 16), second));
}

template <class Columns>
void store_bf16_columns(BFloat16* to, Columns columns) {
  store_bf16_pairs(to, columns.low);
  store_bf16_pairs(to + LANES, columns.high);
}

// Stores the weights of a panel in bfloat16, without their scales.
inline void store_bf16_panel(BFloat16* to, const Product<Int8>& p, int64_t panel) {
  const int8_t* weights = p.panel(panel);
  for (int64_t i = 0; i < p.pairs * 2 * PANEL; i += 2 * LANES) store_bf16_columns(to + i, load_pairs(weights + i));
}

inline void store_bf16_panel(BFloat16* to, const Product<Int4>& p, int64_t panel) {
  for (const Int4Group *group = p.panel(panel), *end = p.panel(panel + 1); group < end; ++group)
    for (int word = 0; word < 4; ++word)
#pragma GCC unroll 4
      for (int pair = 0; pair < 4; ++pair)
        for (int c = 0; c < PANEL / LANES; ++c, to += 2 * LANES)
          store_bf16_columns(to, load_pairs(group->words[c][word], pair));
}

// Returns the weights of a panel in bfloat16, without their scales. Each thread keeps the memory for them.
template <class Kind>
const BFloat16* panel_in_bf16(const Product<Kind>& p, int64_t panel) {
  if constexpr (std::is_same_v<Kind, Bf16>) {
    return p.panel(panel);
  } else {
    thread_local std::vector<BFloat16> room;
    room.resize(std::max<size_t>(room.size(), p.pairs * 2 * PANEL));
    store_bf16_panel(room.data(), p, panel);
    return room.data();
  }
}

// Multiplies a tile of `ROWS` rows from `row` on with the columns of a panel from number `first` on.
template <class Kind, int ROWS>
void multiply_columns(const Product<Kind>& p, const float* x, int64_t row, int64_t panel, const BFloat16* weights,
                      int64_t first, Prefetching ahead) {
  alignas(32) float sums[ROWS][LANES] = {};
  const BFloat16* columns = weights + 2 * first;
  if constexpr (std::is_same_v<Kind, Int4>) {
    constexpr int64_t PAIRS = Int4::INPUTS / 2;
    for (const Int4Group *group = p.panel(panel), *end = p.panel(panel + 1); group < end; ++group) {
      alignas(32) float scales[LANES];
      store(scales, load_floats(group->scales + first));
      add_columns<true>(sums, x, columns, PAIRS, scales, ahead);
      x += PAIRS * 2 * ROWS;
      columns += PAIRS * 2 * PANEL;
      ahead.from += PAIRS * ahead.step;
    }
  } else {
    add_columns<false>(sums, x, columns, p.pairs, nullptr, ahead);
  }
  const int64_t column = panel * PANEL + first;
  for (int r = 0; r < ROWS; ++r) store_bf16(p.y + (row + r) * p.y_stride + column, p.result(load(sums[r]), column));
}

// Multiplies all rows with all panels. There must be at least four rows, as a tile has at least three. All passes over
// a panel share in prefetching the next one, so that memory is read while the processor multiplies.
template <class Kind>
void multiply_by_columns(const Product<Kind>& p, int64_t rows, int64_t panels) {
  constexpr decltype(&multiply_columns<Kind, 3>) KERNELS[] = {multiply_columns<Kind, 3>, multiply_columns<Kind, 4>,
                                                              multiply_columns<Kind, 5>, multiply_columns<Kind, 6>};
  const int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS, passes = tiles * PANEL / LANES;
  const int64_t bytes_of_pair = Kind::WEIGHTS * sizeof(typename Kind::Weight) * 2 / Kind::INPUTS;
  const int64_t step = (bytes_of_pair + passes - 1) / passes;
  const Tensor floats = interleaved(p, rows, tiles);
  const float* x = floats.const_data_ptr<float>();
  share_out(panels, [&](Tasks& tasks) {
    tasks.each_with_next([&](int64_t panel, int64_t next) {
      const BFloat16* weights = panel_in_bf16(p, panel);
      Prefetching ahead{(const char*)p.panel(next < 0 ? panel : next), step};
      for (int64_t t = 0; t < tiles; ++t) {
        const Tile tile(rows, tiles, t);
        for (int64_t first = 0; first < PANEL; first += LANES, ahead.from += p.pairs * step)
          KERNELS[tile.count - 3](p, x + tile.first * p.pairs * 2, tile.first, panel, weights, first, ahead);
      }
    });
  });
}

}  // namespace
