"""How bytes get from one engine to another."""

import socket
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from inflight.kv_transfer.kv_transfer_config import NIXL, SHARED_MEMORY, KVTransferConfig
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.kv_transfer.nixl_transport import NixlTransport
from inflight.kv_transfer.stream_transports import TcpTransport, UnixTransport


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

    def close(self) -> None:
        """Free what the transport has. Transfers that have begun may end."""


def make_transport(config: KVTransferConfig) -> KVTransport:
    """Create the transport that `kv_connector` names. Raises ValueError if that one cannot be had here."""
    if config.kv_connector == SHARED_MEMORY:
        return UnixTransport()
    return NixlTransport(config) if config.kv_connector == NIXL else TcpTransport(config)
