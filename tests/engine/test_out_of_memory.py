"""A step that runs out of memory is tried again with fewer tokens. The outputs stay the same."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from inflight import Engine
from inflight.metric_families.families import FAMILIES
from inflight.metric_families.family import COUNTER
from tests.engine.models import Tiny, drain, greedy, make_prompt, tokens
from tests.unit.traces import read_trace

PROMPTS = [make_prompt(length) for length in (40, 3, 25, 31)]


def short_of_memory(engine: Engine, max_tokens: int) -> list[int]:
    """Make steps of more than `max_tokens` tokens fail. The returned list gets the size of each failed step."""
    failed: list[int] = []

    def check(module: torch.nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
        if (count := arguments[0].shape[1]) > max_tokens:
            failed.append(count)
            raise torch.OutOfMemoryError(f"tried to allocate for {count} tokens")

    engine.model.module.model.layers[1].register_forward_pre_hook(check)
    return failed


@pytest.mark.parametrize(
    ("max_tokens", "failures"), [(30, [99, 49]), (3, [99, 49, 24, 12, 6]), (1, [99, 49, 24, 12, 6, 3, 2])]
)
def test_steps_are_halved_until_they_fit_and_outputs_stay_the_same(
    tiny: Tiny, max_tokens: int, failures: list[int]
) -> None:
    wanted = tokens(tiny.engine().generate(PROMPTS, greedy(12)))
    engine = tiny.engine()
    failed = short_of_memory(engine, max_tokens)
    assert tokens(engine.generate(PROMPTS, greedy(12))) == wanted
    assert failed == failures
    assert engine.stats().blocks_used == 0


def test_steps_that_ran_out_of_memory_are_failed_steps_of_the_trace(tiny: Tiny, tmp_path: Path) -> None:
    """Step times are fitted to the others."""
    engine = tiny.engine(trace_file=str(tmp_path / "trace.json"))
    failed = short_of_memory(engine, 30)
    engine.generate(PROMPTS, greedy(12))
    engine.outputs.flush_traces()
    trace = read_trace(tmp_path / "trace.json")
    assert [step["args"]["tokens"] for step in trace.failed] == failed == [99, 49]
    assert max(step["args"]["tokens"] for step in trace.steps) <= 30


def test_no_counter_decreases_after_a_failed_step(tiny: Tiny) -> None:
    """Triton crashes if a counter decreases."""
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


def test_decodes_that_do_not_fit_are_preempted(tiny: Tiny) -> None:
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


def test_a_step_of_one_token_that_does_not_fit_ends_its_request_with_an_error(tiny: Tiny) -> None:
    engine = tiny.engine()
    short_of_memory(engine, 0)
    engine.submit([5], greedy(2), request_id="a")
    (output,) = engine.step()
    assert output.error == "OutOfMemory: tried to allocate for 1 tokens"
    assert engine.stats().blocks_used == 0


def test_the_budget_grows_back_when_there_is_memory_again(tiny: Tiny) -> None:
    engine = tiny.engine()
    failed = short_of_memory(engine, 30)
    engine.generate(PROMPTS, greedy(3))
    assert failed == [99, 49]
    failed[:] = []
    engine.generate([make_prompt(5)], greedy(200))
    engine.generate([make_prompt(90)], greedy(1))
    assert failed == [90, 45], "a step of 90 tokens was tried again"


# Runs in a process of its own, which may map no more memory. It leaves 3 MiB to the allocator of torch.
SHORT_OF_HOST_MEMORY = """
import json, resource, sys
import torch
from tests.engine.models import greedy, make_engine, make_prompt, tokens

def serve(engine):
    before = engine.stats().steps
    outputs = engine.generate([make_prompt(200, seed) for seed in range(15)], greedy(4))
    return tokens(outputs), engine.stats().steps - before, engine._scheduler.limit.tokens

ample, short = (make_engine(sys.argv[1], kv_cache_tokens=4096, max_num_batched_tokens=4096) for _ in range(2))
wanted, steps, _ = serve(ample)
# The C library ends the process if it finds no memory for itself. So small allocations have gaps in the heap, into
# which the tensors of a large step do not fit.
heap = [bytes(100_000) for _ in range(80)]
del heap[::2]
resource.setrlimit(resource.RLIMIT_AS, (2**20, resource.RLIM_INFINITY))
ballast = []
try:
    while True:
        ballast.append(torch.empty(2**20, dtype=torch.uint8))
except RuntimeError:
    del ballast[-3:]
got, more_steps, budget = serve(short)
print(json.dumps([got == wanted, steps, more_steps, budget]))
"""


def test_memory_that_the_host_refuses_halves_a_step(tiny: Tiny) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHORT_OF_HOST_MEMORY, str(tiny.folder)],
        env={**os.environ, "PYTHONPATH": ":".join(filter(None, sys.path)), "MALLOC_MMAP_THRESHOLD_": str(2**17)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    same, steps, more_steps, budget = json.loads(done.stdout.splitlines()[-1])
    assert same
    assert more_steps > steps
    assert budget < 3000
    assert "can't allocate memory" in done.stderr
