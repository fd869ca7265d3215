"""Reads LoRA adapters, and lets requests wait until there is room in memory for theirs."""

import functools
import threading
from collections.abc import Callable
from typing import NamedTuple

from inflight import Engine, RequestOptions
from inflight.tenant_turns import TenantTurns
from serving.aborter import Aborter
from serving.failures import CODES_OF_LATE
from serving.stream import ResponseStream
from serving.streams import Streams

_MAX_WAITING = 64
_MAX_WAITING_IN_ALL = 1024
# How often those that wait are looked at: an adapter may have ended its last request, and their time may be over.
_LOOK_SECONDS = 0.05


class _Waiting(NamedTuple):
    stream: ResponseStream
    options: RequestOptions
    submit: Callable[[], object]


class AdapterReads(threading.Thread):
    """Submits requests whose adapters must be read first, those of several tenants in turn.

    If unfinished requests use all `max_loras`, the others wait here. The least recently used adapter then takes no new
    requests, so that it leaves when those that it has are done: also under a load that never ends, all get their turn.
    """

    def __init__(self, engine: Engine, streams: Streams, aborter: Aborter) -> None:
        super().__init__(name="adapter reads", daemon=True)
        self._submitter = engine.submitter
        self._cache = None if engine.model.adapters is None else engine.model.adapters.cache
        self._named = () if engine.model.adapters is None else engine.model.adapters.named
        self._streams = streams
        self._aborter = aborter
        self._turns = TenantTurns[_Waiting](
            "requests wait for LoRA adapters", most=_MAX_WAITING, most_in_all=_MAX_WAITING_IN_ALL
        )
        self._changed = threading.Condition()
        self._stopped = False

    def must_wait(self, name: str) -> bool:
        """Whether a new request with this adapter, if any, must be given to `add`."""
        if self._cache is None or not name or name in self._named:
            return False
        return not self._cache.has(name) or (bool(self._turns) and name == self._cache.next_to_leave)

    def add(self, stream: ResponseStream, options: RequestOptions, submit: Callable[[], object]) -> None:
        """Submit a request when its adapter can be read, or refuse it. `submit` raises nothing, and does either.

        Raises:
            QueueFull: too many wait.
        """
        with self._changed:
            self._turns.add(options.tenant, _Waiting(stream, options, submit))
            self._count()
            self._changed.notify()

    def stop(self) -> None:
        """End the thread when it has submitted or refused all requests."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def run(self) -> None:
        """Work until `stop`."""
        while ready := self._next():
            for waiting in ready:
                if not self._has_expired(waiting):
                    waiting.submit()

    def _next(self) -> list[_Waiting]:
        """Wait until requests can be submitted or have ended, and return them. None at the end."""
        with self._changed:
            while True:
                if ready := self._ready():
                    self._count()
                    return ready
                if self._stopped:
                    return []
                self._changed.wait(_LOOK_SECONDS if self._turns else None)

    def _count(self) -> None:
        if self._cache is not None:
            self._cache.waiting = [waiting.options.lora_name for waiting in self._turns]

    def _ready(self) -> list[_Waiting]:
        if not self._turns:
            return []
        if self._stopped:
            return self._turns.take_if(lambda _: True)
        cache = self._cache
        assert cache is not None
        leaving = cache.next_to_leave

        @functools.cache
        def needs_no_room(name: str) -> bool:
            return cache.has(name) or cache.folder.version(name) is None

        def need_not_wait(waiting: _Waiting) -> bool:
            if waiting.stream.was_cancelled or waiting.stream not in self._streams:
                return True
            name = waiting.options.lora_name
            return self._submitter.lateness(waiting.options) is not None or (needs_no_room(name) and name != leaving)

        if ready := self._turns.take_if(need_not_wait):
            return ready
        if needs_no_room(self._turns.first().options.lora_name) or cache.make_room():
            tenant, *_ = self._turns.tenants()
            return [self._turns.take(tenant)]
        return []

    def _has_expired(self, waiting: _Waiting) -> bool:
        """End a request with an error if it has waited as long as it may. Return whether it has."""
        reason = self._submitter.lateness(waiting.options)
        if reason is not None and waiting.stream in self._streams:
            message = (
                f"Request timeout expired: lora_name is {waiting.options.lora_name!r}; the adapter waited for room in "
                "memory, where max_loras of them fit"
            )
            self._aborter.abort(waiting.stream, message, CODES_OF_LATE[reason])
        return reason is not None
