"""Which adapter each token of a batch uses, told to the linear layers of a forward pass.

Models call their layers with nothing but the input. So, as for attention, the code that runs a forward pass sets the
adapters beforehand.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from inflight.model.batch_arrays import NO_ADAPTER, Ints

_active = threading.local()


@dataclass(frozen=True)
class ActiveAdapters:
    """The adapters of the T tokens of a batch."""

    slots: torch.Tensor
    """[T] int64, see `Adapter.slot`; `NO_ADAPTER` for the plain model."""
    tokens: tuple[tuple[int, torch.Tensor], ...] = ()
    """The tokens of each adapter, as pairs of a slot and int64 indices."""

    @classmethod
    def on(cls, device: torch.device, slots: Ints) -> "ActiveAdapters":
        """Copy the slots [T] of a batch to a device."""
        on_host = torch.from_numpy(slots)
        used = sorted(set(slots.tolist()) - {NO_ADAPTER})
        tokens = tuple((slot, (on_host == slot).nonzero()[:, 0].to(device)) for slot in used)
        return cls(on_host.to(device), tokens)


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
