"""Reduced precision: outputs are finite and make sense, though not bit for bit those of float32."""

import math

import pytest

from inflight import Engine, SamplingParams
from scripts.launch.default_model import default_model
from tests.engine.models import Tiny, drain, greedy, make_engine, make_prompt


@pytest.fixture(scope="module")
def bfloat16() -> Engine:
    """What the default model's checkpoint is stored in."""
    return make_engine(default_model(), dtype="auto", kv_cache_tokens=2048)


def test_the_checkpoints_own_type_is_the_default(bfloat16: Engine) -> None:
    assert str(bfloat16.model.dtype) == "torch.bfloat16"


def test_well_known_facts_survive_rounding(bfloat16: Engine) -> None:
    # Not a question, to which the model has several ways to begin an answer that are about as likely.
    (output,) = bfloat16.generate("The capital of France is", greedy(5, logprobs=2))
    assert output.logprobs is not None
    first, second = output.logprobs[0].top.values()
    assert first - second > 1
    assert output.text.startswith(" Paris")


def test_ragged_batches_give_finite_logprobs_and_end(bfloat16: Engine) -> None:
    prompts = ["Hi", "The three primary colours are " * 6, "1, 2, 3, 4,", "Once upon a time"]
    params = [greedy(8, logprobs=5), SamplingParams(max_tokens=8, temperature=1.0, top_p=0.9, seed=1, logprobs=5)] * 2
    for output in bfloat16.generate(prompts, params):
        assert output.finish_reason in ("length", "stop")
        assert output.logprobs
        for entry in output.logprobs:
            assert all(math.isfinite(value) and value <= 0 for value in [entry.chosen, *entry.top.values()])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_preempted_and_chunked_requests_end_with_finite_logprobs(tiny: Tiny, dtype: str) -> None:
    engine = tiny.engine(dtype=dtype, kv_cache_tokens=96, max_num_batched_tokens=16)
    for seed in range(5):
        engine.submit(make_prompt(30 + seed, seed=seed), greedy(40, logprobs=1, ignore_eos=True), request_id=str(seed))
    finished = drain(engine)
    assert {len(output.token_ids) for output in finished.values()} == {40}
    assert all(math.isfinite(entry.chosen) for output in finished.values() for entry in output.logprobs or ())
    assert engine.stats().preemptions > 0
