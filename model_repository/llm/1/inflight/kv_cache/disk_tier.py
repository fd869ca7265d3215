"""Prefixes on disk: full blocks are written once they are computed, and read for requests that lack them."""

import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inflight.kv_cache.block_tables import BlockTables
from inflight.kv_cache.disk_store import DiskStore
from inflight.kv_cache.disk_writer import DiskWriter
from inflight.kv_cache.imported_blocks import ImportedBlocks
from inflight.request import Request

logger = logging.getLogger(__name__)

_MAX_READ_BYTES = 1 << 30
# Fewer are computed in less time than a request waits for a thread.
_MIN_BLOCKS = 2
_TIMED_READS = 3


@dataclass(frozen=True, slots=True)
class DiskCounts:
    """What is on disk, and what became of blocks since the start."""

    blocks: int
    bytes: int
    outcomes: dict[str, int]
    """Blocks `written`, `read`, `dropped` and `corrupt`."""


class DiskTier:
    """The disk beside a KV cache. A block is written when it enters the prefix cache, unless it is there already.

    The stepping thread only copies the bytes; another one writes them. Requests bring what they lack when they are
    submitted, so no step waits for a disk.
    """

    def __init__(
        self,
        store: DiskStore,
        tables: BlockTables,
        *,
        read_blocks: Callable[[Sequence[int], NDArray[np.uint8]], None],
        prefill_seconds: Callable[[int], float | None],
    ) -> None:
        """
        Args:
            read_blocks: copies the bytes of blocks of the cache into an array [blocks, bytes per block].
            prefill_seconds: returns how long so many tokens take to compute, if that is known.
        """
        self._store = store
        self._tables = tables
        self._read_blocks = read_blocks
        self._prefill_seconds = prefill_seconds
        self._new: list[tuple[bytes, int]] = []
        """Blocks that have entered the prefix cache since the last `save`."""
        self._lock = threading.Lock()
        self._freed = deque[int]()
        """Bytes that are no longer in memory. No lock guards it: memory may be freed while one is held."""
        self._read_bytes = 0
        """Bytes that were read for requests that have not joined yet. The lock guards this and the next one."""
        self._num_read = 0
        self._seconds_per_block = _seconds_per_block(store)
        self._writer = DiskWriter(store)
        weakref.finalize(self, self._writer.stop)
        tables.pool.on_register = self._registered

    def _registered(self, name: bytes, block: int) -> None:
        if not self._store.touch(name):
            self._new.append((name, block))

    def save(self) -> None:
        """Write what the last step computed. The stepping thread calls this before it plans the next step."""
        new, self._new = self._new, []
        new = new[: self._writer.admit(len(new))]
        if not new:
            return
        try:
            data = np.empty((len(new), self._store.block_bytes), dtype=np.uint8)
            self._read_blocks([block for _, block in new], data)
        except (RuntimeError, MemoryError) as error:  # The host or the device has too little memory for the copy.
            logger.warning("%d blocks of the KV cache are not written to disk: %s", len(new), error)
            self._writer.drop(len(new))
        else:
            self._writer.add([name for name, _ in new], data)

    def bring(self, request: Request) -> None:
        """Give a request that is not submitted yet the blocks that are on disk, where this saves time.

        This reads files. Any thread may call it: what it sees of the cache is a hint, and a wrong one costs only time.
        """
        if request.imported is not None:
            return
        first, names = self._tables.lacking(request)
        with self._lock:
            while self._freed:
                self._read_bytes -= self._freed.popleft()
            room = (_MAX_READ_BYTES - self._read_bytes) // self._store.block_bytes
            count = min(room, self._store.count(names))
            if count < _MIN_BLOCKS or not self._pays(count):
                return
            size = count * self._store.block_bytes
            self._read_bytes += size
        try:
            data = np.empty((count, self._store.block_bytes), dtype=np.uint8)
        except MemoryError as error:
            logger.warning("%d blocks of the KV cache are not read from disk: %s", count, error)
            self._freed.append(size)
            return
        weakref.finalize(data, self._freed.append, size)
        right = self._store.read(names[:count], data)
        with self._lock:
            self._num_read += right
        if right:
            num_tokens = (first + right) * self._tables.block_size
            request.imported = ImportedBlocks(num_tokens, data[:right], first, "disk")

    def _pays(self, count: int) -> bool:
        computing = self._prefill_seconds(count * self._tables.block_size)
        return computing is None or count * self._seconds_per_block < computing

    def counts(self) -> DiskCounts:
        """Return the counters. Any thread may call this."""
        writer, store = self._writer, self._store
        outcomes = {"written": writer.num_written, "read": self._num_read}
        outcomes |= {"dropped": writer.num_dropped, "corrupt": store.num_corrupt}
        return DiskCounts(store.num_blocks, store.num_bytes, outcomes)

    def close(self) -> None:
        """Wait until everything is written, at most 10 seconds."""
        self._writer.close()


def _seconds_per_block(store: DiskStore) -> float:
    """Measure how long it takes to read a block that was just written. 0, if none can be written."""
    data, name = np.zeros((1, store.block_bytes), dtype=np.uint8), bytes(16)
    try:
        store.write(name, data[0])
    except OSError as error:
        # The disk may be full, and what is on it can be read.
        logger.warning("blocks of the KV cache cannot be written to disk now: %s", error)
        return 0.0
    begun = time.perf_counter()
    for _ in range(_TIMED_READS):
        store.read([name], data)
    seconds = (time.perf_counter() - begun) / _TIMED_READS
    store.remove(name)
    return seconds
