"""`submit` refuses a request that cannot be served. The message names the field, the value and the bound."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerFast

from inflight import Engine, InvalidRequest, QueueFull, SamplingParams
from inflight.prompt_content import PromptContent
from inflight.text.chat import Chat
from scripts.reference.tiny_models import SERVED, VOCABULARY, save_model
from tests.engine.models import Tiny, alone, drain, greedy, make_engine, make_prompt
from tests.unit.tiny_tokenizers import byte_fallback

PROMPT = make_prompt(10)


@pytest.fixture(scope="module")
def shared(tiny: Tiny) -> Engine:
    return tiny.engine(kv_cache_tokens=128)


@pytest.fixture
def engine(shared: Engine) -> Iterator[Engine]:
    """An engine that must still work after the test and must have no requests left."""
    expected = alone(shared, PROMPT, greedy(5))
    yield shared
    assert not shared.has_work
    assert shared.stats().blocks_used == 0
    assert alone(shared, PROMPT, greedy(5)) == expected


@pytest.mark.parametrize(
    ("prompt", "says"),
    [
        ([], "prompt is empty; it must have at least 1 token"),
        ([5, VOCABULARY], "prompt holds token 160; it must be at least 0 and below 160"),
        ([5, -1], "prompt holds token -1; it must be at least 0 and below 160"),
        ([5, 2**70], f"prompt holds token {2**70}; it must be at least 0 and below 160"),
        ([5, 1.7], "prompt holds 1.7; a token must be a whole number"),
        (["5"], "prompt holds '5'; a token must be a whole number"),
        (make_prompt(256), "prompt has 256 tokens; it must have at most 255, as the context is 256"),
        ("some text", "a text prompt is given, but the model folder has no tokenizer; give token ids"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_prompt_that_cannot_be_served_is_refused(engine: Engine, prompt: Any, says: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        engine.submit(prompt, greedy(1))
    assert str(refusal.value) == says


def test_a_fraction_alone_is_no_list_of_prompts(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match=r"prompt holds 1\.7"):
        engine.generate([1.7], greedy(1))  # type: ignore[list-item]


def test_tokens_may_be_numbers_of_numpy(engine: Engine) -> None:
    assert alone(engine, np.array(PROMPT), greedy(5)) == alone(engine, PROMPT, greedy(5))


@pytest.mark.parametrize(
    ("params", "says"),
    [
        (
            {"max_tokens": 247},
            "max_tokens is 247; after a prompt of 10 tokens it must be at most 246, as the context is 256",
        ),
        ({"stop": ["x"]}, "stop is given, but the model folder has no tokenizer"),
        ({"stop_token_ids": [160]}, "stop_token_ids holds token 160; it must be at least 0 and below 160"),
    ],
    ids=str,
)
def test_a_parameter_that_does_not_fit_the_model_is_refused(engine: Engine, params: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        engine.submit(PROMPT, SamplingParams(**params))
    assert str(refusal.value) == says


def test_messages_are_refused_without_a_tokenizer(engine: Engine) -> None:
    with pytest.raises(InvalidRequest, match="messages is given, but the model folder has no tokenizer"):
        engine.encoder.encode_chat(Chat([{"role": "user", "content": "Hi"}]))


def test_a_request_that_can_never_fit_the_cache_is_refused_with_the_numbers(engine: Engine) -> None:
    """The last token is never computed, so a cache of 128 tokens serves 129."""
    assert len(alone(engine, PROMPT, greedy(119))) == 119
    with pytest.raises(InvalidRequest) as refusal:
        engine.submit(PROMPT, greedy(120))
    assert "prompt and max_tokens are 10 and 120 tokens" in str(refusal.value)
    assert "129" in str(refusal.value)


def test_the_longest_prompt_and_output_that_fit_the_context_are_served(tiny: Tiny) -> None:
    engine = tiny.engine()
    for length in (1, 200, 255):
        (output,) = engine.generate(make_prompt(length), greedy(256 - length, ignore_eos=True))
        assert len(output.token_ids) == 256 - length


def test_a_request_without_max_tokens_ends_at_the_context(tiny: Tiny) -> None:
    assert len(alone(tiny.engine(), make_prompt(250), SamplingParams(ignore_eos=True))) == 6


def test_max_tokens_of_minus_one_fills_the_context_or_the_cache(tiny: Tiny, engine: Engine) -> None:
    assert len(alone(tiny.engine(), make_prompt(200), greedy(-1, ignore_eos=True))) == 56
    assert len(alone(engine, PROMPT, greedy(-1, ignore_eos=True))) == 119


def test_a_request_id_can_be_used_again_only_after_its_request_has_finished(engine: Engine) -> None:
    engine.submit(PROMPT, greedy(3), request_id="a")
    with pytest.raises(InvalidRequest, match="request_id 'a' belongs to an unfinished request"):
        engine.submit(PROMPT, greedy(3), request_id="a")
    drain(engine)
    engine.submit(PROMPT, greedy(3), request_id="a")
    assert list(drain(engine)) == ["a"]


def test_a_full_queue_refuses_requests_until_there_is_room(tiny: Tiny) -> None:
    engine = tiny.engine(max_queue_size=2)
    for _ in range(2):
        engine.submit(PROMPT, greedy(3))
    with pytest.raises(QueueFull, match="2 requests wait; max_queue_size is 2"):
        engine.submit(PROMPT, greedy(3))
    engine.step()
    engine.submit(PROMPT, greedy(3))
    assert len(drain(engine)) == 3


def test_the_queue_holds_as_many_tokens_as_16_caches_or_as_configured(tiny: Tiny) -> None:
    engine = tiny.engine(kv_cache_tokens=64)
    for _ in range(17):
        engine.submit([5] * 60, greedy(3))
    with pytest.raises(QueueFull, match="requests of 1020 tokens wait, and this one has 5; max_queue_tokens is 1024"):
        engine.submit([5] * 5, greedy(1))
    assert len(drain(engine)) == 17
    engine = tiny.engine(max_queue_tokens=tiny.module.config.max_position_embeddings)
    assert len(engine.generate([[5] * 100] * 16, greedy(3))) == 16


def test_a_queue_that_is_too_small_for_a_prompt_is_refused(tiny: Tiny) -> None:
    with pytest.raises(ValueError, match="max_queue_tokens is 63; it must be at least 64, so that any prompt fits"):
        tiny.engine(kv_cache_tokens=64, max_queue_tokens=63)


def test_a_refusal_does_not_affect_running_requests(engine: Engine) -> None:
    expected = alone(engine, PROMPT, greedy(10))
    engine.submit(PROMPT, greedy(10), request_id="runs")
    engine.step()
    with pytest.raises(InvalidRequest):
        engine.submit([], greedy(3))
    assert drain(engine)["runs"].token_ids == expected


def test_text_that_is_not_valid_unicode_is_refused(texts: Engine) -> None:
    with pytest.raises(InvalidRequest, match="prompt"):
        texts.submit("half a pair: \ud800", greedy(3))


EXTREMES: dict[str, dict[str, Any]] = {
    "temperature over any integer type": {"temperature": 10**30},
    "temperature over any float": {"temperature": 10**400},
    "temperature over float32": {"temperature": 1e300},
    "penalty over any float": {"temperature": 1.0, "repetition_penalty": 10**400},
    "penalty over float32": {"temperature": 1.0, "repetition_penalty": 1e300},
    "penalty under float32": {"temperature": 1.0, "repetition_penalty": 1e-300},
    "top_k over any float": {"top_k": 10**400},
    "smallest min_p": {"temperature": 1.0, "min_p": 5e-324},
}


@pytest.mark.parametrize("name", EXTREMES)
def test_an_extreme_value_is_refused_or_served_and_never_affects_another_request(tiny: Tiny, name: str) -> None:
    extreme = EXTREMES[name]
    engine = tiny.engine()
    expected = alone(engine, PROMPT, greedy(6))
    stops: dict[str, Any] = {"stop_token_ids": [0, 159], "min_tokens": 6}
    try:
        engine.submit(PROMPT, SamplingParams(max_tokens=6, seed=1, **stops, **extreme), request_id="extreme")
    except InvalidRequest as refusal:
        assert next(reversed(extreme)) in str(refusal)  # noqa: PT017
        return
    engine.submit(PROMPT, greedy(6), request_id="neighbour")
    finished = drain(engine)
    assert finished["neighbour"].token_ids == expected
    assert finished["extreme"].finish_reason == "length"
    assert not set(finished["extreme"].token_ids) & {0, 159}


def test_a_text_with_tokens_outside_the_models_vocabulary_is_refused(tmp_path: Path) -> None:
    """Some tokenizers have added tokens for which the model has no weights."""
    save_model(SERVED["llama"].config, tmp_path)
    PreTrainedTokenizerFast(tokenizer_object=byte_fallback()).save_pretrained(tmp_path)
    engine = make_engine(tmp_path)
    assert len(engine.generate("!!", greedy(3))[0].prompt_ids) == 2
    with pytest.raises(InvalidRequest, match=r"prompt holds token \d+; it must be at least 0 and below 160"):
        engine.submit("the end: <end>", greedy(3))


@pytest.mark.parametrize("room", [{"kv_cache_tokens": 64}, {"max_model_len": 64}])
@pytest.mark.parametrize("max_tokens", [None, -1, 0, 1, 20, 64])
def test_as_many_tokens_are_kept_as_are_taken(tiny: Tiny, room: dict[str, int], max_tokens: int | None) -> None:
    engine = tiny.engine(**room)
    params = SamplingParams(max_tokens=max_tokens, prompt_logprobs=0 if max_tokens == 0 else None)
    kept = engine.maker.prompts.truncated(make_prompt(100), -1, max_tokens)
    assert kept == make_prompt(100)[-len(kept) :]
    if max_tokens == 64 and "max_model_len" in room:  # There is no room for a prompt.
        with pytest.raises(InvalidRequest):
            engine.maker.request(PromptContent(kept), params, "whole")
        return
    expected = {None: 16, -1: 1}.get(max_tokens, max_tokens)
    assert engine.maker.request(PromptContent(kept), params, "whole").max_tokens == expected
    if max_tokens is None:  # Then the answer may be shorter.
        return
    with pytest.raises(InvalidRequest):
        engine.maker.request(PromptContent(make_prompt(len(kept) + 1)), params, "longer")
