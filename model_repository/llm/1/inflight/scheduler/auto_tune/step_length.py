"""How long a step with decodes may take: the chunk share of prompts."""

import math

from inflight.scheduler.auto_tune.change import Change
from inflight.scheduler.auto_tune.latencies import Latencies
from inflight.scheduler.auto_tune.load import Load
from inflight.scheduler.auto_tune.objective import Objective
from inflight.scheduler.step_time import StepTimeModel

_NAME = "step_seconds"
_NO_LIMIT = 60.0
_LONGEST = 0.25
"""Of `target_ttft_ms`: the longest step. Who arrives at its begin waits so long before its own."""
_SHORTEST = 0.5
"""Of `target_itl_ms`: the shortest limit for a step."""
_SHORTER, _LONGER = 0.85, 1.5
# Prompts may take long steps while these take less than this part of what the decodes can spare.
_BEGINS, _ENDS = 0.5, 0.9
# This part of the running requests, in percent, may have less to spare: they had too little from the start.
_PERCENT = 10
# Latencies as fractions of their targets.
_GAPS_ARE_LONG, _GAPS_ARE_OVER = 0.95, 1.05
_FIRSTS_ARE_EARLY, _FIRSTS_ARE_LATE = 0.4, 0.7
_SETTLES = 1.0
# After gaps got too long, no step is long for so many seconds; each time it happens again, for twice as many.
_FIRST_WAIT, _LONGEST_WAIT = 10.0, 300.0
# Long steps that went well for so many seconds make up for that.
_PROVEN = 60.0


class StepLength:
    """The limit for the time of a step with decodes. Prompts take what the decodes leave.

    Steps within `target_itl_ms` cannot break the target for gaps. But it is the mean of a request's gaps that counts:
    a request with many tokens to go can spare more time in one step, and the prompts that are there come sooner in few
    long steps than in many short ones, which take longer all together. So steps are long while all present prompts take
    less than what nearly all running requests can spare, and keep within the target otherwise. A limit for which the
    measured gaps were too long is shortened.
    """

    def __init__(
        self, ttft: float, itl: float, objective: Objective, times: StepTimeModel, latencies: Latencies
    ) -> None:
        """The targets `ttft` and `itl` are in seconds; without a target `itl` is infinite."""
        self._objective = objective
        self._itl = itl
        self._times = times
        self._latencies = latencies
        self._long = max(itl, _LONGEST * ttft)
        self._steady = itl
        """The limit while steps are not long."""
        self.seconds = _NO_LIMIT if itl == math.inf or objective.decodes == math.inf else itl
        self._is_fixed = self.seconds == _NO_LIMIT
        self._changed_at = -math.inf
        self._tries_at = -math.inf
        """When steps may be long again."""
        self._wait = _FIRST_WAIT
        self._least_used = 0.0

    def follow(self, now: float, load: Load) -> Change | None:
        """Begin or end long steps before the next one."""
        if self._is_fixed or self._objective.shortens or not load.prompt_tokens:
            return None
        is_long = self.seconds > self._steady
        if not is_long and now < max(self._changed_at + _SETTLES, self._tries_at):
            return None
        work = self._times.chunk_seconds(0, load.prompt_tokens)
        spare = self._spare(now, load)
        if is_long == (work <= (_ENDS if is_long else _BEGINS) * spare):
            return None
        reason = f"prompts of {work * 1e3:.0f} ms are present, and decodes can spare {spare * 1e3:.0f} ms"
        return self._set(self._steady if is_long else self._long, now, reason)

    def _spare(self, now: float, load: Load) -> float:
        """Return how many seconds nearly all running decodes can give to prompts and still meet the target.

        A request is expected to use as little of its `max_tokens` as a short one of late, or a few more than it has.
        """
        decodes = [r for r in load.running.values() if r.first_token_at is not None]
        if not decodes:
            return math.inf
        step = self._times.decode_seconds(len(decodes), sum([request.num_computed for request in decodes]))
        step = max(step, self._objective.pace * self._itl)
        spare = []
        for request in decodes:
            assert request.first_token_at is not None
            done = request.num_output
            length = max(self._least_used * request.max_tokens, done + 1 + done // 8)
            spare.append(self._itl * (length - 1) - (now - request.first_token_at) - (length - done) * step)
        return max(0.0, sorted(spare)[len(spare) * _PERCENT // 100])

    def look(self, now: float, load: Load) -> Change | None:
        """Adjust the limit to the measured latencies."""
        self._least_used = self._latencies.least_used()
        if self._is_fixed or now < self._changed_at + _SETTLES:
            return None
        is_long = self.seconds > self._steady
        # Whether a limit within the target is too long, only requests can tell that have seen no other.
        gaps = self._latencies.gaps(now, load.running.values(), -math.inf if is_long else self._changed_at)
        firsts = self._latencies.firsts(now, load.waiting.first())
        seen = f"first tokens are at {firsts:.0%} of target_ttft_ms, and mean gaps at {gaps:.0%} of target_itl_ms"
        if is_long:
            if gaps <= _GAPS_ARE_LONG:
                return None
            if now > self._changed_at + _PROVEN:
                self._wait = _FIRST_WAIT
            self._tries_at = now + self._wait
            self._wait = min(2 * self._wait, _LONGEST_WAIT)
            return self._set(self._steady, now, seen)
        if gaps > _GAPS_ARE_OVER or (self._objective.shortens and firsts < _FIRSTS_ARE_EARLY):
            self._steady = max(_SHORTEST * self._itl, _SHORTER * self._steady)
        elif gaps < _GAPS_ARE_LONG and firsts > _FIRSTS_ARE_LATE:
            self._steady = min(self._itl, _LONGER * self._steady)
        return self._set(self._steady, now, seen)

    def forget(self, now: float) -> None:
        """Forget when gaps got too long: the load is of another kind now."""
        self._tries_at, self._wait = now, _FIRST_WAIT

    def _set(self, seconds: float, now: float, reason: str) -> Change | None:
        if seconds == self.seconds:
            return None
        change = Change(_NAME, self.seconds, seconds, reason)
        self.seconds, self._changed_at = seconds, now
        return change
