"""Attention over block tables in the Triton language (not Triton Inference Server): one kernel for decodes and prompts.

A program computes one tile of tokens, with all query heads of one KV head, over one part of the keys. If few rows read
long contexts, their keys are cut into several parts, so that the whole GPU is busy (Flash-Decoding, Dao et al. 2023). A
second kernel then combines the parts. The softmax is an online softmax (FlashAttention-2, Dao 2023). The kernel never
loads a slot that does not belong to the request, so NaN in a free slot spoils no result.
"""

from typing import Any

import torch
import triton
import triton.language as tl

from inflight.model.cuda import tiling

_LOG2_E = tl.constexpr(1.4426950408889634)


# The compiler makes other variants for integers that are 1 or divisible by 16, but not for these: many of them change
# between steps, and a step must not wait for the compiler.
@triton.jit(do_not_specialize=["window", "table_row", "parts", "num_rows", "num_heads"])  # type: ignore[untyped-decorator]
def _attend(  # type: ignore[no-untyped-def]
    query,
    keys,
    values,
    output,
    partial,
    statistics,
    sinks,
    block_tables,
    tiles,
    scaling,
    softcap,
    window,
    query_token,
    query_head,
    key_block,
    key_slot,
    key_head,
    value_block,
    value_slot,
    value_head,
    table_row,
    parts,
    num_rows,
    num_heads,
    GROUP: tl.constexpr,
    BLOCK: tl.constexpr,
    KEY_WIDTH: tl.constexpr,
    VALUE_WIDTH: tl.constexpr,
    PADDED_KEY: tl.constexpr,
    PADDED_VALUE: tl.constexpr,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    SPLIT: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Attend for one tile of tokens and one KV head over one part of the keys.

    GROUP is the number of query heads per KV head. ROWS is the number of tokens of a tile times GROUP, padded to a
    power of two. KEYS is the number of keys that are loaded at a time.
    """
    tile, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(tiles + tile * 4)
    first = tl.load(tiles + tile * 4 + 1)
    count = tl.load(tiles + tile * 4 + 2)
    first_position = tl.load(tiles + tile * 4 + 3)

    rows = tl.arange(0, ROWS)
    token, head = first + rows // GROUP, kv_head * GROUP + rows % GROUP
    position = first_position + rows // GROUP
    is_row = rows // GROUP < count
    key_columns, value_columns = tl.arange(0, PADDED_KEY), tl.arange(0, PADDED_VALUE)
    is_key, is_value = key_columns < KEY_WIDTH, value_columns < VALUE_WIDTH
    q = tl.load(
        query + token[:, None] * query_token + head[:, None] * query_head + key_columns[None, :],
        mask=is_row[:, None] & is_key[None, :],
        other=0.0,
    )

    begin = first_position * 0
    if WINDOWED:
        begin = tl.maximum(first_position - window + 1, 0) // KEYS * KEYS
    end = first_position + count
    if SPLIT:
        part_length = tl.cdiv(tl.cdiv(end - begin, KEYS), parts) * KEYS
        begin = begin + part * part_length
        end = tl.minimum(end, begin + part_length)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if SINKS:  # noqa: SIM102 - the compiler decides this condition, the running kernel the next one
        # A sink is one more logit without a value. Only the first part adds it.
        if part == 0:
            largest = tl.load(sinks + head, mask=is_row, other=0.0).to(tl.float32) * _LOG2_E
            total = tl.full([ROWS], 1.0, tl.float32)
    weighted_sum = tl.zeros([ROWS, PADDED_VALUE], tl.float32)
    for start in range(begin, end, KEYS):
        key_positions = start + tl.arange(0, KEYS)
        in_part = key_positions < end
        block = tl.load(block_tables + row * table_row + key_positions // BLOCK, mask=in_part, other=0)
        slot = key_positions % BLOCK
        k = tl.load(
            keys + block[None, :] * key_block + slot[None, :] * key_slot + kv_head * key_head + key_columns[:, None],
            mask=in_part[None, :] & is_key[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision=PRECISION) * scaling
        if CAPPED:
            scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
        distance = position[:, None] - key_positions[None, :]
        visible = in_part[None, :] & (distance >= 0)
        if WINDOWED:
            visible = visible & (distance < window)
        scores = tl.where(visible, scores * _LOG2_E, float("-inf"))
        new_largest = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen no key yet has no largest score to subtract.
        base = tl.where(new_largest == float("-inf"), 0.0, new_largest)
        weights = tl.exp2(scores - base[:, None])
        rescale = tl.exp2(largest - base)
        v = tl.load(
            values
            + block[:, None] * value_block
            + slot[:, None] * value_slot
            + kv_head * value_head
            + value_columns[None, :],
            mask=in_part[:, None] & is_value[None, :],
            other=0.0,
        )
        total = total * rescale + tl.sum(weights, 1)
        weighted_sum = weighted_sum * rescale[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        largest = new_largest

    output_row = token * num_heads + head
    is_cell = is_row[:, None] & is_value[None, :]
    total = tl.where(is_row, total, 1.0)
    if SPLIT:
        output_row += part * num_rows
        tl.store(partial + output_row[:, None] * VALUE_WIDTH + value_columns[None, :], weighted_sum, mask=is_cell)
        tl.store(statistics + output_row * 2, largest, mask=is_row)
        tl.store(statistics + output_row * 2 + 1, total, mask=is_row)
    else:
        cells = output_row[:, None] * VALUE_WIDTH + value_columns[None, :]
        tl.store(output + cells, (weighted_sum / total[:, None]).to(output.dtype.element_ty), mask=is_cell)


@triton.jit(do_not_specialize=["parts", "num_rows"])  # type: ignore[untyped-decorator]
def _combine_parts(  # type: ignore[no-untyped-def]
    partial,
    statistics,
    output,
    parts,
    num_rows,
    VALUE_WIDTH: tl.constexpr,
    PADDED_VALUE: tl.constexpr,
):
    """Each program combines the parts of one row, which is one query head of one token."""
    row = tl.program_id(0)
    columns = tl.arange(0, PADDED_VALUE)
    is_column = columns < VALUE_WIDTH
    largest = float("-inf")
    for part in range(parts):
        largest = tl.maximum(largest, tl.load(statistics + (part * num_rows + row) * 2))
    weighted_sum = tl.zeros([PADDED_VALUE], tl.float32)
    total = 0.0
    for part in range(parts):
        cell = part * num_rows + row
        weight = tl.exp2(tl.load(statistics + cell * 2) - largest)
        total += weight * tl.load(statistics + cell * 2 + 1)
        weighted_sum += weight * tl.load(partial + cell * VALUE_WIDTH + columns, mask=is_column, other=0.0)
    tl.store(output + row * VALUE_WIDTH + columns, (weighted_sum / total).to(output.dtype.element_ty), mask=is_column)


def attend(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    output: torch.Tensor,
    block_tables: torch.Tensor,
    tiles: torch.Tensor,
    *,
    tile_tokens: int,
    parts: int,
    scaling: float,
    window: int | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> None:
    """Write the attention of the tokens in `tiles` to `output` [tokens, query heads, value width].

    The elements of a head must be contiguous in every tensor.

    Args:
        query: [tokens, query heads, key width].
        keys: [blocks, block size, KV heads, key width]. The cache already has the keys of the tokens in `tiles`.
        values: [blocks, block size, KV heads, value width], likewise.
        output: [tokens, query heads, value width], contiguous.
        block_tables: [rows, blocks] int64.
        tiles: [tiles, 4] int64, see `tiles.make_tiles`. The tokens of a tile are consecutive.
        tile_tokens: The largest number of tokens in a tile.
        parts: Into how many parts the keys are cut. It may be more than one only if tile i has just token i.
        scaling: The factor of the scores.
        window: How many tokens a token sees, including itself; None if it sees all tokens before it.
        softcap: The cap of the scores; None for no cap.
        sinks: [query heads], logits that take part in the softmax but have no value; None for no sinks.
    """
    num_heads, key_width = query.shape[1:]
    block_size, num_kv_heads, value_width = values.shape[1:]
    float32: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
    num_rows = len(tiles) * num_heads
    size = (parts, num_rows) if parts > 1 else (0, 0)
    partial, statistics = torch.empty(*size, value_width, **float32), torch.empty(*size, 2, **float32)
    layer = tiling.Layer(
        dtype=query.dtype,
        group=num_heads // num_kv_heads,
        block_size=block_size,
        key_width=key_width,
        value_width=value_width,
        windowed=window is not None,
        capped=softcap is not None,
        sinks=sinks is not None,
    )
    # Kernels of the Triton language are launched on the thread's current device, wherever their tensors are.
    with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
        _attend[(len(tiles), num_kv_heads, parts)](
            query,
            keys,
            values,
            output,
            partial,
            statistics,
            sinks,
            block_tables,
            tiles,
            scaling,
            softcap or 0.0,
            window or 0,
            *query.stride()[:2],
            *keys.stride()[:3],
            *values.stride()[:3],
            block_tables.stride(0),
            parts,
            num_rows,
            num_heads,
            **tiling.attend_constants(layer, tile_tokens, split=parts > 1),
        )
        if parts > 1:
            constants = tiling.combine_constants(value_width)
            _combine_parts[(num_rows,)](partial, statistics, output, parts, num_rows, **constants)
