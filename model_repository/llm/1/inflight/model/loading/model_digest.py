"""A name of a model's config, weights and code, by which two engines find out whether they serve the same model."""

import json
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any

import torch

# Integers of the same size, by their bytes.
_INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "attn_implementation", "_attn_implementation")


def model_digest(module: Any, code: Path | None = None) -> str:
    """Return the digest of a loaded model of transformers.

    Args:
        code: the folder of the model, if files in it may have run.

    It tells models apart that were trained differently, even if only the embeddings of a few tokens were. It need not
    notice if somebody changed weights on purpose so that sums stay the same.
    """
    found = blake2b(digest_size=16)
    for part in (*_identity(module), *_files(code)):
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


def _identity(module: Any) -> Iterator[bytes]:
    config = {name: value for name, value in module.config.to_dict().items() if name not in _NOT_OF_THE_MODEL}
    yield json.dumps(config, sort_keys=True, default=str).encode()
    for name, tensor in module.state_dict().items():
        yield f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode()
        yield _sums(tensor.detach()).cpu().numpy().tobytes()


def _files(code: Path | None) -> Iterator[bytes]:
    for path in sorted(code.glob("*.py")) if code is not None else ():
        yield path.name.encode()
        yield path.read_bytes()


def _sums(tensor: torch.Tensor) -> torch.Tensor:
    """Return the sum of each row, of the bits as integers: torch adds them in a twentieth of the time that a hash
    takes, and in any order they have the same sum."""
    bits = tensor.view(_INTEGERS[tensor.element_size()])
    return bits.sum(dim=-1, dtype=bits.dtype) if bits.dim() > 1 else bits
