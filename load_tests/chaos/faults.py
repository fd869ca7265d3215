"""The faults, one at a time. Each is a context manager: it begins on entry, and on exit what it did is undone."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from load_tests.chaos.commands import END, HANG
from load_tests.chaos.server import Server
from load_tests.chaos.service import GRPC, HTTP, Service
from scripts.launch.exposure import OPERATOR_HEADER
from scripts.launch.server_process import ADDRESS

_IDLE_CONNECTIONS = 1000
_SLOW_CLIENTS = 8
_CLOCK_SECONDS = 60
_DELAY_SECONDS = 0.3
_POLL_SECONDS = 0.1


@dataclass(frozen=True)
class Fault:
    """A fault and how long it lasts."""

    name: str
    begin: Callable[[Service], AbstractAsyncContextManager[None]]
    seconds: float = 0.0
    restarts: bool = False
    """Whether it kills a process that requests pass through, so that the service has to start again."""


def answering(find: Callable[[Server], int]) -> Callable[[Service], int]:
    """Find a process of the server that answers."""
    return lambda service: find(service.server)


def signals(
    find: Callable[[Service], int], *numbers: signal.Signals, orderly: bool = False
) -> Callable[[Service], AbstractAsyncContextManager[None]]:
    """Send signals to a process: the first on entry, the last on exit if there are two. If its end is orderly, and so
    takes its time, wait for it on exit."""

    @contextlib.asynccontextmanager
    async def begin(service: Service) -> AsyncIterator[None]:
        pid = find(service)
        os.kill(pid, numbers[0])
        yield
        for number in numbers[1:]:
            with contextlib.suppress(ProcessLookupError):  # The first one may have ended it.
                os.kill(pid, number)
        while orderly and psutil.pid_exists(pid):
            await asyncio.sleep(_POLL_SECONDS)

    return begin


def _command(command: str) -> Callable[[Service], AbstractAsyncContextManager[None]]:
    """Give the model a command."""

    @contextlib.asynccontextmanager
    async def begin(service: Service) -> AsyncIterator[None]:
        await asyncio.to_thread(service.server.pipe.write_text, command)
        yield

    return begin


def _full(disk: Callable[[Service], Path]) -> Callable[[Service], AbstractAsyncContextManager[None]]:
    """Fill a disk."""

    @contextlib.asynccontextmanager
    async def begin(service: Service) -> AsyncIterator[None]:
        filler = disk(service) / "filler"
        # Without a buffer, which would be written again when the file is closed.
        with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(4096))
        yield
        filler.unlink(missing_ok=True)

    return begin


@contextlib.asynccontextmanager
async def _no_more_memory(service: Service) -> AsyncIterator[None]:
    """Let the model's process have no more address space than it has now."""
    pid = service.server.model()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[0])
    resource.prlimit(pid, resource.RLIMIT_AS, (pages * resource.getpagesize(), resource.RLIM_INFINITY))
    yield
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))


@contextlib.asynccontextmanager
async def _slow_readers(service: Service) -> AsyncIterator[None]:
    """Clients that ask for long answers and read one byte a second."""
    body = json.dumps({"text_input": "A long story:", "stream": True, "max_tokens": 1000, "ignore_eos": True})
    head = f"POST /v2/models/llm/generate_stream HTTP/1.1\r\nHost: {ADDRESS}\r\nContent-Length: {len(body)}\r\n\r\n"

    async def read_slowly() -> None:
        reader, writer = await asyncio.open_connection(ADDRESS, service.ports.http, limit=1)
        try:
            writer.write((head + body).encode())
            while await reader.read(1):
                await asyncio.sleep(1)
        finally:
            writer.close()

    clients = [asyncio.create_task(read_slowly()) for _ in range(_SLOW_CLIENTS)]
    yield
    for client in clients:
        client.cancel()
    await asyncio.gather(*clients, return_exceptions=True)


@contextlib.asynccontextmanager
async def _idle_connections(service: Service) -> AsyncIterator[None]:
    """Connections that send nothing, as many to the gateway as to each of Triton's ports."""
    ports = (service.ports.http, service.ports.grpc, service.ports.gateway)
    opened = [await asyncio.open_connection(ADDRESS, ports[i % len(ports)]) for i in range(_IDLE_CONNECTIONS)]
    yield
    for _, writer in opened:
        writer.close()


def cut(*links: str) -> Callable[[Service], AbstractAsyncContextManager[None]]:
    """Break the connections of links with a reset."""

    @contextlib.asynccontextmanager
    async def begin(service: Service) -> AsyncIterator[None]:
        for name in links:
            service.links[name].cut()
        yield

    return begin


def sever(*links: str) -> Callable[[Service], AbstractAsyncContextManager[None]]:
    """Drop all that comes over links, silently. What was opened before stays silent, as behind a new router."""

    @contextlib.asynccontextmanager
    async def begin(service: Service) -> AsyncIterator[None]:
        for name in links:
            service.links[name].sever()
        yield
        for name in links:
            service.links[name].mend()

    return begin


def delay(*links: str) -> Callable[[Service], AbstractAsyncContextManager[None]]:
    """Let what goes over links come later."""

    @contextlib.asynccontextmanager
    async def begin(service: Service) -> AsyncIterator[None]:
        for name in links:
            service.links[name].delay = _DELAY_SECONDS
        yield
        for name in links:
            service.links[name].delay = 0.0

    return begin


@contextlib.asynccontextmanager
async def _unload(service: Service) -> AsyncIterator[None]:
    """Unload the model, and load it again."""
    url = f"http://{ADDRESS}:{service.ports.http}/v2/repository/models/llm"
    headers = {OPERATOR_HEADER: service.server.operator_key}
    async with httpx.AsyncClient(timeout=120, trust_env=False, headers=headers) as client:
        (await client.post(f"{url}/unload")).raise_for_status()
        yield
        with contextlib.suppress(httpx.TransportError):  # The server may die of it. Then it is started with the model.
            (await client.post(f"{url}/load")).raise_for_status()


@contextlib.asynccontextmanager
async def set_clock(service: Service) -> AsyncIterator[None]:
    """Set the machine's clock forward, and back."""
    _move_clock(_CLOCK_SECONDS)
    yield
    _move_clock(-_CLOCK_SECONDS)


def _move_clock(seconds: int) -> None:
    time.clock_settime(time.CLOCK_REALTIME, time.clock_gettime(time.CLOCK_REALTIME) + seconds)


FAULTS = (
    Fault("model process killed", signals(answering(Server.model), signal.SIGKILL), restarts=True),
    Fault("model process stopped for 3 s", signals(answering(Server.model), signal.SIGSTOP, signal.SIGCONT), 3),
    Fault("model hangs in a step", _command(HANG)),
    Fault("engine thread ends", _command(f"{END} engine")),
    Fault("responder thread ends", _command(f"{END} responder")),
    Fault("completion's process killed", signals(answering(Server.completion), signal.SIGKILL), restarts=True),
    Fault("guardian killed", signals(lambda service: service.server.guardian("llm"), signal.SIGKILL)),
    Fault(
        "completion's guardian killed", signals(lambda service: service.server.guardian("completion"), signal.SIGKILL)
    ),
    Fault("tritonserver killed", signals(answering(Server.triton), signal.SIGKILL), restarts=True),
    Fault("gateway killed", signals(lambda service: service.gateway.pid, signal.SIGKILL), restarts=True),
    Fault("make serve killed", signals(lambda service: service.server.pid, signal.SIGKILL), restarts=True),
    Fault("SIGTERM", signals(lambda service: service.server.pid, signal.SIGTERM, orderly=True)),
    Fault(
        "SIGTERM twice",
        signals(lambda service: service.server.pid, signal.SIGTERM, signal.SIGTERM, orderly=True),
        1,
    ),
    Fault("/dev/shm full", _full(lambda service: service.server.shm), 5),
    Fault("trace disk full", _full(lambda service: service.server.trace_disk), 5),
    Fault("no more memory", _no_more_memory, 5),
    Fault("clients that read 1 B/s", _slow_readers, 10),
    Fault("1000 idle connections", _idle_connections, 5),
    Fault("clock set a minute forward and back", set_clock, 5),
    Fault("connections cut", cut(GRPC, HTTP)),
    Fault("connections 0.3 s slower", delay(GRPC, HTTP), 5),
    Fault("model unloaded and loaded", _unload, 1),
)
