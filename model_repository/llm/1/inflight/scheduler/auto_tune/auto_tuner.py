"""Adjusts the scheduler's settings to the load while it serves (`auto_tune`)."""

import math
from collections.abc import Mapping, Sequence

from inflight.request import Request
from inflight.scheduler.admission import MaxUtilization
from inflight.scheduler.auto_tune.change import Change
from inflight.scheduler.auto_tune.latencies import Latencies
from inflight.scheduler.auto_tune.objective import OBJECTIVES
from inflight.scheduler.committed import Committed
from inflight.scheduler.scheduler_config import SchedulerConfig
from inflight.scheduler.step_time import StepTimeModel

# Seconds between two looks, and how long a setting stays after it changed.
_PERIOD = 0.25
_SETTLES = 1.0
# The step-time model must have seen so many steps.
_ENOUGH_STEPS = 32
# A value that follows the step-time model changes only if it is off by more than this part of itself.
_DEADBAND = 0.2

# Latencies as fractions of their targets. Between the bounds of a pair, the step time stays as it is.
_GAPS_ARE_SHORT, _GAPS_ARE_LONG = 0.85, 0.95
_FIRSTS_ARE_EARLY, _FIRSTS_ARE_LATE = 0.4, 0.7
_LONGER, _SHORTER = 1.2, 0.85
# A step time that broke the target for gaps is not tried again for so many seconds.
_REMEMBERS = 30.0
_SHORTEST = 0.5
"""Of `target_itl_ms`: the shortest limit for a step."""
_LONGEST_PART = 0.25
"""Of `target_ttft_ms`: the longest limit for a step. Who arrives at its begin waits so long before its own."""
_NO_LIMIT = 60.0
"""Seconds."""

_MAX_WATERMARK = 128
_QUIET = 60.0
"""Seconds without preemption after which the watermark falls."""

# A batch that waits leaves this part of each target to errors of the step-time model.
_RESERVE = 0.15
_HALF_TTFT = 0.5


class AutoTuner:
    """Chooses the values of four settings, within the configured ones as bounds.

    The step-time model says how many sequences and tokens fit the targets. The limit for the time of a step with
    decodes follows what users see: it grows while first tokens are late and gaps are short, and shrinks before gaps
    break their target. It does not grow to a value that broke the target lately, and nothing is tried out.
    """

    def __init__(self, config: SchedulerConfig, times: StepTimeModel) -> None:
        self._objective = OBJECTIVES[config.auto_tune]
        self._most_seqs = config.max_num_seqs
        self._most_tokens = config.max_num_batched_tokens
        self._ttft = config.target_ttft_ms / 1e3
        self._itl = math.inf if config.target_itl_ms is None else config.target_itl_ms / 1e3
        self._times = times
        self._latencies = Latencies(self._ttft, self._itl)
        self.max_num_seqs = self._most_seqs
        self.token_budget = self._most_tokens
        self.step_seconds = _NO_LIMIT if self._objective.decodes == math.inf else self._itl
        """Limit for the time of a step with decodes, in which prompts take what the decodes leave."""
        self.watermark = MaxUtilization.next_tokens
        """For how many tokens of each running request admission keeps blocks."""
        self.num_changes = dict.fromkeys(self.values, 0)
        self._next_look = -math.inf
        self._changed_at = dict.fromkeys(self.values, -math.inf)
        self._ceiling = math.inf
        """A step time that broke the target for gaps."""
        self._broke_at = -math.inf
        self._preemptions = 0
        self._preempted_at = -math.inf

    @property
    def values(self) -> dict[str, float]:
        """The current values by their names in the metrics."""
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.token_budget,
            "step_seconds": self.step_seconds,
            "watermark_tokens": self.watermark,
        }

    def committed(self, outcomes: Sequence[Committed], now: float) -> None:
        """Learn from the new tokens of a step."""
        self._latencies.committed(outcomes, now)

    def tune(
        self, now: float, running: Mapping[str, Request], first: Request | None, num_preemptions: int
    ) -> tuple[Change, ...]:
        """Look at the load, a few times a second, and return what changed.

        `first` is the next request of the queue, and `num_preemptions` counts from the start.
        """
        if now < self._next_look or self._times.num_steps < _ENOUGH_STEPS or not running:
            return ()
        self._next_look = now + _PERIOD
        changes = [
            self._tune_watermark(now, num_preemptions - self._preemptions),
            self._tune_seqs(now, running),
            self._tune_tokens(now, len(running)),
            self._tune_step(now, running, first),
        ]
        self._preemptions = num_preemptions
        return tuple(change for change in changes if change is not None)

    def _change(self, setting: str, before: float, after: float, now: float, reason: str) -> Change | None:
        if after == before:
            return None
        self._changed_at[setting] = now
        self.num_changes[setting] += 1
        return Change(setting, before, after, reason)

    def _is_settling(self, setting: str, now: float) -> bool:
        return now < self._changed_at[setting] + _SETTLES

    # -- by the step-time model --------------------------------------------------------------------------------------

    def _tune_seqs(self, now: float, running: Mapping[str, Request]) -> Change | None:
        before, most = self.max_num_seqs, self._most_seqs
        limit = self._objective.decodes * self._itl
        if limit == math.inf or self._is_settling("max_num_seqs", now):
            return None
        context = sum(len(request.token_ids) for request in running.values()) / len(running)
        wanted = self._largest_batch(limit, context)
        if abs(wanted - before) <= _DEADBAND * before and wanted < most:
            return None
        self.max_num_seqs = wanted
        reason = f"a step of {wanted} decodes with {context:.0f} tokens each takes {limit * 1e3:.0f} ms"
        return self._change("max_num_seqs", before, wanted, now, reason if wanted < most else "all fit target_itl_ms")

    def _largest_batch(self, limit: float, context: float) -> int:
        """Return how many decodes fit `limit` seconds. If not even one does, the target cannot be met, and bounds
        nothing."""
        low, high = 0, self._most_seqs
        while low < high:
            middle = (low + high + 1) // 2
            if self._times.decode_seconds(middle, round(middle * context)) <= limit:
                low = middle
            else:
                high = middle - 1
        return low or self._most_seqs

    def _tune_tokens(self, now: float, num_running: int) -> Change | None:
        before, most = self.token_budget, self._most_tokens
        limit = self._objective.prompts * self._ttft
        if limit == math.inf or self._is_settling("max_num_batched_tokens", now):
            return None
        tokens = self._times.chunk_within(0, limit - self._times.coefficients[0])
        # Every running request must get its token in each step.
        least = min(most, max(64, self.max_num_seqs, num_running))
        wanted = most if tokens >= most else max(least, int(tokens))
        if abs(wanted - before) <= _DEADBAND * before and least <= before and wanted < most:
            return None
        self.token_budget = wanted
        reason = f"a step of {wanted} prompt tokens takes {limit * 1e3:.0f} ms, a part of target_ttft_ms"
        return self._change("max_num_batched_tokens", before, wanted, now, reason)

    # -- by what users see -------------------------------------------------------------------------------------------

    def _tune_step(self, now: float, running: Mapping[str, Request], first: Request | None) -> Change | None:
        if self._objective.decodes == math.inf:
            return None
        before = self.step_seconds
        gaps = self._latencies.gaps(now, running.values())
        firsts = self._latencies.firsts(now, first)
        if now > self._broke_at + _REMEMBERS:
            self._ceiling = math.inf
        least, most = _SHORTEST * self._itl, max(self._itl, min(_LONGEST_PART * self._ttft, self._ceiling))
        if self._is_settling("step_seconds", now):
            return None
        if gaps > _GAPS_ARE_LONG:
            if before > least:
                self._ceiling, self._broke_at = _SHORTER * before, now
            after = max(least, _SHORTER * before)
            reason = f"mean gaps are at {gaps:.0%} of target_itl_ms"
        elif firsts > _FIRSTS_ARE_LATE and gaps < _GAPS_ARE_SHORT:
            after = max(before, min(most, _LONGER * before))
            reason = f"first tokens are at {firsts:.0%} of target_ttft_ms, and mean gaps at {gaps:.0%} of target_itl_ms"
        elif firsts < _FIRSTS_ARE_EARLY and (before > self._itl or self._objective.shortens):
            after = max(least if self._objective.shortens else self._itl, _SHORTER * before)
            reason = f"first tokens are at {firsts:.0%} of target_ttft_ms"
        else:
            return None
        self.step_seconds = after
        return self._change("step_seconds", before, after, now, reason)

    def _tune_watermark(self, now: float, preempted: int) -> Change | None:
        before = self.watermark
        if preempted:
            self._preempted_at = now
            after, reason = min(_MAX_WATERMARK, 2 * before), f"{preempted} requests were preempted"
        elif now > max(self._preempted_at, self._changed_at["watermark_tokens"]) + _QUIET:
            after, reason = max(MaxUtilization.next_tokens, before // 2), f"none was preempted for {_QUIET:.0f} s"
        else:
            return None
        if self._is_settling("watermark_tokens", now):
            return None
        self.watermark = after
        return self._change("watermark_tokens", before, after, now, reason)

    # -- waiting for a fuller batch ----------------------------------------------------------------------------------

    def waits_until(
        self, now: float, running: Mapping[str, Request], first: Request | None, waiting: tuple[int, int]
    ) -> float | None:
        """Return until when the next step may wait for more requests, or None if it should run now.

        A fuller step costs less for each token. `waiting` is how many requests wait, and how many tokens they have. A
        step waits as long as each running request still gets its next token, and each new one its first, in time.
        """
        num_waiting, tokens = waiting
        if not self._objective.waits or not self._times.known or not (running or num_waiting):
            return None
        if len(running) + num_waiting >= self.max_num_seqs:
            return None
        decodes = cached = 0
        last = latest = math.inf
        for request in running.values():
            if request.last_token_at is None:
                tokens += request.num_uncomputed
                latest = min(latest, request.arrival + _HALF_TTFT * self._latencies.target_ttft(request))
            else:
                decodes += 1
                cached += request.num_computed
                last = min(last, request.last_token_at)
        if first is not None:
            latest = min(latest, first.arrival + _HALF_TTFT * self._latencies.target_ttft(first))
        prompts = self._times.chunk_seconds(0, tokens)
        step = self._times.decode_seconds(decodes, cached)
        due = min(
            last + (1 - _RESERVE) * self._itl - max(step, min(step + prompts, self.step_seconds)),
            latest - step - prompts,
        )
        return due if due > now else None
