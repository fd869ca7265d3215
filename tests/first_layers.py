"""A model of the default model's widths, with its tokenizer, that computes in a fraction of the time."""

import json
from collections.abc import Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from scripts.launch.default_model import default_model

_LAYERS = 4


def save_first_layers(folder: Path) -> Path:
    """Save the first four of the default model's 30 layers to a folder, and return it. What they say makes no sense."""
    model = default_model()
    for file in model.iterdir():
        if file.name not in ("config.json", "model.safetensors"):
            (folder / file.name).symlink_to(file)
    config = json.loads((model / "config.json").read_text())
    weights = load_file(model / "model.safetensors")
    left_out = tuple(f"model.layers.{number}." for number in range(_LAYERS, config["num_hidden_layers"]))
    kept = {name: tensor for name, tensor in weights.items() if not name.startswith(left_out)}
    (folder / "config.json").write_text(json.dumps({**config, "num_hidden_layers": _LAYERS}))
    save_file(kept, folder / "model.safetensors", {"format": "pt"})
    return folder


def save_classifier(folder: Path, labels: Sequence[str]) -> Path:
    """Save these layers with a random head that tells classes apart, and return the folder."""
    save_first_layers(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["LlamaForSequenceClassification"], "id2label": dict(enumerate(labels))}
    (folder / "config.json").write_text(json.dumps(config))
    file = folder / "model.safetensors"
    generator = torch.Generator().manual_seed(0)
    head = torch.randn((len(labels), config["hidden_size"]), generator=generator) / config["hidden_size"] ** 0.5
    save_file({**load_file(file), "score.weight": head}, file, {"format": "pt"})
    return folder
