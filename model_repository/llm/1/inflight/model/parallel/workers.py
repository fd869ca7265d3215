"""The processes of the other ranks, as rank 0 sees them."""

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path

from inflight.errors import EngineDead
from inflight.interpreter import interpreter
from inflight.model.parallel.worker import BEAT_SECONDS

logger = logging.getLogger(__name__)

# How many looks in a row a rank may show no sign of life. While a model is loaded, code may hold Python's lock.
_SILENT_LOOKS, _SILENT_LOOKS_WHILE_LOADING = 6, 240
# In which the watch finds out what has happened to a rank whose connection is closed.
_FINDING_SECONDS = 3.0
_END_SECONDS = 5.0


class Workers:
    """Starts the ranks 1 to `size - 1` of this machine, watches them, and passes commands on.

    If one of them ends or is stopped, all are killed. Then the collective for which rank 0 waits fails, and `answers`
    raises `EngineDead`.
    """

    def __init__(self, size: int) -> None:
        """Raises OSError if no process can be started."""
        self.size = size
        self.folder = Path(tempfile.mkdtemp(prefix="inflight-ranks-"))
        """Only this user can read it. The ranks find each other through files in it."""
        self._connections: list[Connection] = []
        processes, beats = [], []
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self.folder, ignore_errors=True)
            for rank in range(1, size):
                mine, theirs = Pipe()
                beat, beating = os.pipe()
                undo.callback(mine.close)
                undo.callback(os.close, beat)
                with theirs, open(beating, "wb") as written:
                    processes.append(_start(rank, size, theirs.fileno(), written.fileno(), self.folder))
                undo.callback(_kill, processes[-1])
                self._connections.append(mine)
                beats.append(beat)
            undo.pop_all()  # All have started: nothing is undone.
        self._watch = _Watch(processes, beats)
        self._watch.start()
        # Also ends them when nobody closes this object.
        self.close = weakref.finalize(self, _end, self._watch, self._connections, self.folder)
        """Ends the processes, and waits for it."""

    @property
    def pids(self) -> list[int]:
        """The ids of the processes, in the order of the ranks."""
        return [process.pid for process in self._watch.processes]

    def be_patient(self) -> None:
        """A model is to be loaded: for minutes, a rank may show no sign of life."""
        self._watch.expect(_SILENT_LOOKS_WHILE_LOADING, None)

    def serve(self, on_death: Callable[[EngineDead], None]) -> None:
        """From now on, a rank that shows no sign of life for 3 seconds counts as stopped.

        `on_death` is called on another thread when a rank has ended or was stopped.
        """
        self._watch.expect(_SILENT_LOOKS, on_death)

    def kill(self, fault: str) -> None:
        """End them at once. `fault` says why."""
        self._watch.give_up(fault)

    def tell(self, command: bytes, argument: bytes) -> None:
        """Send a command to all.

        Raises:
            EngineDead: a rank has ended.
        """
        message = command + argument
        for connection in self._connections:
            try:
                connection.send_bytes(message)
            except OSError:
                raise self._death() from None

    def answers(self, seconds: float) -> list[bytes]:
        """Wait at most `seconds` for the answer of each to the last command.

        Raises:
            EngineDead: a rank has ended, was stopped, or does not answer.
        """
        found = []
        for rank, connection in enumerate(self._connections, start=1):
            try:
                if not connection.poll(seconds):
                    self._watch.give_up(f"rank {rank} does not answer for {seconds:g} s")
                found.append(connection.recv_bytes())
            except (EOFError, OSError):
                raise self._death() from None
        return found

    def _death(self) -> EngineDead:
        self._watch.found.wait(_FINDING_SECONDS)
        return EngineDead(self._watch.fault or "the other ranks have ended")


class _Watch(threading.Thread):
    """Looks whether the processes live."""

    def __init__(self, processes: Sequence[subprocess.Popen[bytes]], beats: Sequence[int]) -> None:
        """`beats` are the descriptors of pipes, to which each process writes each half second."""
        super().__init__(name="ranks", daemon=True)
        self.processes = processes
        self.stopping = threading.Event()
        self.fault: str | None = None
        """What has happened to a rank."""
        self.found = threading.Event()
        """Set when there is a fault."""
        self._beats = beats
        self._most_silent = _SILENT_LOOKS_WHILE_LOADING
        self._on_death: Callable[[EngineDead], None] | None = None
        self._lock = threading.Lock()
        for beat in beats:
            os.set_blocking(beat, False)

    def expect(self, most_silent: int, on_death: Callable[[EngineDead], None] | None) -> None:
        """A process may be silent for less than `most_silent` looks. `on_death` hears if it is not so."""
        with self._lock:
            self._most_silent, self._on_death = most_silent, on_death

    def run(self) -> None:
        """Look until `stopping`, or until something is wrong."""
        silent = [0] * len(self._beats)
        try:
            while not self.stopping.wait(BEAT_SECONDS) and not self.found.is_set():
                for index, beat in enumerate(self._beats):
                    try:
                        read = os.read(beat, 4096)
                    except BlockingIOError:
                        # Counted in looks instead of read from a clock: while the machine is suspended, none is silent.
                        silent[index] += 1
                        if silent[index] >= self._most_silent:
                            self.give_up(f"rank {index + 1} stands still")
                    else:
                        silent[index] = 0
                        if not read:
                            self._ended(index)
        finally:
            for beat in self._beats:
                os.close(beat)

    def _ended(self, index: int) -> None:
        status: object = "unknown"
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = self.processes[index].wait(_FINDING_SECONDS / 2)
        self.give_up(f"rank {index + 1} has ended with the status {status}")

    def give_up(self, fault: str) -> None:
        """Kill the processes: without one of them, the others are of no use."""
        with self._lock:
            if self.found.is_set() or self.stopping.is_set():
                return
            self.fault = fault
            self.found.set()
            on_death = self._on_death
        logger.error("%s; all ranks end", fault)
        for process in self.processes:
            process.kill()
        if on_death is not None:
            on_death(EngineDead(fault))


def _start(rank: int, size: int, connection: int, beats: int, folder: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [
            *(interpreter(), "-P", "-m", "inflight.model.parallel.worker"),
            *map(str, (rank, size, connection, beats, folder)),
        ],
        stdin=subprocess.DEVNULL,
        pass_fds=(connection, beats),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _end(watch: _Watch, connections: Sequence[Connection], folder: Path) -> None:
    watch.stopping.set()
    for connection in connections:
        connection.close()
    for process in watch.processes:
        try:
            process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            _kill(process)
    shutil.rmtree(folder, ignore_errors=True)
