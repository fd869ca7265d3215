"""The adapters of `lora_folder` that are in memory."""

import logging
import threading
import time
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence

from inflight.errors import InvalidRequest, QueueFull
from inflight.lora.adapter import Adapter
from inflight.lora.lora_folder import LoraFolder, Version
from inflight.model.lora.adapter_weights import AdapterWeights, read_adapter
from inflight.model.lora.lora_layers import AdaptedLayers

logger = logging.getLogger(__name__)

# Reading takes a processor, and clients may ask again and again.
_REFUSED_SECONDS = 5.0
_MAX_REFUSED = 1024


class AdapterCache:
    """Reads adapters when they are asked for, each into a slot. The least recently used one makes room for another.

    An adapter keeps its slot for as long as an unfinished request refers to it, even if its files were replaced or
    removed in the meantime. Any thread may use this.
    """

    def __init__(self, folder: LoraFolder, slots: Iterable[int], layers: AdaptedLayers) -> None:
        self.folder, self._layers = folder, layers
        self.put: Callable[[int, AdapterWeights], None] = layers.put
        """Puts an adapter into a slot: of a divided model, on all ranks."""
        self._free = list(slots)
        self.num_slots = len(self._free)
        self._kept = OrderedDict[str, tuple[Adapter, Version]]()
        """By name, the least recently used first."""
        self._refused = OrderedDict[str, tuple[Version, float, str]]()
        """Adapters that cannot be used, until when that is not looked at again, and why."""
        self._lock = threading.Lock()
        """Held while `_kept` changes."""
        self._reading = threading.Lock()
        """Held while an adapter is read, which takes longer."""
        self.num_read = 0
        self.waiting: Sequence[str] = ()
        """The adapter of each request that a server lets wait until it can be read. It keeps this up to date."""

    def __len__(self) -> int:
        """The number of adapters in memory."""
        return self.num_slots - len(self._free)

    def has(self, name: str) -> bool:
        """Whether an adapter is in memory, and its files are as they were."""
        version = self.folder.version(name)
        with self._lock:
            return name in self._kept and self._kept[name][1] == version

    def get(self, name: str) -> Adapter | None:
        """Return an adapter; None if there is none. If it is not in memory, this reads it, which may take some time.

        Raises:
            InvalidRequest: it cannot be used.
            QueueFull: unfinished requests use all slots.
        """
        if (kept := self._find(name)) is not None:
            return kept
        with self._reading:
            # Another thread may have read it while this one waited.
            return self._find(name) or self._read(name)

    def _find(self, name: str) -> Adapter | None:
        version = self.folder.version(name)
        with self._lock:
            if name not in self._kept or self._kept[name][1] != version:
                return None
            self._kept.move_to_end(name)
            return self._kept[name][0]

    def _read(self, name: str) -> Adapter | None:
        version = self.folder.version(name)
        if version is None:
            return None
        weights = self._weights(name, version)
        slot = self._free_slot(name)
        try:
            self.put(slot, weights)
        except BaseException:
            self._free.append(slot)
            raise
        adapter = Adapter(name, slot, weights.digest)
        weakref.finalize(adapter, self._free.append, slot).atexit = False
        self.num_read += 1
        with self._lock:
            self._kept[name] = adapter, version
        logger.info("adapter %s was read", name)
        return adapter

    @property
    def next_to_leave(self) -> str | None:
        """The least recently used adapter."""
        with self._lock:
            return next(iter(self._kept), None)

    def _weights(self, name: str, version: Version) -> AdapterWeights:
        if name in self._refused:
            refused, until, message = self._refused[name]
            if refused == version and time.monotonic() < until:
                raise InvalidRequest(message)
        try:
            weights = read_adapter(self.folder.files(name), f"lora_name is {name!r}")
            self._layers.check(weights)
        except ValueError as error:
            logger.warning("%s", error)
            self._refused[name] = version, time.monotonic() + _REFUSED_SECONDS, str(error)
            self._refused.move_to_end(name)
            if len(self._refused) > _MAX_REFUSED:
                self._refused.popitem(last=False)
            raise InvalidRequest(str(error)) from None
        return weights

    def make_room(self) -> bool:
        """Give up adapters, the least recently used first, until there is room for another. Return whether there is."""
        with self._lock:
            for name in list(self._kept):
                if self._free:
                    break
                adapter, version = self._kept.pop(name)
                reference = weakref.ref(adapter)
                del adapter
                if (used := reference()) is not None:
                    self._kept[name] = used, version
        return bool(self._free)

    def _free_slot(self, name: str) -> int:
        if not self.make_room():
            raise QueueFull(
                f"lora_name is {name!r}; it cannot be read now, as unfinished requests use all of the "
                f"{self.num_slots} adapters that may be in memory, max_loras"
            )
        return self._free.pop()
