"""Budgets (`token_budget`): how much of a step prompts may take beside its decodes."""

import math
from collections.abc import Mapping
from typing import NamedTuple

from inflight.scheduler.step_time import StepTimeModel


class PrefillBudget(NamedTuple):
    """Maximum number of prompt tokens in a step, and the setting that determined it."""

    tokens: int
    set_by: str


class Decodes(NamedTuple):
    """The decodes of a step."""

    tokens: int
    """Tokens that they compute: one for each request, and those that grammars have forced."""
    cached: int
    """Cached tokens that they read, all together."""


# However slow the steps are, prompts must make progress.
_MIN = 16
MIN_CHUNK = 64
"""Matrix products with fewer rows take hardly less time."""


class PrefillAllowance:
    """What the prompt chunks of a step may still take, while the step is planned: tokens and, optionally, time."""

    def __init__(
        self,
        tokens: int,
        *,
        seconds: float = math.inf,
        times: StepTimeModel | None = None,
        least: int = 0,
        credits: dict[str, float] | None = None,
    ) -> None:
        """Allow `tokens` tokens, if they take at most `seconds` by the model. `least` tokens may take longer.

        `credits` has the seconds that the prompts of some tenants may take; other tenants have no limit of their own. A
        small chunk may overdraw them. What is taken is deducted there too.
        """
        self._tokens = tokens
        self._seconds = seconds
        self._times = times
        self._least = least
        self._taken = 0
        self._credits = {} if credits is None else credits

    def fits(self, first: int, tokens: int, tenant: str | None = None) -> int:
        """Return how many of the `tokens` tokens after the first `first` ones of a sequence may still be computed.

        With `tenant`: as part of a request of this tenant.
        """
        fits = min(tokens, self._tokens - self._taken)
        if self._times is not None:
            fits = min(fits, self._within(first, fits, self._seconds, self._least - self._taken))
            if tenant in self._credits:
                credit = self._credits[tenant]
                fits = min(fits, self._within(first, fits, credit, MIN_CHUNK)) if credit >= 0 else 0
        return max(0, fits)

    def _within(self, first: int, tokens: int, seconds: float, least: int) -> int:
        assert self._times is not None
        return max(least, math.floor(min(tokens, self._times.chunk_within(first, seconds))))

    def take(self, first: int, tokens: int, tenant: str | None = None) -> None:
        """Deduct a chunk of `tokens` tokens after the first `first` ones of a sequence."""
        self._taken += tokens
        if self._times is not None:
            seconds = self._times.chunk_seconds(first, tokens)
            self._seconds -= seconds
            if tenant in self._credits:
                self._credits[tenant] -= seconds

    @property
    def tokens_left(self) -> int:
        """How many more tokens the step may have."""
        return self._tokens - self._taken

    @property
    def seconds_left(self) -> float:
        """How much longer the step may take."""
        return self._seconds

    def lift_credits(self) -> None:
        """From now on no tenant has a limit of its own."""
        self._credits.clear()

    @property
    def budget(self) -> PrefillBudget:
        """What was taken, plus what a new prompt could still take."""
        left = max(0, self.tokens_left)
        fits = self.fits(0, left)
        return PrefillBudget(self._taken + fits, "max_num_batched_tokens" if fits == left else "target_itl_ms")


class FixedBudget:
    """Gives prompts what the decodes leave of `max_num_batched_tokens` (Sarathi-Serve, OSDI'24)."""

    target: float | None = None
    """Seconds that a step with decodes may take. A fixed budget ignores it: it knows no times."""

    def for_prompts(
        self, tokens: int, decodes: Decodes, everyone: Decodes, shares: Mapping[str, float] | None = None
    ) -> PrefillAllowance:
        """Return what prompts may take of a step.

        The decodes of the step, `decodes`, leave `tokens` tokens of it. `everyone` is a step in which all present
        requests decode, or as many as may run at once. `shares` has tenants whose prompts are limited,
        each with the part of the decodes' time that its prompts may take; beside other prompts it is the part of the
        time in which `everyone` would decode. A fixed budget ignores it.
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

    def __init__(self, target_seconds: float | None, times: StepTimeModel) -> None:
        self.target = target_seconds
        self._times = times
        self._credits: dict[str, float] = {}
        """Seconds of limited tenants. They grow with each step, so that chunks need not be tiny."""

    def for_prompts(
        self, tokens: int, decodes: Decodes, everyone: Decodes, shares: Mapping[str, float] | None = None
    ) -> PrefillAllowance:
        """Return the fixed budget, with a limit on the time if there are decodes."""
        decoding = self._times.decode_seconds(*decodes)
        base = decoding or self._times.decode_seconds(*everyone)
        self._credits = {
            tenant: min(self._credits.get(tenant, 0.0) + share * base, base) for tenant, share in (shares or {}).items()
        }
        if not decodes.tokens:
            return PrefillAllowance(tokens, times=self._times, credits=self._credits)
        target, least = self.target, _MIN
        if target is None:
            target, least = self._STRETCH * self._times.decode_seconds(*everyone), MIN_CHUNK
        return PrefillAllowance(
            tokens, seconds=target - decoding, times=self._times, least=least, credits=self._credits
        )
