"""The loop of the engine: take what arrived, plan, run the model, commit."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Protocol

from inflight.errors import EngineDead, InvalidRequest, QueueFull
from inflight.outputs import TokenEvent, TokenLogprobs
from inflight.request import CANCELLED, ERROR, Request
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.scheduler import Scheduler
from inflight.stats import EngineStats

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Runs the model over a plan."""

    def run(self, plan: StepPlan) -> tuple[list[int], list[TokenLogprobs | None]]:
        """A token, and log-probabilities if asked for, for each of `plan.sampling`."""


class EngineCore:
    """Steps requests from any number of submitting threads through the model on one stepping thread."""

    def __init__(self, scheduler: Scheduler, runner: Runner, *, max_queue_size: int) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._max_queue_size = max_queue_size
        self._wake = threading.Condition()
        self._unfinished: dict[str, Request] = {}
        """Every request submitted that has had no last event yet. Under the lock, as are the next two."""
        self._arrived: list[Request] = []
        self._cancelled: list[Request] = []
        self._closed = False
        self._death: BaseException | None = None
        self._steps = 0
        self._step_seconds = 0.0
        self._prompt_tokens = 0
        self._cached_tokens = 0
        self._computed_tokens = 0
        self._generated_tokens = 0

    def submit(self, request: Request) -> None:
        """Queue a request. From any thread.

        Raises:
            InvalidRequest: an unfinished request has the same id.
            QueueFull: as many requests wait as `max_queue_size` allows.
            EngineDead: the stepping thread has ended.
        """
        with self._wake:
            if self._closed or self._death is not None:
                raise EngineDead(f"the engine has stopped: {self._death or 'closed'}")
            if request.request_id in self._unfinished:
                raise InvalidRequest(f"request_id {request.request_id!r} belongs to an unfinished request")
            if self.num_waiting >= self._max_queue_size:
                raise QueueFull(f"{self.num_waiting} requests wait; max_queue_size is {self._max_queue_size}")
            self._unfinished[request.request_id] = request
            self._arrived.append(request)
            self._wake.notify()

    def cancel(self, request_id: str) -> None:
        """Drop a request before the next step; one that is not here any more is ignored. From any thread."""
        with self._wake:
            request = self._unfinished.get(request_id)
            if request is not None:
                self._cancelled.append(request)
                self._wake.notify()

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.waiting) + len(self._arrived)

    @property
    def has_work(self) -> bool:
        return bool(self._arrived or self._cancelled or self._scheduler.waiting or self._scheduler.running)

    def run(self, sink: Callable[[list[TokenEvent]], None]) -> None:
        """Step until `close`, handing each step's events to `sink`. The body of the stepping thread.

        If stepping itself breaks, every request ends with an error and later ones are refused with `EngineDead`.
        """
        try:
            while self._wait_for_work():
                events = self.step()
                if events:
                    sink(events)
        except BaseException as fault:
            logger.exception("the engine has stopped")
            sink(self._die(fault))
            raise

    def _wait_for_work(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self.has_work)
            return not self._closed

    def close(self) -> None:
        """Make `run` return after its current step and refuse new requests."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    def _die(self, fault: BaseException) -> list[TokenEvent]:
        with self._wake:
            self._death = fault
            requests = list(self._unfinished.values())
            self._unfinished.clear()
            self._arrived.clear()
            self._cancelled.clear()
        with contextlib.suppress(Exception):  # Whatever broke may break again; the events must get out.
            for request in requests:
                self._scheduler.remove(request.request_id)
        return [TokenEvent(r, finish_reason=ERROR, error=f"the engine has stopped: {fault}") for r in requests]

    def step(self) -> list[TokenEvent]:
        """One step: what arrived joins, what was cancelled leaves, the rest gets on. On the stepping thread only."""
        events = self._take_arrivals()
        plan = self._scheduler.schedule()
        if plan.scheduled:
            started = time.perf_counter()
            events += self._compute(plan)
            self._steps += 1
            self._step_seconds += time.perf_counter() - started
        with self._wake:
            for event in events:
                if event.finish_reason is not None:
                    del self._unfinished[event.request.request_id]
        return events

    def _take_arrivals(self) -> list[TokenEvent]:
        with self._wake:
            for request in self._arrived:
                self._scheduler.add(request)
            self._arrived.clear()
            # One that ended meanwhile is gone, and another may have its id.
            cancelled = {r.request_id: r for r in self._cancelled if self._unfinished.get(r.request_id) is r}
            self._cancelled.clear()
        for request_id in cancelled:
            self._scheduler.remove(request_id)
        return [TokenEvent(request, finish_reason=CANCELLED) for request in cancelled.values()]

    def _compute(self, plan: StepPlan) -> list[TokenEvent]:
        try:
            tokens, logprobs = self._runner.run(plan)
        except Exception as fault:
            logger.exception("a step of %d requests failed", len(plan.scheduled))
            return self._fail(plan, fault)
        self._count(plan)
        outcome = self._scheduler.commit(plan, tokens)
        return [
            TokenEvent(request, token, entry, reason)
            for (request, reason), token, entry in zip(outcome, tokens, logprobs, strict=True)
        ]

    def _fail(self, plan: StepPlan, fault: Exception) -> list[TokenEvent]:
        events = []
        for share in plan.scheduled:
            self._scheduler.remove(share.request.request_id)
            events.append(TokenEvent(share.request, finish_reason=ERROR, error=f"{type(fault).__name__}: {fault}"))
        return events

    def _count(self, plan: StepPlan) -> None:
        self._computed_tokens += plan.num_tokens
        self._generated_tokens += len(plan.sampling)
        for share in plan.scheduled:
            request = share.request
            if request.num_preemptions == 0 and request.num_computed == request.num_cached:
                self._prompt_tokens += len(request.prompt_ids)
                self._cached_tokens += request.num_cached

    def stats(self) -> EngineStats:
        """A snapshot of the counters. From any thread; between steps it is exact."""
        pool = self._scheduler.tables.pool
        used = pool.num_used
        return EngineStats(
            steps=self._steps,
            step_seconds=self._step_seconds,
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            computed_tokens=self._computed_tokens,
            generated_tokens=self._generated_tokens,
            preemptions=self._scheduler.num_preemptions,
            running=len(self._scheduler.running),
            waiting=self.num_waiting,
            blocks_total=pool.num_blocks,
            blocks_used=used,
            blocks_free=pool.num_blocks - used,
            blocks_cached=pool.num_cached,
        )
