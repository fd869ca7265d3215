"""Mixtures whose experts are too odd in width for torch's grouped product: rows are no multiples of 16 bytes."""

from pathlib import Path

import pytest
from transformers import GraniteMoeConfig, PreTrainedConfig

from scripts.reference import tiny_models
from scripts.reference.tiny_models import VOCABULARY, save_model
from tests.engine.models import greedy, make_engine, make_prompt, tokens

PROMPTS = [make_prompt(length) for length in (40, 3, 1, 25)]


def mixture(width: int) -> PreTrainedConfig:
    return GraniteMoeConfig(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=width,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        num_local_experts=4,
        num_experts_per_tok=2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )


@pytest.mark.parametrize("width", [98, 99])
def test_tokens_are_those_of_generate(width: int, tmp_path: Path) -> None:
    model = save_model(mixture(width), tmp_path)
    model.set_experts_implementation("eager")
    wanted = [tiny_models.greedy(model, prompt, 12) for prompt in PROMPTS]
    assert tokens(make_engine(tmp_path, max_num_batched_tokens=16).generate(PROMPTS, greedy(12))) == wanted


def test_bfloat16_is_served(tmp_path: Path) -> None:
    save_model(mixture(100), tmp_path)
    engine = make_engine(tmp_path, dtype="bfloat16", block_size=16)
    outputs = engine.generate(PROMPTS, greedy(8, ignore_eos=True))
    assert [len(output.token_ids) for output in outputs] == [8] * len(PROMPTS)


def test_experts_of_other_widths_stay_grouped(tmp_path: Path) -> None:
    save_model(mixture(104), tmp_path)
    config = make_engine(tmp_path, dtype="bfloat16", block_size=16).model.module.config
    assert config._experts_implementation == "grouped_mm"
