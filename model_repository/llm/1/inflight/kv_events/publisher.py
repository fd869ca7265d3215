"""Publishes what enters and leaves the prefix cache over ZMQ.

Messages are vLLM's: [topic, sequence number, batch]. Numbers are 8 bytes, big-endian; they begin with 0 and grow by 1.
A follower that sees a gap sends ["", first number] to `replay_endpoint`. It gets ["", topic, number, batch] for each
batch that is still there, and then ["", "", -1, ""].

Only a follower of all batches knows the cache: nobody is told what came before he connected, unless he asks for it.
"""

import contextlib
import errno
import logging
import socket
import threading
import time
from collections import deque
from collections.abc import Sequence

import zmq

from inflight.kv_cache.block_events import BlockEvents
from inflight.kv_events.kv_events_config import KVEventsConfig
from inflight.kv_events.wire import AllBlocksCleared, Event, encode, wire_event
from inflight.rare_log import RareLog

logger = logging.getLogger(__name__)

_END = (-1).to_bytes(8, "big", signed=True)
_IPC = "ipc://"
_BIND_AGAIN_MS = 200
_LINGER_MS = 500
# Followers send topics and numbers. Longer messages end their connection.
_MAX_RECEIVED_BYTES = 4096
_JOIN_SECONDS = 5.0


class KVEventPublisher:
    """Sends the recorded events of an engine from a thread of its own, so that no follower can hold up a step."""

    def __init__(self, config: KVEventsConfig, recorded: BlockEvents, block_size: int) -> None:
        self._config = config
        self._recorded = recorded
        self._block_size = block_size
        self._topic = config.topic.encode()
        self._rare_log = RareLog(logger)
        self._lock = threading.Lock()
        self._unsent: deque[tuple[bytes, bytes]] = deque()
        """Batches with their numbers. The lock guards this and the next three attributes."""
        self._recent: deque[tuple[bytes, bytes]] = deque(maxlen=config.buffer_steps if config.replay_endpoint else 0)
        self._next = 0
        self._counts = {"sent": 0, "dropped": 0}
        self._woken, self._waker = socket.socketpair()
        for end in (self._woken, self._waker):
            end.setblocking(False)
        self._closing = False
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen, and publish that the cache is empty.

        If another process has an address, this one takes it once it is free: while Triton loads a model again, the old
        process goes on for a while.

        Raises:
            ValueError: an address cannot be used.
        """
        self._put([AllBlocksCleared()])
        try:
            sockets = _Sockets(self._config)
        except ValueError:
            self.close()
            raise
        for endpoint in sockets.unbound.values():
            logger.warning("kv_events_config: %s is in use; KV events begin once it is free", endpoint)
        self._thread = threading.Thread(target=self._run, args=(sockets,), name="kv-events", daemon=True)
        self._thread.start()

    def publish(self) -> None:
        """Publish what was recorded since the last call, as one batch. Only the stepping thread may call this."""
        events = self._recorded.take()
        if events and not self._closing:
            self._put([wire_event(event, self._block_size) for event in events])

    def close(self) -> None:
        """Publish that the cache is gone, and stop listening. Later events are not published."""
        if self._closing:
            return
        self._put([AllBlocksCleared()])
        self._closing = True
        self._wake()
        if self._thread is not None:
            self._thread.join(_JOIN_SECONDS)
        self._woken.close()
        self._waker.close()

    def counts(self) -> dict[str, int]:
        """Return how many batches were `sent`, and how many were `dropped` because too many waited."""
        with self._lock:
            return dict(self._counts)

    def _put(self, events: Sequence[Event]) -> None:
        payload = encode(time.time(), events)
        with self._lock:
            batch = self._next.to_bytes(8, "big"), payload
            self._next += 1
            if len(self._unsent) == self._config.max_queue_size:
                self._unsent.popleft()
                self._counts["dropped"] += 1
            self._unsent.append(batch)
            self._recent.append(batch)
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # If nothing fits in, the thread has enough to wake it.
            self._waker.send(b"\0")

    # -- the thread --------------------------------------------------------------------------------------------------

    def _run(self, sockets: "_Sockets") -> None:
        try:
            self._serve(sockets)
        except Exception:
            logger.exception("no more KV events are published")
        finally:
            sockets.close(linger=_LINGER_MS)

    def _serve(self, sockets: "_Sockets") -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        if sockets.router is not None:
            poller.register(sockets.router, zmq.POLLIN)
        while not self._closing or self._unsent:
            ready = dict(poller.poll(_BIND_AGAIN_MS if sockets.unbound else None))
            if self._woken.fileno() in ready:
                self._woken.recv(4096)
            sockets.bind()
            self._send_unsent(sockets.pub)
            if sockets.router is not None and sockets.router in ready:
                self._answer(sockets.router)

    def _send_unsent(self, pub: "zmq.Socket[bytes]") -> None:
        while True:
            with self._lock:
                if not self._unsent:
                    return
                number, payload = self._unsent.popleft()
                self._counts["sent"] += 1
            pub.send_multipart((self._topic, number, payload))

    def _answer(self, router: "zmq.Socket[bytes]") -> None:
        follower, *asked = router.recv_multipart()
        if len(asked) != 2 or len(asked[1]) != len(_END):
            self._rare_log.log(
                logging.WARNING,
                "malformed",
                "a request for KV events is ignored: it has not the form ['', first number in 8 bytes]",
            )
            return
        with self._lock:
            recent = list(self._recent)
        for number, payload in recent:
            if number >= asked[1]:  # The order of big-endian bytes is that of the numbers.
                router.send_multipart((follower, b"", self._topic, number, payload))
        router.send_multipart((follower, b"", b"", _END, b""))


def _has_owner(endpoint: str) -> bool:
    """Return whether a process listens on an `ipc` address. ZMQ would take it away from that process."""
    if not endpoint.startswith(_IPC):
        return False
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(endpoint.removeprefix(_IPC))
        except OSError:
            return False
    return True


class _Sockets:
    """The sockets of a publisher. After the constructor, only its thread may use them."""

    def __init__(self, config: KVEventsConfig) -> None:
        """Raises ValueError if an address cannot be used. One that is in use is kept in `unbound`."""
        self._context = zmq.Context()
        self.unbound: dict[zmq.Socket[bytes], str] = {}
        self.pub = self._open(zmq.PUB, config.hwm, config.endpoint)
        self.router = None
        if config.replay_endpoint is not None:
            # An answer of all batches must fit: a router drops what does not.
            self.router = self._open(zmq.ROUTER, config.buffer_steps + 1, config.replay_endpoint)
        try:
            self.bind()
        except ValueError:
            self.close(linger=0)
            raise

    def _open(self, kind: int, hwm: int, endpoint: str) -> "zmq.Socket[bytes]":
        opened = self._context.socket(kind)
        opened.set_hwm(hwm)
        opened.setsockopt(zmq.MAXMSGSIZE, _MAX_RECEIVED_BYTES)
        self.unbound[opened] = endpoint
        return opened

    def bind(self) -> None:
        """Take the addresses that are free by now. Raises ValueError as above."""
        for unbound, endpoint in list(self.unbound.items()):
            if _has_owner(endpoint):
                continue
            try:
                unbound.bind(endpoint)
            except zmq.ZMQError as error:
                if error.errno == errno.EADDRINUSE:
                    continue
                raise ValueError(f"kv_events_config: cannot listen on {endpoint!r}: {error.strerror}") from None
            del self.unbound[unbound]

    def close(self, *, linger: int) -> None:
        """Close the sockets. What was sent goes on for at most `linger` milliseconds."""
        self._context.destroy(linger=linger)
