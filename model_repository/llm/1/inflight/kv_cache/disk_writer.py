"""Writes blocks to disk beside the stepping thread."""

import logging
import queue
import threading
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from inflight.kv_cache.disk_store import DiskStore

logger = logging.getLogger(__name__)

_MAX_WAITING_BYTES = 256 << 20
_JOIN_SECONDS = 10.0


class DiskWriter:
    """A thread with a bounded queue. Blocks that do not fit into it are not written."""

    def __init__(self, store: DiskStore) -> None:
        self.num_written = 0
        self.num_dropped = 0
        """Blocks that were not written because too much waited, memory was short, or the disk refused them."""
        self._store = store
        self._waiting: queue.SimpleQueue[tuple[Sequence[bytes], NDArray[np.uint8]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting_bytes = 0
        self._fails = False
        self._thread = threading.Thread(target=self._run, name="disk writer", daemon=True)
        self._thread.start()

    def admit(self, count: int) -> int:
        """Return how many of `count` blocks may be added now; the others count as dropped."""
        most = max(0, _MAX_WAITING_BYTES - self._waiting_bytes) // self._store.block_bytes
        if not self._waiting_bytes:
            most = max(1, most)  # However large a block is.
        self.drop(max(0, count - most))
        return min(count, most)

    def drop(self, count: int) -> None:
        """Count blocks as dropped."""
        with self._lock:
            self.num_dropped += count

    def add(self, names: Sequence[bytes], data: NDArray[np.uint8]) -> None:
        """Write blocks [blocks, bytes per block] soon. Nobody may change them any more."""
        with self._lock:
            self._waiting_bytes += data.nbytes
        self._waiting.put((names, data))

    def stop(self) -> None:
        """End the thread when everything is written."""
        self._waiting.put(None)

    def close(self) -> None:
        """Like `stop`, and wait for it, at most 10 seconds."""
        self.stop()
        self._thread.join(_JOIN_SECONDS)
        if self._thread.is_alive():
            logger.warning("the disk is slow: some blocks of the KV cache are not written")

    def _run(self) -> None:
        while (item := self._waiting.get()) is not None:
            self._write_all(*item)
            del item  # Else its bytes stay in memory until the next blocks come.

    def _write_all(self, names: Sequence[bytes], data: NDArray[np.uint8]) -> None:
        for name, block in zip(names, data, strict=True):
            self._write(name, block)
        with self._lock:
            self._waiting_bytes -= data.nbytes

    def _write(self, name: bytes, block: NDArray[np.uint8]) -> None:
        try:
            self._store.write(name, block)
        except OSError as error:
            if not self._fails:
                logger.warning("blocks of the KV cache cannot be written to disk: %s", error)
            self._fails = True
            self.drop(1)
        else:
            self._fails = False
            self.num_written += 1
