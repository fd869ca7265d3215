"""The engine's forward pass for GPUs, tested without a GPU.

The attention kernels run in an interpreter, and a captured step runs again operator by operator.
"""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from inflight import Engine, EngineConfig, ImagePrompt
from inflight.model.attention.backend import CUDA_KERNELS
from inflight.model.cache import memory
from inflight.model.cuda.graphed_forward import GraphedForward, Graphs, sizes
from inflight.model.forward import EagerForward
from inflight.model.routed_forward import RoutedForward, has_images
from scripts.reference.tiny_image_models import save_image_model
from tests.engine.models import Tiny, greedy, make_prompt, tokens
from tests.images import picture

SETTINGS: dict[str, Any] = {"block_size": 16, "max_num_seqs": 6, "max_num_batched_tokens": 24, "max_model_len": 64}


class Rerun:
    """Captures a step by keeping its function. Counts the replays of each step in the order of capture."""

    peak = 100_000

    def __init__(self) -> None:
        self.runs: list[int] = []

    def capture(self, step: Callable[[], object]) -> Callable[[], object]:
        step()
        number = len(self.runs)
        self.runs.append(0)

        def replay() -> None:
            self.runs[number] += 1
            step()

        return replay

    def peak_bytes(self, step: Callable[[], object]) -> int:
        step()
        return self.peak


class FullAfter(Rerun):
    """Captures some steps, then runs out of memory."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self._steps = steps

    def capture(self, step: Callable[[], object]) -> Callable[[], object]:
        if len(self.runs) == self._steps:
            raise torch.OutOfMemoryError("tried to allocate 2.00 MiB")
        return super().capture(step)


def as_on_a_gpu(tiny: Tiny, graphs: Graphs, **others: Any) -> Engine:
    """An engine that uses the attention kernels for GPUs and captures its decodes."""
    plain = tiny.engine(**{**SETTINGS, **others})
    windows = [layer.window for layer in plain.model.layers]
    forward = GraphedForward(EagerForward(plain.model.module, CUDA_KERNELS, windows), graphs)
    return Engine(plain.config, dataclasses.replace(plain.model, backend=CUDA_KERNELS, forward=forward))


@pytest.mark.slow
def test_captured_decodes_give_the_tokens_of_torch(tiny: Tiny) -> None:
    prompts = [make_prompt(length) for length in (1, 5, 17, 30, 33, 2)]
    params = [greedy(max_tokens) for max_tokens in (9, 2, 7, 4, 12, 15)]
    wanted = tokens(tiny.engine(**SETTINGS).generate(prompts, params))
    graphs = Rerun()
    engine = as_on_a_gpu(tiny, graphs)
    assert len(graphs.runs) == len(sizes(6)) == 4
    assert tokens(engine.generate(prompts, params)) == wanted
    # There were full batches, padded batches, and a batch with only the last request.
    assert all(graphs.runs)


def test_captured_steps_give_hidden_states(tiny: Tiny) -> None:
    """A prompt whose last token is computed by itself is embedded by a captured step."""
    prompts = [make_prompt(1), make_prompt(1, seed=1), make_prompt(3)]
    settings = {"max_num_seqs": 3, "max_num_batched_tokens": 4, "long_prefill_token_threshold": 2}
    graphs = Rerun()
    found = as_on_a_gpu(tiny, graphs, **settings).embed(prompts)
    assert sum(graphs.runs) == 1
    assert np.abs(found - tiny.engine(**{**SETTINGS, **settings}).embed(prompts)).max() < 1e-5


def test_captured_decodes_after_an_image_with_positions_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such an image has more tokens than positions. The tokens after it still attend to all before them."""
    _, processor = save_image_model("qwen2_5_vl", tmp_path)
    # transformers loads it with a processor of videos, for which torchvision is needed.
    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", lambda *_, **__: processor)
    settings = {**SETTINGS, "max_num_seqs": 2, "max_num_batched_tokens": 64, "max_model_len": 256}
    plain = Engine(EngineConfig(model=str(tmp_path), dtype="float32", kv_cache_tokens=1024, **settings))
    prompts: list[Any] = [ImagePrompt(f"{processor.image_token} What is this?", [picture(1, 100, 100)]), [5, 6, 7]]
    wanted = tokens(plain.generate(prompts, greedy(5)))
    eager = EagerForward(plain.model.module, CUDA_KERNELS, [layer.window for layer in plain.model.layers])
    forward = RoutedForward(GraphedForward(eager, Rerun()), eager, has_images)
    engine = Engine(plain.config, dataclasses.replace(plain.model, backend=CUDA_KERNELS, forward=forward))
    assert tokens(engine.generate(prompts, greedy(5))) == wanted


def test_engines_that_share_a_model_do_not_share_the_graphs_of_one(tiny: Tiny) -> None:
    prompts, params = [make_prompt(5), make_prompt(7)], [greedy(3), greedy(5)]
    wanted = tokens(tiny.engine(**SETTINGS).generate(prompts, params))
    graphs = Rerun()
    first = as_on_a_gpu(tiny, graphs)
    second = Engine(first.config, first.model)
    assert tokens(first.generate(prompts, params)) == wanted
    assert not any(graphs.runs)
    assert tokens(second.generate(prompts, params)) == wanted
    assert any(graphs.runs)


@pytest.mark.parametrize("captured", [0, 2])
def test_a_model_whose_capture_fails_is_still_served(
    tiny: Tiny, captured: int, caplog: pytest.LogCaptureFixture
) -> None:
    prompts, params = [make_prompt(5), make_prompt(7)], [greedy(3), greedy(5)]
    wanted = tokens(tiny.engine(**SETTINGS).generate(prompts, params))
    graphs = FullAfter(captured)
    engine = as_on_a_gpu(tiny, graphs)
    assert f"only {captured} of 4 sizes of decodes of LlamaForCausalLM could be captured" in caplog.text
    assert tokens(engine.generate(prompts, params)) == wanted
    # The smallest graph, of four rows, ran the decodes of two requests and of one.
    assert graphs.runs == [0, 4][:captured]


def test_the_cache_leaves_room_for_the_graphs(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "free_memory", lambda: 1 << 20)
    unlimited: dict[str, Any] = {"kv_cache_tokens": None, "kv_cache_memory_fraction": 0.25}
    blocks = tiny.engine(**{**SETTINGS, **unlimited}).stats().blocks_total
    engine = as_on_a_gpu(tiny, Rerun(), **unlimited)
    # Six rows have a token id, a position, a place, a slot, the ids of 4 blocks, 160 logits and 64 numbers of a hidden
    # state.
    for_graphs = 6 * ((4 + 4) * 8 + (160 + 64) * 4) + Rerun.peak
    bytes_per_block = 16 * 3 * 2 * 2 * 16 * 4
    assert blocks == (1 << 20) // 4 // bytes_per_block
    assert engine.stats().blocks_total == ((1 << 20) - for_graphs) // 4 // bytes_per_block < blocks


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
    assert memory.largest_step(engine.model, engine.config)() is not None
    assert memory.largest_plan(engine.config, 7).num_tokens == 6 * 7
