"""How many prompt tokens a step takes beside its decodes: `token_budget`."""

from typing import NamedTuple

from inflight.scheduler.step_time import StepTimeModel


class PromptBudget(NamedTuple):
    """Most prompt tokens of a step, and the setting that says so."""

    tokens: int
    set_by: str


class FixedBudget:
    """What the decodes leave of `max_num_batched_tokens` (Sarathi-Serve, OSDI'24)."""

    def __init__(self, max_num_batched_tokens: int) -> None:
        self.tokens = max_num_batched_tokens

    def for_prompts(self, decodes: int, cached: int, waiting: int) -> PromptBudget:
        """For a step with so many decodes, which read so many cached tokens, while so many wait for their first one."""
        return PromptBudget(self.tokens - decodes, "max_num_batched_tokens")


class AdaptiveBudget(FixedBudget):
    """At most what the step-time model says keeps the step within a target, so that decodes come at its pace.

    Without a target, a step's time is divided as the requests are: prompts get three quarters of what the decodes take
    alone, and more where more requests wait for their first token than that share of those that decode. So gaps stay
    under twice the undisturbed ones in steady traffic, and a rush is not made to queue for them. Without decodes nobody
    waits for the step, and the fixed budget holds.
    """

    # However slow the steps are, prompts have to get on.
    _LEAST = 16
    _SHARE = 0.75

    def __init__(self, max_num_batched_tokens: int, target_seconds: float | None, times: StepTimeModel) -> None:
        super().__init__(max_num_batched_tokens)
        self._target = target_seconds
        self._times = times

    def for_prompts(self, decodes: int, cached: int, waiting: int) -> PromptBudget:
        """The fixed budget, or less."""
        most = super().for_prompts(decodes, cached, waiting)
        if not decodes:
            return most
        target = self._target
        if target is None:
            target = self._times.predict(decodes, cached) * (1 + max(self._SHARE, waiting / decodes))
        within = self._times.tokens_within(target, cached)
        if within is None or within - decodes >= most.tokens:
            return most
        return PromptBudget(min(most.tokens, max(self._LEAST, within - decodes)), "target_itl_ms")
