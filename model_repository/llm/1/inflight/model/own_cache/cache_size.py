"""A dry run that measures the cache that a model makes for a sequence."""

from dataclasses import dataclass
from typing import Any

import torch

from inflight.errors import UnsupportedModel
from inflight.model.forward import cache_argument, new_cache
from inflight.model.head import vocab_size

_FEW, _MANY = 8, 40


@dataclass(frozen=True)
class OwnCache:
    """The cache that a model makes for each sequence, and how its code attends."""

    num_bytes: int
    """Bytes of a sequence, whatever its length."""
    bytes_per_token: int
    """Further bytes for each token."""
    implementation: str
    """transformers' name of the attention function."""
    thresholds: tuple[int, ...] = ()
    """Numbers of tokens beyond which it may attend by another rule."""
    is_sequential: bool = False
    """Whether the model computes only single tokens right after others."""
    time_step_limit: None = None
    """See `StateLayer`. Output is always computed in single tokens here, as in `generate`."""


def measure_cache(module: torch.nn.Module, max_model_len: int) -> tuple[int, int]:
    """Return `num_bytes` and `bytes_per_token` of `OwnCache`. The sum is too large rather than too small.

    Layers with a window or compressed tokens grow by whole tokens until they are longer than this dry run.

    Raises:
        UnsupportedModel: The model fails, or returns no cache.
    """
    many = min(_MANY, max_model_len)
    few = min(_FEW, many)
    at_first, later = (_bytes_of(_cache_of(module, count), set()) for count in (few, many))
    per_token = -(-(later - at_first) // max(1, many - few))
    return max(0, at_first - few * per_token), per_token


def _cache_of(module: torch.nn.Module, num_tokens: int) -> Any:
    model_type = module.config.model_type  # type: ignore[union-attr]
    tokens = torch.arange(num_tokens, device=next(module.parameters()).device) % vocab_size(module)
    try:
        with torch.inference_mode():
            arguments = {cache_argument(module): new_cache(module)}
            cache = module(input_ids=tokens[None], use_cache=True, **arguments).get(cache_argument(module))
    except Exception as error:
        raise UnsupportedModel(f"{model_type} fails with a cache: {type(error).__name__}: {error}") from error
    if cache is None:
        raise UnsupportedModel(f"{model_type} returns no cache, as encoders do")
    return cache


def _bytes_of(value: Any, seen: set[int]) -> int:
    """Return the bytes of all tensors in an object and its parts, each of them counted once."""
    if isinstance(value, torch.Tensor):
        memory = value.untyped_storage()
        name, size = memory.data_ptr(), memory.nbytes()
    else:
        name, size = id(value), 0
    if name in seen:
        return 0
    seen.add(name)
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, list | tuple):
        parts = list(value)
    elif not isinstance(value, torch.Tensor):
        parts = list(getattr(value, "__dict__", {}).values())
    return size + sum(_bytes_of(part, seen) for part in parts)
