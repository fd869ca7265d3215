"""Counters and measurements of an engine. They cost a few microseconds per step.

The stepping thread calls `step`. The thread that turns events into outputs calls `outputs`. A third thread may read at
any time. No thread waits for a lock: each number has one writer, and observations go through a deque.
"""

import time
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence

from inflight import tenant_costs
from inflight.outputs import Delta
from inflight.request import FINISH_REASONS
from inflight.scheduler.committed import Committed
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from inflight.speculation.speculative_config import MAX_DRAFT
from inflight.step_result import StepResult

# Names of the observed values. The first four are observed at every step and counted in histograms here. The others are
# observed once per request.
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
"""Upper bounds of the buckets, for the histograms that are filled here."""

MAX_ADAPTERS = 100
"""How many adapters have a count of their own."""

# Far more than arise between two runs of a server's maintenance thread. Without that thread, the newest are kept.
_MAX_OBSERVATIONS = 100_000


class Buckets:
    """A histogram that is filled here, because steps and tokens are too many to pass on one by one."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """`counts[i]` is the number of values over `bounds[i - 1]` and at most `bounds[i]`; the last has no bound."""
        self.sum = 0.0

    def add(self, value: float, times: int = 1) -> None:
        """Count a value that occurred `times` times."""
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times


class EngineMetrics:
    """Counters from the engine's start, and observations for another thread to take."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        """`clock` returns seconds. The arrival times of requests are on the same clock."""
        self._clock = clock
        self.started = time.time()
        self.observations: deque[tuple[str, float]] = deque(maxlen=_MAX_OBSERVATIONS)
        """Name and value. The reader pops them from the left."""
        # Written by the stepping thread.
        self.steps = 0
        self.budget_tokens = 0
        self.step_seconds = 0.0
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.hits = Counter({"device": 0, "host": 0})
        """The cached tokens by where their keys and values were."""
        self.prefill_tokens = 0
        self.decode_tokens = 0
        self.sampled_tokens = 0
        self.forced_tokens = 0
        self.drafts = 0
        self.draft_tokens = 0
        self.accepted_tokens = 0
        self.accepted_at = [0] * MAX_DRAFT
        """How often the drafted token at each place of a draft was right and was kept."""
        self.padding_avoided = 0
        self.padding_tokens = 0
        self.histograms = {name: Buckets(bounds) for name, bounds in FILLED_BOUNDS.items()}
        # Written by the thread that turns events into outputs.
        self.output_tokens = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.lora_requests: Counter[str] = Counter()
        """Ended outputs of each adapter; of `tenant_costs.OTHERS` after the first `MAX_ADAPTERS`."""

    def step(
        self,
        plan: StepPlan,
        results: Sequence[StepResult],
        committed: Sequence[Committed],
        budget: int,
        started: float,
        ended: float,
    ) -> None:
        """Count a step that has run. It could have had `budget` tokens, and its results were known at `ended`.

        The time to first token runs from a request's arrival to `ended`. If a request gets several tokens in one step,
        the time since its previous token is divided evenly among them.
        """
        total = longest = decodes = sampled = forced = 0
        gaps: Counter[tuple[float, int]] = Counter()
        for scheduled in plan.scheduled:
            total += scheduled.num_tokens
            longest = max(longest, scheduled.num_tokens)
            if scheduled.begins:
                self._begin(scheduled, started)
        for scheduled, result, outcome in zip(plan.answered, results, committed, strict=True):
            if not scheduled.samples:
                continue
            sampled += len(result.token_ids)
            forced += outcome.num_forced
            if scheduled.num_draft:
                self._count_draft(scheduled, outcome)
            if scheduled.last_token_at is None:
                if result.token_ids:  # Otherwise the request fails, or begins anew without its draft.
                    self.observations.append((FIRST_TOKEN_SECONDS, ended - scheduled.request.arrival))
            else:
                decodes += scheduled.num_tokens == 1 + scheduled.num_draft
                # Most requests got their last token at the same time, so a step has few different gaps.
                gaps[scheduled.last_token_at, len(outcome.token_ids)] += 1
        for (last, count), times in gaps.items():
            if count:
                self.histograms[TOKEN_GAP_SECONDS].add((ended - last) / count, times * count)
        self.steps += 1
        self.budget_tokens += budget
        self.step_seconds += ended - started
        self.prefill_tokens += total - decodes - plan.num_draft
        self.decode_tokens += decodes
        self.sampled_tokens += sampled
        self.forced_tokens += forced
        self.padding_tokens += plan.padding
        self.padding_avoided += longest * len(plan.scheduled) - total
        self.histograms[STEP_SECONDS].add(ended - started)
        self.histograms[STEP_TOKENS].add(total)
        self.histograms[STEP_REQUESTS].add(len(plan.scheduled))

    def _begin(self, scheduled: ScheduledRequest, started: float) -> None:
        """Count a request in its first step. The tokens before its first scheduled one were in the prefix cache."""
        self.observations.append((QUEUE_SECONDS, started - scheduled.request.arrival))
        self.prompt_tokens += len(scheduled.request.prompt_ids)
        self.cached_tokens += scheduled.first
        self.hits.update(scheduled.request.hits)

    def _count_draft(self, scheduled: ScheduledRequest, outcome: Committed) -> None:
        self.drafts += 1
        self.draft_tokens += scheduled.num_draft
        self.accepted_tokens += outcome.num_accepted
        for place in range(outcome.num_accepted):
            self.accepted_at[place] += 1

    def outputs(self, deltas: Iterable[Delta]) -> None:
        """Count what clients are about to get: the tokens, and the requests that end."""
        for delta in deltas:
            self.output_tokens += len(delta.token_ids)
            if delta.finish_reason is not None:
                self.finished[delta.finish_reason] += 1
                if name := delta.request.options.lora_name:
                    is_known = name in self.lora_requests or len(self.lora_requests) < MAX_ADAPTERS
                    self.lora_requests[name if is_known else tenant_costs.OTHERS] += 1
                self.observations.extend(
                    (
                        (REQUEST_SECONDS, self._clock() - delta.request.arrival),
                        (PROMPT_TOKENS, len(delta.request.prompt_ids)),
                        (OUTPUT_TOKENS, delta.num_output),
                    )
                )
