"""What the engine counts and measures, to the token, on a clock that the test turns."""

from bisect import bisect_left
from collections import defaultdict
from dataclasses import replace

import pytest

from inflight.core import EngineCore
from inflight.metric_families.families import FAMILIES
from inflight.metrics import (
    FILLED_BOUNDS,
    FIRST_TOKEN_SECONDS,
    MAX_ADAPTERS,
    OUTPUT_TOKENS,
    PROMPT_TOKENS,
    QUEUE_SECONDS,
    REQUEST_SECONDS,
    STEP_REQUESTS,
    STEP_SECONDS,
    STEP_TOKENS,
    TOKEN_GAP_SECONDS,
    Buckets,
    EngineMetrics,
)
from inflight.outputs import OutputProcessor
from inflight.request import Request
from inflight.request_options import RequestOptions
from inflight.scheduler.committed import Committed
from inflight.scheduler.plan import ScheduledRequest, StepPlan
from inflight.scheduler.scheduler import Scheduler
from inflight.step_result import StepResult
from inflight.tenant_costs import OTHERS
from tests.unit.builders import make_request, make_scheduler
from tests.unit.fake_drafter import FakeDrafter
from tests.unit.fake_model import FakeModel


class Harness:
    """A core whose steps take a second each, and the outputs made of its events."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.now = 0.0
        self.poison: set[str] = set()
        self._model = FakeModel(scheduler.tables.block_size)
        self._processor = OutputProcessor(None)
        self.core = EngineCore(scheduler, self, max_queue_size=100, clock=lambda: self.now)

    def run(self, plan: StepPlan) -> list[StepResult]:
        """The runner's part."""
        self.now += 1.0
        if self.poison & {share.request.request_id for share in plan.scheduled}:
            raise RuntimeError("out of luck")
        return self._model.run(plan)

    def submit(self, *requests: Request) -> None:
        for request in requests:
            request.arrival = self.now
            self.core.submit(request)

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            deltas, _ = self._processor.process(self.core.step())
            self.core.metrics.outputs(deltas)

    def drain(self) -> None:
        for _ in range(1000):
            if not self.core.has_work:
                return
            self.step()
        raise AssertionError("the core does not come to rest")

    def observed(self) -> dict[str, list[float]]:
        """All observations by name, in order; they are gone then."""
        found = defaultdict(list)
        observations = self.core.metrics.observations
        while observations:
            name, value = observations.popleft()
            found[name].append(value)
        return found

    def finished(self) -> dict[str, int]:
        return {reason: count for reason, count in self.core.stats().finished.items() if count}


def test_a_request_alone() -> None:
    harness = Harness(make_scheduler(budget=4))
    harness.submit(make_request("a", 10, max_tokens=3))
    harness.now = 5.0
    harness.drain()
    assert harness.observed() == {
        QUEUE_SECONDS: [5.0],
        FIRST_TOKEN_SECONDS: [8.0],
        REQUEST_SECONDS: [10.0],
        PROMPT_TOKENS: [10],
        OUTPUT_TOKENS: [3],
    }
    histograms = harness.core.metrics.histograms
    assert {name: (sum(histograms[name].counts), histograms[name].sum) for name in FILLED_BOUNDS} == {
        STEP_SECONDS: (5, 5.0),
        STEP_TOKENS: (5, 4 + 4 + 2 + 1 + 1),
        STEP_REQUESTS: (5, 5),
        TOKEN_GAP_SECONDS: (2, 2.0),
    }
    stats = harness.core.stats()
    assert (stats.prompt_tokens, stats.generated_tokens, stats.output_tokens) == (10, 3, 3)
    assert (stats.prefill_tokens, stats.decode_tokens, stats.computed_tokens) == (10, 2, 12)
    assert (stats.steps, stats.step_seconds, stats.budget_tokens, stats.padding_avoided) == (5, 5.0, 20, 0)
    assert histograms[TOKEN_GAP_SECONDS].counts[FILLED_BOUNDS[TOKEN_GAP_SECONDS].index(1.0)] == 2
    assert harness.finished() == {"length": 1}


def test_padding_that_rows_of_different_lengths_spare() -> None:
    harness = Harness(make_scheduler(budget=32))
    harness.submit(make_request("a", 9), make_request("b", 2), make_request("c", 5))
    harness.step()
    assert harness.core.stats().padding_avoided == 3 * 9 - 16
    harness.drain()
    assert harness.core.stats().padding_avoided == 3 * 9 - 16


def test_what_the_prefix_cache_spares_is_not_prefilled() -> None:
    harness = Harness(make_scheduler(block_size=4))
    harness.submit(make_request("a", range(10), max_tokens=2))
    harness.drain()
    harness.submit(make_request("b", range(10), max_tokens=2))
    harness.drain()
    stats = harness.core.stats()
    assert (stats.prompt_tokens, stats.cached_tokens, stats.prefill_tokens, stats.decode_tokens) == (20, 8, 12, 2)


def test_a_preempted_request_is_counted_once_and_its_wait_is_a_gap_between_tokens() -> None:
    harness = Harness(make_scheduler(num_blocks=4, block_size=2, budget=16, next_tokens=0, prefix_caching=False))
    harness.submit(make_request("a", 4, max_tokens=4), make_request("b", 4, max_tokens=4))
    harness.drain()
    stats, observed = harness.core.stats(), harness.observed()
    assert stats.preemptions > 0
    assert (stats.prompt_tokens, stats.generated_tokens, stats.output_tokens) == (8, 8, 8)
    assert stats.prefill_tokens > 8
    assert stats.computed_tokens == harness.core.metrics.histograms[STEP_TOKENS].sum
    for name in (QUEUE_SECONDS, FIRST_TOKEN_SECONDS, REQUEST_SECONDS):
        assert len(observed[name]) == 2
    gaps = harness.core.metrics.histograms[TOKEN_GAP_SECONDS]
    assert sum(gaps.counts) == 8 - 2
    # From first to last token, whatever lies between.
    assert gaps.sum == sum(observed[REQUEST_SECONDS]) - sum(observed[FIRST_TOKEN_SECONDS])
    assert harness.finished() == {"length": 2}


def test_cancelled_requests_count_what_they_got() -> None:
    harness = Harness(make_scheduler(max_num_seqs=1))
    harness.submit(make_request("runs", 3, max_tokens=9), make_request("waits", 5, max_tokens=9))
    harness.step(2)
    harness.core.cancel("runs")
    harness.core.cancel("waits")
    harness.drain()
    stats, observed = harness.core.stats(), harness.observed()
    assert (stats.prompt_tokens, stats.output_tokens) == (3, 2)
    assert observed[OUTPUT_TOKENS] == [2, 0]
    assert observed[PROMPT_TOKENS] == [3, 5]
    assert len(observed[QUEUE_SECONDS]) == len(observed[FIRST_TOKEN_SECONDS]) == 1
    assert harness.finished() == {"cancelled": 2}


def test_a_failed_step_counts_its_requests_and_nothing_else() -> None:
    harness = Harness(make_scheduler(max_num_seqs=2))
    harness.submit(make_request("bad"), make_request("beside"), make_request("later", 6, max_tokens=2))
    harness.poison = {"bad"}
    harness.step()
    assert harness.core.stats().computed_tokens == harness.core.stats().steps == 0
    harness.drain()
    stats, observed = harness.core.stats(), harness.observed()
    assert harness.finished() == {"error": 2, "length": 1}
    assert (stats.prompt_tokens, stats.output_tokens, stats.steps, stats.computed_tokens) == (6, 2, 2, 7)
    assert len(observed[REQUEST_SECONDS]) == 3
    assert observed[FIRST_TOKEN_SECONDS] == [2.0]


@pytest.mark.parametrize(("value", "bucket"), [(0.0, 0), (1.0, 0), (1.5, 1), (2.0, 1), (2.1, 2)])
def test_a_bucket_holds_what_is_at_most_its_bound(value: float, bucket: int) -> None:
    buckets = Buckets((1.0, 2.0))
    buckets.add(value, 3)
    assert buckets.counts == [3 * (bucket == i) for i in range(3)]
    assert buckets.sum == 3 * value


def test_several_tokens_of_a_step_divide_the_time_since_the_last_one() -> None:
    metrics = EngineMetrics(lambda: 0.0)
    request = make_request("a", 4, max_tokens=9)
    request.num_computed, request.has_run, request.last_token_at = 3, True, 1.0
    plan = StepPlan((ScheduledRequest.next_of(request, 1),))
    results, committed = [StepResult((1, 2, 3, 4))], [Committed(request, (1, 2, 3, 4), None)]
    metrics.step(plan, results, committed, budget=8, started=1.5, ended=2.0)
    gaps = metrics.histograms[TOKEN_GAP_SECONDS]
    assert (gaps.sum, sum(gaps.counts), metrics.sampled_tokens) == (pytest.approx(1.0), 4, 4)
    assert gaps.counts[bisect_left(gaps.bounds, 0.25)] == 4


def test_drafts_are_counted_by_their_place() -> None:
    config = {"num_speculative_tokens": 3, "adaptive": False}
    harness = Harness(make_scheduler(drafter=FakeDrafter("half right"), speculative_config=config))
    request = make_request("a", 4, max_tokens=20)
    harness.submit(request)
    harness.drain()
    stats = harness.core.stats()
    assert (stats.draft_tokens, stats.accepted_draft_tokens) == (request.num_drafted, request.num_accepted)
    assert stats.accepted_draft_tokens == sum(stats.accepted_draft_tokens_at)
    assert stats.drafts >= stats.accepted_draft_tokens_at[0] >= stats.accepted_draft_tokens_at[1] > 0
    assert stats.decode_tokens + stats.accepted_draft_tokens == 19


def test_the_metrics_of_drafts_are_there_only_where_drafts_are_made() -> None:
    stats = Harness(make_scheduler()).core.stats()
    families = [family for family in FAMILIES if family.name.startswith("inflight:spec_decode")]
    for places, label_values in (((), []), ((2, 1), ["0", "1"])):
        shown = replace(stats, accepted_draft_tokens_at=places)
        assert [list(family.read(shown)) for family in families if family.read] == [
            *([[""]] * 3 if places else [[]] * 3),
            label_values,
        ]


def test_a_request_without_a_first_token_has_no_time_to_it() -> None:
    harness = Harness(make_scheduler())
    harness.run = lambda plan: [StepResult((), is_tainted=True) for _ in plan.answered]  # type: ignore[method-assign]
    harness.submit(make_request("a", 4))
    harness.drain()
    assert harness.core.stats().finished["error"] == 1
    assert FIRST_TOKEN_SECONDS not in harness.observed()


def test_many_adapters_share_a_count() -> None:
    harness = Harness(make_scheduler(max_num_seqs=256))
    for number in range(MAX_ADAPTERS + 20):
        harness.submit(make_request(f"{number}", 4, max_tokens=1, options=RequestOptions(lora_name=f"a{number}")))
        harness.drain()
    counts = harness.core.metrics.lora_requests
    assert len(counts) == MAX_ADAPTERS + 1
    assert (counts["a0"], counts["a99"], counts[OTHERS]) == (1, 1, 20)
