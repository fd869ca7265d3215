"""Embeddings are the pooled hidden states of transformers' base model."""

import dataclasses
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inflight import Engine, InvalidRequest, PoolingParams, RequestOptions
from tests.engine.models import Tiny, drain, greedy, make_prompt, tokens

PROMPTS = [make_prompt(length, seed=length) for length in (1, 2, 30, 71, 8, 17)]


def reference(module: Any, prompt: Sequence[int], pooling: str) -> NDArray[np.float32]:
    with torch.inference_mode():
        states = module.base_model(torch.tensor([prompt])).last_hidden_state[0]
    pooled: torch.Tensor = states[-1] if pooling == "last" else states.mean(dim=0)
    return pooled.numpy()


def normalised(vector: NDArray[np.float32]) -> NDArray[np.float32]:
    unit: NDArray[np.float32] = vector / np.linalg.norm(vector)
    return unit


@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 16, "kv_cache_tokens": 96, "swap_space_tokens": 48, "preemption_mode": "auto"},
        {"enable_chunked_prefill": False, "batching_strategy": "bucketed"},
    ],
)
def test_embeddings_are_those_of_transformers(tiny: Tiny, settings: dict[str, Any], pooling: str) -> None:
    engine = tiny.engine(**settings)
    found = engine.embed(PROMPTS * 2, pooling=pooling)
    assert (found.shape, found.dtype) == ((12, 64), np.float32)
    for prompt, embedding in zip(PROMPTS * 2, found, strict=True):
        assert np.abs(embedding - normalised(reference(tiny.module, prompt, pooling))).max() < 1e-5
    assert engine.stats().blocks_used == 0
    assert engine.stats().generated_tokens == 0


def test_they_share_steps_with_requests_that_generate(tiny: Tiny) -> None:
    params = greedy(30, ignore_eos=True)
    alone = tokens(tiny.engine().generate(PROMPTS[2:4], params))
    engine = tiny.engine(kv_cache_tokens=144, max_num_batched_tokens=24)
    for number, prompt in enumerate(PROMPTS[2:4]):
        engine.submit(prompt, params, request_id=f"text {number}")
        engine.submit_embedding(prompt, PoolingParams(pooling="mean"), request_id=f"mean {number}")
        engine.submit_embedding(PROMPTS[5], request_id=f"last {number}")
    outputs = drain(engine)
    assert engine.stats().preemptions > 0
    for number, prompt in enumerate(PROMPTS[2:4]):
        assert outputs[f"text {number}"].token_ids == alone[number]
        for name, read, pooling in ((f"mean {number}", prompt, "mean"), (f"last {number}", PROMPTS[5], "last")):
            embedding = outputs[name].embedding
            assert embedding is not None
            assert np.abs(embedding - normalised(reference(tiny.module, read, pooling))).max() < 1e-5
            assert (outputs[name].finish_reason, outputs[name].token_ids) == ("stop", [])


def test_the_last_state_reuses_the_prefix_cache_and_the_mean_does_not(tiny: Tiny) -> None:
    engine = tiny.engine()
    engine.generate(PROMPTS[3], greedy(1))
    for pooling, cached in (("last", 64), ("mean", 0)):
        name = engine.submit_embedding(PROMPTS[3], PoolingParams(pooling=pooling))
        output = drain(engine)[name]
        assert output.num_cached_tokens == cached
        assert output.embedding is not None
        assert np.abs(output.embedding - normalised(reference(tiny.module, PROMPTS[3], pooling))).max() < 1e-5


def test_dimensions_and_length(tiny: Tiny) -> None:
    engine, state = tiny.engine(), reference(tiny.module, PROMPTS[2], "last")
    assert np.abs(engine.embed(PROMPTS[2], normalize=False)[0] - state).max() < 1e-5
    assert np.abs(engine.embed(PROMPTS[2], normalize=False, dimensions=5)[0] - state[:5]).max() < 1e-5
    assert np.abs(engine.embed([PROMPTS[2]], dimensions=5)[0] - normalised(state[:5])).max() < 1e-5
    assert engine.embed([], dimensions=5).shape == (0, 5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pooling": "max"}, "pooling is 'max'; it must be last or mean"),
        ({"normalize": 1}, "normalize is 1; it must be true or false"),
        ({"dimensions": 0}, "dimensions is 0; it must be at least 1"),
        ({"dimensions": 2.5}, "dimensions is 2.5; it must be a whole number"),
        ({"dimensions": 65}, "dimensions is 65; it must be at most 64, the model's width"),
    ],
)
def test_what_is_no_pooling_is_refused(tiny: Tiny, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        tiny.engine().embed(PROMPTS[2], **arguments)


def test_the_whole_context_and_the_whole_cache_can_be_embedded(tiny: Tiny) -> None:
    engine = tiny.engine(kv_cache_tokens=64, max_model_len=64)
    assert engine.embed(make_prompt(64)).shape == (1, 64)
    with pytest.raises(InvalidRequest, match="prompt has 65 tokens; it must have at most 64, as the context is 64"):
        engine.embed(make_prompt(65))


def test_cancelled_and_late_ones_leave(tiny: Tiny) -> None:
    engine = tiny.engine(max_num_batched_tokens=8)
    engine.submit_embedding(PROMPTS[3], PoolingParams(pooling="mean"), request_id="cancelled")
    engine.step()
    engine.cancel("cancelled")
    engine.submit_embedding(PROMPTS[3], options=RequestOptions(deadline_ms=1), request_id="late")
    outputs = drain(engine)
    assert outputs["cancelled"].finish_reason == "cancelled"
    assert outputs["late"].finish_reason in ("deadline", "expired")
    assert [output.embedding for output in outputs.values()] == [None, None]
    assert engine.stats().blocks_used == 0


def test_limits_count_from_the_arrival(tiny: Tiny) -> None:
    """A request may have waited for its grammar, its images or its adapter before it was submitted."""
    engine = tiny.engine()
    arrival = time.monotonic() - 100
    options = RequestOptions(deadline_ms=99_000, arrival=arrival)
    engine.submit_embedding(PROMPTS[0], options=options, request_id="late")
    engine.submit(PROMPTS[0], greedy(3), options, request_id="late text")
    engine.submit(PROMPTS[0], greedy(3), RequestOptions(deadline_ms=10**6, arrival=arrival), request_id="in time")
    outputs = drain(engine)
    assert [outputs[name].finish_reason for name in ("late", "late text", "in time")] == [
        "expired",
        "expired",
        "length",
    ]


def test_states_of_nan_end_with_an_error_and_hurt_nobody(tiny: Tiny) -> None:
    engine = tiny.engine()
    wanted = engine.generate(PROMPTS[2], greedy(5))[0].token_ids

    def spoil(_: object, __: object, states: torch.Tensor) -> torch.Tensor:
        return states.index_fill(1, torch.tensor([0]), torch.nan)

    engine.submit_embedding(PROMPTS[3], PoolingParams(pooling="mean"), request_id="mean")
    engine.submit(PROMPTS[2], greedy(5), request_id="text")
    # The first row of the first step is a token of the first prompt.
    handle = engine.model.module.model.norm.register_forward_hook(spoil)
    changed = {output.request_id: output for output in engine.step()}
    handle.remove()
    assert changed["mean"].finish_reason == "error"
    assert drain(engine)["text"].token_ids == wanted


def test_a_model_whose_head_sees_more_than_the_hidden_states_serves_text_alone(tiny: Tiny) -> None:
    plain = tiny.engine()
    engine = Engine(plain.config, dataclasses.replace(plain.model, hidden_width=None))
    assert engine.generate(PROMPTS[2], greedy(5))[0].token_ids == plain.generate(PROMPTS[2], greedy(5))[0].token_ids
    with pytest.raises(InvalidRequest, match="an embedding is asked for, but the head of LlamaForCausalLM"):
        engine.embed(PROMPTS[2])
    with pytest.raises(InvalidRequest, match="prompt_logprobs is asked for, but the head of LlamaForCausalLM"):
        engine.generate(PROMPTS[2], greedy(1, prompt_logprobs=0))
