"""The logits of classes are those of transformers, whatever the chunks, the neighbours and the cached prefixes."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForSequenceClassification

from inflight import Engine, EngineConfig, InvalidRequest, SamplingParams
from scripts.reference.tiny_models import SERVED, save_model
from tests.engine.models import make_prompt

ARCHITECTURES = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "phi3", "gpt2"]
PROMPTS = [make_prompt(length, seed=length) for length in (1, 2, 30, 71, 8, 17)]
PROMPTS.append(PROMPTS[3][:64] + PROMPTS[4])


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    config = copy.deepcopy(SERVED[name].config)
    config.num_labels = 3
    module = save_model(config, tmp_path, AutoModelForSequenceClassification)
    with torch.inference_mode():
        wanted = np.stack([module(torch.tensor([prompt])).logits[0].numpy() for prompt in PROMPTS])
    settings = EngineConfig(
        model=str(tmp_path), dtype="float32", block_size=8, max_num_batched_tokens=16, kv_cache_tokens=160
    )
    engine = Engine(settings)
    for _ in range(2):  # The second time, prefixes are in the cache.
        found = engine.classify(PROMPTS, use_activation=False)
        assert np.abs(found - wanted).max() < 1e-5 * max(1, np.abs(wanted).max())
    assert np.allclose(engine.classify(PROMPTS), torch.tensor(wanted).softmax(dim=1), atol=1e-5)
    assert engine.embed(PROMPTS).shape == (len(PROMPTS), 64)
    # The embeddings of some of these are tied to a head for text, with which nobody has trained them.
    with pytest.raises(InvalidRequest, match="no output head; it classifies"):
        engine.generate(PROMPTS, SamplingParams(max_tokens=1))
