"""The collectives of a forward pass as operators of torch, so that the tracer sees them."""

import weakref
from collections.abc import Callable
from typing import Any

import torch

from inflight.model.parallel.shards import Shards

_library: Any = torch.library.Library("inflight_ranks", "DEF")  # type: ignore[no-untyped-call]
_ranks: "weakref.WeakValueDictionary[int, Shards]" = weakref.WeakValueDictionary()


def _define(schema: str, function: Callable[..., torch.Tensor]) -> None:
    _library.define(schema)
    # No gradients are ever needed.
    _library.impl(schema.partition("(")[0], function, "CompositeExplicitAutograd")


_define("sum(Tensor x, int key) -> Tensor", lambda x, key: _ranks[key].sum(x))
_define("gather(Tensor x, int size, int key) -> Tensor", lambda x, size, key: _ranks[key].gather(x, x.ndim - 1, size))


class Collectives:
    """What the layers of a divided model call. While each rank computes the whole model, they return their argument."""

    def __init__(self, shards: Shards) -> None:
        self.shards, self._key = shards, id(shards)
        _ranks[self._key] = shards

    def sum(self, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of all ranks' tensors of one shape."""
        if self.shards.is_whole:
            return x
        y: torch.Tensor = torch.ops.inflight_ranks.sum(x, self._key)
        return y

    def gather(self, x: torch.Tensor, size: int) -> torch.Tensor:
        """Return all ranks' columns [..., size]."""
        if self.shards.is_whole:
            return x
        y: torch.Tensor = torch.ops.inflight_ranks.gather(x, size, self._key)
        return y
