"""A step's tokens as one flat row, with where each lives in the cache."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray

from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest, StepPlan


@dataclass(frozen=True)
class RaggedBatch:
    """Rows of a plan laid end to end, without padding. R rows, T tokens, S sampled rows.

    tokens   [ a a a | b | c | d d d d d ]      rows of one token first, shortest context first
    query_starts 0   3   4   5           10
    """

    token_ids: torch.Tensor
    """[T] int64."""
    positions: torch.Tensor
    """[T] int64, place of each token in its sequence."""
    slots: torch.Tensor
    """[T] int64, `block * block_size + offset` that takes the token's key and value."""
    partial_blocks: torch.Tensor
    """[blocks] int64, those of which this step writes the first slot but not the last. What else they hold is of
    requests that are gone."""
    block_tables: torch.Tensor
    """[R, most blocks] int64: what the step reads and writes, each row padded with its own first block."""
    rows: list[Request]
    """The R requests."""
    query_starts: list[int]
    """R + 1 borders of the rows."""
    context_lens: list[int]
    """R lengths of cached and new tokens together."""
    logit_rows: torch.Tensor
    """[S] int64, tokens whose logits are sampled."""
    sampling: list[Request]
    """The S requests of `logit_rows`."""

    @cached_property
    def num_single(self) -> int:
        """How many rows, all at the front, have one token."""
        return sum(b - a == 1 for a, b in zip(self.query_starts, self.query_starts[1:], strict=False))

    @classmethod
    def build(cls, plan: StepPlan, block_size: int, device: torch.device) -> "RaggedBatch":
        """Lay out a plan; requests' blocks must be allocated, their `num_computed` not yet advanced."""
        shares = sorted(plan.scheduled, key=lambda s: (s.num_tokens > 1, s.request.num_computed))
        lengths = np.array([share.num_tokens for share in shares])
        starts = np.array([share.request.num_computed for share in shares])
        ends = starts + lengths
        borders = np.concatenate(([0], np.cumsum(lengths)))
        positions = np.arange(borders[-1]) + np.repeat(starts - borders[:-1], lengths)
        tables = _block_tables(shares, -(-ends // block_size))
        rows = np.repeat(np.arange(len(shares)), lengths)
        slots = tables[rows, positions // block_size] * block_size + positions % block_size
        begun = slots[(positions % block_size == 0) & (positions + block_size > ends[rows])] // block_size
        sampling = [
            (int(end) - 1, share.request) for end, share in zip(borders[1:], shares, strict=True) if share.samples
        ]
        return cls(
            token_ids=_to(device, _token_ids(shares)),
            positions=_to(device, positions),
            slots=_to(device, slots),
            partial_blocks=_to(device, begun),
            block_tables=_to(device, tables),
            rows=[share.request for share in shares],
            query_starts=borders.tolist(),
            context_lens=ends.tolist(),
            logit_rows=_to(device, np.array([row for row, _ in sampling], dtype=np.int64)),
            sampling=[request for _, request in sampling],
        )


def _token_ids(shares: list[ScheduledRequest]) -> NDArray[np.int64]:
    flat: list[int] = []
    for share in shares:
        first = share.request.num_computed
        flat += share.request.token_ids[first : first + share.num_tokens]
    return np.array(flat, dtype=np.int64)


def _block_tables(shares: list[ScheduledRequest], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """The first `counts[i]` blocks of the i-th request. Whatever else a row holds must be finite, or its own."""
    tables = np.empty((len(shares), counts.max()), dtype=np.int64)
    for row, share, count in zip(tables, shares, counts, strict=True):
        row[:count] = share.request.blocks[:count]
        row[count:] = share.request.blocks[0]
    return tables


def _to(device: torch.device, array: NDArray[np.int64]) -> torch.Tensor:
    return torch.from_numpy(array).to(device)
