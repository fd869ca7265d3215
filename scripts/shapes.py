"""Models with the shapes of well-known ones and random weights, for measurements without downloads.

The time of a step depends on the shape and not on the weights, with one exception: samplers take longer, the flatter
the distributions are. So the head is scaled until they are about as peaked as a trained model's.
"""

from pathlib import Path
from typing import Any

from scripts.launch.cache import build_once, cache_root
from scripts.launch.default_model import default_model

# Part of the folders' names. Raise it whenever `save` or `_build` writes different files.
REVISION = 1
# Standard deviation of the logits. With a top_p of 0.95, about a hundred tokens of normally distributed ones remain.
_SPREAD_OF_LOGITS = 4.5

SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-360m": {
        "model_type": "llama",
        "vocab_size": 49_152,
        "hidden_size": 960,
        "intermediate_size": 2560,
        "num_hidden_layers": 32,
        "num_attention_heads": 15,
        "num_key_value_heads": 5,
        "tie_word_embeddings": True,
    },
    "gemma3-270m": {
        "model_type": "gemma3_text",
        "vocab_size": 262_144,
        "hidden_size": 640,
        "intermediate_size": 2048,
        "num_hidden_layers": 18,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
        "tie_word_embeddings": True,
    },
    "qwen2-0.5b": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen3-0.6b": {
        "model_type": "qwen3",
        "vocab_size": 151_936,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
    "gemma3-1b": {
        "model_type": "gemma3_text",
        "vocab_size": 262_144,
        "hidden_size": 1152,
        "intermediate_size": 6912,
        "num_hidden_layers": 26,
        "num_attention_heads": 4,
        "num_key_value_heads": 1,
        "head_dim": 256,
        "sliding_window": 512,
        "tie_word_embeddings": True,
    },
    "llama-1b": {
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": True,
    },
    "qwen2-1.5b": {
        "model_type": "qwen2",
        "vocab_size": 151_936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "llama-8b": {
        "model_type": "llama",
        "vocab_size": 128_256,
        "hidden_size": 4096,
        "intermediate_size": 14_336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "tie_word_embeddings": False,
    },
}
"""Fields of each config.json that determine the shape."""


def shape_folder(name: str) -> Path:
    """Return the folder of a model with one of `SHAPES`. It is created on first use.

    Vocabulary and tokenizer are the default model's, so that the same prompts work. Raises what `default_model` raises.
    """
    return build_once(cache_root() / f"{name}-random-r{REVISION}", lambda folder: _build(name, folder))


def config_of(name: str, **changes: Any) -> Any:
    """Return the transformers config of a shape, with `changes` to its fields."""
    # Imported here so that `--help` needs no torch.
    from transformers import AutoConfig

    return AutoConfig.for_model(**{"max_position_embeddings": 8192, **SHAPES[name], **changes})


def save(config: Any, folder: Path, device: str = "cpu") -> Path:
    """Write a model with random weights in bfloat16 to `folder` and return it.

    Matrices are never zero, because some kernels are faster with zeros.
    """
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    with torch.no_grad():
        # The input of the head is normed, so its elements have a mean square of 1.
        model.get_output_embeddings().weight.normal_(0, _SPREAD_OF_LOGITS / config.hidden_size**0.5)
    model.save_pretrained(folder)
    return folder


def _build(name: str, folder: Path) -> None:
    from transformers import AutoConfig, AutoTokenizer

    source = default_model()
    print(f"Writing random weights in the shape of {name}, once", flush=True)
    given = AutoConfig.from_pretrained(source)
    fields = ("vocab_size", "bos_token_id", "eos_token_id", "pad_token_id")
    save(config_of(name, **{field: getattr(given, field) for field in fields}), folder)
    AutoTokenizer.from_pretrained(source).save_pretrained(folder)
