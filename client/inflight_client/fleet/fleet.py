"""The servers behind a client, those in order and those that are not. Does no I/O."""

import threading
from collections.abc import Collection, Sequence

from inflight_client.errors import InflightError, ModelNotReady, ServerOverloaded, TransportError
from inflight_client.fleet.balance import Balance
from inflight_client.fleet.server import Server
from inflight_client.request import Request


class Fleet:
    """Chooses servers, and ejects those that fail, as Envoy's outlier detection does. Any thread may use it.

    A server is ejected by the first request that finds nobody there, or a model that does not serve. It gets no
    requests until a probe says that it serves again. If all are ejected, requests try them nevertheless.
    """

    def __init__(self, balance: Balance) -> None:
        self._balance = balance
        self._lock = threading.Lock()
        self._servers: dict[str, Server] = {}

    def set_addresses(self, addresses: Collection[str]) -> tuple[list[Server], list[Server]]:
        """Take these servers from now on. Return the servers that are new, and those that are gone."""
        with self._lock:
            new = [Server(address) for address in addresses if address not in self._servers]
            gone = [server for address, server in self._servers.items() if address not in addresses]
            for server in gone:
                del self._servers[server.address]
                server.is_gone = True
                self._balance.forget(server)
            self._servers |= {server.address: server for server in new}
            return new, gone

    @property
    def servers(self) -> list[Server]:
        """All servers."""
        with self._lock:
            return list(self._servers.values())

    @property
    def ejected(self) -> list[Server]:
        """The servers that get no requests."""
        return [server for server in self.servers if server.is_ejected]

    def begin(self, request: Request, tried: Collection[Server]) -> Server | None:
        """Choose a server for a request, which has failed on the servers `tried`. None if there is none left.

        `end` must follow.
        """
        with self._lock:
            left = [server for server in self._servers.values() if server not in tried]
            able = [server for server in left if not server.is_ejected]
            if not able and tried and any(not server.is_ejected for server in self._servers.values()):
                return None  # Whoever is ejected may take long to say no, and others have refused the request.
            if not (able or left):
                return None
            server = self._balance.choose(request, able or left)
            server.num_running += 1
            return server

    def end(self, server: Server, error: InflightError | None = None) -> None:
        """A request that began on a server has ended there, perhaps with an error."""
        with self._lock:
            server.num_running -= 1
            self._judge(server, error)

    def asked(self, server: Server, error: InflightError) -> bool:
        """A server has failed to answer a question. Return whether it is ejected, now or before."""
        with self._lock:
            self._judge(server, error)
            return server.is_ejected

    def _judge(self, server: Server, error: InflightError | None) -> None:
        if isinstance(error, TransportError | ModelNotReady) and not server.is_ejected:
            server.is_ejected = True
            self._balance.forget(server)

    def take_back(self, servers: Sequence[Server]) -> None:
        """Send requests again to servers that were ejected."""
        with self._lock:
            for server in servers:
                server.is_ejected = False


def may_move(error: InflightError) -> bool:
    """Whether another server may do what failed before the first token with this error."""
    return isinstance(error, TransportError | ModelNotReady | ServerOverloaded)
