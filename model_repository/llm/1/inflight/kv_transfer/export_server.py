"""Gives exports to the engines that ask for them, from threads of its own."""

import contextlib
import errno
import logging
import socket
import threading
import time
from collections.abc import Mapping
from typing import Any

from inflight.kv_transfer.export_store import FETCHED, RELEASED, ExportStore, Refused
from inflight.kv_transfer.transport import KVTransport
from inflight.kv_transfer.wire import receive_message, send_message
from inflight.rare_log import RareLog

logger = logging.getLogger(__name__)

LAYOUT = "layout"
"""The engines cannot read each other's blocks."""
SIZE = "size"
"""The export has another size than the consumer expects."""
ACK = "ack"
FETCH = "fetch"
RELEASE = "release"

_MAX_CONNECTIONS = 32
_POLL_SECONDS = 0.5
_LISTEN_AGAIN_SECONDS = 0.2
_JOIN_SECONDS = 5.0


class ExportServer:
    """Answers the consumers of one engine.

    A consumer that says nothing, or does not read, loses its connection after `seconds`. The export stays until it is
    acknowledged, so that it can be asked for again.
    """

    def __init__(
        self, store: ExportStore, transport: KVTransport, engine_id: str, fingerprint: str, seconds: float
    ) -> None:
        self._store = store
        self._transport = transport
        self._engine_id = engine_id
        self._fingerprint = fingerprint
        self._seconds = seconds
        self._listener: socket.socket | None = None
        self._closing = threading.Event()
        self._connections = threading.BoundedSemaphore(_MAX_CONNECTIONS)
        self._thread = threading.Thread(target=self._run, name="kv-exports", daemon=True)
        self._rare_log = RareLog(logger)
        self.sent_bytes = 0
        self._counting = threading.Lock()

    def start(self) -> None:
        """Listen. If another process has the port, this one takes it once it is free: while Triton loads a model
        again, the old process goes on for a while.

        Raises:
            ValueError: the address cannot be used.
        """
        try:
            self._listen()
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise ValueError(f"kv_transfer_config: cannot listen: {error}") from None
            logger.warning("kv_transfer_config: kv_port is in use; prompts are exported once it is free")
        self._thread.start()

    def _listen(self) -> None:
        listener = self._transport.listen(self._engine_id)
        listener.settimeout(_POLL_SECONDS)
        self._listener = listener

    @property
    def address(self) -> tuple[str | None, int | None] | None:
        """The host and the port at which consumers find this engine, if it has any. None: it does not listen yet."""
        return None if self._listener is None else self._transport.address(self._listener)

    def close(self) -> None:
        """Stop listening. Transfers that have begun may end."""
        self._closing.set()
        if self._listener is not None:
            # A connection wakes the thread.
            with contextlib.suppress(OSError), socket.socket(self._listener.family) as waker:
                waker.settimeout(_POLL_SECONDS)
                waker.connect(self._listener.getsockname())
        self._thread.join(_JOIN_SECONDS)
        if self._listener is not None:
            self._listener.close()

    # -- the threads -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self._closing.is_set():
            if self._listener is None:
                self._closing.wait(_LISTEN_AGAIN_SECONDS)
                with contextlib.suppress(OSError):  # Still in use, or there are too many open files for now.
                    self._listen()
                continue
            self._store.expire()
            self._accept(self._listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            return
        except OSError as error:
            # The client has gone, or there are too many open files.
            self._rare_log.log(logging.WARNING, "failed", "a connection for an export failed: %s", error)
            self._closing.wait(_LISTEN_AGAIN_SECONDS)
            return
        if not self._connections.acquire(blocking=False):
            self._rare_log.log(
                logging.WARNING, "full", "more than %d consumers at once: some are turned away", _MAX_CONNECTIONS
            )
            connection.close()
            return
        try:
            threading.Thread(target=self._serve, args=(connection,), name="kv-export", daemon=True).start()
        except RuntimeError as error:  # The system has no thread left for now.
            self._rare_log.log(logging.WARNING, "no thread", "a consumer is turned away: %s", error)
            connection.close()
            self._connections.release()

    def _serve(self, connection: socket.socket) -> None:
        deadline = time.monotonic() + self._seconds
        try:
            if self._transport.is_trusted(connection):
                self._answer(connection, deadline)
        except OSError as error:
            self._rare_log.log(logging.INFO, "not fetched", "an export was not fetched: %s", error)
        finally:
            connection.close()
            self._connections.release()

    def _answer(self, connection: socket.socket, deadline: float) -> None:
        asked = receive_message(connection, deadline)
        handle, digest = str(asked.get("handle")), str(asked.get("digest"))
        if asked.get("op") == RELEASE:
            self._store.drop(handle, RELEASED)
            return
        try:
            if asked.get("fingerprint") != self._fingerprint:
                raise Refused(LAYOUT)
            export = self._store.find(handle, digest)
            data = export.data[_first_byte(asked, export.num_bytes) :]
        except Refused as reason:
            send_message(connection, {"refused": str(reason)}, deadline)
            return
        send_message(connection, {"num_bytes": len(data)}, deadline)
        self._transport.send(connection, data, deadline)
        if receive_message(connection, deadline).get("op") == ACK:
            self._store.drop(handle, FETCHED)
            with self._counting:
                self.sent_bytes += len(data)


def _first_byte(asked: Mapping[str, Any], num_bytes: int) -> int:
    """Return where what a consumer lacks begins. Raises Refused if there is no such byte."""
    first = asked.get("first_byte", 0)
    if not isinstance(first, int) or not 0 <= first < num_bytes:
        raise Refused(SIZE)
    return first
