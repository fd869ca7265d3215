"""Output lengths are predicted from the hidden states that transformers' base model has at the end of prompts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from inflight.request import Request
from load_tests.simulate.scripted_request import GREEDY, ScriptedRequest
from tests.engine.models import Tiny, greedy, make_prompt, tokens

PROMPTS = [make_prompt(length, seed=length) for length in (1, 2, 30, 71, 8, 17)]


def reference(module: Any, prompt: Sequence[int]) -> NDArray[np.float32]:
    with torch.inference_mode():
        state: torch.Tensor = module.base_model(torch.tensor([prompt])).last_hidden_state[0, -1]
    return state.numpy()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"max_num_batched_tokens": 16, "kv_cache_tokens": 96},
        {"speculative_config": {"method": "ngram", "prompt_lookup_min": 1}, "max_num_batched_tokens": 40},
    ],
)
def test_each_prompt_ends_with_its_own_state(
    tiny: Tiny, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = tokens(tiny.engine(**settings).generate(PROMPTS, greedy(12, ignore_eos=True)))
    engine = tiny.engine(length_predictor="hidden_state", **settings)
    lengths = engine.core._scheduler.lengths
    seen: dict[tuple[int, ...], NDArray[np.float32]] = {}
    original = lengths.prompt_computed

    def note(request: Request, state: NDArray[np.float32]) -> None:
        assert tuple(request.prompt_ids) not in seen, "only the first token brings the state"
        seen[tuple(request.prompt_ids)] = state
        original(request, state)

    monkeypatch.setattr(lengths, "prompt_computed", note)
    assert tokens(engine.generate(PROMPTS, greedy(12, ignore_eos=True))) == plain
    assert len(seen) == len(PROMPTS)
    for prompt in PROMPTS:
        assert np.abs(seen[tuple(prompt)] - reference(tiny.module, prompt)).max() < 1e-5


def test_lengths_that_the_prompt_tells_are_learnt(tiny: Tiny) -> None:
    """Prompts of one kind end with the same three tokens, and get answers of about the same length."""
    engine = tiny.engine(
        length_predictor="hidden_state", scheduling_policy="sjf", kv_cache_tokens=2048, max_queue_size=1000
    )
    for number in range(480):
        kind = number % 3
        prompt = [*make_prompt(6, seed=number), *[20 + 7 * kind] * 3]
        engine.core.submit(ends_after(4 + 8 * kind + number % 2, str(number), prompt))
        if number % 16 == 15:
            while engine.has_work:
                engine.step()
    found = engine.stats().length_correlations
    assert found["prompt"] > 0.5 > found["tenant"]


def ends_after(length: int, request_id: str, prompt: list[int]) -> ScriptedRequest:
    """A request whose `max_tokens` tells nothing of its length."""
    return ScriptedRequest(
        request_id=request_id, prompt_ids=prompt, params=GREEDY, max_tokens=60, seed=0, ends_at=len(prompt) + length
    )
