"""Fetches the keys and values of prompts from other engines, from threads of its own."""

import contextlib
import logging
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflight.kv_transfer.export_server import ACK, FETCH, LAYOUT, RELEASE, SIZE
from inflight.kv_transfer.export_store import PROMPT, UNKNOWN
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.kv_transfer.transport import KVTransport
from inflight.kv_transfer.wire import receive_message, send_message
from inflight.rare_log import RareLog

logger = logging.getLogger(__name__)

BUSY = "busy"
"""Too much is fetched at once, or waits for its first step."""
TIMEOUT = "timeout"
UNREACHABLE = "unreachable"
"""The other engine cannot be reached, or ends before all has come."""
FORBIDDEN = "forbidden"
"""The other engine is not one to fetch from."""
EVICTED = "evicted"
"""The rest was fetched, but then the beginning had left the cache here."""
REASONS = (BUSY, TIMEOUT, UNREACHABLE, FORBIDDEN, UNKNOWN, PROMPT, LAYOUT, SIZE)

_THREADS = 4
_MAX_WAITING = 64


class NotFetched(Exception):
    """A prompt has to be computed. The text is one of `REASONS`."""


@dataclass(frozen=True)
class Wanted:
    """What to fetch, and until when."""

    params: KVTransferParams
    digest: str
    """See `prompt_digest`."""
    first_byte: int
    """The bytes before this one are not asked for."""
    num_bytes: int
    """How many are, to the end of the export."""
    deadline: float
    """On the monotonic clock."""


class Fetcher:
    """Fetches on a few threads, and at most so many bytes that wait for the first step of their request."""

    def __init__(self, transport: KVTransport, fingerprint: str, most_bytes: int) -> None:
        self._transport = transport
        self._fingerprint = fingerprint
        self._most_bytes = most_bytes
        self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="kv-fetch")
        self._lock = threading.Lock()
        self._closed = False
        self._waiting = 0
        """Fetches and releases that wait or run. The lock guards this and the other attributes below."""
        self._held_bytes = 0
        self.received_bytes = 0
        self.seconds = 0.0
        """Time of all fetches together."""
        self.fetched = 0
        self.fallbacks: Counter[str] = Counter(dict.fromkeys(REASONS, 0))
        self._rare_log = RareLog(logger)
        self._let_go = deque[int]()
        """Sizes of what nobody holds any more. They come from the garbage collector, which must not wait for a lock."""

    @property
    def held_bytes(self) -> int:
        """Bytes that are fetched, or wait for the first step of their request."""
        with self._lock:
            while self._let_go:
                self._held_bytes -= self._let_go.popleft()
            return self._held_bytes

    def fetch(self, wanted: Wanted, done: Callable[[NDArray[np.uint8] | None], None]) -> None:
        """Fetch, and call `done` with the bytes from another thread; with None if the prompt is to be computed.

        `done` is called from this thread if nothing is tried.
        """
        held = self.held_bytes
        with self._lock:
            has_room = self._waiting < _MAX_WAITING and held + wanted.num_bytes <= self._most_bytes and not self._closed
            if has_room:
                self._waiting += 1
                self._held_bytes += wanted.num_bytes
                self._pool.submit(self._run, wanted, done)
        if not has_room:
            self._fell_back(BUSY, "too many bytes or fetches wait")
            done(None)

    def close(self) -> None:
        """Fetch nothing more. What has begun ends by its deadline."""
        with self._lock:
            self._closed = True
        self._pool.shutdown(wait=False)

    def _run(self, wanted: Wanted, done: Callable[[NDArray[np.uint8] | None], None]) -> None:
        begun = time.monotonic()
        found = None
        try:
            found = self._fetch(wanted)
        except NotFetched as reason:
            self._fell_back(str(reason), "the other engine refuses it")
        except PermissionError as error:
            self._fell_back(FORBIDDEN, error)
        except TimeoutError as error:
            self._fell_back(TIMEOUT, error)
        except OSError as error:
            self._fell_back(UNREACHABLE, error)
        except ValueError as error:
            self._fell_back(SIZE, error)
        except Exception as error:
            logger.exception("a fetch failed")
            self._fell_back(UNREACHABLE, error)
        finally:
            with self._lock:
                self._waiting -= 1
                self.seconds += time.monotonic() - begun
                if found is None:
                    self._held_bytes -= wanted.num_bytes
                else:
                    self.fetched += 1
                    self.received_bytes += wanted.num_bytes
                    weakref.finalize(found, self._let_go.append, wanted.num_bytes)
            done(found)

    def _fetch(self, wanted: Wanted) -> NDArray[np.uint8]:
        params, deadline = wanted.params, wanted.deadline
        with self._transport.connect(params, deadline) as connection:
            if params.fingerprint != self._fingerprint:
                send_message(connection, _release(params), deadline)
                raise NotFetched(LAYOUT)
            asked: dict[str, Any] = {"op": FETCH, "handle": params.remote_request_id, "digest": wanted.digest}
            asked |= {"fingerprint": self._fingerprint, "first_byte": wanted.first_byte}
            send_message(connection, asked, deadline)
            answer = receive_message(connection, deadline)
            if (reason := answer.get("refused")) is not None:
                raise NotFetched(reason if reason in REASONS else UNKNOWN)
            if answer.get("num_bytes") != wanted.num_bytes:
                raise ValueError(f"{answer.get('num_bytes')!r} bytes are offered; they must be {wanted.num_bytes}")
            found = self._transport.receive(connection, wanted.num_bytes, deadline)
            with contextlib.suppress(OSError):  # The bytes are here. The other engine drops its own after a while.
                send_message(connection, {"op": ACK}, deadline)
        return found

    def release(self, params: KVTransferParams, deadline: float) -> None:
        """Tell the other engine that nobody will fetch an export. If that fails, it drops it after a while."""
        with self._lock:
            if self._waiting < _MAX_WAITING and not self._closed:
                self._waiting += 1
                self._pool.submit(self._release, params, deadline)

    def _release(self, params: KVTransferParams, deadline: float) -> None:
        try:
            with contextlib.suppress(OSError), self._transport.connect(params, deadline) as connection:
                send_message(connection, _release(params), deadline)
        finally:
            with self._lock:
                self._waiting -= 1

    def _fell_back(self, reason: str, detail: object) -> None:
        with self._lock:
            self.fallbacks[reason] += 1
        self._rare_log.log(
            logging.WARNING, reason, "a prompt is computed here instead of fetched (%s): %s", reason, detail
        )


def _release(params: KVTransferParams) -> dict[str, str | None]:
    return {"op": RELEASE, "handle": params.remote_request_id}
