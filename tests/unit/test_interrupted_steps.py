"""Steps that Ctrl-C breaks off: requests go on with the same tokens, and each end is told once."""

import random
from collections.abc import Sequence

import pytest

from inflight.core import EngineCore
from inflight.outputs import TokenEvent
from inflight.request import Request
from tests.unit.builders import make_request, make_scheduler
from tests.unit.fake_drafter import FakeDrafter
from tests.unit.fake_model import expected_output
from tests.unit.stepped_core import Model, drain, ends, make_core


@pytest.mark.parametrize("interrupted", range(1, 25))
def test_after_an_interrupt_requests_go_on_with_the_same_tokens(interrupted: int) -> None:
    """The cache is so small that steps copy blocks to host memory and back, as the broken off one was to."""
    scheduler = make_scheduler(
        num_blocks=10, budget=16, next_tokens=0, preemption_mode="swap", swap_space_tokens=80, max_num_seqs=4
    )
    core, model = make_core(scheduler)
    requests = [make_request(str(number), [number % 3] * 7, max_tokens=12) for number in range(5)]
    core.submit(*requests)
    events = []
    for _ in range(interrupted):
        events += core.step()
    model.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        core.step()
    assert len(ends(events + drain(core))) == 5
    assert all((request.output_ids, "length") == expected_output(request) for request in requests)
    assert core.stats().swaps > 0


class InterruptedDrafter(FakeDrafter):
    """Is broken off once, when `is_interrupted` is set."""

    is_interrupted = False

    def propose(self, wanted: Sequence[tuple[Request, int]]) -> list[list[int]]:
        if self.is_interrupted:
            self.is_interrupted = False
            raise KeyboardInterrupt
        return super().propose(wanted)


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("seed", range(13))
def test_after_an_interrupt_of_a_draft_requests_go_on_with_the_same_tokens(seed: int, fails: bool) -> None:
    """The plan that is broken off has copies of blocks to host memory and back. The next step may also fail."""
    rng, drafter = random.Random(seed), InterruptedDrafter("half right")
    scheduler = make_scheduler(
        num_blocks=8,
        budget=24,
        next_tokens=0,
        preemption_mode="swap",
        swap_space_tokens=24,
        max_num_seqs=4,
        drafter=drafter,
        speculative_config={"method": "ngram", "adaptive": False, "num_speculative_tokens": 3},
    )
    core, model = make_core(scheduler)
    requests = [make_request(str(number), range(rng.randint(2, 11)), max_tokens=12) for number in range(24)]
    core.submit(*requests)
    interrupts, events = 0, []
    while core.has_work:
        drafter.is_interrupted = rng.random() < 0.5
        model.is_interrupted = fails and drafter.is_interrupted
        try:
            events += core.step()
        except KeyboardInterrupt:
            interrupts += 1
    assert set(ends(events).values()) == {"length"}
    assert all((request.output_ids, "length") == expected_output(request) for request in requests)
    assert core.stats().swaps > 5 < interrupts


def leave_by_each_door(core: EngineCore) -> None:
    """Two requests run, one of them to its last step; two more end before the next step is computed."""
    core.submit(make_request("last", max_tokens=2), make_request("long", max_tokens=5), make_request("cancelled"))
    core.step()
    late = make_request("late")
    late.deadline = 0.0
    core.submit(late)
    core.cancel("cancelled")


ENDS = {"cancelled": "cancelled", "late": "expired", "last": "length", "long": "length"}


def test_what_ends_in_a_step_that_is_broken_off_is_told_by_the_next_one() -> None:
    core, model = make_core()
    leave_by_each_door(core)
    model.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        core.step()
    core.cancel("cancelled")
    core.cancel("late")
    core.submit(make_request("late"))
    events = core.step()
    assert [e.request.request_id for e in events if e.finish_reason] == ["cancelled", "late", "last"]
    assert ends(drain(core)) == {"late": "length", "long": "length"}
    assert not core.has_work


def test_what_ends_in_a_step_that_is_broken_off_is_told_though_no_other_follows() -> None:
    core, model = make_core()
    leave_by_each_door(core)
    model.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        core.step()
    core.cancel("last")
    core.cancel("long")
    assert ends(core.drop_cancelled()) == {**ENDS, "last": "cancelled", "long": "cancelled"}
    assert not core.has_work
    assert core.drop_cancelled() == []


@pytest.mark.parametrize("after", ["publish", "step"])
def test_an_interrupt_behind_the_commit_loses_no_event(after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A step is over for the scheduler, but not for the counters, or for those who want to know of its blocks."""
    core = EngineCore(make_scheduler(), Model(), max_queue_size=9, publish=lambda: None)
    leave_by_each_door(core)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(*(core, "_publish") if after == "publish" else (core.metrics, "step"), interrupt)
        with pytest.raises(KeyboardInterrupt):
            core.step()
    events = drain(core)
    assert ends(events) == ENDS
    assert sum(len(event.token_ids) for event in events if event.request.request_id == "long") == 4


def test_what_has_ended_before_the_engine_dies_ends_as_it_did() -> None:
    core, model = make_core()
    leave_by_each_door(core)
    model.is_interrupted = True
    told: list[TokenEvent] = []
    with pytest.raises(KeyboardInterrupt):
        core.run(told.extend)
    assert ends(told) == {**ENDS, "last": "error", "long": "error"}
