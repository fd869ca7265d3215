"""A step that the device has too little memory for is tried again with fewer tokens; nobody notices but the log."""

import pytest
import torch

from inflight import Engine
from inflight.metric_families import COUNTER, FAMILIES
from tests.engine.models import Tiny, drain, greedy, make_prompt, tokens

PROMPTS = [make_prompt(length) for length in (40, 3, 25, 31)]


def short_of_memory(engine: Engine, most: int) -> list[int]:
    """Let layers fail on more than so many tokens; the list gets the sizes of the steps that did."""
    failed: list[int] = []

    def check(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        if (count := arguments[0].shape[1]) > most:
            failed.append(count)
            raise torch.OutOfMemoryError(f"tried to allocate for {count} tokens")

    engine.model.module.model.layers[1].register_forward_pre_hook(check)
    return failed


@pytest.mark.parametrize(("most", "failures"), [(30, [99, 49]), (3, [99, 49, 24, 12, 6]), (1, [99, 49, 24, 12, 6, 3])])
def test_outputs_are_the_same(tiny: Tiny, most: int, failures: list[int]) -> None:
    wanted = tokens(tiny.engine().generate(PROMPTS, greedy(12)))
    engine = tiny.engine()
    failed = short_of_memory(engine, most)
    assert tokens(engine.generate(PROMPTS, greedy(12))) == wanted
    assert failed == failures
    assert engine.stats().blocks_used == 0


def test_counters_never_fall(tiny: Tiny) -> None:
    """Triton crashes where one does."""
    engine = tiny.engine()
    for number, prompt in enumerate(PROMPTS):
        engine.submit(prompt, greedy(12), request_id=str(number))
    for _ in range(4):
        engine.step()
    failed = short_of_memory(engine, 2)
    counters = [family.read for family in FAMILIES if family.kind == COUNTER and family.read is not None]
    shown = [dict(read(engine.stats())) for read in counters]
    while engine.has_work:
        engine.step()
        now = [dict(read(engine.stats())) for read in counters]
        for before, after in zip(shown, now, strict=True):
            assert all(after[label] >= value for label, value in before.items())
        shown = now
    assert failed == [4]
    assert engine.stats().budget_tokens < engine.stats().steps * engine.config.max_num_batched_tokens


def test_too_many_decodes_are_preempted(tiny: Tiny) -> None:
    wanted = tokens(tiny.engine().generate(PROMPTS, greedy(12)))
    engine = tiny.engine()
    for number, prompt in enumerate(PROMPTS):
        engine.submit(prompt, greedy(12), request_id=str(number))
    for _ in range(4):
        engine.step()
    assert short_of_memory(engine, 2) == []
    outputs = drain(engine)
    assert [outputs[str(number)].token_ids for number in range(len(PROMPTS))] == wanted
    assert engine.stats().preemptions == 2


def test_a_step_that_cannot_be_smaller_fails(tiny: Tiny) -> None:
    engine = tiny.engine()
    short_of_memory(engine, 0)
    engine.submit([5], greedy(2), request_id="a")
    (output,) = engine.step()
    assert output.error == "OutOfMemory: tried to allocate for 1 tokens"
    assert engine.stats().blocks_used == 0
