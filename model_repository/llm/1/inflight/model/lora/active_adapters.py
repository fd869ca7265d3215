"""Which adapter each token of a batch uses, told to the linear layers of a forward pass.

Models call their layers with nothing but the input. So, as for attention, the code that runs a forward pass sets the
adapters beforehand.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

import torch

from inflight.model.batch_arrays import NO_ADAPTER

_active = threading.local()


@dataclass(frozen=True)
class ActiveAdapters:
    """The adapters of the T tokens of a batch."""

    slots: torch.Tensor
    """[T] int64, see `Adapter.slot`; `NO_ADAPTER` for the plain model."""

    @cached_property
    def tokens(self) -> list[tuple[int, torch.Tensor]]:
        """The tokens of each adapter, as pairs of a slot and int64 indices. The C++ kernel does not need them."""
        used = sorted(set(self.slots.tolist()) - {NO_ADAPTER})
        return [(slot, (self.slots == slot).nonzero()[:, 0]) for slot in used]


@contextmanager
def use_adapters(adapters: ActiveAdapters) -> Iterator[None]:
    """Use the adapters in the forward passes of this thread."""
    _active.adapters = adapters
    try:
        yield
    finally:
        del _active.adapters


def active_adapters() -> ActiveAdapters | None:
    """Return the adapters of the forward pass that runs in this thread; None if it uses none."""
    return getattr(_active, "adapters", None)
