"""Which tokens may come next, for the guided requests of a step."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from llguidance import LLExecutor
from llguidance.numpy import (
    allocate_token_bitmask,
    fill_next_token_bitmask,
    fill_next_token_bitmask_par,
    fill_next_token_bitmask_par_with_draft_tokens,
)
from numpy.typing import NDArray

from inflight.guided_decoding.grammar_state import GrammarState
from inflight.scheduler.plan import ScheduledRequest


@dataclass(frozen=True)
class TokenMasks:
    """The allowed tokens of M of the S rows of logits that a step samples from."""

    index: NDArray[np.int64]
    """[S], the row of `bits` for each row of logits, or -1 if all tokens are allowed."""
    bits: NDArray[np.int32]
    """[M, ceil(vocabulary / 32)]. Bit `t % 32` of word `t // 32` is 1 if token `t` is allowed."""


class TokenMasker:
    """Makes the masks of a step on a thread of its own, while the model runs."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self.seconds = 0.0
        """Time spent on making masks."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="token masks")
        self._executor = LLExecutor(1)

    def begin(self, scheduled: Sequence[ScheduledRequest]) -> "Future[TokenMasks] | None":
        """Return the future masks of `StepPlan.sampling`; None if no request is guided.

        The step may be committed only when they are there.
        """
        drafts = [(each.request.grammar, each.draft) for each in scheduled]
        return self._pool.submit(self._make, drafts) if any(state is not None for state, _ in drafts) else None

    def _make(self, drafts: Sequence[tuple[GrammarState | None, list[int]]]) -> TokenMasks:
        """Make the masks of the next token of each output, and of the tokens after each token of its draft."""
        begun = time.perf_counter()
        counts = [1 + len(draft) for _, draft in drafts]
        is_guided = np.repeat([state is not None for state, _ in drafts], counts)
        index = np.where(is_guided, np.cumsum(is_guided) - 1, -1)
        bits = allocate_token_bitmask(int(is_guided.sum()), self._vocab_size)
        guided = [(state, draft) for state, draft in drafts if state is not None]
        rows = np.cumsum([0, *(1 + len(draft) for _, draft in guided)]).tolist()
        free = [(row, state, draft) for row, (state, draft) in zip(rows, guided, strict=False) if not state.forced]
        # The library takes no empty drafts.
        if single := [(state.matcher, row) for row, state, draft in free if not draft]:
            fill_next_token_bitmask_par(self._executor, single, bits)
        if several := [(state.matcher, row, draft) for row, state, draft in free if draft]:
            fill_next_token_bitmask_par_with_draft_tokens(self._executor, several, bits)
        for row, state, draft in free:
            if state.matcher.is_error():
                self._fill_again(state, bits[row : row + 1 + len(draft)])
        for row, (state, _) in zip(rows, guided, strict=False):
            if state.forced:
                _allow_only(state.forced[0], bits[row])
        seconds = time.perf_counter() - begun
        self.seconds += seconds
        for state, _ in guided:
            state.mask_seconds += seconds / len(guided)
        return TokenMasks(index.astype(np.int64), bits)

    def _fill_again(self, state: GrammarState, bits: NDArray[np.int32]) -> None:
        """Try again after an error, without the draft. If that fails too, no token is allowed."""
        bits[1:] = 0
        if state.recover():
            fill_next_token_bitmask(state.matcher, bits, 0)
        if state.matcher.is_error():
            bits[0] = 0


def _allow_only(token: int, bits: NDArray[np.int32]) -> None:
    bits[:] = 0
    bits.view(np.uint32)[token // 32] = np.uint32(1 << token % 32)
