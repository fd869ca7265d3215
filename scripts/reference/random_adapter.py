"""LoRA adapters with random weights, and the models that they give."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

LLAMA_LAYERS = (
    *("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"),
    *("mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"),
)


@dataclass(frozen=True)
class RandomAdapter:
    """An adapter as the library PEFT saves it."""

    rank: int = 4
    alpha: float = 16.0
    seed: int = 0
    layers: Sequence[str] = LLAMA_LAYERS
    """Ends of the names of the layers that it changes."""
    size: float = 0.1
    """Standard deviation of its weights B."""
    config: dict[str, Any] = field(default_factory=dict)
    """Further entries of its adapter_config.json."""

    def pairs(self, module: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Linear, torch.Tensor, torch.Tensor]]:
        """Yield each layer of a model with its name, A and B."""
        generator = torch.Generator().manual_seed(self.seed)
        for name, layer in module.named_modules():
            if isinstance(layer, torch.nn.Linear) and name.endswith(tuple(self.layers)):
                down = torch.randn(self.rank, layer.in_features, generator=generator) / layer.in_features**0.5
                up = self.size * torch.randn(layer.out_features, self.rank, generator=generator)
                yield name, layer, down, up

    def save(self, folder: Path, module: torch.nn.Module) -> str:
        """Write the adapter for a model, and return the folder."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {}
        for name, _, down, up in self.pairs(module):
            weights[f"base_model.model.{name}.lora_A.weight"] = down
            weights[f"base_model.model.{name}.lora_B.weight"] = up
        save_file(weights, folder / "adapter_model.safetensors")
        config = {"peft_type": "LORA", "r": self.rank, "lora_alpha": self.alpha, "bias": "none", **self.config}
        (folder / "adapter_config.json").write_text(json.dumps(config))
        return str(folder)

    @contextmanager
    def merged_into(self, module: torch.nn.Module) -> Iterator[None]:
        """Add the adapter to the weights of a model while the block runs."""
        saved = {layer: layer.weight.data.clone() for _, layer, _, _ in self.pairs(module)}
        for _, layer, down, up in self.pairs(module):
            layer.weight.data += self.alpha / self.rank * (up @ down)
        try:
            yield
        finally:
            for layer, weight in saved.items():
                layer.weight.data = weight
