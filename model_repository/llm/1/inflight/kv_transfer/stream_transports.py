"""Sends the bytes of an export through a connection: a Unix socket on one host, or TCP."""

import os
import socket
import struct

import numpy as np
from numpy.typing import NDArray

from inflight.kv_transfer.kv_transfer_config import KVTransferConfig
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.kv_transfer.wire import receive_into, time_left

_BACKLOG = 64
_CREDENTIALS = "3i"


class _Stream:
    """What both have in common."""

    def send(self, connection: socket.socket, data: NDArray[np.uint8], deadline: float) -> None:
        """See `KVTransport`."""
        connection.settimeout(time_left(deadline))
        connection.sendall(data.data)

    def receive(self, connection: socket.socket, num_bytes: int, deadline: float) -> NDArray[np.uint8]:
        """See `KVTransport`."""
        received = np.empty(num_bytes, dtype=np.uint8)
        receive_into(connection, received.data, deadline)
        return received

    def close(self) -> None:
        """See `KVTransport`."""


class UnixTransport(_Stream):
    """Between engines of one user on one host.

    The kernel copies the bytes in pieces that stay in the processor's cache, and both engines copy at the same time.
    Memory that both have would take longer: the kernel must clear its pages first, 16 ms for 23 MB.

    The socket has an abstract name. It reaches as far as the network namespace: the containers of a Kubernetes pod
    share one.
    """

    def listen(self, engine_id: str) -> socket.socket:
        """See `KVTransport`."""
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(_abstract(engine_id))
        listener.listen(_BACKLOG)
        return listener

    def address(self, listener: socket.socket) -> tuple[None, None]:
        """See `KVTransport`."""
        return None, None

    def connect(self, params: KVTransferParams, deadline: float) -> socket.socket:
        """See `KVTransport`."""
        if params.remote_host is not None:
            raise PermissionError("the other engine uses tcp or nixl, and this one shared_memory")
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
        """See `KVTransport`."""
        found = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize(_CREDENTIALS))
        _, uid, _ = struct.unpack(_CREDENTIALS, found)
        return bool(uid == os.geteuid())


class TcpTransport(_Stream):
    """Between hosts, unencrypted: for the loopback or a private network."""

    def __init__(self, config: KVTransferConfig) -> None:
        self._config = config

    def listen(self, engine_id: str) -> socket.socket:
        """See `KVTransport`."""
        family = socket.AF_INET6 if ":" in self._config.kv_ip else socket.AF_INET
        listener = socket.create_server((self._config.kv_ip, self._config.kv_port), family=family, backlog=_BACKLOG)
        # Accepted connections inherit it. Without it, a second short message may wait 40 ms for the first's receipt.
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return listener

    def address(self, listener: socket.socket) -> tuple[str, int]:
        """See `KVTransport`."""
        return self._config.kv_ip, listener.getsockname()[1]

    def connect(self, params: KVTransferParams, deadline: float) -> socket.socket:
        """See `KVTransport`."""
        host, port = params.remote_host, params.remote_port
        if host is None or port is None:
            raise PermissionError(f"the other engine uses shared_memory, and this one {self._config.kv_connector}")
        if not self._config.may_fetch_from(host):
            raise PermissionError(f"{host} is in none of the networks that kv_connector_extra_config has as peers")
        connection = socket.create_connection((host, port), timeout=time_left(deadline))
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection

    def is_trusted(self, connection: socket.socket) -> bool:
        """See `KVTransport`."""
        return True


def _abstract(engine_id: str) -> str:
    return f"\0inflight-kv-{engine_id}"
