"""The service under test: `make serve` and the gateway, each started again when it ends, as systemd would."""

import asyncio
import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx

from load_tests.chaos import commands
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError
from scripts.launch.model_repository import MODEL_REPOSITORY, render_repository
from scripts.launch.server_process import ADDRESS, fill_ports

READY_SECONDS = 180.0
STEP_TIMEOUT = 3
"""The model's `step_timeout_seconds`. On a machine with much other work, a step can take two."""
_CACHE_TOKENS = 16_384
"""Enough for all users. A start takes seconds less than with a cache that fills the memory."""
_RESTART_SECONDS = 1.0
_STOP_SECONDS = 60.0
_MARK = "INFLIGHT_CHAOS"
_SHM_MIB = 64
"""Size of /dev/shm, which is Docker's default."""
_TRACE_MIB = 64


@dataclass(frozen=True)
class Ports:
    """Where the service listens, on loopback."""

    http: int
    grpc: int
    metrics: int
    gateway: int


class Supervised:
    """A command that is started again whenever it ends. Its output goes to a file."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command, self._environment, self._log = list(command), dict(environment), log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int:
        """The id of its present process."""
        if self._process is None:
            raise ProcessLookupError(f"{self._command[0]} is not running")
        return self._process.pid

    async def run(self) -> None:
        """Keep it running until this is cancelled. Then stop it."""
        with self._log.open("a") as log:
            try:
                while True:
                    self._process = await asyncio.create_subprocess_exec(
                        *self._command,
                        env=self._environment,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                    await self._process.wait()
                    await asyncio.sleep(_RESTART_SECONDS)
            finally:
                await self._stop()

    async def _stop(self) -> None:
        if self._process is None or self._process.returncode is not None:
            return
        self._process.terminate()
        try:
            async with asyncio.timeout(_STOP_SECONDS):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            await self._process.wait()


class Service:
    """The running service and its parts."""

    def __init__(self, folder: Path, parameters: Mapping[str, str] | None = None) -> None:
        """`folder` is empty; it gets the model repository, the logs and the trace.

        `parameters` are further ones of `llm`. Default: a trace, steps that must not take long, and a small
        cache.
        """
        self.folder = folder
        self.ports = Ports(*fill_ports(None, None, None, None))
        self._http = httpx.AsyncClient(timeout=5, trust_env=False)
        self._mark = uuid.uuid4().hex
        self.operator_key = uuid.uuid4().hex
        """Opens Triton's interfaces for operators."""
        self.first_start = 0.0
        """Seconds that the first start took, without load, once it is over."""
        self._trace = folder / "trace"
        self._trace.mkdir()
        if parameters is None:
            trace = str(self._trace / "trace.json")
            parameters = {
                "trace_file": trace,
                "step_timeout_seconds": str(STEP_TIMEOUT),
                "kv_cache_tokens": str(_CACHE_TOKENS),
            }
        repository = _repository(folder / "models", parameters)
        self.pipe = repository / "llm" / "1" / commands.PIPE
        environment = {
            **os.environ,
            _MARK: self._mark,
            "HTTP_PORT": str(self.ports.http),
            "GRPC_PORT": str(self.ports.grpc),
            "METRICS_PORT": str(self.ports.metrics),
            "OPERATOR_KEY": self.operator_key,
            "ARGS": "--model-control-mode=explicit --load-model=*",
        }
        serve = [sys.executable, "-m", "load_tests.chaos.serve", str(repository)]
        self.server = Supervised(self._on_small_disks(serve), environment, folder / "server.log")
        gateway = [sys.executable, "-m", "inflight_gateway", f"--server={ADDRESS}:{self.ports.grpc}"]
        gateway += [f"--port={self.ports.gateway}"]
        self.gateway = Supervised(gateway, environment, folder / "gateway.log")

    def _on_small_disks(self, command: Sequence[str]) -> list[str]:
        """Give a command its own small /dev/shm and trace folder, in a mount namespace."""
        script = (
            f"mount -t tmpfs -o size={_SHM_MIB}m tmpfs /dev/shm && "
            f"mount -t tmpfs -o size={_TRACE_MIB}m tmpfs '{self._trace}' && exec \"$@\""
        )
        return ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *command]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run both. Raises LauncherError if they do not get ready."""
        async with self._http, asyncio.TaskGroup() as group:
            begun = time.monotonic()
            tasks = [group.create_task(part.run()) for part in (self.server, self.gateway)]
            try:
                await self.wait_ready()
                self.first_start = time.monotonic() - begun
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def wait_ready(self) -> None:
        """Wait until the gateway says that the model is ready. Raises LauncherError after `READY_SECONDS`."""
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not await self.is_healthy():
                    await asyncio.sleep(0.2)
        except TimeoutError:
            log = (self.folder / "server.log").read_text()[-2000:]
            raise LauncherError(
                f"the service is not ready after {READY_SECONDS:g} s; the end of its log:\n{log}"
            ) from None

    async def is_healthy(self) -> bool:
        """Whether the gateway says that the service is healthy."""
        return await self._answers_ok(f"http://{ADDRESS}:{self.ports.gateway}/health")

    async def is_started(self) -> bool:
        """Whether Triton says that it is ready."""
        return await self._answers_ok(f"http://{ADDRESS}:{self.ports.http}/v2/health/ready")

    async def _answers_ok(self, url: str) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return (await self._http.get(url)).status_code == 200
        return False

    def triton_started(self) -> float:
        """When tritonserver was started, in seconds of `time.monotonic`. Raises ProcessLookupError if there is none."""
        return _started(self.triton())

    def gateway_started(self) -> float:
        """When the gateway was started. Raises ProcessLookupError if it is not running."""
        return _started(self.gateway.pid)

    def processes(self) -> dict[int, str]:
        """The commands of all processes of this service by their ids, orphans included."""
        mark = f"{_MARK}={self._mark}".encode()
        found = {}
        for folder in Path("/proc").glob("[0-9]*"):
            # A process may end while it is looked at, and others may not be looked at.
            with contextlib.suppress(FileNotFoundError, ProcessLookupError, PermissionError):
                if mark in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
        return found

    def triton(self) -> int:
        """The process id of tritonserver. Raises ProcessLookupError if there is none."""
        return self._only(lambda command: command.split()[0].endswith("/tritonserver"))

    def model(self) -> int:
        """The process id of the model `llm`. Raises ProcessLookupError if there is none."""
        return self._only(lambda command: "triton_python_backend_stub" in command and "/llm/1/" in command)

    def completion(self) -> int:
        """The process id of the model `completion`. Raises ProcessLookupError if there is none."""
        return self._only(lambda command: "triton_python_backend_stub" in command and "/completion/1/" in command)

    def guardian(self, model: str) -> int:
        """The process id of the guardian of a model. Raises ProcessLookupError if there is none."""
        return self._only(lambda command: f"serving.guardian_process {model} " in command)

    def _only(self, wanted: Callable[[str], bool]) -> int:
        found = [pid for pid, command in self.processes().items() if command and wanted(command)]
        if len(found) != 1:
            raise ProcessLookupError(f"{len(found)} such processes")
        return found[0]

    def shared_memory(self) -> list[Path]:
        """The files in the server's /dev/shm."""
        return sorted(self.shm.iterdir())

    @property
    def shm(self) -> Path:
        """The server's /dev/shm."""
        return Path(f"/proc/{self.server.pid}/root/dev/shm")

    @property
    def trace_disk(self) -> Path:
        """The server's trace folder."""
        return Path(f"/proc/{self.server.pid}/root{self._trace}")


def _started(pid: int) -> float:
    """When a process was started. Not psutil's `create_time`, which changes with the machine's clock."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} has ended") from None
    return ticks / os.sysconf("SC_CLK_TCK")


def _repository(destination: Path, parameters: Mapping[str, str]) -> Path:
    """The model repository, with `faulty_model` around the model."""
    rendered = render_repository(destination, parameters={"model": str(default_model()), **parameters})
    version = rendered / "llm" / "1"
    version.unlink()
    version.mkdir()
    for entry in (MODEL_REPOSITORY / "llm" / "1").iterdir():
        (version / ("shipped_model.py" if entry.name == "model.py" else entry.name)).symlink_to(entry)
    for name, ours in (("model.py", "faulty_model.py"), ("commands.py", "commands.py")):
        (version / name).symlink_to(Path(__file__).with_name(ours))
    os.mkfifo(version / commands.PIPE)
    return rendered
