"""`submit`, `step` and `cancel`: requests join and leave the batch while others run."""

import random

import pytest

from inflight import Engine
from tests.engine.models import Tiny, alone, drain, greedy, make_prompt

PROMPTS = {f"r{i}": make_prompt(length, seed=i) for i, length in enumerate((3, 50, 1, 33, 14, 8, 90, 21))}


def grown(engine: Engine) -> dict[str, int]:
    """Step once. Return the number of tokens of each request that got a token in this step."""
    return {output.request_id: len(output.token_ids) for output in engine.step()}


@pytest.mark.parametrize("seed", range(4))
def test_requests_that_arrive_at_different_times_get_the_tokens_that_they_get_alone(tiny: Tiny, seed: int) -> None:
    rng = random.Random(seed)
    engine = tiny.engine(max_num_seqs=4, max_num_batched_tokens=24)
    expected = {name: alone(engine, prompt, greedy(12)) for name, prompt in PROMPTS.items()}
    finished = {}
    for name, prompt in PROMPTS.items():
        engine.submit(prompt, greedy(12), request_id=name)
        for _ in range(rng.randrange(4)):
            finished |= {output.request_id: output for output in engine.step() if output.finished}
    finished |= drain(engine)
    assert {name: output.token_ids for name, output in finished.items()} == expected
    assert engine.stats().blocks_used == 0


def test_an_output_grows_by_one_token_per_step_and_stays_the_same_object(tiny: Tiny) -> None:
    engine = tiny.engine()
    engine.submit(make_prompt(10), greedy(3), request_id="a")
    (first,) = engine.step()
    assert (first.request_id, len(first.token_ids), first.finished) == ("a", 1, False)
    (second,) = engine.step()
    assert second is first
    assert len(first.token_ids) == 2
    engine.step()
    assert (len(first.token_ids), first.finish_reason) == (3, "length")
    assert not engine.has_work
    assert engine.step() == []


def test_running_requests_get_a_token_in_each_step_while_a_long_prompt_is_computed(tiny: Tiny) -> None:
    engine = tiny.engine(max_num_batched_tokens=16)
    for name in ("a", "b"):
        engine.submit(make_prompt(4, seed=ord(name)), greedy(30), request_id=name)
    assert grown(engine) == {"a": 1, "b": 1}
    engine.submit(make_prompt(60), greedy(30), request_id="long")
    for step in range(2, 6):
        computed = engine.stats().computed_tokens
        assert grown(engine) == {"a": step, "b": step}
        # Each step has two decodes and 14 of the prompt's 60 tokens.
        assert engine.stats().computed_tokens - computed == 16
    assert grown(engine) == {"a": 6, "b": 6, "long": 1}
    assert engine.stats().computed_tokens - computed == 16 + 2 + 4


def test_a_new_request_joins_the_next_step(tiny: Tiny) -> None:
    engine = tiny.engine()
    engine.submit(make_prompt(5), greedy(10), request_id="a")
    for _ in range(3):
        engine.step()
    engine.submit(make_prompt(20, seed=1), greedy(10), request_id="new")
    assert grown(engine) == {"a": 4, "new": 1}
    assert engine.stats().running == 2


def test_a_waiting_request_is_admitted_once_another_has_finished(tiny: Tiny) -> None:
    engine = tiny.engine(max_num_seqs=2)
    for name, length in {"short": 2, "long": 9, "next": 4}.items():
        engine.submit(make_prompt(5, seed=length), greedy(length), request_id=name)
    assert grown(engine) == {"short": 1, "long": 1}
    assert engine.stats().waiting == 1
    assert grown(engine) == {"short": 2, "long": 2}
    assert grown(engine) == {"long": 3, "next": 1}


def test_each_step_is_one_forward_pass_for_all_requests(tiny: Tiny) -> None:
    engine = tiny.engine()
    passes = []
    engine.model.module.register_forward_pre_hook(lambda *_: passes.append(1))
    engine.generate(list(PROMPTS.values()), greedy(10))
    assert len(passes) == engine.stats().steps == 10


def test_cancelling_a_running_request_does_not_affect_the_others(tiny: Tiny) -> None:
    engine = tiny.engine()
    expected = {name: alone(engine, prompt, greedy(12)) for name, prompt in PROMPTS.items()}
    for name, prompt in PROMPTS.items():
        engine.submit(prompt, greedy(12), request_id=name)
    for _ in range(4):
        engine.step()
    engine.cancel("r1")
    finished = drain(engine)
    cancelled = finished.pop("r1")
    assert (cancelled.finish_reason, cancelled.token_ids) == ("cancelled", expected.pop("r1")[:4])
    assert {name: output.token_ids for name, output in finished.items()} == expected
    assert {output.finish_reason for output in finished.values()} == {"length"}
    assert engine.stats().blocks_used == 0


def test_a_cancelled_waiting_request_is_never_computed(tiny: Tiny) -> None:
    engine = tiny.engine(max_num_seqs=1)
    engine.submit(make_prompt(4), greedy(3), request_id="runs")
    engine.submit(make_prompt(6), greedy(3), request_id="waits")
    engine.step()
    engine.cancel("waits")
    finished = drain(engine)
    assert (finished["waits"].finish_reason, finished["waits"].token_ids) == ("cancelled", [])
    assert engine.stats().prompt_tokens == 4


def test_a_request_cancelled_during_its_prefill_frees_its_blocks(tiny: Tiny) -> None:
    engine = tiny.engine(max_num_batched_tokens=16)
    engine.submit(make_prompt(100), greedy(3), request_id="long")
    assert engine.step() == []
    assert engine.stats().blocks_used == 13
    engine.cancel("long")
    assert drain(engine)["long"].finish_reason == "cancelled"
    assert engine.stats().blocks_used == 0


def test_cancelling_an_unknown_or_finished_request_does_nothing(tiny: Tiny) -> None:
    engine = tiny.engine()
    engine.cancel("nobody")
    engine.submit(make_prompt(4), greedy(1), request_id="a")
    drain(engine)
    engine.cancel("a")
    assert not engine.has_work
