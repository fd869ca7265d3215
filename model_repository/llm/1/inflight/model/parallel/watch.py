"""Looks whether the other ranks live."""

import logging
import os
import threading
from collections.abc import Callable, Sequence

from inflight.errors import EngineDead
from inflight.model.parallel.rank_process import RankProcess
from inflight.model.parallel.worker import BEAT_SECONDS

logger = logging.getLogger(__name__)

# How many looks in a row a rank may show no sign of life. While a model is loaded, code may hold Python's lock.
_SILENT_LOOKS, _SILENT_LOOKS_WHILE_LOADING = 6, 240
# In which the watch finds out what has happened to a rank whose connection is closed.
FINDING_SECONDS = 3.0


class Watch(threading.Thread):
    """Kills all ranks when one of them has ended or stands still: without it, the others are of no use."""

    def __init__(self, ranks: Sequence[RankProcess]) -> None:
        """Each rank writes to its descriptor `beats` each half second."""
        super().__init__(name="ranks", daemon=True)
        self.ranks = ranks
        self.stopping = threading.Event()
        self.fault: str | None = None
        """What has happened to a rank."""
        self.found = threading.Event()
        """Set when there is a fault."""
        self._most_silent = _SILENT_LOOKS_WHILE_LOADING
        self._on_death: Callable[[EngineDead], None] | None = None
        self._lock = threading.Lock()

    def expect_loading(self, on_death: Callable[[EngineDead], None]) -> None:
        """A model is to be loaded: for minutes, a rank may show no sign of life. `on_death` hears if it ends."""
        self._expect(_SILENT_LOOKS_WHILE_LOADING, on_death)

    def expect_steps(self, on_death: Callable[[EngineDead], None]) -> None:
        """From now on, a rank may be silent for less than 3 seconds. `on_death` hears if it is not so."""
        self._expect(_SILENT_LOOKS, on_death)

    def _expect(self, most_silent: int, on_death: Callable[[EngineDead], None]) -> None:
        with self._lock:
            self._most_silent, self._on_death = most_silent, on_death
            fault = self.fault
        if fault is not None:
            on_death(EngineDead(fault))  # A rank ended while nobody listened.

    def run(self) -> None:
        """Look until `stopping`, or until something is wrong."""
        silent = [0] * len(self.ranks)
        try:
            while not self.stopping.wait(BEAT_SECONDS) and not self.found.is_set():
                for index, rank in enumerate(self.ranks):
                    try:
                        read = os.read(rank.beats, 4096)
                    except BlockingIOError:
                        # Counted in looks instead of read from a clock: while the machine is suspended, none is silent.
                        silent[index] += 1
                        if silent[index] >= self._most_silent:
                            self.give_up(f"rank {rank.rank} stands still")
                    except OSError:  # a link to another machine
                        self.give_up(rank.ending(FINDING_SECONDS / 2))
                    else:
                        silent[index] = 0
                        if not read:
                            self.give_up(rank.ending(FINDING_SECONDS / 2))
        finally:
            for rank in self.ranks:
                os.close(rank.beats)

    def give_up(self, fault: str) -> None:
        """Kill the processes. `fault` says why."""
        with self._lock:
            if self.found.is_set() or self.stopping.is_set():
                return
            self.fault = fault
            self.found.set()
            on_death = self._on_death
        logger.error("%s; all ranks end", fault)
        for rank in self.ranks:
            rank.kill()
        if on_death is not None:
            on_death(EngineDead(fault))
