"""Budgets (`token_budget`): how many prompt tokens a step may have beside its decodes."""

from typing import NamedTuple

from inflight.scheduler.step_time import StepTimeModel


class PrefillBudget(NamedTuple):
    """Maximum number of prompt tokens in a step, and the setting that determines it."""

    tokens: int
    set_by: str


class FixedBudget:
    """Gives prompts what the decodes leave of `max_num_batched_tokens` (Sarathi-Serve, OSDI'24)."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        self.tokens = max_num_batched_tokens

    def for_prompts(self, decodes: int, cached: int, waiting: int) -> PrefillBudget:
        """Return the budget of a step.

        The step has `decodes` decodes, which read `cached` cached tokens. `waiting` requests have no decode in it.
        """
        return PrefillBudget(self.tokens - decodes, "max_num_batched_tokens")


class AdaptiveBudget(FixedBudget):
    """Lowers the fixed budget so that the step stays within a target time, according to the step-time model.

    Without a target, prompts get three quarters of the time that the decodes take alone. They get more when many
    requests wait: a request that waits for its first token counts as eight that decode. In steady traffic with many
    users, the gaps between tokens therefore stay under twice those without prompts. A few decodes take so little time
    that three quarters of it would cut prompts into tiny chunks; a minimum chunk prevents this. Without decodes, no
    request waits for the step, so the fixed budget applies.
    """

    # However slow the steps are, prompts must make progress.
    _MIN = 16
    _SHARE = 0.75
    _WEIGHT_OF_WAITING = 8
    # Matrix products with fewer rows take hardly less time.
    _MIN_CHUNK = 64

    def __init__(self, max_num_batched_tokens: int, target_seconds: float | None, times: StepTimeModel) -> None:
        super().__init__(max_num_batched_tokens)
        self._target = target_seconds
        self._times = times

    def for_prompts(self, decodes: int, cached: int, waiting: int) -> PrefillBudget:
        """Return the fixed budget, or a smaller one."""
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
