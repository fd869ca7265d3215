"""Connections to several servers, for asyncio."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import TypeVar

from inflight_client import questions
from inflight_client.asking import ask_async
from inflight_client.errors import InflightError, RequestCancelled, client_closed
from inflight_client.fleet.addresses import AddressBook
from inflight_client.fleet.attempts import Attempts
from inflight_client.fleet.balance import Balance
from inflight_client.fleet.fleet import Fleet
from inflight_client.fleet.schedule import LOOK_SECONDS, PROBE_SECONDS
from inflight_client.fleet.server import Server
from inflight_client.options import Options, TimeLimits
from inflight_client.questions import Question
from inflight_client.request import Request
from inflight_client.response import Reply
from inflight_client.server_info import ModelInfo, ServerInfo
from inflight_client.transport.connection import AsyncCall, AsyncConnection

_T = TypeVar("_T")


class AsyncFleetConnection:
    """See `AsyncConnection`. It does what `FleetConnection` does, with a task in place of the thread."""

    def __init__(
        self,
        named: Sequence[Options],
        connect: Callable[[Options], AsyncConnection],
        balance: Balance,
        model: str,
    ) -> None:
        """`named` are the servers of the URL, and `model` is the model that probes ask."""
        self.fleet = Fleet(balance)
        self._connect, self._model = connect, model
        self._addresses = AddressBook(named)
        self._connections: dict[Server, AsyncConnection] = {}
        self._first_look = asyncio.Lock()
        self._closed = False
        self._keeper: asyncio.Task[None] | None = None

    def start(self, request: Request, limits: TimeLimits) -> "AsyncFleetCall":
        """See `AsyncConnection`. The request is sent when the caller begins to read `replies`."""
        if self._closed:
            raise client_closed()
        return AsyncFleetCall(self, request, limits)

    async def _able(self) -> list[Server]:
        """The servers that are in order; all, if none is."""
        await self.prepare()
        servers = self.fleet.servers
        return [server for server in servers if not server.is_ejected] or servers

    async def ask_all(self, question: Question[_T], seconds: float) -> list[_T]:
        """See `FleetConnection`. All are asked at the same time."""
        answers: list[_T] = []
        away: list[InflightError] = []

        async def ask(server: Server) -> None:
            try:
                answers.append(await ask_async(self.connection_of(server), question, seconds))
            except InflightError as error:
                if not self.fleet.asked(server, error):
                    raise
                await self.ended(server)
                away.append(error)

        await asyncio.gather(*map(ask, await self._able()))
        if away and not answers:
            raise away[-1]
        return answers

    def connection_of(self, server: Server) -> AsyncConnection:
        """The connection to a server. Raises RequestCancelled after `close`."""
        connection = self._connections.get(server)
        if connection is None:
            raise client_closed()
        return connection

    async def prepare(self) -> None:
        """Look the servers up for the first time. Raises TransportError if that fails."""
        if self._closed:
            raise client_closed()
        async with self._first_look:
            if not self.fleet.servers:
                await self._look_up()
                if self._addresses.has_names:
                    self._watch()

    async def is_ready(self, model: str, timeout: float) -> bool:
        """See `AsyncConnection`: whether a server does."""

        async def ready(connection: AsyncConnection) -> bool | None:
            return await connection.is_ready(model, timeout) or None

        return await self._first(ready) or False

    async def server_info(self, timeout: float) -> ServerInfo:
        """See `AsyncConnection`: of the first server that answers."""
        return await self._answer(lambda connection: connection.server_info(timeout))

    async def model_info(self, model: str, timeout: float) -> ModelInfo:
        """See `AsyncConnection`: of the first server that answers."""
        return await self._answer(lambda connection: connection.model_info(model, timeout))

    async def ended(self, server: Server) -> None:
        """Look after a server on which a request has ended."""
        if server.is_ejected:
            self._watch()
        if server.is_gone and server.num_running == 0:
            connection = self._connections.pop(server, None)
            if connection is not None:
                await connection.close()

    async def close(self) -> None:
        """See `AsyncConnection`."""
        self._closed = True
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        connections, self._connections = list(self._connections.values()), {}
        await asyncio.gather(*(connection.close() for connection in connections))

    def _watch(self) -> None:
        """Start the task that probes, unless it runs."""
        if self._keeper is None and not self._closed:
            self._keeper = asyncio.create_task(self._keep())

    async def _look_up(self) -> None:
        look_up = self._addresses.look_up
        found = await asyncio.to_thread(look_up) if self._addresses.has_names else look_up()
        if self._closed:
            return
        new, gone = self.fleet.set_addresses(found)
        self._connections |= {server: self._connect(found[server.address]) for server in new}
        for server in gone:
            await self.ended(server)

    async def _keep(self) -> None:
        loop = asyncio.get_running_loop()
        looked_up = loop.time()
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            ejected = self.fleet.ejected
            answers = await asyncio.gather(*(self._serves(server) for server in ejected))
            self.fleet.take_back([server for server, serves in zip(ejected, answers, strict=True) if serves])
            if loop.time() - looked_up >= LOOK_SECONDS and self._addresses.has_names:
                looked_up = loop.time()
                await self._look_up()  # It does not fail, as there are addresses since `prepare`.

    async def _serves(self, server: Server) -> bool:
        try:
            return await ask_async(self.connection_of(server), questions.is_serving(self._model), PROBE_SECONDS)
        except InflightError:
            return False

    async def _first(self, ask: Callable[[AsyncConnection], Awaitable[_T | None]]) -> _T | None:
        """Ask one server after the other. Raises the last error if none answers."""
        error: InflightError | None = None
        for server in await self._able():
            try:
                if (answer := await ask(self.connection_of(server))) is not None:
                    return answer
            except InflightError as caught:
                error = caught
        if error is not None:
            raise error
        return None

    async def _answer(self, ask: Callable[[AsyncConnection], Awaitable[_T]]) -> _T:
        answer = await self._first(ask)
        assert answer is not None  # There is at least one server.
        return answer


class AsyncFleetCall:
    """See `AsyncCall`."""

    def __init__(self, connection: AsyncFleetConnection, request: Request, limits: TimeLimits) -> None:
        self._connection = connection
        self._request = request
        self._limits = limits
        self._cancelled = False
        self._call: AsyncCall | None = None

    async def replies(self) -> AsyncGenerator[Reply, None]:
        """See `AsyncCall`."""
        await self._connection.prepare()
        attempts = Attempts(self._connection.fleet, self._request, self._limits)
        ended = False
        while not ended:
            server, request, limits = attempts.next()
            begun, error = False, None
            try:
                async with contextlib.aclosing(self._begin(server, request, limits).replies()) as replies:
                    async for reply in replies:
                        begun = True
                        yield reply
                ended = True
            except InflightError as caught:
                error = caught
            finally:
                attempts.end(error)
                await self._connection.ended(server)
            if error is not None:
                attempts.check(error, begun=begun)

    def _begin(self, server: Server, request: Request, limits: TimeLimits) -> AsyncCall:
        if self._cancelled:
            raise RequestCancelled("the request was cancelled")
        self._call = self._connection.connection_of(server).start(request, limits)
        return self._call

    async def cancel(self) -> None:
        """See `AsyncCall`."""
        self._cancelled = True
        if self._call is not None:
            await self._call.cancel()
