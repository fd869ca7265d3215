"""Attention over block tables in the Triton language (not the server's): one kernel for single tokens and for prompts.

A program attends for one tile of tokens, all query heads that share one KV head, and a part of the keys. Where few rows
read long contexts, the keys are cut into parts so that all of the GPU works (Flash-Decoding, Dao et al. 2023); a second
kernel puts the parts together. Softmax is computed as it goes (FlashAttention-2, Dao 2023). What is not this request's
own is never loaded, so that NaN in a free slot spoils nobody.
"""

from typing import Any

import torch
import triton
import triton.language as tl

_LOG2_E = tl.constexpr(1.4426950408889634)


@triton.jit  # type: ignore[untyped-decorator]
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
    PARTS: tl.constexpr,
    WINDOWED: tl.constexpr,
    CAPPED: tl.constexpr,
    SINKS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """ROWS: tokens of a tile times GROUP, the query heads to a KV head, padded. KEYS: how many are loaded at once."""
    tile, kv_head, part = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    row = tl.load(tiles + tile * 4)
    first = tl.load(tiles + tile * 4 + 1)
    count = tl.load(tiles + tile * 4 + 2)
    place = tl.load(tiles + tile * 4 + 3)

    rows = tl.arange(0, ROWS)
    token, head = first + rows // GROUP, kv_head * GROUP + rows % GROUP
    position = place + rows // GROUP
    is_row = rows // GROUP < count
    key_columns, value_columns = tl.arange(0, PADDED_KEY), tl.arange(0, PADDED_VALUE)
    is_key, is_value = key_columns < KEY_WIDTH, value_columns < VALUE_WIDTH
    q = tl.load(
        query + token[:, None] * query_token + head[:, None] * query_head + key_columns[None, :],
        mask=is_row[:, None] & is_key[None, :],
        other=0.0,
    )

    begin = place * 0
    if WINDOWED:
        begin = tl.maximum(place - window + 1, 0) // KEYS * KEYS
    end = place + count
    share = tl.cdiv(tl.cdiv(end - begin, KEYS), PARTS) * KEYS
    begin = begin + part * share
    end = tl.minimum(end, begin + share)

    largest = tl.full([ROWS], float("-inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    if SINKS:  # noqa: SIM102 - decided when the kernel is compiled, and the next one when it runs
        # A sink is one more logit without a value; one part alone counts it.
        if part == 0:
            largest = tl.load(sinks + head, mask=is_row, other=0.0).to(tl.float32) * _LOG2_E
            total = tl.full([ROWS], 1.0, tl.float32)
    gathered = tl.zeros([ROWS, PADDED_VALUE], tl.float32)
    for start in range(begin, end, KEYS):
        key_positions = start + tl.arange(0, KEYS)
        is_here = key_positions < end
        block = tl.load(block_tables + row * table_row + key_positions // BLOCK, mask=is_here, other=0)
        slot = key_positions % BLOCK
        k = tl.load(
            keys + block[None, :] * key_block + slot[None, :] * key_slot + kv_head * key_head + key_columns[:, None],
            mask=is_here[None, :] & is_key[:, None],
            other=0.0,
        )
        scores = tl.dot(q, k, input_precision=PRECISION) * scaling
        if CAPPED:
            scores = softcap * (2 * tl.sigmoid(2 * scores / softcap) - 1)
        distance = position[:, None] - key_positions[None, :]
        visible = is_here[None, :] & (distance >= 0)
        if WINDOWED:
            visible = visible & (distance < window)
        scores = tl.where(visible, scores * _LOG2_E, float("-inf"))
        higher = tl.maximum(largest, tl.max(scores, 1))
        # A row that has seen no key yet has no largest score to subtract.
        base = tl.where(higher == float("-inf"), 0.0, higher)
        weights = tl.exp2(scores - base[:, None])
        fade = tl.exp2(largest - base)
        v = tl.load(
            values
            + block[:, None] * value_block
            + slot[:, None] * value_slot
            + kv_head * value_head
            + value_columns[None, :],
            mask=is_here[:, None] & is_value[None, :],
            other=0.0,
        )
        total = total * fade + tl.sum(weights, 1)
        gathered = gathered * fade[:, None] + tl.dot(weights.to(v.dtype), v, input_precision=PRECISION)
        largest = higher

    place_of_row = token * num_heads + head
    is_cell = is_row[:, None] & is_value[None, :]
    total = tl.where(is_row, total, 1.0)
    if PARTS == 1:
        cells = place_of_row[:, None] * VALUE_WIDTH + value_columns[None, :]
        tl.store(output + cells, (gathered / total[:, None]).to(output.dtype.element_ty), mask=is_cell)
    else:
        place_of_row += part * num_rows
        tl.store(partial + place_of_row[:, None] * VALUE_WIDTH + value_columns[None, :], gathered, mask=is_cell)
        tl.store(statistics + place_of_row * 2, largest, mask=is_row)
        tl.store(statistics + place_of_row * 2 + 1, total, mask=is_row)


@triton.jit  # type: ignore[untyped-decorator]
def _join(  # type: ignore[no-untyped-def]
    partial,
    statistics,
    output,
    num_rows,
    VALUE_WIDTH: tl.constexpr,
    PADDED_VALUE: tl.constexpr,
    PARTS: tl.constexpr,
):
    """One program puts the parts of one row, a token and a query head, together."""
    row = tl.program_id(0)
    columns = tl.arange(0, PADDED_VALUE)
    is_column = columns < VALUE_WIDTH
    largest = float("-inf")
    for part in range(PARTS):
        largest = tl.maximum(largest, tl.load(statistics + (part * num_rows + row) * 2))
    gathered = tl.zeros([PADDED_VALUE], tl.float32)
    total = 0.0
    for part in range(PARTS):
        cell = part * num_rows + row
        weight = tl.exp2(tl.load(statistics + cell * 2) - largest)
        total += weight * tl.load(statistics + cell * 2 + 1)
        gathered += weight * tl.load(partial + cell * VALUE_WIDTH + columns, mask=is_column, other=0.0)
    tl.store(output + row * VALUE_WIDTH + columns, (gathered / total).to(output.dtype.element_ty), mask=is_column)


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
    """Write the attention of some tiles' tokens into `output` [tokens, query heads, value width].

    `query` is [tokens, query heads, key width], `keys` and `values` [blocks, block size, KV heads, width] hold the
    tokens' own already; `block_tables` [rows, blocks] int64; `tiles` [tiles, 4] int64 of at most `tile_tokens` tokens,
    see `tiles.make_tiles`, which lie in a row. `parts` is into how many parts the keys are cut: more than one only if
    tiles have one token each and begin with the first. Elements of a head must be next to each other.
    """
    num_heads, key_width = query.shape[1:]
    block_size, num_kv_heads, value_width = values.shape[1:]
    group = num_heads // num_kv_heads
    some: dict[str, Any] = {"dtype": torch.float32, "device": query.device}
    num_rows = len(tiles) * num_heads
    size = (parts, num_rows) if parts > 1 else (0, 0)
    partial, statistics = torch.empty(*size, value_width, **some), torch.empty(*size, 2, **some)
    padded_value = max(16, triton.next_power_of_2(value_width))
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
        num_rows,
        num_heads,
        GROUP=group,
        BLOCK=block_size,
        KEY_WIDTH=key_width,
        VALUE_WIDTH=value_width,
        PADDED_KEY=max(16, triton.next_power_of_2(key_width)),
        PADDED_VALUE=padded_value,
        ROWS=max(16, triton.next_power_of_2(tile_tokens * group)),
        KEYS=64 if max(key_width, value_width) <= 128 else 32,
        PARTS=parts,
        WINDOWED=window is not None,
        CAPPED=softcap is not None,
        SINKS=sinks is not None,
        # Tensor cores round float32 to 10 bits of mantissa unless told otherwise.
        PRECISION="ieee" if query.dtype == torch.float32 else "tf32",
    )
    if parts > 1:
        _join[(num_rows,)](
            partial, statistics, output, num_rows, VALUE_WIDTH=value_width, PADDED_VALUE=padded_value, PARTS=parts
        )
