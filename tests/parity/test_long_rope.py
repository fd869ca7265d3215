"""Models with LongRoPE: their tokens are those of `generate` below, across and beyond the original length."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Phi3Config, Phi3ForCausalLM, PhimoeConfig, PreTrainedConfig
from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

from inflight import Engine, EngineConfig, InvalidRequest, SamplingParams
from inflight.model.loading.loader import LoadedModel, load_model
from inflight.model.long_rope import switch_rope
from scripts.reference.tiny_models import VOCABULARY, save_model
from scripts.reference.tiny_models import greedy as of_generate
from tests.engine.models import greedy, make_prompt, tokens

ORIGINAL, LONGEST, MAX_TOKENS = 32, 128, 20
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "pad_token_id": 0,
    "eos_token_id": None,
    "max_position_embeddings": LONGEST,
}
ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "short_factor": [1.0] * 8,
    "long_factor": [1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0],
    "original_max_position_embeddings": ORIGINAL,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "phi3": Phi3Config(**SIZES, original_max_position_embeddings=ORIGINAL, rope_parameters=ROPE),
    "phimoe": PhimoeConfig(
        **SIZES, num_local_experts=4, rope_parameters={**ROPE, "short_mscale": 1.0, "long_mscale": 1.25}
    ),
}
# The last begins like the one before it, so that it finds blocks of that one in the cache. Both cross the border.
PROMPTS = [make_prompt(length) for length in (5, 13, ORIGINAL - 1, ORIGINAL, ORIGINAL + 1, 60, 80, 20)]
PROMPTS.append(PROMPTS[-1][:17] + make_prompt(9, seed=1))


@pytest.fixture(scope="module", params=CONFIGS)
def long_rope(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, LoadedModel, list[list[int]]]:
    """A model's folder, the model, and what `generate` says to the prompts."""
    folder = tmp_path_factory.mktemp(request.param)
    module = save_model(CONFIGS[request.param], folder)
    loaded = load_model(EngineConfig(model=str(folder), dtype="float32"))
    return folder, loaded, [of_generate(module, prompt, MAX_TOKENS) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "settings",
    [
        {"kv_cache_tokens": 1024},
        {"max_num_batched_tokens": 16, "kv_cache_tokens": 112},
        {"max_num_batched_tokens": 24, "kv_cache_tokens": 160, "swap_space_tokens": 256, "preemption_mode": "swap"},
        {"speculative_config": {"method": "ngram", "adaptive": False, "prompt_lookup_min": 1}},
    ],
    ids=["whole prompts", "chunks", "swapping", "drafts"],
)
def test_tokens_are_those_of_generate(
    long_rope: tuple[Path, LoadedModel, list[list[int]]], settings: dict[str, Any]
) -> None:
    folder, loaded, expected = long_rope
    engine = Engine(EngineConfig(model=str(folder), dtype="float32", block_size=8, **settings), loaded)
    assert engine.max_model_len == LONGEST
    outputs = engine.generate(PROMPTS, greedy(MAX_TOKENS))
    assert tokens(outputs) == expected
    # Again, with blocks of short and of long sequences in the cache.
    assert tokens(engine.generate(PROMPTS[::-1], greedy(MAX_TOKENS))) == expected[::-1]
    stats = engine.stats()
    assert stats.blocks_used == 0
    assert stats.preemptions >= sum(len(prompt) <= ORIGINAL < len(prompt) + MAX_TOKENS - 1 for prompt in PROMPTS)


def test_beams_stay_on_one_side(long_rope: tuple[Path, LoadedModel, list[list[int]]]) -> None:
    folder, loaded, _ = long_rope
    engine = Engine(EngineConfig(model=str(folder), dtype="float32", kv_cache_tokens=1024), loaded)
    prompt = make_prompt(ORIGINAL - 4)
    # The last token of an output is never computed.
    engine.generate([prompt], SamplingParams(max_tokens=5, beam_width=2))
    engine.generate([make_prompt(ORIGINAL + 1)], SamplingParams(max_tokens=5, beam_width=2))
    with pytest.raises(InvalidRequest, match=r"max_tokens is 6; with a beam_width it must be at most 5 after a prompt"):
        engine.generate([prompt], SamplingParams(max_tokens=6, beam_width=2))


def test_shorter_contexts_need_no_switch(long_rope: tuple[Path, LoadedModel, list[list[int]]]) -> None:
    folder, _, expected = long_rope
    loaded = load_model(EngineConfig(model=str(folder), dtype="float32", max_model_len=ORIGINAL))
    assert loaded.rope_switch is None
    engine = Engine(EngineConfig(model=str(folder), dtype="float32", kv_cache_tokens=1024), loaded)
    prompt, count = PROMPTS[1], ORIGINAL - len(PROMPTS[1])
    assert tokens(engine.generate([prompt], greedy(count))) == [expected[1][:count]]


def test_what_does_not_come_out_right_bounds_the_context(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def forgets_the_length(self: Phi3RotaryEmbedding, x: torch.Tensor, position_ids: torch.Tensor) -> Any:
        angles = position_ids[..., None] * self.inv_freq * (position_ids.shape[1] == 4)
        return angles.cos(), angles.sin()

    save_model(CONFIGS["phi3"], tmp_path)
    monkeypatch.setattr(Phi3RotaryEmbedding, "forward", forgets_the_length)
    module = Phi3ForCausalLM.from_pretrained(tmp_path)
    assert switch_rope(module, ORIGINAL) == []
    assert isinstance(module.model.rotary_emb, Phi3RotaryEmbedding)
    assert "the context ends at 32 tokens, as the rotary embeddings" in caplog.text
