"""Notices that a server cannot be reached any more, for threads."""

import contextlib
import math
import threading
from collections.abc import Callable, Iterator
from typing import Protocol

from inflight_client.transport.silence import Silence, Step


class Probe(Protocol):
    """A running probe."""

    def cancel(self) -> object:
        """Drop it."""


class FailureDetector:
    """Probes a server that says nothing while requests wait for it, and gives it up if the probes have no answer.

    A link that drops everything ends no connection: without probes, a request would wait until its time is over. A
    server whose model computes for long answers probes. There is a thread while requests run, and at most one.
    """

    def __init__(self, seconds: float, probe: Callable[[], Probe], give_up: Callable[[], object]) -> None:
        """Create a detector. Both functions run in its thread.

        Args:
            seconds: after which the server is given up; infinite: never.
            probe: asks the server whether it lives, and calls `heard` if anything comes back. Must not wait for it.
            give_up: ends what runs.
        """
        self._silence = Silence(seconds)
        self._probe, self._give_up = probe, give_up
        # Reentrant: the garbage collector may end a request in a thread that holds it.
        self._lock = threading.RLock()
        self._num_running = 0
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Watch the server while a request runs."""
        with self._lock:
            if self._thread is None and self._silence.tick_seconds < math.inf and not self._closed.is_set():
                thread = threading.Thread(target=self._watch, name="inflight-failure-detector", daemon=True)
                thread.start()
                self._thread = thread
            self._num_running += 1
        try:
            yield
        finally:
            with self._lock:
                self._num_running -= 1

    def heard(self) -> None:
        """Something came from the server."""
        self._silence.heard()

    def close(self) -> None:
        """End the thread. Call it before the probe's connection is closed."""
        with self._lock:
            self._closed.set()
            thread = self._thread
        if thread is not None:
            thread.join()

    def _watch(self) -> None:
        probe: Probe | None = None
        while self._is_needed():
            self._closed.wait(self._silence.tick_seconds)
            match self._silence.tick():
                case Step.PROBE:
                    if probe is not None:
                        probe.cancel()
                    probe = self._probe()
                case Step.GIVE_UP:
                    self._give_up()
        if probe is not None:
            probe.cancel()

    def _is_needed(self) -> bool:
        """Whether the thread goes on. It waits for the answer to a probe also if no request runs any more."""
        with self._lock:
            if not self._closed.is_set() and (self._num_running or self._silence.is_probed):
                return True
            self._thread = None
            return False
