"""Models of known shapes with random weights. Weights are never zero, because some kernels are faster with zeros."""

import gc
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedConfig, Qwen3Config

from inflight import Engine, EngineConfig

LLAMA_8B = LlamaConfig(
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    max_position_embeddings=8192,
)
QWEN3_0_6B = Qwen3Config(
    vocab_size=151_936,
    hidden_size=1024,
    intermediate_size=3072,
    num_hidden_layers=28,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=40_960,
    tie_word_embeddings=True,
)
TINY = LlamaConfig(
    vocab_size=512,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=8192,
)


def save(config: PreTrainedConfig, folder: Path, device: str) -> Path:
    """Write a model in bfloat16 to `folder` and return it."""
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(folder)
    return folder


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
