"""A server in its own process: it is started on loopback, waited for until ready, and stopped with all its children."""

import collections
import contextlib
import errno
import http.client
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from scripts.launch.errors import LauncherError
from scripts.launch.process_group import group_members, kill_group, proportional_bytes, send, started_by_group

ADDRESS = "127.0.0.1"

_TAIL_LINES = 60
_POLL_SECONDS = 0.1
# Time that a server needs to write its last lines and exit, after its requests have finished.
_EXIT_MARGIN_SECONDS = 5.0
# Its other processes have this time afterwards. Python's resource tracker, for one, removes shared memory then.
_REST_SECONDS = 2.0
# A server that says that it dies has this time for it.
_DEATH_SECONDS = 5.0
# A process that is stopped does not notice the death of whoever started it.
_RESUME_ORPHANS = 'read resumed || kill -s CONT -- "$@"'
_TIED = Path(__file__).with_name("tied.py")
_FIRST_PORT = 20_000
# Where Linux begins, by default, to choose the ports of clients.
_FIRST_CLIENT_PORT = 32_768


class ServerProcess(ABC):
    """A server. As a context manager it starts on entry and stops on exit.

    `log` gets every line that the server writes. The last lines are also kept for error messages. A stop gives running
    requests `drain_seconds` to finish.

    The server runs in its own session, so Ctrl-C does not reach it. The kernel sends it `orphan_signal` when the thread
    that started it ends. So start it from a thread that outlives it.
    """

    name: str
    orphan_signal = signal.SIGTERM

    def __init__(self, http_port: int, *, log: Callable[[str], object] | None = None, drain_seconds: int = 30) -> None:
        self.http_port = http_port
        self.drain_seconds = drain_seconds
        self._log = log
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._waker: subprocess.Popen[str] | None = None
        """While the server is paused: resumes it if this process dies."""
        self._reader: threading.Thread | None = None

    @abstractmethod
    def _launch(self) -> tuple[Sequence[str], Mapping[str, str]]:
        """Return the command and its complete environment."""

    def _is_last_word(self, line: str) -> bool:
        """Return whether a line of its output says that the server is about to die of a fault."""
        return False

    def _is_idle(self) -> bool:
        """Return whether a server that was told to end serves nobody, and does not end by itself.

        `stop` asks this again and again until the server has ended.
        """
        return False

    @property
    def http_url(self) -> str:
        """Host and port of the HTTP endpoint, as tritonclient wants them."""
        return f"{ADDRESS}:{self.http_port}"

    @property
    def pid(self) -> int:
        """The server's process id, which is also that of its process group."""
        return self._started().pid

    def log_tail(self) -> str:
        """Return the last lines that the server wrote."""
        return "\n".join(self._tail)

    def resident_bytes(self) -> int:
        """Return the memory of the server and its descendants. Shared memory counts once."""
        return sum(proportional_bytes(pid) for pid in group_members(self.pid))

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and return at once. Raises LauncherError if there is no such program."""
        command, environment = self._launch()
        if shutil.which(command[0], path=environment.get("PATH")) is None:
            reason = "may not be executed" if Path(command[0]).is_file() else "is no program"
            raise LauncherError(f"{self.name} does not start: {command[0]} {reason}")
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", str(_TIED), str(os.getpid()), str(int(self.orphan_signal)), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                start_new_session=True,
                # Keep SIGPIPE ignored, so that a server whose launcher was killed can still shut down cleanly.
                restore_signals=False,
            )
        except OSError as error:
            raise LauncherError(f"{self.name} does not start: {error}") from error
        output = self._process.stdout
        assert output is not None
        self._reader = threading.Thread(
            target=self._read_output, args=(self._process, output), name="server-log", daemon=True
        )
        self._reader.start()

    def wait_for(self, paths: Sequence[str], timeout: float) -> None:
        """Wait until the server answers each of `paths` with status 200.

        Raises LauncherError as soon as the server dies, or after `timeout` seconds. The exception's note has the end of
        the log.
        """
        deadline = time.monotonic() + timeout
        waiting = list(paths)
        while waiting:
            code = self._started().poll()
            if code is not None:
                self._join_reader()
                raise self._failure(f"{self.name} {_describe_exit(code)} before it was ready")
            if time.monotonic() > deadline:
                raise self._failure(f"{self.name} was not ready after {timeout:g} s")
            if _answers_ok(self.http_port, waiting[0]):
                waiting.pop(0)
            else:
                time.sleep(_POLL_SECONDS)

    def _failure(self, message: str) -> LauncherError:
        error = LauncherError(message)
        error.add_note(self.log_tail())
        return error

    def pause(self) -> None:
        """Suspend the server and its descendants until `resume`.

        That includes the guardians, which have sessions of their own: one that went on would miss the model's signs of
        life and end the server. If this process dies meanwhile, all of them resume, and end as orphans.
        """
        guardians = started_by_group(self.pid)
        self._waker = subprocess.Popen(
            ["sh", "-c", _RESUME_ORPHANS, "sh", str(-self.pid), *map(str, guardians)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            text=True,
            start_new_session=True,
        )
        send(guardians, signal.SIGSTOP)
        os.killpg(self.pid, signal.SIGSTOP)

    def resume(self) -> None:
        """Resume a paused server."""
        self._dismiss_waker()
        guardians = started_by_group(self.pid)
        os.killpg(self.pid, signal.SIGCONT)
        send(guardians, signal.SIGCONT)

    def wait(self) -> str:
        """Wait until the server ends by itself, and end its descendants.

        Return how it ended: 'exited with code 1', 'was ended by SIGSEGV'.
        """
        code = self._started().wait()
        # They serve nobody any more, and keep the pipe of its output open.
        kill_group(self.name, self._started())
        self._join_reader()
        return _describe_exit(code)

    def stop(self) -> None:
        """Let running requests finish for `drain_seconds`, then end the server and its descendants.

        Does nothing if no server was started. Raises LauncherError if a process survives SIGKILL.
        """
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(ProcessLookupError):
            self.resume()  # A paused server does not react to SIGTERM.
        deadline = time.monotonic() + self.drain_seconds + _EXIT_MARGIN_SECONDS
        while self._process.poll() is None and time.monotonic() < deadline and not self._is_idle():
            time.sleep(_POLL_SECONDS)
        deadline = time.monotonic() + _REST_SECONDS
        while self._process.poll() is not None and group_members(self.pid) and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the server and its descendants at once. Otherwise like `stop`."""
        if self._process is None:
            return
        self._dismiss_waker()
        # A guardian that is paused would not notice the end.
        send(started_by_group(self.pid), signal.SIGCONT)
        kill_group(self.name, self._process)
        self._process = None
        self._join_reader()

    def _dismiss_waker(self) -> None:
        if self._waker is not None:
            self._waker.communicate("resumed\n")
            self._waker = None

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    def _read_output(self, process: subprocess.Popen[str], output: IO[str]) -> None:
        with output:
            for line in output:
                self._tail.append(line.rstrip("\n"))
                if self._is_last_word(line):
                    timer = threading.Timer(_DEATH_SECONDS, _end_dying, args=(process,))
                    timer.daemon = True
                    timer.start()
                if self._log is not None:
                    self._log(line)

    def _join_reader(self) -> None:
        # With a timeout, because a process that outlives its server for a moment keeps the pipe open.
        if self._reader is not None:
            self._reader.join(timeout=2)


def _end_dying(process: subprocess.Popen[str]) -> None:
    """Kill a server that has not managed to die: a fault may have left it waiting for its own locks."""
    if process.poll() is None:
        process.kill()


def fill_ports(*wanted: int | None) -> list[int]:
    """Replace each None by a free port."""
    with contextlib.ExitStack() as stack:
        ports = []
        for port in wanted:
            if port is None:
                # Each port stays bound until all are chosen, so that no two are the same.
                port = stack.enter_context(_bound_to_free_port()).getsockname()[1]
            ports.append(port)
    return ports


def _bound_to_free_port() -> socket.socket:
    """Bind a socket to a random free port below those that the kernel gives to connections.

    Any connection could take one of those before the server listens, or while it is started again.
    """
    while True:
        probe = socket.socket()
        try:
            probe.bind((ADDRESS, random.randrange(_FIRST_PORT, _FIRST_CLIENT_PORT)))
        except OSError as error:
            probe.close()
            if error.errno != errno.EADDRINUSE:
                raise
        else:
            return probe


def _answers_ok(port: int, path: str) -> bool:
    # Not urllib, which would use a proxy from the environment even for 127.0.0.1.
    connection = http.client.HTTPConnection(ADDRESS, port, timeout=2)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _describe_exit(code: int) -> str:
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
