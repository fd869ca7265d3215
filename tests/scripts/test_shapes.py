"""Models with random weights in known shapes."""

from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from scripts import shapes
from scripts.launch.default_model import default_model
from scripts.shapes import SHAPES, config_of, save, shape_folder

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4}


def test_the_shapes_have_the_sizes_of_their_names() -> None:
    sizes = {}
    for name in SHAPES:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config_of(name))
        sizes[name] = sum(parameter.numel() for parameter in model.parameters()) / 1e9
    wanted = {"smollm2-360m": 0.36, "qwen2-0.5b": 0.49, "qwen3-0.6b": 0.6, "llama-1b": 1.24, "qwen2-1.5b": 1.54}
    wanted |= {"gemma3-270m": 0.268, "gemma3-1b": 1.0, "llama-8b": 8.03}
    assert sizes == pytest.approx(wanted, rel=0.02)


@pytest.mark.parametrize("tied", [True, False])
def test_distributions_are_about_as_peaked_as_those_of_trained_models(tmp_path: Path, tied: bool) -> None:
    folder = save(config_of("llama-1b", **TINY, num_key_value_heads=2, tie_word_embeddings=tied), tmp_path)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits = model(torch.arange(500, 600)[None]).logits[0]
    assert logits.std() == pytest.approx(4.5, rel=0.1)
    assert all((parameter != 0).float().mean() > 0.99 for parameter in model.parameters())


def test_a_shape_is_written_once_and_takes_the_default_models_prompts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(SHAPES, "tiny", {"model_type": "qwen2", **TINY, "num_key_value_heads": 2})
    monkeypatch.setattr(shapes, "cache_root", lambda: tmp_path)
    folder = shape_folder("tiny")
    written = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert folder.name == f"tiny-random-r{shapes.REVISION}"
    assert shape_folder("tiny") == folder
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == written
    default = AutoConfig.from_pretrained(default_model())
    assert AutoConfig.from_pretrained(folder).vocab_size == default.vocab_size
    assert len(AutoTokenizer.from_pretrained(folder)) == len(AutoTokenizer.from_pretrained(default_model()))
