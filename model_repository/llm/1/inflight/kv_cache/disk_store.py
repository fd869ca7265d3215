"""Blocks in files, which are found by their hashes, also after a restart."""

import contextlib
import os
import re
import secrets
import threading
import time
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from inflight.private_files import private_folder

_CHECKSUM_BYTES = 4
_BLOCK_FILE = re.compile(r"[0-9a-f]{32}\Z")
_DRAFT_FILE = re.compile(r"[0-9a-f]{32}\.[0-9a-f]+\Z")
# A draft this old belongs to an engine that has ended.
_ABANDONED_SECONDS = 600


class DiskStore:
    """One file for each block, at `folder/fingerprint/first two digits/hash`: a checksum, and the bytes of the block.

    When the files take more than `max_bytes`, the least recently used go, those of other fingerprints included. An
    index in memory knows all files that were there at the start and those written since. Files appear and change by
    renaming, so several engines may use a folder; each bounds what its own index knows. Any thread may use it.
    """

    def __init__(self, folder: Path, fingerprint: str, block_bytes: int, max_bytes: int) -> None:
        """
        Raises:
            ValueError: `max_bytes` does not suffice for one block.
        """
        if max_bytes < block_bytes + _CHECKSUM_BYTES:
            raise ValueError(f"{max_bytes} bytes on disk do not suffice for a block of {block_bytes} bytes")
        self.block_bytes = block_bytes
        self.num_corrupt = 0
        """Files that were torn or damaged, and are removed."""
        self._folder = folder
        self._fingerprint = fingerprint
        self._max_bytes = max_bytes
        self._draft = secrets.token_hex(8)
        self._lock = threading.Lock()
        self._index: OrderedDict[str, int] = OrderedDict()
        """Sizes of files by path within the folder, the least recently used first. The lock guards it."""
        self._num_bytes = 0
        for path, size in _found(folder):
            self._index[path] = size
            self._num_bytes += size
        self._shrink()

    @property
    def num_blocks(self) -> int:
        """Number of files, those of other fingerprints included."""
        return len(self._index)

    @property
    def num_bytes(self) -> int:
        return self._num_bytes

    def _path(self, name: bytes) -> str:
        digits = name.hex()
        return f"{self._fingerprint}/{digits[:2]}/{digits}"

    def touch(self, name: bytes) -> bool:
        """Note that a block was used. Return whether it is there."""
        path = self._path(name)
        with self._lock:
            if path not in self._index:
                return False
            self._index.move_to_end(path)
            return True

    def count(self, names: Sequence[bytes]) -> int:
        """Return how many blocks the longest prefix of the chain `names` has here."""
        with self._lock:
            for index, name in enumerate(names):
                if self._path(name) not in self._index:
                    return index
        return len(names)

    def write(self, name: bytes, data: NDArray[np.uint8]) -> None:
        """Write a block [bytes per block].

        Raises:
            OSError: the file cannot be written. The store is as before.
        """
        path = self._path(name)
        target = self._folder / path
        draft = target.with_name(f"{target.name}.{self._draft}")
        if not target.parent.is_dir():
            # Whoever wanted the prompts on disk to be forgotten may have deleted the whole folder.
            private_folder(self._folder)
            for parent in (target.parent.parent, target.parent):
                parent.mkdir(mode=0o700, exist_ok=True)
        try:
            with open(draft, "wb", opener=_open_private) as file:
                file.write(_checksum(name, data))
                file.write(data.data)
            os.replace(draft, target)
        except OSError:
            draft.unlink(missing_ok=True)
            raise
        with self._lock:
            size = self.block_bytes + _CHECKSUM_BYTES
            self._num_bytes += size - self._index.pop(path, 0)
            self._index[path] = size
        self._shrink()

    def _shrink(self) -> None:
        while True:
            with self._lock:
                if self._num_bytes <= self._max_bytes:
                    return
                path, size = self._index.popitem(last=False)
                self._num_bytes -= size
            self._unlink(path)

    def read(self, names: Sequence[bytes], data: NDArray[np.uint8]) -> int:
        """Read the blocks of a chain into `data` [blocks, bytes per block]. Return how many of the first are right."""
        for index, (name, row) in enumerate(zip(names, data, strict=True)):
            if not self._read(name, row):
                self._forget_missing(names[index + 1 :])
                return index
        return len(names)

    def _forget_missing(self, names: Sequence[bytes]) -> None:
        """Forget blocks without a file: another engine, or a person, has removed the files of a whole chain.

        A block that the index knows is not written again.
        """
        for path in map(self._path, names):
            if not (self._folder / path).exists():
                with self._lock:
                    self._num_bytes -= self._index.pop(path, 0)

    def _read(self, name: bytes, row: NDArray[np.uint8]) -> bool:
        if not self.touch(name):
            return False
        path = self._path(name)
        try:
            with open(self._folder / path, "rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                checksum = file.read(_CHECKSUM_BYTES)
                file.readinto(row.data)
        except OSError:  # Another engine has removed it, or the disk fails.
            self.remove(name)
            return False
        if size != self.block_bytes + _CHECKSUM_BYTES or checksum != _checksum(name, row):
            self.num_corrupt += 1
            self.remove(name)
            return False
        with contextlib.suppress(OSError):  # The file system may have become read-only.
            os.utime(self._folder / path)
        return True

    def remove(self, name: bytes) -> None:
        """Forget a block, and remove its file if that is possible."""
        path = self._path(name)
        with self._lock:
            self._num_bytes -= self._index.pop(path, 0)
        self._unlink(path)

    def _unlink(self, path: str) -> None:
        # A disk that fails must not end the request that reads it. What stays there is found at the next start.
        with contextlib.suppress(OSError):
            (self._folder / path).unlink()


def _checksum(name: bytes, data: NDArray[np.uint8]) -> bytes:
    """The checksum of a block. The name is part of it, so that a file under a wrong name is found out."""
    return zlib.crc32(data.data, zlib.crc32(name)).to_bytes(_CHECKSUM_BYTES, "little")


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _found(folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the path and size of each block file in a folder, by the time of its last use. Remove abandoned drafts."""
    files = []
    for path in folder.glob("*/*/*"):
        try:
            status = path.lstat()
        except FileNotFoundError:
            continue  # Another engine has just renamed or removed it.
        if _BLOCK_FILE.match(path.name):
            files.append((status.st_mtime_ns, str(path.relative_to(folder)), status.st_size))
        elif _DRAFT_FILE.match(path.name) and time.time() - status.st_mtime > _ABANDONED_SECONDS:
            with contextlib.suppress(OSError):  # It takes some room, and harms nobody.
                path.unlink()
    for _, name, size in sorted(files):
        yield name, size
