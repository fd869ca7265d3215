"""Checkpoints with the weights of images: their text is served, and by our attention."""

from pathlib import Path

import pytest
from transformers import AutoModelForMultimodalLM, Qwen3_5Config

from inflight import Engine, EngineConfig, SamplingParams
from inflight.model.forward import EagerForward
from inflight.model.loading.loader import load_model
from scripts.reference.every_decoder import build
from scripts.reference.tiny_models import RECURRENT, greedy, save_model
from tests.engine.models import make_prompt


def test_the_text_of_a_checkpoint_with_images_is_served(tmp_path: Path) -> None:
    config = Qwen3_5Config(
        vision_config={"depth": 1, "hidden_size": 32, "num_heads": 2, "out_hidden_size": 64},
        text_config=RECURRENT["qwen3_5"].config.to_dict(),
    )
    model = save_model(config, tmp_path, AutoModelForMultimodalLM)
    engine = Engine(EngineConfig(model=str(tmp_path), dtype="float32", kv_cache_tokens=256, block_size=8))
    prompts = [make_prompt(length) for length in (40, 3)]
    outputs = engine.generate(prompts, SamplingParams(max_tokens=8, temperature=0))
    assert [output.token_ids for output in outputs] == [greedy(model, prompt, 8) for prompt in prompts]
    served = sum(weight.numel() for weight in engine.model.module.parameters())
    assert served < sum(weight.numel() for weight in model.parameters())


@pytest.mark.parametrize(
    ("model_type", "why"),
    [
        ("got_ocr2", "it hands `logits_to_keep` down to its layers"),
        ("deepseek_vl_hybrid", "its encoder of images, SAM's, takes none of transformers' other attention functions"),
    ],
)
def test_the_text_is_served_by_our_attention(model_type: str, why: str, tmp_path: Path) -> None:
    build(model_type, tmp_path)
    assert isinstance(load_model(EngineConfig(model=str(tmp_path), dtype="float32")).forward, EagerForward), why
