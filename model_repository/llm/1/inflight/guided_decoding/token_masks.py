"""Which tokens may come next, for the guided requests of a step."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from llguidance import LLExecutor
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask, fill_next_token_bitmask_par
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
        states = [each.request.grammar for each in scheduled]
        return self._pool.submit(self._make, states) if any(state is not None for state in states) else None

    def _make(self, states: Sequence[GrammarState | None]) -> TokenMasks:
        begun = time.perf_counter()
        guided = [state for state in states if state is not None]
        bits = allocate_token_bitmask(len(guided), self._vocab_size)
        free = [(row, state) for row, state in enumerate(guided) if not state.forced]
        if free:
            fill_next_token_bitmask_par(self._executor, [(state.matcher, row) for row, state in free], bits)
        for row, state in free:
            if state.matcher.is_error():
                self._fill_again(state, row, bits)
        for row, state in enumerate(guided):
            if state.forced:
                _allow_only(state.forced[0], bits[row])
        index = np.full(len(states), -1, dtype=np.int64)
        index[[row for row, state in enumerate(states) if state is not None]] = np.arange(len(guided))
        seconds = time.perf_counter() - begun
        self.seconds += seconds
        for state in guided:
            state.mask_seconds += seconds / len(guided)
        return TokenMasks(index, bits)

    def _fill_again(self, state: GrammarState, row: int, bits: NDArray[np.int32]) -> None:
        """Try again after an error. If that fails too, no token is allowed."""
        if state.recover():
            fill_next_token_bitmask(state.matcher, bits, row)
        if state.matcher.is_error():
            bits[row] = 0


def _allow_only(token: int, bits: NDArray[np.int32]) -> None:
    bits[:] = 0
    bits.view(np.uint32)[token // 32] = np.uint32(1 << token % 32)
