"""Connections to several servers, for threads."""

import threading
import time
from collections.abc import Callable, Generator, Sequence
from typing import TypeVar

from inflight_client import questions
from inflight_client.asking import ask
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
from inflight_client.transport.connection import Call, Connection

_T = TypeVar("_T")


class FleetConnection:
    """See `Connection`. A thread of its own probes servers that are out of order, and looks names up again."""

    def __init__(
        self, named: Sequence[Options], connect: Callable[[Options], Connection], balance: Balance, model: str
    ) -> None:
        """`named` are the servers of the URL, and `model` is the model that probes ask."""
        self.fleet = Fleet(balance)
        self._connect, self._model = connect, model
        self._addresses = AddressBook(named)
        self._connections: dict[Server, Connection] = {}
        self._lock = threading.Lock()
        self._closed = threading.Event()
        self._keeper: threading.Thread | None = None

    def start(self, request: Request, limits: TimeLimits) -> "FleetCall":
        """See `Connection`. The request is sent when the caller begins to read `replies`."""
        if self._closed.is_set():
            raise client_closed()
        return FleetCall(self, request, limits)

    def _able(self) -> list[Server]:
        """The servers that are in order; all, if none is."""
        self.prepare()
        servers = self.fleet.servers
        return [server for server in servers if not server.is_ejected] or servers

    def ask_all(self, question: Question[_T], seconds: float) -> list[_T]:
        """Ask the model on every server that is in order, and return the answers. Servers that are away are left out.

        Raises:
            InflightError: no server answers, or one has another reason not to.
        """
        answers: list[_T] = []
        away: InflightError | None = None
        for server in self._able():
            try:
                answers.append(ask(self.connection_of(server), question, seconds))
            except InflightError as error:
                if not self.fleet.asked(server, error):
                    raise
                self.ended(server)
                away = error
        if away is not None and not answers:
            raise away
        return answers

    def connection_of(self, server: Server) -> Connection:
        """The connection to a server. Raises RequestCancelled after `close`."""
        with self._lock:
            connection = self._connections.get(server)
        if connection is None:
            raise client_closed()
        return connection

    def is_ready(self, model: str, timeout: float) -> bool:
        """See `Connection`: whether a server does."""
        return self._first(lambda connection: connection.is_ready(model, timeout) or None) or False

    def server_info(self, timeout: float) -> ServerInfo:
        """See `Connection`: of the first server that answers."""
        return self._answer(lambda connection: connection.server_info(timeout))

    def model_info(self, model: str, timeout: float) -> ModelInfo:
        """See `Connection`: of the first server that answers."""
        return self._answer(lambda connection: connection.model_info(model, timeout))

    def ended(self, server: Server) -> None:
        """Look after a server on which a request has ended."""
        if server.is_ejected:
            self._watch()
        if server.is_gone and server.num_running == 0:
            with self._lock:
                connection = self._connections.pop(server, None)
            if connection is not None:
                connection.close()

    def close(self) -> None:
        """See `Connection`."""
        with self._lock:
            self._closed.set()
            connections, self._connections = list(self._connections.values()), {}
        for connection in connections:
            connection.close()
        if self._keeper is not None:
            self._keeper.join()

    def _watch(self) -> None:
        """Start the thread that probes, unless it runs."""
        with self._lock:
            if self._keeper is None and not self._closed.is_set():
                self._keeper = threading.Thread(target=self._keep, name="inflight-fleet", daemon=True)
                self._keeper.start()

    def prepare(self) -> None:
        """Look the servers up for the first time. Raises TransportError if that fails."""
        if self._closed.is_set():
            raise client_closed()
        if not self.fleet.servers:
            self._look_up()
            if self._addresses.has_names:
                self._watch()

    def _look_up(self) -> None:
        found = self._addresses.look_up()
        with self._lock:
            if self._closed.is_set():
                return
            new, gone = self.fleet.set_addresses(found)
            self._connections |= {server: self._connect(found[server.address]) for server in new}
        for server in gone:
            self.ended(server)

    def _keep(self) -> None:
        looked_up = time.monotonic()
        while not self._closed.wait(PROBE_SECONDS):
            self.fleet.take_back([server for server in self.fleet.ejected if self._serves(server)])
            if time.monotonic() - looked_up >= LOOK_SECONDS and self._addresses.has_names:
                looked_up = time.monotonic()
                self._look_up()  # It does not fail, as there are addresses since `prepare`.

    def _serves(self, server: Server) -> bool:
        try:
            return ask(self.connection_of(server), questions.is_serving(self._model), PROBE_SECONDS)
        except InflightError:
            return False

    def _first(self, ask: Callable[[Connection], _T | None]) -> _T | None:
        """Ask one server after the other. Raises the last error if none answers."""
        error: InflightError | None = None
        for server in self._able():
            try:
                if (answer := ask(self.connection_of(server))) is not None:
                    return answer
            except InflightError as caught:
                error = caught
        if error is not None:
            raise error
        return None

    def _answer(self, ask: Callable[[Connection], _T]) -> _T:
        answer = self._first(ask)
        assert answer is not None  # There is at least one server.
        return answer


class FleetCall:
    """See `Call`."""

    def __init__(self, connection: FleetConnection, request: Request, limits: TimeLimits) -> None:
        self._connection = connection
        self._request = request
        self._limits = limits
        self._cancelled = threading.Event()
        self._call: Call | None = None

    def replies(self) -> Generator[Reply, None, None]:
        """See `Call`."""
        self._connection.prepare()
        attempts = Attempts(self._connection.fleet, self._request, self._limits)
        ended = False
        while not ended:
            server, request, limits = attempts.next()
            begun, error = False, None
            try:
                for reply in self._begin(server, request, limits).replies():
                    begun = True
                    yield reply
                ended = True
            except InflightError as caught:
                error = caught
            finally:
                attempts.end(error)
                self._connection.ended(server)
            if error is not None:
                attempts.check(error, begun=begun)

    def _begin(self, server: Server, request: Request, limits: TimeLimits) -> Call:
        call = self._call = self._connection.connection_of(server).start(request, limits)
        if self._cancelled.is_set():  # `cancel` may have come just before.
            call.cancel()
            raise RequestCancelled("the request was cancelled")
        return call

    def cancel(self) -> None:
        """See `Call`."""
        self._cancelled.set()
        if self._call is not None:
            self._call.cancel()
