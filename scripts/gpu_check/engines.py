"""Engines of this check, and the bytes that their steps read."""

import gc
from pathlib import Path
from typing import Any

import torch

from inflight import Engine, EngineConfig


def engine(folder: Path, device: str, **settings: Any) -> Engine:
    """An engine with room for many requests, unless the settings say otherwise."""
    defaults = {"dtype": "bfloat16", "max_num_seqs": 256, "max_num_batched_tokens": 8192, "max_model_len": 8192}
    return Engine(EngineConfig(str(folder), device=device, **{**defaults, **settings}))


def free_memory() -> None:
    """Free the memory of deleted models, which contain reference cycles."""
    gc.collect()
    torch.cuda.empty_cache()


def bytes_of_a_token(served: Engine) -> int:
    """Bytes of a token in the KV cache."""
    shapes = [layer.shape for layer in served.model.layers]
    return sum(shape.elements_per_token for shape in shapes) * served.model.dtype.itemsize


def bytes_of_a_step(folder: Path, served: Engine) -> int:
    """Bytes of weights that every step reads: all except the embedding table, unless the head shares it."""
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    module: Any = served.model.module
    embeddings: torch.Tensor = module.get_input_embeddings().weight
    return stored if module.config.tie_word_embeddings else stored - embeddings.nbytes
