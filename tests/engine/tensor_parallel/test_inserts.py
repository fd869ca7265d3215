"""Images and embeddings in the prompts of a divided model: the tokens are those of a whole one."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from inflight import EmbedsPrompt, Engine, EngineConfig, ImagePrompt
from inflight.model.loading.loader import load_model
from inflight.model.parallel.divided_model import DividedModel
from inflight.model.parallel.workers import Workers
from scripts.reference.tiny_image_models import IMAGE_MODELS, save_image_model
from tests.engine.models import Tiny, greedy, make_prompt, tokens
from tests.images import picture

SETTINGS: dict[str, Any] = {"dtype": "float32", "device": "cpu", "block_size": 8, "max_model_len": 256}
WITHOUT_VIDEOS = {
    "gemma4": "_Gemma4Processor",
    "qwen2_5_vl": "_Qwen2_5VLProcessor",
    "qwen3_vl": "_Qwen3VLProcessor",
    "llava_onevision": "_LlavaOnevisionProcessor",
}
LONGEST_IMAGE = {"gemma3": 16, "gemma4": 70}
"""In tokens, where a step must compute all of an image."""
QUICK = ("gemma3", "qwen3_vl")


def save(kind: str, folder: Path) -> Any:
    """Write a model whose processor the other ranks find too, where torchvision is missing. Return the processor."""
    _, processor = save_image_model(kind, folder)
    if kind in WITHOUT_VIDEOS:
        name = WITHOUT_VIDEOS[kind]
        (folder / "processing.py").write_text(f"from scripts.reference.tiny_image_models import {name}\n")
        file = folder / "processor_config.json"
        settings = json.loads(file.read_text())
        file.write_text(json.dumps({**settings, "auto_map": {"AutoProcessor": f"processing.{name}"}}))
    return processor


def prompts(place: str) -> list[str | ImagePrompt]:
    return [
        ImagePrompt(f"{place} What is this?", [picture(1, 70, 50)]),
        "No picture at all.",
        ImagePrompt(f"First {place}, then {place}. Compare them.", [picture(2, 40, 90), picture(3, 120, 30)]),
        "A long text without any picture, so that chunks of both kinds share steps. " * 3,
        ImagePrompt(f"{'Words before it. ' * 5}{place}.", [picture(1, 70, 50)]),
        ImagePrompt(f"{place} What is this?", [picture(4, 70, 50)]),
    ]


def sizes(module: Any) -> list[int]:
    """The number of outputs of keys, and of inputs of the last product, in each layer."""
    layers = module.get_decoder().layers
    return [
        size for each in layers for size in (each.self_attn.k_proj.out_features, each.mlp.down_proj.weight.shape[1])
    ]


@pytest.mark.parametrize(
    "kind",
    [each if each in QUICK else pytest.param(each, marks=pytest.mark.slow) for each in IMAGE_MODELS],
)
def test_images_are_read_as_by_a_whole_model(kind: str, one_worker: Workers, tmp_path: Path) -> None:
    processor = save(kind, tmp_path)
    settings = {"model": str(tmp_path), "trust_remote_code": True, **SETTINGS}
    given = prompts(processor.image_token)
    config = EngineConfig(**settings, kv_cache_tokens=1024)
    loaded = load_model(config)
    whole = Engine(config, loaded).generate(given, greedy(30, ignore_eos=True))
    longest = max(len(output.prompt_ids) for output in whole) + 30
    # Chunks cut the images where they may be cut, and few requests have room at a time.
    small = EngineConfig(
        **settings,
        tensor_parallel_size=2,
        max_num_batched_tokens=LONGEST_IMAGE.get(kind, 1) + 4,
        kv_cache_tokens=longest // 8 * 8 + 48,
        preemption_mode="swap",
        swap_space_tokens=256,
    )
    divided = DividedModel(small, one_worker)
    assert [2 * size for size in sizes(divided.mine.module)] == sizes(loaded.module)
    engine = Engine(small, divided)
    assert tokens(engine.generate(given, greedy(30, ignore_eos=True))) == tokens(whole)
    assert engine.stats().preemptions > 0
    roomy = Engine(EngineConfig(**settings, tensor_parallel_size=2, kv_cache_tokens=1024), divided)
    for cached in (False, True):
        outputs = roomy.generate(given[2:3], greedy(30, ignore_eos=True))
        assert tokens(outputs) == tokens(whole[2:3])
        assert (outputs[0].num_cached_tokens > 0) == cached


def test_images_are_refused_where_another_rank_cannot_read_them(
    one_worker: Workers, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    _, processor = save_image_model("idefics3", tmp_path)
    (tmp_path / "processor_config.json").unlink()
    monkeypatch.setattr(transformers.AutoProcessor, "from_pretrained", lambda *_, **__: processor)
    config = EngineConfig(model=str(tmp_path), tensor_parallel_size=2, kv_cache_tokens=256, **SETTINGS)
    engine = Engine(config, DividedModel(config, one_worker))
    assert engine.model.images is None
    assert "prompts with images are refused: another rank cannot read them" in caplog.text
    whole = Engine(config, load_model(config))
    assert whole.model.images is not None
    assert tokens(engine.generate(["A text."], greedy(8))) == tokens(whole.generate(["A text."], greedy(8)))


def test_embeddings_of_tokens_give_the_answers_of_the_tokens(tiny: Tiny, one_worker: Workers) -> None:
    config = EngineConfig(
        model=str(tiny.folder),
        tensor_parallel_size=2,
        enable_prompt_embeds=True,
        max_num_batched_tokens=16,
        kv_cache_tokens=256,
        **SETTINGS,
    )
    engine = Engine(config, DividedModel(config, one_worker))
    prompt, vocabulary = make_prompt(30), engine.model.vocab_size
    with torch.inference_mode():
        table = np.array(tiny.module.get_input_embeddings()(torch.tensor(prompt)))
    mixed = [*prompt[:5], *range(vocabulary, vocabulary + 20), *prompt[25:]]
    noise = np.random.default_rng(0).normal(0, table.std(), table.shape)
    given = [prompt, EmbedsPrompt(table), EmbedsPrompt(table[5:25], mixed), EmbedsPrompt(noise), make_prompt(7)]
    whole = tiny.engine(enable_prompt_embeds=True)
    found = tokens(engine.generate(given, greedy(10)))
    assert found == tokens(whole.generate(given, greedy(10)))
    assert found[0] == found[1] == found[2] != found[3]
