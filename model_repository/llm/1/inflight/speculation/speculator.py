"""Adds drafts to the requests of a planned step."""

from collections.abc import Sequence

from inflight.kv_cache.block_tables import BlockTables
from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from inflight.scheduler.prefill_budget import PrefillAllowance
from inflight.scheduler.step_time import StepTimeModel
from inflight.speculation.draft_lengths import Outlook, draft_lengths
from inflight.speculation.drafter import Drafter
from inflight.speculation.measured_step_time import MeasuredStepTime
from inflight.speculation.speculative_config import MAX_DRAFT, SpeculativeConfig

_SMOOTHING = 0.05
# What drafts cost is forgotten slowly while there are none, so that they are tried again. Each trial that does not pay
# costs time, so it is seldom: about once in a hundred steps where drafts cost much more than was measured.
_FADING = 0.9995


class NoSpeculation:
    """Makes no drafts."""

    def with_drafts(self, scheduled: list[ScheduledRequest], room: PrefillAllowance) -> list[ScheduledRequest]:
        """Return the requests of a step with drafts. `room` is what drafts may still take of it."""
        return scheduled

    def observe(self, request: Request) -> None:
        """Learn from the new tokens of a request."""

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        """Learn how long a step took."""

    def completed(self, request: Request) -> None:
        """Learn from a request whose output is complete."""

    def forget(self, request: Request) -> None:
        """Free what is kept for a request that has left."""


class Speculator(NoSpeculation):
    """Drafts for requests that decode, with what all others leave of a step: tokens, time and empty blocks."""

    def __init__(
        self,
        config: SpeculativeConfig,
        drafter: Drafter,
        tables: BlockTables,
        times: StepTimeModel | MeasuredStepTime,
    ) -> None:
        self._config, self._drafter = config, drafter
        self._tables, self._times = tables, times
        self._extra = 0.0
        """Seconds that a drafted token costs, of late, beyond those that the model predicts: to sample and to check."""

    def with_drafts(self, scheduled: list[ScheduledRequest], room: PrefillAllowance) -> list[ScheduledRequest]:
        """See `NoSpeculation`."""
        outlooks = {index: outlook for index, each in enumerate(scheduled) if (outlook := self._outlook(each))}
        if not outlooks or room.tokens_left <= 0:
            return scheduled
        lengths = self._lengths(scheduled, list(outlooks.values()), room)
        drafted = list(scheduled)
        wanted = [(index, length) for index, length in zip(outlooks, lengths, strict=True) if length]
        drafts = self._drafter.propose([(scheduled[index].request, length) for index, length in wanted])
        for (index, _), draft in zip(wanted, drafts, strict=True):
            drafted[index] = self._with_draft(scheduled[index], draft)
        return drafted

    def observe(self, request: Request) -> None:
        """See `NoSpeculation`."""
        self._drafter.observe(request)

    def observe_step(self, plan: StepPlan, seconds: float) -> None:
        """See `NoSpeculation`.

        The step-time model learns from steps without drafts, and what drafts add to its predictions is learned from the
        others. If both learned from all steps, nobody could say whether a step is long because of its drafts or because
        the machine is busy.
        """
        if plan.num_tokens > self._times.most_rows:
            return  # Beyond the measured rows, each costs less. Such steps mostly have long prompts.
        drafted = sum([each.num_draft for each in plan.scheduled])
        if not drafted:
            self._times.observe(plan.num_tokens, plan.num_cached, plan.num_pairs, seconds)
            self._extra *= _FADING
        elif predicted := self._times.step_seconds(plan.num_tokens, plan.num_cached, plan.num_pairs):
            # With a bound, because after a single step that stood still drafts would never pay again.
            row = predicted / plan.num_tokens
            extra = min(row, max(-row, (seconds - predicted) / drafted))
            self._extra += _SMOOTHING * (extra - self._extra)

    def completed(self, request: Request) -> None:
        """See `NoSpeculation`."""
        self._drafter.completed(request)

    def forget(self, request: Request) -> None:
        """See `NoSpeculation`."""
        self._drafter.forget(request)

    def _outlook(self, each: ScheduledRequest) -> Outlook | None:
        request = each.request
        if not each.samples or request.beams is not None or not (request.num_output and request.may_draft):
            return None
        if request.grammar is not None and request.grammar.forced:
            return None
        allowed = request.options.num_speculative_tokens
        most = self._config.num_speculative_tokens if allowed is None else min(allowed, MAX_DRAFT)
        # The last token of an output is never computed.
        most = min(most, request.max_tokens - request.num_output - 1)
        if request.rope_switch is not None and not request.is_long:
            most = min(most, request.rope_switch - len(request.token_ids))
        if most <= 0:
            return None
        probability = self._drafter.outlook(request)
        return Outlook(probability, most) if probability > 0 else None

    def _lengths(
        self, scheduled: Sequence[ScheduledRequest], outlooks: Sequence[Outlook], room: PrefillAllowance
    ) -> list[int]:
        if not self._config.adaptive:
            left, lengths = room.tokens_left, []
            for _, most in outlooks:
                lengths.append(min(most, left))
                left -= lengths[-1]
            return lengths
        sampling = [each for each in scheduled if each.samples]
        cached = sum([each.first for each in sampling])
        pairs = cached + len(sampling)
        seconds = self._times.step_seconds(len(sampling), cached, pairs)
        if not seconds:  # It is not known yet.
            return [0] * len(outlooks)
        rows, context = sum([each.num_tokens for each in scheduled]), cached // len(sampling)
        without = self._times.step_seconds(rows, cached, pairs)
        drafting = self._drafter.seconds_per_token(len(outlooks)) + max(0.0, self._extra)

        def draft_seconds(count: int) -> float:
            longer = self._times.step_seconds(rows + count, cached, pairs + count * context) - without
            return longer + drafting * count

        return draft_lengths(
            outlooks,
            tokens=len(sampling),
            seconds=seconds,
            draft_seconds=draft_seconds,
            max_tokens=room.tokens_left,
            max_seconds=room.seconds_left,
        )

    def _with_draft(self, each: ScheduledRequest, draft: list[int]) -> ScheduledRequest:
        request = each.request
        if request.grammar is not None:
            draft = draft[: request.grammar.num_legal(draft)]
        draft = draft[: self._tables.room_for_draft(request, len(draft))]
        if not draft:
            return each
        self._tables.grow_for_draft(request, len(draft))
        return each.with_draft(draft)
