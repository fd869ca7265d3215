"""Short messages between two engines: JSON objects with their length before them.

A consumer sends {op, handle, digest, fingerprint, first_byte}. The producer answers {num_bytes} and the bytes of the
export from `first_byte` on, or {refused}. With {op: ack} the consumer says that it has all.
"""

import json
import socket
import time
from typing import Any

_HEAD = 4
_LONGEST = 4096


class BrokenTransfer(OSError):
    """The other side sends what is not a message, or ends too early."""


def time_left(deadline: float) -> float:
    """Return the seconds until `deadline`, on the monotonic clock.

    Raises:
        TimeoutError: it has passed.
    """
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time for a transfer is over")
    return left


def send_message(connection: socket.socket, message: dict[str, Any], deadline: float) -> None:
    """Send a message. Raises OSError if the other side is gone or does not read it in time."""
    encoded = json.dumps(message).encode()
    connection.settimeout(time_left(deadline))
    connection.sendall(len(encoded).to_bytes(_HEAD, "big") + encoded)


def receive_message(connection: socket.socket, deadline: float) -> dict[str, Any]:
    """Wait for a message.

    Raises:
        OSError: none comes in time, or it is not one.
    """
    head = bytearray(_HEAD)
    receive_into(connection, memoryview(head), deadline)
    size = int.from_bytes(head, "big")
    if size > _LONGEST:
        raise BrokenTransfer(f"a message has {size} bytes; it must have at most {_LONGEST}")
    body = bytearray(size)
    receive_into(connection, memoryview(body), deadline)
    try:
        message = json.loads(body)
    except (ValueError, RecursionError):
        raise BrokenTransfer("a message is not JSON") from None
    if not isinstance(message, dict):
        raise BrokenTransfer("a message is not an object")
    return message


def receive_into(connection: socket.socket, target: memoryview, deadline: float) -> None:
    """Receive exactly as many bytes as `target` has. Raises OSError if they do not come in time."""
    done = 0
    while done < len(target):
        connection.settimeout(time_left(deadline))
        count = connection.recv_into(target[done:])
        if not count:
            raise BrokenTransfer(f"the other side ended after {done} of {len(target)} bytes")
        done += count
