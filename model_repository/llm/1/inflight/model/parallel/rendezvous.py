"""The place where the ranks find each other: a file on one machine, torch's TCP store between machines."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch._C._distributed_c10d import FileStore, PrefixStore, TCPStore


@dataclass(frozen=True)
class Rendezvous:
    """Each load of a model has one of its own."""

    name: str
    folder: Path | None = None
    """A folder of this user, if all ranks are on one machine."""
    address: tuple[str, int] | None = None
    """Otherwise the address of the store, which rank 0 holds."""

    def store(self, size: int) -> Any:
        """Connect one of `size` ranks. Raises RuntimeError if nobody listens at the address."""
        if self.address is None:
            assert self.folder is not None
            return FileStore(str(self.folder / self.name), size)
        return PrefixStore(self.name, TCPStore(*self.address, is_master=False))
