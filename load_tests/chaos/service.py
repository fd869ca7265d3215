"""The service under test: `make serve` and the gateway, each started again when it ends, as systemd would."""

import asyncio
import contextlib
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

import httpx

from inflight_client import Prefill
from load_tests.chaos.proxy import Proxy, proxy
from load_tests.chaos.server import Server
from load_tests.chaos.supervised import Supervised
from scripts.launch.errors import LauncherError
from scripts.launch.server_process import ADDRESS, fill_ports

READY_SECONDS = 180.0
STEP_TIMEOUT = 3
"""The model's `step_timeout_seconds`. On a machine with much other work, a step can take two."""
_CACHE_TOKENS = 16_384
"""Enough for all users. A start takes seconds less than with a cache that fills the memory."""
GRPC, HTTP = "users over gRPC", "users over HTTP"


@dataclass(frozen=True)
class Ports:
    """Where the service listens, on loopback."""

    http: int
    grpc: int
    metrics: int
    gateway: int


class Service:
    """The running service and its parts."""

    prefill: Prefill | None = None
    """Servers that users' clients ask first."""

    def __init__(
        self, folder: Path, parameters: Mapping[str, str] | None = None, gateway_options: Sequence[str] = ()
    ) -> None:
        """`folder` is empty; it gets the model repository, the logs and the trace.

        `parameters` are further ones of `llm`. Default: `usual_parameters`.
        """
        self.folder = folder
        self.ports = Ports(*fill_ports(None, None, None, None))
        self.first_start = 0.0
        """Seconds that the first start took, without load, once it is over."""
        self.server = Server(
            folder / "server",
            (self.ports.http, self.ports.grpc, self.ports.metrics),
            usual_parameters(folder / "server") if parameters is None else parameters,
            folder / "server.log",
        )
        gateway = [sys.executable, "-m", "inflight_gateway", f"--server={ADDRESS}:{self.ports.grpc}"]
        gateway += [f"--port={self.ports.gateway}", *gateway_options]
        self.gateway = Supervised(gateway, os.environ, folder / "gateway.log")
        self._http = httpx.AsyncClient(timeout=5, trust_env=False)
        self.links: dict[str, Proxy] = {}
        """By their names, while it runs: proxies that faults can act on."""

    @property
    def servers(self) -> Sequence[Server]:
        """All Triton servers, and first the one that answers."""
        return [self.server]

    def link_ports(self) -> Mapping[str, tuple[int, int]]:
        """The target and the own port, or 0 for any, of each link."""
        return {GRPC: (self.ports.grpc, 0), HTTP: (self.ports.http, 0)}

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Run all parts. Raises LauncherError if they do not get ready."""
        async with self._http, AsyncExitStack() as stack:
            for name, (target, port) in self.link_ports().items():
                self.links[name] = await stack.enter_async_context(proxy(target, port))
            group = await stack.enter_async_context(asyncio.TaskGroup())
            begun = time.monotonic()
            runs = [*(server.run for server in self.servers), self.gateway.run]
            tasks = [group.create_task(run()) for run in runs]
            try:
                await self.wait_ready()
                self.first_start = time.monotonic() - begun
                yield
            finally:
                for task in tasks:
                    task.cancel()

    async def wait_ready(self) -> None:
        """Wait until all parts are ready. Raises LauncherError after `READY_SECONDS`."""
        await self._wait("ready", self.is_ready)

    async def wait_taking_part(self) -> None:
        """Under load, wait until all parts take part again. Raises LauncherError after `READY_SECONDS`."""
        await self.wait_ready()

    async def _wait(self, what: str, is_so: Callable[[], Awaitable[bool]]) -> None:
        try:
            async with asyncio.timeout(READY_SECONDS):
                while not await is_so():
                    await asyncio.sleep(0.2)
        except TimeoutError:
            logs = "\n".join(f"{log.name}:\n{log.read_text()[-2000:]}" for log in sorted(self.folder.glob("*.log")))
            raise LauncherError(
                f"the service is not {what} after {READY_SECONDS:g} s; the ends of its logs:\n{logs}"
            ) from None

    async def is_ready(self) -> bool:
        """Whether all parts are ready."""
        return await self.is_healthy()

    async def is_healthy(self) -> bool:
        """Whether the gateway says that the service is healthy."""
        return await self._answers_ok(f"http://{ADDRESS}:{self.ports.gateway}/health")

    async def is_started(self, server: Server) -> bool:
        """Whether a Triton server says that it is ready."""
        return await self._answers_ok(f"http://{ADDRESS}:{server.http_port}/v2/health/ready")

    async def _answers_ok(self, url: str) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return (await self._http.get(url)).status_code == 200
        return False

    def triton_started(self) -> float:
        """When the answering tritonserver was started, in seconds of `time.monotonic`.

        Raises ProcessLookupError if there is none.
        """
        return _started(self.server.triton())

    def gateway_started(self) -> float:
        """When the gateway was started. Raises ProcessLookupError if it is not running."""
        return _started(self.gateway.pid)

    def processes(self) -> dict[int, str]:
        """The commands of all processes of this service by their ids, orphans included."""
        found = self.gateway.processes()
        for server in self.servers:
            found |= server.processes()
        return found

    def shared_memory(self) -> list[Path]:
        """The files in the servers' /dev/shm."""
        return [path for server in self.servers for path in sorted(server.shm.iterdir())]


def usual_parameters(folder: Path) -> Mapping[str, str]:
    """For a server in `folder`: a trace on its small disk, steps that must not take long, and a small cache."""
    return {
        "trace_file": str(folder / "trace" / "trace.json"),
        "step_timeout_seconds": str(STEP_TIMEOUT),
        "kv_cache_tokens": str(_CACHE_TOKENS),
    }


def _started(pid: int) -> float:
    """When a process was started. Not psutil's `create_time`, which changes with the machine's clock."""
    try:
        ticks = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except FileNotFoundError:
        raise ProcessLookupError(f"process {pid} has ended") from None
    return ticks / os.sysconf("SC_CLK_TCK")
