"""Log-probabilities equal those of transformers' logits, before penalties and temperature."""

import pytest
import torch

from inflight import Engine, RequestOutput, SamplingParams
from tests.engine.models import Tiny, greedy, make_prompt, tokens

PROMPTS = [make_prompt(length, seed=length) for length in (3, 30, 11)]


@pytest.fixture(scope="module")
def engine(tiny: Tiny) -> Engine:
    return tiny.engine()


def theirs(tiny: Tiny, output: RequestOutput) -> torch.Tensor:
    """Log-probabilities [output tokens, vocabulary] from transformers."""
    ids = torch.tensor([output.prompt_ids + output.token_ids])
    with torch.inference_mode():
        logits = tiny.module(ids).logits[0]
    return logits[len(output.prompt_ids) - 1 : -1].log_softmax(dim=-1)


def assert_right(tiny: Tiny, output: RequestOutput, count: int) -> None:
    assert output.logprobs is not None
    assert len(output.logprobs) == len(output.token_ids)
    for entry, token, row in zip(output.logprobs, output.token_ids, theirs(tiny, output), strict=True):
        assert entry.chosen == pytest.approx(row[token].item(), abs=1e-4)
        assert entry.rank == 1 + int((row > row[token]).sum())
        values, likeliest = row.topk(count)
        assert list(entry.top) == likeliest.tolist()
        assert list(entry.top.values()) == pytest.approx(values.tolist(), abs=1e-4)


def test_greedy_tokens_rank_first(tiny: Tiny, engine: Engine) -> None:
    for output in engine.generate(PROMPTS, greedy(12, logprobs=5)):
        assert_right(tiny, output, 5)
        assert {entry.rank for entry in output.logprobs or ()} == {1}


def test_penalties_temperature_and_limits_do_not_change_logprobs(tiny: Tiny, engine: Engine) -> None:
    params = SamplingParams(
        max_tokens=20,
        temperature=2.0,
        top_k=50,
        top_p=0.9,
        seed=5,
        repetition_penalty=1.5,
        presence_penalty=1.0,
        min_tokens=5,
        logprobs=3,
    )
    outputs = engine.generate(PROMPTS, params)
    for output in outputs:
        assert_right(tiny, output, 3)
    assert max(entry.rank for output in outputs for entry in output.logprobs or ()) > 3


def test_logprobs_zero_reports_only_the_chosen_token(tiny: Tiny, engine: Engine) -> None:
    (output,) = engine.generate(PROMPTS[0], greedy(6, logprobs=0))
    assert_right(tiny, output, 0)


def test_only_requests_that_ask_for_logprobs_get_them(tiny: Tiny, engine: Engine) -> None:
    outputs = engine.generate(PROMPTS, [greedy(8), greedy(8, logprobs=20), greedy(8, logprobs=1)])
    assert outputs[0].logprobs is None
    assert_right(tiny, outputs[1], 20)
    assert_right(tiny, outputs[2], 1)


def test_asking_for_logprobs_changes_no_token(engine: Engine) -> None:
    for params in ({"temperature": 0}, {"temperature": 1.0, "seed": 3}):
        plain = engine.generate(PROMPTS, SamplingParams(max_tokens=12, **params))
        asking = engine.generate(PROMPTS, SamplingParams(max_tokens=12, logprobs=4, **params))
        assert tokens(asking) == tokens(plain)


def test_preemption_neither_loses_nor_repeats_logprobs(tiny: Tiny) -> None:
    engine = tiny.engine(kv_cache_tokens=72)
    for output in engine.generate(PROMPTS, greedy(30, logprobs=2)):
        assert_right(tiny, output, 2)
    assert engine.stats().preemptions > 0
