"""How many prompt tokens a step takes beside its decodes: `token_budget`."""

from typing import NamedTuple

from inflight.scheduler.step_time import StepTimeModel


class PrefillBudget(NamedTuple):
    """Most prompt tokens of a step, and the setting that says so."""

    tokens: int
    set_by: str


class FixedBudget:
    """What the decodes leave of `max_num_batched_tokens` (Sarathi-Serve, OSDI'24)."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        self.tokens = max_num_batched_tokens

    def for_prompts(self, decodes: int, cached: int, waiting: int) -> PrefillBudget:
        """For a step with so many decodes, which read so many cached tokens, while so many wait for their first one."""
        return PrefillBudget(self.tokens - decodes, "max_num_batched_tokens")


class AdaptiveBudget(FixedBudget):
    """At most what the step-time model says keeps the step within a target, so that decodes come at its pace.

    Without a target, a step's time is divided by who waits for it: prompts get three quarters of what the decodes take
    alone, and more in a rush, where a request that waits for its first token counts as eight that decode. So the gaps
    of many users stay under twice the undisturbed ones in steady traffic. Few decodes take so little time that their
    share would cut prompts into crumbs, hence a least chunk. Without decodes nobody waits for the step, and the fixed
    budget holds.
    """

    # However slow the steps are, prompts have to get on.
    _MIN = 16
    _SHARE = 0.75
    _WEIGHT_OF_WAITING = 8
    # Matrix products of fewer rows take hardly less time.
    _MIN_CHUNK = 64

    def __init__(self, max_num_batched_tokens: int, target_seconds: float | None, times: StepTimeModel) -> None:
        super().__init__(max_num_batched_tokens)
        self._target = target_seconds
        self._times = times

    def for_prompts(self, decodes: int, cached: int, waiting: int) -> PrefillBudget:
        """The fixed budget, or less."""
        full = super().for_prompts(decodes, cached, waiting)
        if not decodes:
            return full
        target, floor = self._target, self._MIN
        if target is None:
            share = max(self._SHARE, self._WEIGHT_OF_WAITING * waiting / decodes)
            target, floor = self._times.predict(decodes, cached) * (1 + share), self._MIN_CHUNK
        within = self._times.tokens_within(target, cached)
        if within is None or within - decodes >= full.tokens:
            return full
        return PrefillBudget(min(full.tokens, max(floor, within - decodes)), "target_itl_ms")
