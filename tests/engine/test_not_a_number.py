"""Keys and values that are not numbers stay with the request that made them: nobody else reads its blocks."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from inflight import Engine, SamplingParams
from scripts.reference.tiny_models import SERVED, save_model
from tests.engine.models import Tiny, alone, drain, greedy, make_engine, make_prompt

# Of lengths that leave blocks half full, and so different that rows of a batch are padded.
PROMPTS = {name: make_prompt(length, seed=length) for name, length in {"a": 3, "b": 13, "c": 22, "d": 37}.items()}


def submit_all(engine: Engine) -> None:
    for name, prompt in PROMPTS.items():
        engine.submit(prompt, greedy(20), request_id=name)


@pytest.mark.parametrize("budget", [3, 64])
@pytest.mark.parametrize("kind", ["llama", "gemma2", "gpt_oss"])
def test_what_free_blocks_hold_does_not_matter(kind: str, budget: int, tmp_path: Path) -> None:
    """With and without a window, softcap and sinks; in chunks of which some have one token, and at once."""
    save_model(SERVED[kind].config, tmp_path)
    expected = {name: alone(make_engine(tmp_path), prompt, greedy(20)) for name, prompt in PROMPTS.items()}
    engine = make_engine(tmp_path, max_num_batched_tokens=budget, max_num_seqs=3)
    for cache in engine._runner._caches:
        cache.keys.fill_(math.nan)
        cache.values.fill_(math.nan)
    submit_all(engine)
    assert {name: output.token_ids for name, output in drain(engine).items()} == expected


@contextmanager
def spoiled(engine: Engine) -> Iterator[None]:
    """Meanwhile, the last layer makes keys and values that are not numbers."""
    attention = engine.model.module.model.layers[-1].self_attn
    handles = [
        projection.register_forward_hook(lambda _module, _inputs, output: torch.full_like(output, math.nan))
        for projection in (attention.k_proj, attention.v_proj)
    ]
    yield
    for handle in handles:
        handle.remove()


def test_blocks_of_a_request_that_went_wrong_serve_the_next_ones(tiny: Tiny) -> None:
    expected = {name: alone(tiny.engine(), prompt, greedy(20)) for name, prompt in PROMPTS.items()}
    engine = tiny.engine(enable_prefix_caching=False, kv_cache_tokens=192)
    with spoiled(engine):
        engine.submit(make_prompt(182), greedy(1), request_id="bad")  # It fills the cache.
        assert drain(engine)["bad"].finish_reason == "error"
    submit_all(engine)
    assert {name: output.token_ids for name, output in drain(engine).items()} == expected


def test_a_request_whose_logits_are_no_numbers_ends_with_an_error_and_the_others_go_on(tiny: Tiny) -> None:
    engine = tiny.engine()
    expected = alone(engine, PROMPTS["a"], greedy(8))
    engine.submit(PROMPTS["a"], greedy(8), request_id="good")
    engine.step()
    with spoiled_rows(engine):
        engine.submit(make_prompt(9), greedy(8))
        engine.submit(make_prompt(12), SamplingParams(max_tokens=8, temperature=1.0, top_k=5))
        engine.step()
    finished = drain(engine)
    assert finished.keys() == {"good"}
    assert finished["good"].token_ids == expected
    assert engine.stats().finished["error"] == 2
    assert engine.stats().blocks_used == 0
    # Nobody shares what it left.
    assert alone(engine, make_prompt(9), greedy(8)) == alone(tiny.engine(), make_prompt(9), greedy(8))


@contextmanager
def spoiled_rows(engine: Engine) -> Iterator[None]:
    """Meanwhile, the logits of all rows but the first are not numbers."""

    def spoil(_module: object, _inputs: object, output: torch.Tensor) -> torch.Tensor:
        output[..., 1:, :] = math.nan
        return output

    handle = engine.model.module.lm_head.register_forward_hook(spoil)
    yield
    handle.remove()
