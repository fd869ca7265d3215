"""NaN in the keys and values of one request never reaches another request."""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from inflight import Engine, EngineConfig, SamplingParams
from inflight.model.attention.backend import TORCH
from inflight.model.cache.kv_tensors import LayerCache
from inflight.model.forward import EagerForward, Outputs
from inflight.model.loading.loader import load_model
from inflight.model.loading.reading import with_our_attention
from inflight.model.loading.self_check import LONGEST, SelfCheck
from inflight.model.ragged_batch import RaggedBatch
from scripts.reference.tiny_models import SERVED, save_model
from tests.engine.models import Tiny, alone, drain, greedy, make_engine, make_prompt

# These lengths leave blocks partly filled, and they differ so much that the rows of a batch are padded.
PROMPTS = {name: make_prompt(length, seed=length) for name, length in {"a": 3, "b": 13, "c": 22, "d": 37}.items()}


def submit_all(engine: Engine) -> None:
    for name, prompt in PROMPTS.items():
        engine.submit(prompt, greedy(20), request_id=name)


@pytest.mark.parametrize("budget", [3, 64])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
def test_nan_in_free_blocks_changes_no_output(kind: str, budget: int, tmp_path: Path) -> None:
    """The models have windows, softcap, sinks or none of them. Prompts are computed in small chunks, and whole."""
    save_model(SERVED[kind].config, tmp_path)
    expected = {name: alone(make_engine(tmp_path), prompt, greedy(20)) for name, prompt in PROMPTS.items()}
    engine = make_engine(tmp_path, max_num_batched_tokens=budget, max_num_seqs=3)
    for cache in engine._runner._caches:
        cache.keys.fill_(math.nan)
        cache.values.fill_(math.nan)
    submit_all(engine)
    assert {name: output.token_ids for name, output in drain(engine).items()} == expected


@contextmanager
def nan_keys_and_values(engine: Engine) -> Iterator[None]:
    """Within this context, the keys and values of the last layer are NaN."""
    attention = engine.model.module.model.layers[-1].self_attn
    handles = [
        projection.register_forward_hook(lambda _module, _inputs, output: torch.full_like(output, math.nan))
        for projection in (attention.k_proj, attention.v_proj)
    ]
    yield
    for handle in handles:
        handle.remove()


def test_the_blocks_of_a_request_with_nan_serve_later_requests(tiny: Tiny) -> None:
    expected = {name: alone(tiny.engine(), prompt, greedy(20)) for name, prompt in PROMPTS.items()}
    engine = tiny.engine(enable_prefix_caching=False, kv_cache_tokens=192)
    with nan_keys_and_values(engine):
        engine.submit(make_prompt(182), greedy(1), request_id="bad")  # This request fills the cache.
        assert drain(engine)["bad"].finish_reason == "error"
    submit_all(engine)
    assert {name: output.token_ids for name, output in drain(engine).items()} == expected


def test_a_request_with_nan_in_its_logits_ends_with_an_error_and_the_others_go_on(tiny: Tiny) -> None:
    engine = tiny.engine()
    expected = alone(engine, PROMPTS["a"], greedy(8))
    engine.submit(PROMPTS["a"], greedy(8), request_id="good")
    engine.step()
    with nan_logits(engine):
        engine.submit(make_prompt(9), greedy(8))
        engine.submit(make_prompt(12), SamplingParams(max_tokens=8, temperature=1.0, top_k=5))
        engine.step()
    finished = drain(engine)
    assert finished.keys() == {"good"}
    assert finished["good"].token_ids == expected
    assert engine.stats().finished["error"] == 2
    assert engine.stats().blocks_used == 0
    # The prefix cache does not have the blocks of the failed request.
    assert alone(engine, make_prompt(9), greedy(8)) == alone(tiny.engine(), make_prompt(9), greedy(8))


@contextmanager
def nan_logits(engine: Engine) -> Iterator[None]:
    """Within this context, the logits of all rows but the first are NaN."""

    def put_nan(_module: object, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        output[..., 1:, :] = math.nan
        return output

    handle = engine.model.module.lm_head.register_forward_hook(put_nan)
    yield
    handle.remove()


def test_the_self_check_sees_nan_in_its_second_prompt_alone(tiny: Tiny) -> None:
    model = load_model(EngineConfig(model=str(tiny.folder), dtype="float32", device="cpu"))
    readings, _ = with_our_attention(model.module, model.module.config, LONGEST)
    check = SelfCheck(model.module, readings, model.max_model_len)

    @dataclass(frozen=True)
    class Poisoned(EagerForward):
        def __call__(self, batch: RaggedBatch, caches: Sequence[LayerCache], rows: torch.Tensor) -> Outputs:
            outputs = super().__call__(batch, caches, rows)
            for first, end, length in zip(batch.query_starts, batch.query_starts[1:], batch.context_lens, strict=False):
                if length < 20:  # The second prompt has 20 tokens, and the first 20 of the other one come in one step.
                    outputs.logits[first:end] = math.nan
            return outputs

    windows = [layer.window for layer in model.layers]
    assert check.passes(EagerForward(model.module, TORCH, windows), model.layers, TORCH)
    assert not check.passes(Poisoned(model.module, TORCH, windows), model.layers, TORCH)
