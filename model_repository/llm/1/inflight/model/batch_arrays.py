"""The arrays of a step's batch in numpy, before they are copied to a device."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from inflight.scheduler.plan import ScheduledRequest, StepPlan, Want

Ints = NDArray[np.int64]

NO_ADAPTER = -1
"""The slot of a token that is computed without an adapter."""


@dataclass(frozen=True)
class BatchArrays:
    """The requests of a plan as rows of one flat batch without padding: R rows, T tokens, S sampled rows, all int64.

    tokens   [ a a a | b | c | d d d d d ]
    query_starts 0   3   4   5           10

    Rows of one token come first, ordered by context length, so that attention can group rows of similar length. If the
    model has recurrent states, new ones come before others, and both are ordered by the slots of their states.
    """

    order: Ints
    """[R], the index of each row's request in `StepPlan.scheduled`."""
    token_ids: Ints
    """[T]."""
    positions: Ints
    """[T], position of each token in its sequence."""
    slots: Ints
    """[T], the slot of each token's key and value: `block * block_size + offset`."""
    partial_blocks: Ints
    """[blocks], the blocks whose first slot this step writes, but not their last.

    Their other slots hold data of requests that have ended.
    """
    block_tables: Ints
    """[R, blocks], the blocks that the step reads and writes. Each row is padded with its own first block."""
    query_starts: Ints
    """[R + 1], row r has the tokens from `query_starts[r]` up to `query_starts[r + 1]`."""
    context_lens: Ints
    """[R], the number of cached and new tokens of each row."""
    logit_rows: Ints
    """[S], the indices of the tokens whose logits are sampled: `num_rows` for each request of `StepPlan.sampling`, in
    order."""
    adapters: Ints
    """[T], the slot of each token's adapter, or `NO_ADAPTER`. [0] if no token has one."""
    rotations: Ints
    """[T], the positions for rotary embeddings: those of a long sequence are inverted, `~position`, so that they are
    below 0. See `Request.is_long`. [0] if no sequence is long."""

    @classmethod
    def of(cls, plan: StepPlan, block_size: int) -> "BatchArrays":
        """Lay out a plan, which must schedule at least one request."""
        scheduled = plan.scheduled
        lengths = np.array([len(s.token_ids) for s in scheduled])
        firsts = np.array([s.first for s in scheduled])
        keys = (firsts,) if plan.states is None else (plan.states.slots, firsts > 0)
        order = np.lexsort((*keys, lengths > 1))
        lengths, firsts, tables = lengths[order], firsts[order], plan.block_tables[order]
        ends = firsts + lengths
        borders = np.concatenate(([0], np.cumsum(lengths)))
        rows = np.repeat(np.arange(len(scheduled)), lengths)
        positions = np.arange(borders[-1]) + np.repeat(firsts - borders[:-1], lengths)
        blocks, offsets = np.divmod(positions, block_size)
        blocks = tables[rows, blocks]
        partial = blocks[(offsets == 0) & (positions + block_size > ends[rows])]
        last_tokens = np.empty_like(order)
        last_tokens[order] = borders[1:] - 1
        logit_rows = last_tokens[[s.want is Want.TOKEN for s in scheduled]]
        if plan.num_draft:
            counts = np.array([s.num_rows for s in plan.sampling])
            logit_rows = np.repeat(logit_rows + 1 - np.cumsum(counts), counts) + np.arange(counts.sum())
        slots = np.array([NO_ADAPTER if (a := s.request.adapter) is None else a.slot for s in scheduled])
        token_ids = [scheduled[i].token_ids for i in order.tolist()]
        return cls(
            order=order,
            token_ids=np.fromiter(chain.from_iterable(token_ids), np.int64, len(rows)),
            positions=positions,
            slots=blocks * block_size + offsets,
            partial_blocks=partial,
            block_tables=tables,
            query_starts=borders,
            context_lens=ends,
            logit_rows=logit_rows,
            adapters=np.repeat(slots[order], lengths) if slots.max() > NO_ADAPTER else slots[:0],
            rotations=_rotations(scheduled, order, lengths, positions),
        )


def _rotations(scheduled: Sequence[ScheduledRequest], order: Ints, lengths: Ints, positions: Ints) -> Ints:
    if scheduled[0].request.rope_switch is None:  # It is the same for all requests of a model.
        return positions[:0]
    are_long = np.array([s.request.is_long for s in scheduled])[order]
    if not are_long.any():
        return positions[:0]
    return np.where(np.repeat(are_long, lengths), ~positions, positions)
