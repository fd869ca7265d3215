"""One tritonserver process: started on loopback, watched until ready, stopped without a trace."""

import collections
import contextlib
import ctypes
import http.client
import os
import signal
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO

from scripts.errors import LauncherError
from scripts.triton_runtime import TritonRuntime, triton_runtime

ADDRESS = "127.0.0.1"
SHARED_MEMORY = Path("/dev/shm")

_TAIL_LINES = 60
_POLL_SECONDS = 0.1
# What the server needs, beyond its own exit timeout, to write its last lines and leave.
_EXIT_MARGIN_SECONDS = 5.0
_PR_SET_PDEATHSIG = 1
# `completion` holds one for each request that it has passed on; with the default of 32 a burst waits in line.
_BACKEND_THREADS = 128
# Loaded here because the child may not import anything between fork and exec.
_LIBC = ctypes.CDLL(None)


class TritonServer:
    """A tritonserver over a model repository; as a context manager it starts on entry and stops on exit.

    A port of None stands for a free one. `log` gets every line that the server and its models write; the last
    lines are kept for error messages in any case. `environment` adds to that of the server. A stop gives
    running requests `drain_seconds` to finish.

    The server is in a session of its own, so Ctrl-C does not reach it. The kernel sends it SIGTERM when the
    thread that started it ends: start it from a thread that outlives it.
    """

    def __init__(
        self,
        repository: Path,
        *,
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        log: Callable[[str], object] | None = None,
        drain_seconds: int = 30,
        runtime: TritonRuntime | None = None,
    ) -> None:
        self.repository = repository
        self.http_port, self.grpc_port, self.metrics_port = _fill_ports(http_port, grpc_port, metrics_port)
        self.drain_seconds = drain_seconds
        self._arguments = list(arguments)
        self._environment = dict(environment or {})
        self._log = log
        self._runtime = runtime
        # The regions of this server and of no other, so that they can be removed even after a crash.
        self.region_prefix = f"inflight_{os.getpid()}_{uuid.uuid4().hex[:8]}_"
        self._tail: collections.deque[str] = collections.deque(maxlen=_TAIL_LINES)
        self._process: subprocess.Popen[str] | None = None
        self._reader: threading.Thread | None = None

    @property
    def http_url(self) -> str:
        """Host and port of the HTTP endpoint, as tritonclient wants them."""
        return f"{ADDRESS}:{self.http_port}"

    @property
    def grpc_url(self) -> str:
        """Host and port of the gRPC endpoint, as tritonclient wants them."""
        return f"{ADDRESS}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """The whole URL of the Prometheus metrics."""
        return f"http://{ADDRESS}:{self.metrics_port}/metrics"

    @property
    def pid(self) -> int:
        """The server's process id, which is also that of its process group."""
        return self._started().pid

    def log_tail(self) -> str:
        """Return the last lines that the server wrote."""
        return "\n".join(self._tail)

    def __enter__(self) -> "TritonServer":
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start the server and return at once; raises what `triton_runtime()` raises."""
        runtime = self._runtime or triton_runtime()
        self._process = subprocess.Popen(
            self._command(runtime),
            env={**runtime.environment(), **self._environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
            # Keeps SIGPIPE ignored: a server whose launcher was killed goes on to shut down in order.
            restore_signals=False,
            preexec_fn=_end_with_launcher,
        )
        output = self._process.stdout
        assert output is not None
        self._reader = threading.Thread(target=self._read_output, args=(output,), name="triton-log", daemon=True)
        self._reader.start()

    def wait_ready(self, timeout: float, models: Sequence[str] = ()) -> None:
        """Return when the server and each of `models` are ready.

        Raises LauncherError as soon as the server dies or after `timeout` seconds; the log's end is its note.
        """
        deadline = time.monotonic() + timeout
        waiting = ["/v2/health/ready", *(f"/v2/models/{model}/ready" for model in models)]
        while waiting:
            code = self._started().poll()
            if code is not None:
                self._join_reader()
                raise self._failure(f"tritonserver {_describe_exit(code)} before it was ready")
            if time.monotonic() > deadline:
                raise self._failure(f"tritonserver was not ready after {timeout:g} s")
            if _answers_ok(self.http_port, waiting[0]):
                waiting.pop(0)
            else:
                time.sleep(_POLL_SECONDS)

    def _failure(self, message: str) -> LauncherError:
        error = LauncherError(message)
        error.add_note(self.log_tail())
        return error

    def wait(self) -> str:
        """Return, once the server has ended by itself, how: 'exited with code 1', 'was ended by SIGSEGV'."""
        code = self._started().wait()
        self._join_reader()
        return _describe_exit(code)

    def stop(self) -> None:
        """Let running requests finish for `drain_seconds`, then end the server and all that it started.

        Does nothing where no server was started. Raises LauncherError where a process survives SIGKILL.
        """
        if self._process is None:
            return
        self._process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(self.drain_seconds + _EXIT_MARGIN_SECONDS)
        self.kill()

    def kill(self) -> None:
        """End the server and its stubs at once and remove their shared memory; as `stop` otherwise."""
        if self._process is None:
            return
        _kill_group(self._process)
        self._process = None
        self._join_reader()
        for region in SHARED_MEMORY.glob(f"{self.region_prefix}*"):
            region.unlink(missing_ok=True)

    def _command(self, runtime: TritonRuntime) -> list[str]:
        return [
            str(runtime.server),
            f"--model-repository={self.repository}",
            f"--backend-directory={runtime.backends}",
            f"--http-address={ADDRESS}",
            f"--http-port={self.http_port}",
            f"--grpc-address={ADDRESS}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-address={ADDRESS}",
            f"--metrics-port={self.metrics_port}",
            f"--exit-timeout-secs={self.drain_seconds}",
            f"--backend-config=python,shm-region-prefix-name={self.region_prefix}",
            f"--backend-config=python,thread-pool-size={_BACKEND_THREADS}",
            *self._arguments,
        ]

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None:
            raise RuntimeError("the server was not started")
        return self._process

    def _read_output(self, output: IO[str]) -> None:
        with output:
            for line in output:
                self._tail.append(line.rstrip("\n"))
                if self._log is not None:
                    self._log(line)

    def _join_reader(self) -> None:
        # Bounded, because a stub that outlives its server for a moment holds the pipe open.
        if self._reader is not None:
            self._reader.join(timeout=2)


def _end_with_launcher() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def _fill_ports(*wanted: int | None) -> list[int]:
    """Replace each None by a port that is free now."""
    with contextlib.ExitStack() as stack:
        ports = []
        for port in wanted:
            if port is None:
                # Each stays bound until all are chosen, so that they differ.
                probe = stack.enter_context(socket.socket())
                probe.bind((ADDRESS, 0))
                port = probe.getsockname()[1]
            ports.append(port)
    return ports


def _answers_ok(port: int, path: str) -> bool:
    # Not urllib, which would take 127.0.0.1 through a proxy named in the environment.
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


def _kill_group(leader: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + _EXIT_MARGIN_SECONDS
    while leader.poll() is None or _group_members(leader.pid):
        if time.monotonic() > deadline:
            raise LauncherError(f"processes {_group_members(leader.pid)} of tritonserver do not end on SIGKILL")
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader.pid, signal.SIGKILL)
        time.sleep(0.02)


def _group_members(group: int) -> list[int]:
    """Return the processes of a group that are not zombies; those wait for init and hold nothing."""
    members = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        # A process may end between the listing and the reading.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            state, _, process_group = stat.read_text().rpartition(")")[2].split()[:3]
            if int(process_group) == group and state != "Z":
                members.append(int(stat.parent.name))
    return members
