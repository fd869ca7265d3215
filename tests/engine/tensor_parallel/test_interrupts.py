"""Ctrl-C in a step of a divided model: whoever has called `generate` may go on with the same engine."""

from typing import Any

import pytest

from inflight import Engine, EngineConfig
from inflight.model.parallel.divided_model import DividedModel
from inflight.model.parallel.workers import Workers
from tests.engine.models import Tiny, greedy, make_prompt, tokens

PROMPTS = [make_prompt(length) for length in (40, 3, 25, 31)]


@pytest.fixture
def engine(tiny: Tiny, one_worker: Workers) -> Engine:
    config = EngineConfig(
        model=str(tiny.folder),
        tensor_parallel_size=2,
        dtype="float32",
        device="cpu",
        block_size=8,
        kv_cache_tokens=1024,
    )
    return Engine(config, DividedModel(config, one_worker))


def check_goes_on(engine: Engine, tiny: Tiny) -> None:
    with pytest.raises(KeyboardInterrupt):
        engine.generate(PROMPTS, greedy(30))
    assert tokens(engine.generate(PROMPTS, greedy(8))) == tokens(tiny.engine().generate(PROMPTS, greedy(8)))


def test_an_interrupt_between_collectives_leaves_no_other_rank_in_one(engine: Engine, tiny: Tiny) -> None:
    def interrupt(*_: object) -> None:
        handle.remove()
        raise KeyboardInterrupt

    handle = engine.model.module.model.layers[1].register_forward_pre_hook(interrupt)
    check_goes_on(engine, tiny)


def test_an_interrupt_of_the_wait_for_the_answers_leaves_none_for_the_next_command(
    engine: Engine, tiny: Tiny, one_worker: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    (rank,) = one_worker._watch.ranks
    poll = rank.connection.poll
    interrupted: list[bool] = []

    def interrupt(seconds: float) -> Any:
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        return poll(seconds)

    monkeypatch.setattr(rank.connection, "poll", interrupt)
    check_goes_on(engine, tiny)
    assert not rank.connection.poll(0)
