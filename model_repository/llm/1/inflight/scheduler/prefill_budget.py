"""Budgets (`token_budget`): how much of a step prompts may take beside its decodes."""

import math
from typing import NamedTuple

from inflight.scheduler.step_time import StepTimeModel


class PrefillBudget(NamedTuple):
    """Maximum number of prompt tokens in a step, and the setting that determined it."""

    tokens: int
    set_by: str


class Decodes(NamedTuple):
    """The decodes of a step."""

    requests: int
    """Number of requests that decode."""
    cached: int
    """Cached tokens that they read, all together."""


class PrefillAllowance:
    """What the prompt chunks of a step may still take, while the step is planned: tokens and, optionally, time."""

    def __init__(
        self, tokens: int, *, seconds: float = math.inf, times: StepTimeModel | None = None, least: int = 0
    ) -> None:
        """Allow `tokens` tokens, if they take at most `seconds` by the model. `least` tokens may take longer."""
        self._tokens = tokens
        self._seconds = seconds
        self._times = times
        self._least = least
        self._taken = 0

    def fits(self, first: int, tokens: int) -> int:
        """Return how many of the `tokens` tokens after the first `first` ones of a sequence may still be computed."""
        fits = min(tokens, self._tokens - self._taken)
        if self._times is not None:
            within = self._times.chunk_within(first, self._seconds)
            fits = min(fits, max(self._least - self._taken, math.floor(min(fits, within))))
        return max(0, fits)

    def take(self, first: int, tokens: int) -> None:
        """Deduct a chunk of `tokens` tokens after the first `first` ones of a sequence."""
        self._taken += tokens
        if self._times is not None:
            self._seconds -= self._times.chunk_seconds(first, tokens)

    @property
    def budget(self) -> PrefillBudget:
        """What was taken, plus what a new prompt could still take."""
        left = self._tokens - self._taken
        fits = self.fits(0, left)
        return PrefillBudget(self._taken + fits, "max_num_batched_tokens" if fits == left else "target_itl_ms")


class FixedBudget:
    """Gives prompts what the decodes leave of `max_num_batched_tokens` (Sarathi-Serve, OSDI'24)."""

    def for_prompts(self, tokens: int, decodes: Decodes, everyone: Decodes) -> PrefillAllowance:
        """Return what prompts may take of a step.

        The decodes of the step, `decodes`, leave `tokens` tokens of it. `everyone` is a step in which all present
        requests decode, or as many as may run at once.
        """
        return PrefillAllowance(tokens)


class AdaptiveBudget(FixedBudget):
    """Limits the time of a step that has decodes, according to the step-time model.

    Without a target, the limit is `_STRETCH` times what the step would take if all present requests decoded. So the
    gaps between tokens stay under three times those without prompts, with a tenth in reserve because steps may take
    longer than predicted. While few requests decode and many wait, the limit leaves nearly all of the time to prompts.
    Tiny chunks are inefficient, so there is a minimum. Without decodes, no tokens wait for the step, and only the fixed
    budget applies.
    """

    _STRETCH = 2.7
    # However slow the steps are, prompts must make progress.
    _MIN = 16
    # Matrix products with fewer rows take hardly less time.
    _MIN_CHUNK = 64

    def __init__(self, target_seconds: float | None, times: StepTimeModel) -> None:
        self._target = target_seconds
        self._times = times

    def for_prompts(self, tokens: int, decodes: Decodes, everyone: Decodes) -> PrefillAllowance:
        """Return the fixed budget, with a limit on the time if there are decodes."""
        if not decodes.requests:
            return super().for_prompts(tokens, decodes, everyone)
        target, least = self._target, self._MIN
        if target is None:
            target, least = self._STRETCH * self._times.decode_seconds(*everyone), self._MIN_CHUNK
        seconds = target - self._times.decode_seconds(*decodes)
        return PrefillAllowance(tokens, seconds=seconds, times=self._times, least=least)
