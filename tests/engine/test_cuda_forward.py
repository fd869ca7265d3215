"""The engine's forward pass for GPUs, tested without a GPU.

The attention kernels run in an interpreter, and a captured step runs again operator by operator.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import pytest
import torch

from inflight import Engine
from inflight.model.attention.backend import CUDA_KERNELS
from inflight.model.cache import memory
from inflight.model.cuda.graphed_forward import GraphedForward, sizes
from inflight.model.forward import EagerForward
from tests.engine.models import Tiny, greedy, make_prompt, tokens

SETTINGS: dict[str, Any] = {"block_size": 16, "max_num_seqs": 6, "max_num_batched_tokens": 24, "max_model_len": 64}


class Rerun:
    """Captures a step by keeping its function. Counts the replays of each step by its number of rows."""

    def __init__(self) -> None:
        self.runs: dict[int, int] = {}

    def __call__(self, step: Callable[[], torch.Tensor]) -> tuple[torch.Tensor, Callable[[], object]]:
        output = step()
        self.runs[len(output)] = 0

        def replay() -> None:
            self.runs[len(output)] += 1
            output.copy_(step())

        return output, replay


def as_on_a_gpu(tiny: Tiny, capture: Callable[..., Any]) -> Engine:
    """An engine that uses the attention kernels for GPUs and captures its decodes."""
    plain = tiny.engine(**SETTINGS)
    windows = [layer.window for layer in plain.model.layers]
    forward = GraphedForward(EagerForward(plain.model.module, CUDA_KERNELS, windows), capture)
    return Engine(plain.config, dataclasses.replace(plain.model, backend=CUDA_KERNELS, forward=forward))


@pytest.mark.slow
def test_captured_decodes_give_the_tokens_of_torch(tiny: Tiny) -> None:
    prompts = [make_prompt(length) for length in (1, 5, 17, 30, 33, 2)]
    params = [greedy(max_tokens) for max_tokens in (9, 2, 7, 4, 12, 15)]
    wanted = tokens(tiny.engine(**SETTINGS).generate(prompts, params))
    capture = Rerun()
    engine = as_on_a_gpu(tiny, capture)
    assert list(capture.runs) == [6, 4, 2, 1]
    assert tokens(engine.generate(prompts, params)) == wanted
    # There were full batches, padded batches, and a batch with only the last request.
    assert all(capture.runs.values())


def test_a_model_that_cannot_be_captured_is_still_served(tiny: Tiny) -> None:
    def fail(step: Callable[[], torch.Tensor]) -> Any:
        raise RuntimeError("operation not permitted when stream is capturing")

    wanted = tokens(tiny.engine(**SETTINGS).generate([make_prompt(5)], greedy(3)))
    assert tokens(as_on_a_gpu(tiny, fail).generate([make_prompt(5)], greedy(3))) == wanted


def test_graphs_are_captured_for_small_sizes_and_multiples_of_eight() -> None:
    assert sizes(1) == [1]
    assert sizes(5) == [1, 2, 4, 5]
    assert sizes(24) == [1, 2, 4, 8, 16, 24]
    assert sizes(1000)[-3:] == [240, 248, 256]


def test_the_largest_step_has_as_many_tokens_and_sampled_rows_as_allowed(tiny: Tiny) -> None:
    engine = tiny.engine(block_size=16, max_num_seqs=6, max_num_batched_tokens=100)
    plan = memory.largest_plan(engine.config, engine.max_model_len)
    assert (plan.num_tokens, len(plan.sampling)) == (96, 6)
    assert sorted(plan.block_tables.flatten()) == list(range(6))
    assert memory.run_largest_step(engine.model, engine.config) == 6 * 16 * 3 * 2 * 2 * 16 * 4
    assert memory.largest_plan(engine.config, 7).num_tokens == 6 * 7
