"""How bytes get from one engine to another: through shared memory on one host, or through TCP."""

import os
import socket
import struct
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inflight.kv_transfer.kv_transfer_config import SHARED_MEMORY, KVTransferConfig
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.kv_transfer.shared_memory import read_shared, shared_copy
from inflight.kv_transfer.wire import BrokenTransfer, receive_into, time_left

_BACKLOG = 64
_CREDENTIALS = "3i"


class KVTransport(Protocol):
    """What differs between the ways to carry an export. Both sides of a transfer have the same one."""

    def listen(self, engine_id: str) -> socket.socket:
        """Return the listening socket of a producer. Raises OSError if its address cannot be had."""

    def address(self, listener: socket.socket) -> tuple[str | None, int | None]:
        """Return the host and the port at which consumers find it, if it has any."""

    def connect(self, params: KVTransferParams, deadline: float) -> socket.socket:
        """Connect to the producer that `params` name.

        Raises:
            PermissionError: it is not one to fetch from.
            OSError: it cannot be reached in time.
        """

    def is_trusted(self, connection: socket.socket) -> bool:
        """Return whether the other side of a connection may have anything."""

    def send(self, connection: socket.socket, data: NDArray[np.uint8], deadline: float) -> None:
        """Send `data` [bytes]. Raises OSError if they cannot be sent in time."""

    def receive(self, connection: socket.socket, num_bytes: int, deadline: float) -> NDArray[np.uint8]:
        """Receive the bytes that `send` sends, [bytes].

        Raises:
            OSError: they do not come in time.
            ValueError: they are not so many.
        """


class SharedMemoryTransport:
    """Passes the file descriptor of memory with a copy of an export, which the other engine reads.

    The socket has an abstract name. It reaches as far as the network namespace: the containers of a Kubernetes pod
    share one.
    """

    def listen(self, engine_id: str) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(_abstract(engine_id))
        listener.listen(_BACKLOG)
        return listener

    def address(self, listener: socket.socket) -> tuple[None, None]:
        return None, None

    def connect(self, params: KVTransferParams, deadline: float) -> socket.socket:
        if params.remote_host is not None:
            raise PermissionError("the other engine uses tcp, and this one shared_memory")
        connection = socket.socket(socket.AF_UNIX)
        try:
            connection.settimeout(time_left(deadline))
            connection.connect(_abstract(params.remote_engine_id or ""))
            if not self.is_trusted(connection):
                raise PermissionError("the other engine belongs to another user")
        except BaseException:
            connection.close()
            raise
        return connection

    def is_trusted(self, connection: socket.socket) -> bool:
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_CREDENTIALS))
        _, uid, _ = struct.unpack(_CREDENTIALS, found)
        return bool(uid == os.geteuid())

    def send(self, connection: socket.socket, data: NDArray[np.uint8], deadline: float) -> None:
        fd = shared_copy(data)
        try:
            connection.settimeout(time_left(deadline))
            socket.send_fds(connection, [b"\0"], [fd])
        finally:
            os.close(fd)

    def receive(self, connection: socket.socket, num_bytes: int, deadline: float) -> NDArray[np.uint8]:
        connection.settimeout(time_left(deadline))
        _, fds, _, _ = socket.recv_fds(connection, 1, 1)
        if len(fds) != 1:
            raise BrokenTransfer("the other side sent no shared memory")
        return read_shared(fds[0], num_bytes)


class TcpTransport:
    """Sends the bytes of an export through a connection, unencrypted: for the loopback or a private network."""

    def __init__(self, config: KVTransferConfig) -> None:
        self._config = config

    def listen(self, engine_id: str) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._config.kv_ip else socket.AF_INET
        return socket.create_server((self._config.kv_ip, self._config.kv_port), family=family, backlog=_BACKLOG)

    def address(self, listener: socket.socket) -> tuple[str, int]:
        return self._config.kv_ip, listener.getsockname()[1]

    def connect(self, params: KVTransferParams, deadline: float) -> socket.socket:
        host, port = params.remote_host, params.remote_port
        if host is None or port is None:
            raise PermissionError("the other engine uses shared_memory, and this one tcp")
        if not self._config.may_fetch_from(host):
            raise PermissionError(f"{host} is in none of the networks that kv_connector_extra_config has as peers")
        connection = socket.create_connection((host, port), timeout=time_left(deadline))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def is_trusted(self, connection: socket.socket) -> bool:
        return True

    def send(self, connection: socket.socket, data: NDArray[np.uint8], deadline: float) -> None:
        connection.settimeout(time_left(deadline))
        connection.sendall(data.data)

    def receive(self, connection: socket.socket, num_bytes: int, deadline: float) -> NDArray[np.uint8]:
        received = np.empty(num_bytes, dtype=np.uint8)
        receive_into(connection, received.data, deadline)
        return received


def _abstract(engine_id: str) -> str:
    return f"\0inflight-kv-{engine_id}"


def make_transport(config: KVTransferConfig) -> KVTransport:
    """Create the transport that `kv_connector` names."""
    return SharedMemoryTransport() if config.kv_connector == SHARED_MEMORY else TcpTransport(config)
