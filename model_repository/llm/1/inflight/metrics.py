"""What an engine counts and measures, at microseconds a step.

The stepping thread calls `step`, the one that makes outputs of events calls `outputs`, and a third may look whenever
it likes: a number has one writer, and observations go through a deque, so that nobody waits for a lock.
"""

import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable

from inflight.outputs import Delta
from inflight.request import FINISH_REASONS
from inflight.scheduler.plan import StepPlan

# Names of what is observed: the first ones at every step, and filled into histograms here, the others once a request.
STEP_SECONDS = "step_seconds"
STEP_TOKENS = "step_tokens"
STEP_REQUESTS = "step_requests"
TOKEN_GAP_SECONDS = "token_gap_seconds"
QUEUE_SECONDS = "queue_seconds"
FIRST_TOKEN_SECONDS = "first_token_seconds"
REQUEST_SECONDS = "request_seconds"
PROMPT_TOKENS = "prompt_tokens"
OUTPUT_TOKENS = "output_tokens"

_POWERS_OF_TWO = tuple(float(2**i) for i in range(15))
FILLED_BOUNDS: dict[str, tuple[float, ...]] = {
    STEP_SECONDS: (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
    STEP_TOKENS: _POWERS_OF_TWO,
    STEP_REQUESTS: _POWERS_OF_TWO[:11],
    TOKEN_GAP_SECONDS: (
        *(0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
        *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
    ),
}
"""Upper bounds of the histograms that are filled here."""

# Far more than come up between two looks of a server's housekeeping; an engine that nobody looks at keeps the newest.
_MAX_OBSERVATIONS = 100_000


class Buckets:
    """A histogram that is filled here: of steps and tokens there are too many to hand them on one by one."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """How many values are at most the bound, and over the one before it; the last has no bound."""
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value that occurred `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class EngineMetrics:
    """Counters from the engine's start, and observations that somebody may take away."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` is that of the requests' arrival times, in seconds."""
        self._clock = clock
        self.observations: deque[tuple[str, float]] = deque(maxlen=_MAX_OBSERVATIONS)
        """Name and value; whoever takes them pops them from the left."""
        # Written by the stepping thread.
        self.steps = 0
        self.budget_tokens = 0
        self.step_seconds = 0.0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.sampled_tokens = 0
        self.padding_avoided = 0
        self.padding_tokens = 0
        self.histograms = {name: Buckets(bounds) for name, bounds in FILLED_BOUNDS.items()}
        # Written by the thread that makes outputs.
        self.output_tokens = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)

    def step(self, plan: StepPlan, budget: int, started: float, ended: float) -> None:
        """Count a step that has run and is not committed yet. It could have had `budget` tokens; `ended` is when those
        that it gave were known.

        The time to first token is that from a request's arrival to `ended`.
        """
        total = longest = decodes = sampled = 0
        gaps: dict[float, int] = {}
        for share in plan.scheduled:
            request, num_tokens = share.request, share.num_tokens
            total += num_tokens
            longest = max(longest, num_tokens)
            last = request.last_token_at
            if last is None and request.num_preemptions == 0 and request.num_computed == request.num_cached:
                self.observations.append((QUEUE_SECONDS, started - request.arrival))
                self.prompt_tokens += len(request.prompt_ids)
                self.cached_tokens += request.num_cached
            if num_tokens == request.num_uncomputed:
                sampled += 1
                if last is None:
                    self.observations.append((FIRST_TOKEN_SECONDS, ended - request.arrival))
                else:
                    decodes += num_tokens == 1
                    # Most got their last token at the same moment, so that a step has few different gaps.
                    gaps[last] = gaps.get(last, 0) + 1
                request.last_token_at = ended
        for last, times in gaps.items():
            self.histograms[TOKEN_GAP_SECONDS].add(ended - last, times)
        self.steps += 1
        self.budget_tokens += budget
        self.step_seconds += ended - started
        self.prefill_tokens += total - decodes
        self.decode_tokens += decodes
        self.sampled_tokens += sampled
        self.padding_tokens += plan.padding
        self.padding_avoided += longest * len(plan.scheduled) - total
        self.histograms[STEP_SECONDS].add(ended - started)
        self.histograms[STEP_TOKENS].add(total)
        self.histograms[STEP_REQUESTS].add(len(plan.scheduled))

    def outputs(self, deltas: Iterable[Delta]) -> None:
        """Count what is about to be shown to clients: its tokens, and the requests that it ends."""
        for delta in deltas:
            output = delta.output
            self.output_tokens += delta.num_tokens
            if output.finish_reason is not None:
                self.finished[output.finish_reason] += 1
                self.observations.extend(
                    (
                        (REQUEST_SECONDS, self._clock() - output.arrival),
                        (PROMPT_TOKENS, len(output.prompt_ids)),
                        (OUTPUT_TOKENS, len(output.token_ids)),
                    )
                )
