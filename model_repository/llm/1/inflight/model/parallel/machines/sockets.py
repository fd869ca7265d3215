"""Sockets between the machines of one model: who may connect, and how a dead link is noticed.

Both sides prove that they know the same key, by the standard library's `multiprocessing.connection` (an HMAC of the
other side's random bytes). What is sent afterwards is neither encrypted nor signed.
"""

import fcntl
import os
import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

# How long the other side may take to prove itself, or to answer.
_HANDSHAKE_SECONDS = 5
_LONGEST_HELLO = 4096
# After which a link that carries nothing more is an error: looks at an idle one, and bytes that nobody acknowledges.
_LOOK_SECONDS, _LOOKS, _UNACKNOWLEDGED_MILLISECONDS = 1, 4, 4000
_SIOCGIFADDR = 0x8915


def accept(listener: socket.socket, key: bytes, seconds: float) -> tuple[Connection, str, bytes]:
    """Wait for a peer that knows the key. Return the connection, the peer's address, and what it says first.

    Raises:
        TimeoutError: none has come.
        OSError, EOFError, AuthenticationError: one has come, but left, was too slow or does not know the key.
    """
    listener.settimeout(max(0.01, seconds))
    peer, (host, _) = listener.accept()
    with _handshake(peer) as connection:
        deliver_challenge(connection, key)
        answer_challenge(connection, key)
        hello = connection.recv_bytes(_LONGEST_HELLO)
    return connection, host, hello


def connect(host: str, port: int, key: bytes, hello: bytes) -> tuple[Connection, str]:
    """Connect to a peer that knows the key, and say something. Return the connection and this machine's address there.

    Raises:
        OSError, EOFError: there is none.
        AuthenticationError: it has another key.
    """
    peer = socket.create_connection((host, port), _HANDSHAKE_SECONDS)
    own = str(peer.getsockname()[0])
    with _handshake(peer) as connection:
        answer_challenge(connection, key)
        deliver_challenge(connection, key)
        connection.send_bytes(hello)
    return connection, own


@contextmanager
def _handshake(peer: socket.socket) -> Iterator[Connection]:
    """Make a connection of the socket, which is closed after an error. This context has a limit of time."""
    peer.setblocking(True)
    options = [
        (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
        (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _LOOK_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _LOOK_SECONDS),
        (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _LOOKS),
        (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNACKNOWLEDGED_MILLISECONDS),
    ]
    for level, name, value in options:
        peer.setsockopt(level, name, value)
    connection = Connection(peer.detach())
    try:
        with _ended_after(connection, _HANDSHAKE_SECONDS):
            yield connection
    except BaseException:
        connection.close()
        raise


@contextmanager
def _ended_after(connection: Connection, seconds: float) -> Iterator[None]:
    """Shut the connection down if this context takes longer. A limit for each read would not do, as a peer may send a
    byte in the time of each.

    Raises EOFError if that has happened.
    """
    with _socket_of(connection.fileno()) as found:
        is_late = threading.Event()

        def end() -> None:
            is_late.set()
            with suppress(OSError):  # The peer has left.
                found.shutdown(socket.SHUT_RDWR)

        timer = threading.Timer(seconds, end)
        timer.daemon = True
        timer.start()
        try:
            yield
        except (OSError, EOFError):
            if not is_late.is_set():
                raise
        finally:
            timer.cancel()
            timer.join()
        if is_late.is_set():
            raise EOFError(f"the peer did not prove itself within {seconds:g} s")


def _socket_of(descriptor: int) -> socket.socket:
    """A second descriptor of an IPv4 socket, to be closed by itself. Raises OSError if it is no socket."""
    copy = os.dup(descriptor)
    try:
        return socket.socket(socket.AF_INET, socket.SOCK_STREAM, fileno=copy)
    except OSError:
        os.close(copy)
        raise


def cut(host: str) -> None:
    """Shut down each connection of this process to a machine.

    A collective of gloo then fails at once. It cannot be told to, and a machine that is gone does not close its side.
    """
    for name in os.listdir("/proc/self/fd"):
        # Most are no connections.
        with suppress(OSError), _socket_of(int(name)) as found:
            if found.getpeername()[:1] == (host,):
                found.shutdown(socket.SHUT_RDWR)


def interface_of(host: str) -> str:
    """Return the name of the network interface that has this address.

    Raises:
        ValueError: none has.
    """
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        for _, name in socket.if_nameindex():
            request = struct.pack("256s", name.encode())
            with suppress(OSError):  # It has no address.
                if socket.inet_ntoa(fcntl.ioctl(any_socket, _SIOCGIFADDR, request)[20:24]) == host:
                    return name
    raise ValueError(f"no network interface of this machine has the address {host}")
