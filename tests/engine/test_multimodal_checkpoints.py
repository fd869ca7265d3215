"""Checkpoints with the weights of images, of which transformers has a class for the text alone, as Qwen3.5's."""

from pathlib import Path

from transformers import AutoModelForMultimodalLM, Qwen3_5Config

from inflight import Engine, EngineConfig, SamplingParams
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
