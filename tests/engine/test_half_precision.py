"""In half precision, outputs are finite and plausible, though not bit for bit those of float32."""

import math

import pytest

from inflight import Engine, SamplingParams
from scripts.launch.default_model import default_model
from tests.engine.models import Tiny, drain, greedy, make_engine, make_prompt


@pytest.fixture(scope="module")
def bfloat16() -> Engine:
    """The default model in bfloat16, the dtype of its checkpoint."""
    return make_engine(default_model(), dtype="auto", kv_cache_tokens=2048)


def test_dtype_auto_uses_the_dtype_of_the_checkpoint(bfloat16: Engine) -> None:
    assert str(bfloat16.model.dtype) == "torch.bfloat16"


def test_a_likely_answer_survives_rounding(bfloat16: Engine) -> None:
    # The prompt is not a question, because an answer to a question could begin in several equally likely ways.
    (output,) = bfloat16.generate("The capital of France is", greedy(5, logprobs=2))
    assert output.logprobs is not None
    first, second = output.logprobs[0].top.values()
    assert first - second > 1
    assert output.text.startswith(" Paris")


def test_requests_in_ragged_batches_finish_with_finite_logprobs(bfloat16: Engine) -> None:
    prompts = ["Hi", "The three primary colours are " * 6, "1, 2, 3, 4,", "Once upon a time"]
    params = [greedy(8, logprobs=5), SamplingParams(max_tokens=8, temperature=1.0, top_p=0.9, seed=1, logprobs=5)] * 2
    for output in bfloat16.generate(prompts, params):
        assert output.finish_reason in ("length", "stop")
        assert output.logprobs
        for entry in output.logprobs:
            assert all(math.isfinite(value) and value <= 0 for value in [entry.chosen, *entry.top.values()])


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_preempted_and_chunked_requests_finish_with_finite_logprobs(tiny: Tiny, dtype: str) -> None:
    engine = tiny.engine(dtype=dtype, kv_cache_tokens=96, max_num_batched_tokens=16)
    for seed in range(5):
        engine.submit(make_prompt(30 + seed, seed=seed), greedy(40, logprobs=1, ignore_eos=True), request_id=str(seed))
    finished = drain(engine)
    assert {len(output.token_ids) for output in finished.values()} == {40}
    assert all(math.isfinite(entry.chosen) for output in finished.values() for entry in output.logprobs or ())
    assert engine.stats().preemptions > 0
