"""A name of a model's config and weights, by which two engines find out whether they serve the same model."""

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import torch

# So many elements of each tensor are read, spread over the whole: reading everything would take a second a gigabyte.
_SAMPLED = 1024
_NOT_OF_THE_MODEL = ("_name_or_path", "transformers_version", "attn_implementation", "_attn_implementation")


def model_digest(module: Any) -> str:
    """Return the digest of a loaded model of transformers.

    It tells models apart that were trained differently. It need not notice if somebody changed a few weights on
    purpose.
    """
    found = blake2b(digest_size=16)
    for part in _identity(module):
        found.update(len(part).to_bytes(8, "little"))
        found.update(part)
    return found.hexdigest()


def _identity(module: Any) -> Iterator[bytes]:
    config = {name: value for name, value in module.config.to_dict().items() if name not in _NOT_OF_THE_MODEL}
    yield json.dumps(config, sort_keys=True, default=str).encode()
    for name, tensor in module.state_dict().items():
        yield f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode()
        flat = tensor.detach().reshape(-1)
        sample = flat[:: max(1, len(flat) // _SAMPLED)].contiguous()
        yield sample.view(torch.uint8).cpu().numpy().tobytes()
