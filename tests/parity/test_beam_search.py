"""Beams are those of transformers' `generate` with `num_beams`, whatever the chunks, blocks and neighbours."""

import random
from pathlib import Path
from typing import Any

import pytest
import torch

from inflight import Engine, EngineConfig, SamplingParams
from scripts.reference.tiny_models import MODELS, VOCABULARY, greedy, save_model
from tests.of_each_kind import a_few_of

MAX_TOKENS = 12
# transformers cannot give the beams of these models each other's caches. It refuses RWKV, and mixes up MiniMax.
NOT_REORDERED = ("minimax", "rwkv")
SEARCHES: list[dict[str, Any]] = [
    {"beam_width": 2},
    {"beam_width": 3, "length_penalty": 0.0, "early_stopping": True},
    {"beam_width": 4, "length_penalty": 2.0, "early_stopping": "never"},
    {"beam_width": 4, "length_penalty": -0.5, "min_tokens": 5},
]


def beams(model: Any, prompt: list[int], eos: int, search: dict[str, Any]) -> list[list[int]]:
    """The outputs of transformers, best first."""
    ids, width = torch.tensor([prompt]), search["beam_width"]
    others = {name: value for name, value in search.items() if name not in ("beam_width", "min_tokens")}
    rows = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        num_beams=width,
        use_cache=model.config.model_type not in NOT_REORDERED,
        num_return_sequences=width,
        do_sample=False,
        max_new_tokens=MAX_TOKENS,
        min_new_tokens=search.get("min_tokens"),
        eos_token_id=eos,
        pad_token_id=eos,
        **others,
    )
    outputs = [row[len(prompt) :] for row in rows.tolist()]
    return [output[: output.index(eos) + 1] if eos in output else output for output in outputs]


@pytest.mark.parametrize("name", a_few_of(MODELS))
def test_beams_are_those_of_generate(name: str, tmp_path: Path) -> None:
    model = save_model(MODELS[name].config, tmp_path)
    rng = random.Random(2)
    prompts = [[rng.randrange(3, VOCABULARY) for _ in range(rng.randint(1, 30))] for _ in SEARCHES]
    # A token that the model likes, so that some beams end and others do not.
    stops = [greedy(model, prompt, MAX_TOKENS)[:4][-1] for prompt in prompts]
    expected = [
        beams(model, prompt, stop, search) for prompt, stop, search in zip(prompts, stops, SEARCHES, strict=True)
    ]
    config = EngineConfig(
        model=str(tmp_path),
        dtype="float32",
        max_model_len=256,
        block_size=8,
        max_num_batched_tokens=16,
        kv_cache_tokens=192,
    )
    engine = Engine(config)
    beside = [SamplingParams(max_tokens=MAX_TOKENS, temperature=0)] * len(prompts)
    params = [
        SamplingParams(max_tokens=MAX_TOKENS, ignore_eos=True, stop_token_ids=(stop,), **search)
        for stop, search in zip(stops, SEARCHES, strict=True)
    ]
    outputs = engine.generate([*prompts, *prompts], [*beside, *params])
    found = [[list(beam.token_ids) for beam in output.beams or ()] for output in outputs[len(prompts) :]]
    assert found == expected
    assert [output.token_ids for output in outputs[: len(prompts)]] == [
        greedy(model, prompt, MAX_TOKENS) for prompt in prompts
    ]
    assert engine.stats().blocks_used == 0
