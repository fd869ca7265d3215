"""The process of a rank other than 0, as rank 0 sees it: on this machine, or on another one."""

import contextlib
import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from inflight.interpreter import interpreter
from inflight.model.parallel.machines.sockets import cut

_END_SECONDS = 5.0
# No cache of small pieces in each thread. Such pieces, which collectives free all the time, divide the memory that a
# step has given back, so that the next step's tensors do not fit there: the heap grew to three times its size.
_ALLOCATOR = "glibc.malloc.tcache_count=0"


class RankProcess(ABC):
    """A rank, its connection for commands, and the descriptor from which its signs of life are read."""

    def __init__(self, rank: int, connection: Connection, beats: int) -> None:
        self.rank, self.connection, self.beats = rank, connection, beats
        os.set_blocking(beats, False)

    @abstractmethod
    def kill(self) -> None:
        """End it at once."""

    @abstractmethod
    def ending(self, seconds: float) -> str:
        """Say how it has ended. Waits at most `seconds` to find out."""

    def wait(self) -> None:
        """Wait for its end after its connection was closed, and kill it after a few seconds.

        A rank on another machine ends by itself, and is not waited for.
        """


class LocalRank(RankProcess):
    """A rank on this machine, which this process starts."""

    def __init__(self, rank: int, size: int, host: str, folder: Path) -> None:
        """Raises OSError if no process can be started."""
        mine, theirs = Pipe()
        with contextlib.ExitStack() as undo:
            undo.callback(mine.close)
            read, written = os.pipe()
            undo.callback(os.close, read)
            with theirs, open(written, "wb") as beating:
                self.process = start(rank, size, theirs.fileno(), beating.fileno(), host, folder)
            undo.pop_all()
        super().__init__(rank, mine, read)

    def kill(self) -> None:
        """See `RankProcess`."""
        self.process.kill()

    def ending(self, seconds: float) -> str:
        """See `RankProcess`."""
        status: object = "unknown"
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self.process.wait(seconds)
        return f"rank {self.rank} has ended with the status {status}"

    def wait(self) -> None:
        """See `RankProcess`."""
        try:
            self.process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class RemoteRank(RankProcess):
    """A rank on another machine, which has connected to this one. It ends when its connections are shut."""

    def __init__(self, rank: int, host: str, connection: Connection, beats: Connection) -> None:
        super().__init__(rank, connection, os.dup(beats.fileno()))
        beats.close()
        self._host = host

    def kill(self) -> None:
        """See `RankProcess`."""
        cut(self._host)

    def ending(self, seconds: float) -> str:
        """See `RankProcess`."""
        return f"rank {self.rank} on {self._host} has ended, or its link; the log of that machine may say more"


def abandon(ranks: Iterable[RankProcess]) -> None:
    """End ranks that nobody watches yet, and free what this process has of them."""
    for rank in ranks:
        rank.kill()
        rank.connection.close()
        os.close(rank.beats)
        rank.wait()


def start(
    rank: int, size: int, connection: int, beats: int, host: str, folder: Path | None
) -> "subprocess.Popen[bytes]":
    """Start the process of a rank, which inherits the two descriptors.

    `host` is the address of this machine at which the other ranks reach it. The process removes `folder` at its end.
    """
    arguments = map(str, (rank, size, connection, beats, host, folder or ""))
    return subprocess.Popen(
        [interpreter(), "-P", "-m", "inflight.model.parallel.worker", *arguments],
        stdin=subprocess.DEVNULL,
        pass_fds=(connection, beats),
        env=_environment(),
    )


def _environment() -> Mapping[str, str]:
    # The user's own settings come last, and so win.
    tunables = ":".join(filter(None, (_ALLOCATOR, os.environ.get("GLIBC_TUNABLES"))))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "GLIBC_TUNABLES": tunables}
