"""Which server gets a request."""

import itertools
import math
from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol

from inflight_client.fleet.prefixes import PrefixMemory, prefix_hashes
from inflight_client.fleet.server import Server
from inflight_client.request import Request

# As in Google's and Vimeo's load balancers.
_MAX_OVER_MEAN = 1.25


class Balance(Protocol):
    """A way to choose. The caller holds a lock."""

    def choose(self, request: Request, servers: Sequence[Server]) -> Server:
        """Choose one of the servers, at least one, that may get the request."""

    def forget(self, server: Server) -> None:
        """A server has lost its prefix cache, or is gone."""


class PrefixAffinity:
    """Sends a prompt to a server that has its beginning in the prefix cache, unless that server has too much to do.

    A server has at most 1.25 times the mean number of this client's requests ("Consistent Hashing with Bounded Loads",
    Mirrokni, Thorup and Zadimoghaddam 2016). Of the servers that got the longest part of the prompt before, the least
    loaded one is taken. If there is none, the hash of the prompt's first block orders all servers (rendezvous hashing,
    Thaler and Ravishankar 1998), so that clients that know nothing of each other consider the same two. Of these, the
    less loaded one is taken ("The Power of Two Choices in Randomized Load Balancing", Mitzenmacher 1996).
    """

    def __init__(self) -> None:
        self._memory: PrefixMemory[Server] = PrefixMemory()

    def choose(self, request: Request, servers: Sequence[Server]) -> Server:
        """See `Balance`."""
        hashes = prefix_hashes(request)
        most = math.ceil(_MAX_OVER_MEAN * (1 + sum(server.num_running for server in servers)) / len(servers))
        free = [server for server in servers if server.num_running < most]
        if holders := self._memory.holders(hashes, free):
            chosen = min(holders, key=lambda server: (server.num_running, _rank(server, hashes[0])))
        else:
            first_two = sorted(free, key=lambda server: _rank(server, hashes[0]))[:2]
            chosen = min(first_two, key=lambda server: server.num_running)
        self._memory.add(hashes, chosen)
        return chosen

    def forget(self, server: Server) -> None:
        """See `Balance`."""
        self._memory.forget(server)


class LeastLoaded:
    """Takes the server with the fewest requests of this client; of several, each in turn."""

    def __init__(self) -> None:
        self._turns = itertools.count()

    def choose(self, request: Request, servers: Sequence[Server]) -> Server:
        """See `Balance`."""
        first = next(self._turns) % len(servers)
        return min([*servers[first:], *servers[:first]], key=lambda server: server.num_running)

    def forget(self, server: Server) -> None:
        """See `Balance`."""


class RoundRobin:
    """Takes each server in turn."""

    def __init__(self) -> None:
        self._turns = itertools.count()

    def choose(self, request: Request, servers: Sequence[Server]) -> Server:
        """See `Balance`."""
        return servers[next(self._turns) % len(servers)]

    def forget(self, server: Server) -> None:
        """See `Balance`."""


BALANCES: dict[str, Callable[[], Balance]] = {
    "prefix": PrefixAffinity,
    "least_loaded": LeastLoaded,
    "round_robin": RoundRobin,
}


def _rank(server: Server, block: bytes) -> bytes:
    return blake2b(block + server.address.encode(), digest_size=8).digest()
