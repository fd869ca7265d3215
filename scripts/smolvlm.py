"""The default model with an image encoder in the shape of SmolVLM-256M's, which has random weights, for measurements.

SmolVLM-256M itself is SmolLM2-135M behind such an encoder. So texts get the default model's answers, and reading an
image costs what it costs with SmolVLM.
"""

from pathlib import Path
from typing import Any

from scripts.launch.cache import build_once, cache_root
from scripts.launch.default_model import default_model

# Part of the folder's name. Raise it whenever `_build` writes different files.
REVISION = 1

_TILE = 512
_LONGEST_EDGE = 2048
"""Larger images are scaled down to it. An image is read in tiles, and once more as a whole."""


def smolvlm() -> Path:
    """Return the folder of the model. It is created on first use. Raises what `default_model` raises."""
    return build_once(cache_root() / f"smolvlm-256m-random-r{REVISION}", _build)


def _build(folder: Path) -> None:
    # Imported here so that `--help` needs no torch.
    import torch
    from transformers import (
        AutoModelForCausalLM,
        AutoTokenizer,
        Idefics3Config,
        Idefics3ForConditionalGeneration,
        Idefics3ImageProcessorPil,
        Idefics3Processor,
    )

    source = default_model()
    print("Writing the default model with an image encoder in the shape of SmolVLM-256M's, once", flush=True)
    tokenizer = AutoTokenizer.from_pretrained(source)
    processor = Idefics3Processor(
        image_processor=Idefics3ImageProcessorPil(
            size={"longest_edge": _LONGEST_EDGE}, max_image_size={"longest_edge": _TILE}, do_image_splitting=True
        ),
        tokenizer=tokenizer,
        image_seq_len=64,
    )
    text = AutoModelForCausalLM.from_pretrained(source, dtype=torch.bfloat16)
    text.resize_token_embeddings(len(processor.tokenizer), mean_resizing=False)
    config = Idefics3Config(
        vision_config={
            "hidden_size": 768,
            "intermediate_size": 3072,
            "num_hidden_layers": 12,
            "num_attention_heads": 12,
            "image_size": _TILE,
            "patch_size": 16,
        },
        text_config=text.config.to_dict(),
        scale_factor=4,
        image_token_id=processor.image_token_id,
        tie_word_embeddings=True,
    )
    torch.manual_seed(0)
    model: Any = Idefics3ForConditionalGeneration(config)
    model.to(torch.bfloat16)
    model.model.text_model.load_state_dict(text.model.state_dict())
    model.lm_head.load_state_dict(text.lm_head.state_dict())
    model.generation_config = text.generation_config
    model.save_pretrained(folder)
    processor.save_pretrained(folder)
