"""Cuts the rows of a batch into tiles of a few tokens. A kernel computes the attention of one tile at a time."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def make_tiles(query_starts: Sequence[int], context_lens: Sequence[int], rows: range, tokens: int) -> NDArray[np.int64]:
    """Cut some rows of a batch into tiles of at most `tokens` tokens.

    `query_starts` and `context_lens` are those of a RaggedBatch. Returns [tiles, 4]: row, index of the first token in
    the batch, number of tokens, position of the first token in its sequence.
    """
    borders, contexts = np.array(query_starts), np.array(context_lens)
    chosen = np.array(rows, dtype=np.int64)
    lengths = np.diff(borders)
    counts = -(-lengths[chosen] // tokens)
    row = np.repeat(chosen, counts)
    offsets = (np.arange(len(row)) - np.repeat(np.cumsum(counts) - counts, counts)) * tokens
    positions = (contexts - lengths)[row] + offsets
    return np.stack((row, borders[row] + offsets, np.minimum(tokens, lengths[row] - offsets), positions), axis=1)


def make_image_tiles(
    query_starts: Sequence[int], context_lens: Sequence[int], sees_to: NDArray[np.int64], tokens: int
) -> NDArray[np.int64]:
    """Cut all rows of a batch into tiles as `make_tiles` does, but of tokens that have the same `sees_to` [T].

    See `BatchImages.sees_to`. Returns [tiles, 5]: as there, and `sees_to`.
    """
    starts, contexts = np.array(query_starts), np.array(context_lens)
    borders = np.union1d(starts, np.flatnonzero(np.diff(sees_to)) + 1)
    row = np.searchsorted(starts, borders[:-1], side="right") - 1
    positions = contexts[row] - (starts[row + 1] - borders[1:])
    tiles = make_tiles(borders.tolist(), positions.tolist(), range(len(row)), tokens)
    return np.column_stack((row[tiles[:, 0]], tiles[:, 1:], sees_to[tiles[:, 1]]))
