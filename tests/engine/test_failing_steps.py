"""A forward pass that raises ends the requests of its step with an error. All other requests go on."""

from collections.abc import Callable

import pytest

from inflight import Engine
from tests.engine.models import Tiny, alone, drain, greedy, make_prompt

PROMPTS = {name: make_prompt(20, seed=ord(name)) for name in "abc"}


@pytest.fixture
def engine(tiny: Tiny) -> Engine:
    return tiny.engine(max_num_seqs=2)


@pytest.fixture
def fail_once(engine: Engine) -> Callable[[], None]:
    """Make the model's next forward pass raise."""

    def arm() -> None:
        def fail(*_: object) -> None:
            handle.remove()
            raise RuntimeError("out of memory, say")

        handle = engine.model.module.register_forward_pre_hook(fail)

    return arm


@pytest.mark.parametrize("steps", [0, 3], ids=["on prompts", "on decodes"])
def test_only_the_requests_of_the_failed_step_end(engine: Engine, fail_once: Callable[[], None], steps: int) -> None:
    expected = {name: alone(engine, prompt, greedy(8)) for name, prompt in PROMPTS.items()}
    for name, prompt in PROMPTS.items():
        engine.submit(prompt, greedy(8), request_id=name)
    for _ in range(steps):
        engine.step()
    fail_once()
    failed = {output.request_id: output for output in engine.step()}
    assert {name: output.finish_reason for name, output in failed.items()} == {"a": "error", "b": "error"}
    assert {output.error for output in failed.values()} == {"RuntimeError: out of memory, say"}
    assert failed["a"].token_ids == expected["a"][:steps]
    assert engine.stats().blocks_used == 0
    assert {name: output.token_ids for name, output in drain(engine).items()} == {"c": expected["c"]}


def test_the_next_requests_succeed_and_find_no_wrong_blocks_in_the_cache(
    tiny: Tiny, engine: Engine, fail_once: Callable[[], None]
) -> None:
    fail_once()
    engine.submit(PROMPTS["a"], greedy(8), request_id="a")
    assert drain(engine)["a"].finish_reason == "error"
    stats = engine.stats()
    assert (stats.running, stats.waiting, stats.blocks_used, stats.blocks_cached) == (0, 0, 0, 0)
    (again,) = engine.generate(PROMPTS["a"], greedy(8))
    assert again.num_cached_tokens == 0
    assert again.token_ids == alone(tiny.engine(), PROMPTS["a"], greedy(8))


def test_a_failure_in_a_later_layer_leaves_the_cached_prefix_intact(tiny: Tiny, engine: Engine) -> None:
    expected = alone(tiny.engine(), PROMPTS["b"], greedy(8))
    alone(engine, PROMPTS["b"][:16], greedy(1))

    def fail(*_: object) -> None:
        handle.remove()
        raise ValueError("not this layer")

    handle = engine.model.module.model.layers[1].register_forward_pre_hook(fail)
    engine.submit(PROMPTS["b"], greedy(8), request_id="b")
    assert drain(engine)["b"].error == "ValueError: not this layer"
    # The blocks that were cached before are still cached and still correct.
    (again,) = engine.generate(PROMPTS["b"], greedy(8))
    assert again.num_cached_tokens == 16
    assert again.token_ids == expected


def test_generate_raises_and_cancels_its_other_requests(engine: Engine, fail_once: Callable[[], None]) -> None:
    fail_once()
    with pytest.raises(RuntimeError, match=r"failed: RuntimeError: out of memory, say"):
        engine.generate(list(PROMPTS.values()), greedy(8))
    assert not engine.has_work
    assert engine.stats().blocks_used == 0
    assert len(alone(engine, PROMPTS["a"], greedy(8))) == 8
