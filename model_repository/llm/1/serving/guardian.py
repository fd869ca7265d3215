"""The model's side of the guardian, a small process that ends Triton's server when the model's process has died."""

import contextlib
import logging
import os
import subprocess
import threading
from pathlib import Path

from inflight.interpreter import interpreter
from serving.guardian_process import BEAT, END, READY

logger = logging.getLogger(__name__)

_VERSION_FOLDER = Path(__file__).parents[1]
_END_SECONDS = 5.0

BEAT_SECONDS = 1.0


class Guardian:
    """The guardian of this process and of the server that has started it.

    Made before the model is loaded: if the server dies meanwhile, this process may wait for it for ever. If the server
    has died already, the guardian ends this process.
    """

    def __init__(self, name: str, *, patience_seconds: float) -> None:
        """Start it, and wait until it watches.

        `patience_seconds`: how long this process may send no `beat` after the first one, which says that the model is
        loaded.

        Raises:
            OSError: there is no such Python.
            RuntimeError: the guardian has failed; its error is in the server's log.
        """
        self._arguments = [name, str(os.getpid()), str(os.getppid()), str(patience_seconds)]
        self._lost = False
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            [interpreter(), "-E", "-s", "-S", "-m", "serving.guardian_process", *self._arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=_VERSION_FOLDER,
            # What ends the processes of the server's session must not end the guardian.
            start_new_session=True,
        )
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._process.stdout as output:
            if output.read(len(READY)) != READY:
                raise RuntimeError("the guardian does not start; its error is in the server's log")
        os.set_blocking(self._process.stdin.fileno(), False)

    def beat(self) -> None:
        """Say that this process is alive. If the guardian was killed, start another one."""
        if self._write(BEAT):
            return
        if not self._lost:
            logger.error("the guardian, process %d, has ended; another one is started", self._process.pid)
        self._process.kill()
        with self._process:  # Closes the pipe, and waits for the end.
            pass
        try:
            self._start()
            self._lost = not self._write(BEAT)
        except (OSError, RuntimeError):
            # Logged once. The next beat tries again.
            if not self._lost:
                logger.exception("there is no guardian; nothing ends the server if this process dies")
            self._lost = True

    def dismiss(self) -> None:
        """Say that this process ends in order, and wait for the guardian's end."""
        self._write(END)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            logger.error("the guardian, process %d, does not end", self._process.pid)

    def _write(self, message: bytes) -> bool:
        """Return whether there is a guardian."""
        pipe = self._process.stdin
        # Closed when the guardian has ended. Its number may be that of another file by now.
        if pipe is None or pipe.closed:
            return False
        # A guardian that is suspended reads nothing; it may miss some beats.
        with contextlib.suppress(BlockingIOError):
            try:
                os.write(pipe.fileno(), message)
            except BrokenPipeError:
                return False
        return True


class Pulse(threading.Thread):
    """Beats once a second, for a process that has no watchdog."""

    def __init__(self, guardian: Guardian) -> None:
        """Start it."""
        super().__init__(name="pulse", daemon=True)
        self._guardian = guardian
        self._guardian.beat()
        self._stopping = threading.Event()
        self.start()

    def run(self) -> None:
        """Beat until `stop`."""
        while not self._stopping.wait(BEAT_SECONDS):
            self._guardian.beat()

    def stop(self) -> None:
        """This process ends in order: dismiss the guardian."""
        self._stopping.set()
        self.join()
        self._guardian.dismiss()
