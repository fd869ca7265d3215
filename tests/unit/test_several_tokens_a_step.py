"""A runner may give a request several tokens in a step, as speculation will: outputs are those of one at a time."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inflight.core import EngineCore
from inflight.request import Request
from inflight.scheduler.plan import StepPlan
from inflight.step_result import StepResult
from tests.unit.builders import make_request, make_scheduler
from tests.unit.fake_model import FakeModel, expected_output, next_token


class Speculating(FakeModel):
    """Always right, `count` tokens at a time; it does not care where a request ends."""

    def __init__(self, block_size: int, count: int) -> None:
        super().__init__(block_size)
        self._count = count

    def run(self, plan: StepPlan) -> list[StepResult]:
        super().run(plan)
        return [StepResult(self._next(share.request)) for share in plan.sampling]

    def _next(self, request: Request) -> list[int]:
        tokens = list(request.token_ids)
        for _ in range(self._count):
            tokens.append(next_token(tokens))
        return tokens[-self._count :]


@pytest.mark.parametrize("policy", ["fcfs", "fair", "sjf", "slo"])
@given(
    count=st.integers(1, 5),
    requests=st.lists(st.tuples(st.integers(1, 12), st.integers(1, 9), st.integers(0, 6)), min_size=1, max_size=6),
)
def test_outputs_end_where_they_would(policy: str, count: int, requests: list[tuple[int, int, int]]) -> None:
    scheduler = make_scheduler(num_blocks=12, max_num_seqs=4, budget=8, scheduling_policy=policy)
    core = EngineCore(scheduler, Speculating(4, count), max_queue_size=10)
    ends: dict[str, tuple[list[int], str]] = {}
    outputs: dict[str, list[int]] = {}
    for number, (prompt, max_tokens, stop) in enumerate(requests):
        core.submit(make_request(str(number), range(prompt), max_tokens=max_tokens, stop_token_ids=[stop]))
        outputs[str(number)] = []
    for _ in range(500):
        for event in core.step():
            outputs[event.request.request_id] += event.token_ids
            if event.finish_reason is not None:
                ends[event.request.request_id] = expected_output(event.request)
                assert (outputs[event.request.request_id], event.finish_reason) == ends[event.request.request_id]
    assert len(ends) == len(requests)
    assert scheduler.tables.pool.num_used == 0
    generated = sum(len(output) for output in outputs.values())
    assert core.metrics.sampled_tokens >= generated
