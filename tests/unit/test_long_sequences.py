"""Sequences that become long lose their keys and values, and share blocks only with others of their kind."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from inflight.request import Request
from inflight.scheduler.scheduler import Scheduler
from tests.unit.builders import make_request, make_scheduler
from tests.unit.fake_drafter import FakeDrafter
from tests.unit.fake_model import VOCABULARY, FakeModel, expected_output

SWITCH = 10
# They begin alike, and have fewer, as many, or more tokens than the switch.
PROMPTS = st.builds(
    lambda length, tail: ([3] * 14)[:length] + tail,
    st.integers(0, 14),
    st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=3),
)
REQUESTS = st.lists(st.tuples(PROMPTS, st.integers(0, 12)), min_size=1, max_size=6)
SETTINGS = st.fixed_dictionaries(
    {
        "block_size": st.sampled_from([1, 2, 4]),
        "budget": st.sampled_from([3, 8, 64]),
        "max_num_seqs": st.sampled_from([2, 4]),
        "preemption_mode": st.sampled_from(["swap", "recompute"]),
        "swap_space_tokens": st.sampled_from([8, 80]),
        "drafts": st.sampled_from(["", "ngram", *FakeDrafter.KINDS]),
    }
)


def run(scheduler: Scheduler, model: FakeModel, requests: list[Request]) -> dict[Request, tuple[list[int], str]]:
    """Add requests while others run. Return what each has generated, and why it ended."""
    ends = {}
    for step in range(1000):
        if step % 2 == 0 and step // 2 < len(requests):
            scheduler.add(requests[step // 2])
        elif len(ends) == len(requests):
            return ends
        plan = scheduler.schedule(float(step))
        if plan.scheduled:
            for outcome in scheduler.commit(plan, model.run(plan), float(step)):
                if outcome.finish_reason is not None:
                    ends[outcome.request] = (outcome.request.output_ids, outcome.finish_reason)
    raise AssertionError("some request has no end")


@given(REQUESTS, SETTINGS)
def test_each_generates_what_it_would_alone(wanted: list[tuple[list[int], int]], sizes: dict[str, Any]) -> None:
    sizes = dict(sizes)
    if drafts := sizes.pop("drafts"):
        sizes["speculative_config"] = {"method": "ngram", "prompt_lookup_min": 1, "adaptive": False}
        sizes["drafter"] = FakeDrafter(drafts) if drafts in FakeDrafter.KINDS else None
    scheduler = make_scheduler(num_blocks=-(-32 // sizes["block_size"]), prefix_caching=True, **sizes)
    requests = [
        make_request(f"r{number}", prompt, max_tokens=max_tokens, prompt_logprobs=None if max_tokens else 0)
        for number, (prompt, max_tokens) in enumerate(wanted)
    ]
    for request in requests:
        request.rope_switch = SWITCH
    assert run(scheduler, FakeModel(sizes["block_size"]), requests) == {
        request: expected_output(request) for request in requests
    }
    assert scheduler.tables.pool.num_used == 0
    for request in requests:
        became_long = len(request.prompt_ids) <= SWITCH < len(request.prompt_ids) + request.max_tokens - 1
        assert request.num_preemptions >= became_long


def test_a_first_block_that_drafts_fill_is_no_block_of_a_long_sequence() -> None:
    scheduler = make_scheduler(
        block_size=SWITCH,
        num_blocks=8,
        prefix_caching=True,
        drafter=FakeDrafter("right"),
        speculative_config={"method": "ngram", "adaptive": False},
    )
    model = FakeModel(SWITCH)
    short = make_request("short", [3] * 7, max_tokens=4)
    long = make_request("long", [*short.prompt_ids, *expected_output(short)[0]], max_tokens=4)
    for request in (short, long):
        request.rope_switch = SWITCH
        assert run(scheduler, model, [request])[request] == expected_output(request)
