"""A plan laid end to end as plain arrays, on no device yet."""

from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from inflight.scheduler.plan import StepPlan

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class BatchArrays:
    """The rows of a plan in one flat row of tokens, without padding. R rows, T tokens, S sampled rows; all int64.

    tokens   [ a a a | b | c | d d d d d ]
    query_starts 0   3   4   5           10

    Rows of one token come first, the shortest context before longer ones, which suits attention.
    """

    order: Ints
    """[R], which of the plan's shares each row is."""
    token_ids: Ints
    """[T]."""
    positions: Ints
    """[T], place of each token in its sequence."""
    slots: Ints
    """[T], `block * block_size + offset` that takes the token's key and value."""
    partial_blocks: Ints
    """[blocks], those of which this step writes the first slot but not the last. What else they hold is of requests
    that are gone."""
    block_tables: Ints
    """[R, blocks], what the step reads and writes, each row padded with its own first block."""
    query_starts: Ints
    """[R + 1], borders of the rows."""
    context_lens: Ints
    """[R], cached and new tokens together."""
    logit_rows: Ints
    """[S], the tokens whose logits are sampled, in the order of `StepPlan.sampling`."""

    @classmethod
    def of(cls, plan: StepPlan, block_size: int) -> "BatchArrays":
        """Lay out a plan of at least one share."""
        shares = plan.scheduled
        lengths = np.array([len(share.token_ids) for share in shares])
        firsts = np.array([share.first for share in shares])
        order = np.lexsort((firsts, lengths > 1))
        lengths, firsts, tables = lengths[order], firsts[order], plan.block_tables[order]
        ends = firsts + lengths
        borders = np.concatenate(([0], np.cumsum(lengths)))
        rows = np.repeat(np.arange(len(shares)), lengths)
        positions = np.arange(borders[-1]) + np.repeat(firsts - borders[:-1], lengths)
        blocks, offsets = np.divmod(positions, block_size)
        blocks = tables[rows, blocks]
        partial = blocks[(offsets == 0) & (positions + block_size > ends[rows])]
        last_tokens = np.empty_like(order)
        last_tokens[order] = borders[1:] - 1
        token_ids = [shares[i].token_ids for i in order.tolist()]
        return cls(
            order=order,
            token_ids=np.fromiter(chain.from_iterable(token_ids), np.int64, len(rows)),
            positions=positions,
            slots=blocks * block_size + offsets,
            partial_blocks=partial,
            block_tables=tables,
            query_starts=borders,
            context_lens=ends,
            logit_rows=last_tokens[[share.samples for share in shares]],
        )
