"""Adjusts the scheduler's settings to the load while it serves (`auto_tune`)."""

import math
from collections.abc import Mapping, Sequence

from inflight.request import Request
from inflight.scheduler.admission import MaxUtilization
from inflight.scheduler.auto_tune.change import Change
from inflight.scheduler.auto_tune.chunk_share import ChunkShare
from inflight.scheduler.auto_tune.latencies import Latencies
from inflight.scheduler.auto_tune.load import Load
from inflight.scheduler.auto_tune.objective import OBJECTIVES
from inflight.scheduler.auto_tune.step_length import StepLength
from inflight.scheduler.committed import Committed
from inflight.scheduler.prefill_budget import MIN_CHUNK
from inflight.scheduler.scheduler_config import SchedulerConfig
from inflight.scheduler.step_time import StepTimeModel

# Seconds between two looks, and how long a setting stays after it changed.
_PERIOD = 0.25
_SETTLES = 1.0
# The step-time model must have seen so many steps.
_ENOUGH_STEPS = 32
# A value that follows the step-time model changes only if it is off by more than this part of itself.
_DEADBAND = 0.25
# Weight of a look in the mean context.
_SMOOTHING = 0.05
# Fewer tokens make no efficient step.
_LEAST_BUDGET = 64

_MAX_WATERMARK = 128
_QUIET = 60.0
"""Seconds without preemption after which the watermark falls."""

# How much of `target_ttft_ms` a batch may wait for more requests.
_HALF = 0.5


class AutoTuner:
    """Chooses the values of five settings, within the configured ones as bounds.

    The step-time model says how many sequences and tokens fit the targets, and `StepLength` how long a step may take.
    Preemptions raise the watermark, and `ChunkShare` says whether prompts come side by side. Values that are not far
    off stay, and nothing is tried out.
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
        self._step = StepLength(self._ttft, self._itl, self._objective, times, self._latencies)
        self._share = ChunkShare()
        self.watermark = MaxUtilization.next_tokens
        """For how many tokens of each running request admission keeps blocks."""
        self.num_changes = dict.fromkeys(self.values, 0)
        self._next_look = -math.inf
        self._changed_at = dict.fromkeys(self.values, -math.inf)
        self._context = 0.0
        self._preemptions = 0
        self._preempted_at = -math.inf

    @property
    def step_seconds(self) -> float:
        """Limit for the time of a step with decodes, in which prompts take what the decodes leave."""
        return self._step.seconds

    def max_chunk(self, tokens: int, num_prompts: int) -> int:
        """Return how many of the `tokens` prompt tokens of a step one prompt may have, if so many have begun."""
        return max(MIN_CHUNK, tokens // (num_prompts + 1)) if self._share.is_shared else tokens

    @property
    def values(self) -> dict[str, float]:
        """The current values by their names in the metrics."""
        return {
            "max_num_seqs": self.max_num_seqs,
            "max_num_batched_tokens": self.token_budget,
            "step_seconds": self.step_seconds,
            "prompts_side_by_side": int(self._share.is_shared),
            "watermark_tokens": self.watermark,
        }

    def committed(self, outcomes: Sequence[Committed], now: float) -> None:
        """Learn from the new tokens of a step."""
        self._latencies.committed(outcomes, now)
        for outcome in outcomes:
            if outcome.token_ids and outcome.request.num_output == len(outcome.token_ids):
                self._share.observe(len(outcome.request.prompt_ids))

    def tune(self, now: float, load: Load, num_preemptions: int) -> tuple[Change, ...]:
        """Return what changes before the next step. `num_preemptions` counts from the start."""
        if self._times.num_steps < _ENOUGH_STEPS or not load.running:
            return ()
        changes = [self._noted(self._step.follow(now, load), now)]
        if now >= self._next_look:
            self._next_look = now + _PERIOD
            if (shared := self._noted(self._share.look(), now)) is not None:
                self._step.forget(now)
            changes += [
                self._tune_watermark(now, num_preemptions - self._preemptions),
                self._tune_seqs(now, load.running),
                self._tune_tokens(now, len(load.running)),
                self._noted(self._step.look(now, load), now),
                shared,
            ]
            self._preemptions = num_preemptions
        return tuple(change for change in changes if change is not None)

    def _noted(self, change: Change | None, now: float) -> Change | None:
        if change is None or change.after == change.before:
            return None
        self._changed_at[change.setting] = now
        self.num_changes[change.setting] += 1
        return change

    def _is_settling(self, setting: str, now: float) -> bool:
        return now < self._changed_at[setting] + _SETTLES

    def _tune_seqs(self, now: float, running: Mapping[str, Request]) -> Change | None:
        before, most = self.max_num_seqs, self._most_seqs
        limit = self._objective.decodes * self._itl
        context = self._mean_context(running)
        if limit == math.inf or self._is_settling("max_num_seqs", now):
            return None
        wanted = self._largest_batch(limit, context)
        if abs(wanted - before) <= _DEADBAND * before and wanted < most:
            return None
        self.max_num_seqs = wanted
        reason = f"a step of {wanted} decodes with {context:.0f} tokens each takes {limit * 1e3:.0f} ms"
        if wanted == most:
            reason = "the decodes fit target_itl_ms"
        return self._noted(Change("max_num_seqs", before, wanted, reason), now)

    def _mean_context(self, running: Mapping[str, Request]) -> float:
        """Return how many tokens a request has, on average over some seconds."""
        context = sum([len(request.token_ids) for request in running.values()]) / len(running)
        self._context += (context - self._context) * (_SMOOTHING if self._context else 1.0)
        return self._context

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
        # Every running request must get its token in each step.
        least = min(most, max(_LEAST_BUDGET, self.max_num_seqs, num_running))
        if limit == math.inf or (self._is_settling("max_num_batched_tokens", now) and before >= least):
            return None
        tokens = self._times.chunk_within(0, limit - self._times.coefficients[0])
        wanted = most if tokens >= most else max(least, int(tokens))
        if abs(wanted - before) <= _DEADBAND * before and least <= before and wanted < most:
            return None
        self.token_budget = wanted
        reason = f"a step of {wanted} prompt tokens fits {limit * 1e3:.0f} ms, which is a part of target_ttft_ms"
        return self._noted(Change("max_num_batched_tokens", before, wanted, reason), now)

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
        return self._noted(Change("watermark_tokens", before, after, reason), now)

    def waits_until(self, now: float, load: Load) -> float | None:
        """Return until when the next step may wait for more requests, or None if it should run now.

        A fuller step costs less for each token. It waits as long as each running request still gets its next token, and
        each new one its first, in time.
        """
        if not self._objective.pace or not self._times.known:
            return None
        present = len(load.running) + len(load.waiting)
        if not present or present >= self.max_num_seqs:
            return None
        decodes = cached = 0
        last = math.inf
        latest = min([self._first_token_by(request) for request in load.waiting], default=math.inf)
        for request in load.running.values():
            if request.last_token_at is None:
                latest = min(latest, self._first_token_by(request))
            else:
                decodes += 1
                cached += request.num_computed
                last = min(last, request.last_token_at)
        step = self._times.decode_seconds(decodes, cached)
        prompts = self._times.chunk_seconds(0, load.prompt_tokens)
        next_token = last + self._objective.pace * self._itl - max(step, min(step + prompts, self.step_seconds))
        due = min(next_token, latest - step - prompts)
        return due if due > now else None

    def _first_token_by(self, request: Request) -> float:
        return request.arrival + _HALF * self._latencies.target_ttft(request)
