"""The other machines over which a model is divided, as rank 0 waits for them.

Each runs `__main__.py`, which connects to this machine and says what it runs: the versions and a digest of the code.
The answer says which ranks it shall start, and then it opens two connections for each: one for commands and one for
signs of life. These carry a token, so that nobody comes in between.
"""

import contextlib
import json
import logging
import secrets
import socket
import time
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection

from inflight.model.parallel.machines.sockets import accept
from inflight.model.parallel.machines.versions import difference
from inflight.model.parallel.rank_process import RankProcess, RemoteRank, abandon

logger = logging.getLogger(__name__)

_JOINING_SECONDS = 1800.0
# In which a machine that has come opens its other connections.
_OPENING_SECONDS = 10.0


class Machines:
    """Waits for the other machines of a model."""

    def __init__(self, host: str, port: int, *, count: int, ranks_each: int, key: bytes) -> None:
        """`count` machines, with this one, have `ranks_each` ranks each.

        Raises:
            ValueError: `host` is no name or IPv4 address.
        """
        try:
            self.host, self._port = socket.gethostbyname(host), port
        except OSError as error:
            raise ValueError(f"master_addr is {host!r}: {error}") from None
        self.ranks_each, self._count, self._key = ranks_each, count, key

    def join(self) -> list[RankProcess]:
        """Wait for all other machines, and return their ranks in order.

        Raises:
            ValueError: this machine does not have the address, or the port is taken.
            TimeoutError: not all have come within half an hour.
        """
        deadline = time.monotonic() + _JOINING_SECONDS
        found: list[RankProcess] = []
        with self._listen() as listener, contextlib.ExitStack() as undo:
            undo.callback(abandon, found)
            while (missing := self._count - 1 - len(found) // self.ranks_each) > 0:
                logger.warning("waiting at %s:%d for %d more machine(s)", self.host, self._port, missing)
                try:
                    found += self._one(listener, len(found) + self.ranks_each, deadline - time.monotonic())
                except (OSError, EOFError, ValueError, AuthenticationError) as error:
                    if time.monotonic() > deadline:
                        raise TimeoutError(
                            f"nnodes is {self._count}, but {missing} machine(s) did not come to "
                            f"{self.host}:{self._port} within {_JOINING_SECONDS:g} s"
                        ) from None
                    logger.warning("a machine did not join: %s", str(error) or type(error).__name__)
            undo.pop_all()
        return found

    def _listen(self) -> socket.socket:
        try:
            return socket.create_server((self.host, self._port))
        except OSError as error:
            raise ValueError(f"master_addr is {self.host!r} and master_port {self._port}: {error}") from None

    def _one(self, listener: socket.socket, first_rank: int, seconds: float) -> list[RankProcess]:
        """Let one machine in. Its ranks begin with `first_rank`."""
        control, host, hello = accept(listener, self._key, seconds)
        ranks, token = range(first_rank, first_rank + self.ranks_each), secrets.token_hex(16)
        answer: dict[str, object] = {"ranks": list(ranks), "size": self._count * self.ranks_each, "token": token}
        fault = difference(json.loads(hello))
        with control:
            control.send_bytes(json.dumps({"refused": fault} if fault else answer).encode())
        if fault:
            raise ValueError(f"{host}: {fault}")
        opened: list[Connection] = []
        with contextlib.ExitStack() as undo:
            for _ in range(2 * len(ranks)):
                opened.append(self._opened(listener, token.encode()))
                undo.callback(opened[-1].close)
            undo.pop_all()
        logger.warning("%s has joined with %d rank(s)", host, len(ranks))
        return [RemoteRank(rank, host, opened[2 * i], opened[2 * i + 1]) for i, rank in enumerate(ranks)]

    def _opened(self, listener: socket.socket, token: bytes) -> Connection:
        """The next connection of the machine that has this token. Others that come are closed; they come again.

        Raises TimeoutError if it has not come in time, also if others come all the time.
        """
        deadline = time.monotonic() + _OPENING_SECONDS
        while (seconds := deadline - time.monotonic()) > 0:
            try:
                connection, _, hello = accept(listener, self._key, seconds)
            except TimeoutError:
                raise
            except (OSError, EOFError, AuthenticationError) as error:
                logger.info("a connection was closed: %s", str(error) or type(error).__name__)
                continue
            if secrets.compare_digest(hello, token):
                return connection
            connection.close()
        raise TimeoutError(f"its next connection did not come within {_OPENING_SECONDS:g} s")
