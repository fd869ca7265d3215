"""The engine's loop: take in new requests, plan a step, run the model, commit the results."""

import contextlib
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from inflight.arrivals import Arrivals
from inflight.errors import EngineDead, InvalidRequest, OutOfMemory, QueueFull
from inflight.metrics import EngineMetrics
from inflight.outputs import TokenEvent
from inflight.progress import Progress
from inflight.request import CANCELLED, ERROR, STOP, Request
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.scheduler import Scheduler
from inflight.stats import EngineStats
from inflight.step_events import events_of, late_event
from inflight.step_result import StepResult
from inflight.trace import StepRecord, Trace

logger = logging.getLogger(__name__)


class Runner(Protocol):
    """Runs the model for a step plan."""

    def run(self, plan: StepPlan) -> Sequence[StepResult]:
        """Return the answer to each request in `plan.answered`, in that order.

        Raises:
            OutOfMemory: the device has too little memory. The plan's block copies were made, and the plan may be run
                again.
            EngineDead: no further step can be run.
        """


class EngineCore:
    """Accepts requests from any number of threads and runs them through the model on one stepping thread."""

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        max_queue_size: int,
        max_queue_tokens: int = sys.maxsize,
        clock: Callable[[], float] = time.monotonic,
        trace: Trace | None = None,
        publish: Callable[[], None] | None = None,
        export: Callable[[StepPlan, Sequence[StepResult]], None] | None = None,
    ) -> None:
        """
        Args:
            clock: returns seconds. The arrival times and deadlines of requests are on the same clock.
            publish: called at the end of each step; it publishes what entered and left the prefix cache.
            export: called after each step that ran, while its requests have their blocks; it exports prompts.
        """
        self._scheduler = scheduler
        self._runner = runner
        self._clock = clock
        self._trace = trace
        self._publish = publish
        self._export = export
        self.metrics = EngineMetrics(clock)
        self.step_started: float | None = None
        """When `run` began the step that it computes or passes on; None between steps."""
        self._wake = threading.Condition()
        self._unfinished: dict[str, Request] = {}
        """Submitted requests without a last event. The lock of `_wake` guards this and the next four attributes."""
        self._arrivals = Arrivals(scheduler, max_queue_size=max_queue_size, max_queue_tokens=max_queue_tokens)
        self._cancelled: list[tuple[Request, str]] = []
        """Each cancelled request with its finish reason."""
        self._closed = False
        self._death: BaseException | None = None
        self._untold: list[TokenEvent] = []
        """Events of a step that was broken off, which the next one returns. Only the stepping thread uses them."""

    def submit(self, *requests: Request) -> None:
        """Queue a request, or the `n` samples of one: all of them or none. Any thread may call this.

        Args:
            requests: they have different ids and the same priority level.

        Raises:
            InvalidRequest: an unfinished request has the same id, or the queue could never hold all of them.
            QueueFull: the queue of the engine or of the requests' level has no room for all of them, or their tokens
                would take it over `max_queue_tokens`.
            EngineDead: the engine was closed, or its stepping thread has failed.
        """
        for request in requests:
            self._scheduler.read_prompt(request)
        with self._wake:
            if self._closed or self._death is not None:
                # Clients look for the beginning of this message.
                raise EngineDead(f"the engine has stopped: {self._death or 'closed'}")
            for request in requests:
                if request.request_id in self._unfinished:
                    raise InvalidRequest(f"request_id {request.request_id!r} belongs to an unfinished request")
            if (refusal := self._arrivals.refusal(requests)) is not None:
                raise QueueFull(refusal)
            self._unfinished.update((request.request_id, request) for request in requests)
            self._arrivals.add(requests)
            self._wake.notify()

    def has_room(self, request: Request) -> bool:
        """Return whether the queue would accept a request now. Any thread may call this."""
        with self._wake:
            return self._arrivals.refusal([request]) is None

    def cancel(self, request_id: str, reason: str = CANCELLED) -> None:
        """End a request before the next step. A finished request is ignored. Any thread may call this."""
        with self._wake:
            request = self._unfinished.get(request_id)
            if request is not None:
                self._cancelled.append((request, reason))
                self._wake.notify()

    @property
    def num_waiting(self) -> int:
        """Requests that wait, those that have just arrived included."""
        return self._arrivals.num_waiting

    @property
    def has_work(self) -> bool:
        queued = self._arrivals.requests or self._cancelled or self._scheduler.waiting
        return bool(queued or self._scheduler.running or self._untold)

    def run(self, sink: Callable[[list[TokenEvent]], None]) -> None:
        """Step until `close` and pass the events of each step to `sink`. This is the body of the stepping thread.

        If stepping itself fails, every request ends with an error, and later requests are refused with `EngineDead`.
        """
        try:
            while self._wait_for_work():
                self.step_started = self._clock()
                events = self.step()
                if events:
                    sink(events)
                self.step_started = None
        except BaseException as fault:
            logger.exception("the engine has stopped")
            sink(self._die(fault))
            raise

    def _wait_for_work(self) -> bool:
        with self._wake:
            self._wake.wait_for(lambda: self._closed or self._death is not None or self.has_work)
        if self._death is not None:
            raise self._death
        self.wait_for_batch()
        return not self._closed

    def wait_for_batch(self) -> None:
        """Wait until the next step is due, if a batch may still fill.

        A step is due when the batch need not wait longer, when a waiting request times out, or when a request arrives
        or is cancelled.
        """
        wakes_at = self._scheduler.wakes_at
        if wakes_at is None:
            return
        with self._wake:
            self._wake.wait_for(
                lambda: self._closed or self._death is not None or self._arrivals.requests or self._cancelled,
                # If more is left after the longest possible wait, the next plan is empty again.
                timeout=min(max(0.0, wakes_at - self._clock()), threading.TIMEOUT_MAX),
            )

    def close(self) -> None:
        """Make `run` return after its current step, and refuse new requests."""
        with self._wake:
            self._closed = True
            self._wake.notify()

    def abort(self, fault: EngineDead) -> None:
        """Make `run` fail with `fault` before its next step, and refuse new requests. Any thread may call this."""
        with self._wake:
            self._death = fault
            self._wake.notify()

    @property
    def death(self) -> BaseException | None:
        """Why the engine has stopped, or is about to; None while it runs."""
        return self._death

    def _die(self, fault: BaseException) -> list[TokenEvent]:
        with self._wake:
            self._death = fault
            requests = list(self._unfinished.values())
            self._unfinished.clear()
            self._arrivals.clear()
            self._cancelled.clear()
        with contextlib.suppress(Exception):  # The same fault may occur again; the events must still be returned.
            for request in requests:
                self._scheduler.remove(request.request_id)
        error = f"the engine has stopped: {fault}"
        return [*self._untold, *(TokenEvent(request, finish_reason=ERROR, error=error) for request in requests)]

    def step(self) -> list[TokenEvent]:
        """Run one step: new requests join, cancelled and late requests leave, and the others make progress.

        Only the stepping thread may call this.
        """
        events = self._take_arrivals()
        try:
            self._run_step(events)
        except BaseException:  # Ctrl-C. The requests that have ended are no longer in the scheduler.
            self._untold += self._settled(events)
            raise
        return self._told(events)

    def _run_step(self, events: list[TokenEvent]) -> None:
        """Plan and run a step, and add its events to `events` as soon as they are known."""
        started = self._clock()
        events += [late_event(*each) for each in self._scheduler.expire(started)]
        plan = self._scheduler.schedule(started)
        num_steps = self.metrics.steps
        if plan.scheduled:
            self._compute(plan, started, events)
        if self._publish is not None:
            self._publish()
        if self._trace is not None and (plan.scheduled or plan.preempted or plan.changes or events):
            preempted = self._scheduler.preemptor.preempted[len(plan.preempted) :]
            self._trace.append(
                self._record(plan, started, events, ran=self.metrics.steps > num_steps, preempted=preempted)
            )

    def drop_cancelled(self) -> list[TokenEvent]:
        """End the requests that were cancelled since the last step, without running another step.

        Only the stepping thread may call this.
        """
        events = self._take_arrivals()
        if self._trace is not None and events:
            self._trace.append(self._record(StepPlan(()), self._clock(), events))
        return self._told(events)

    def _told(self, events: list[TokenEvent]) -> list[TokenEvent]:
        """Return new events, after those that a step which was broken off has left."""
        events = self._settled(events)
        untold, self._untold = self._untold, []
        return untold + events

    def _settled(self, events: list[TokenEvent]) -> list[TokenEvent]:
        """Return `events` after making the ids and the adapters of the finished requests free again."""
        with self._wake:
            for event in events:
                if event.finish_reason is not None:
                    del self._unfinished[event.request.request_id]
                    # An event, a batch or a beam may refer to the request for longer, and others wait for the slot.
                    for each in event.request.members:
                        each.adapter = None
        return events

    def _take_arrivals(self) -> list[TokenEvent]:
        # Outside the lock, for which `submit` would wait: it takes a millisecond for 8,000 tokens.
        for request in tuple(self._arrivals.requests):
            self._scheduler.prepare(request)
        with self._wake:
            for request in self._arrivals.requests:
                self._scheduler.add(request)
            self._arrivals.clear()
            # A request may have ended in the meantime, and a new request may have its id.
            cancelled = {r: reason for r, reason in self._cancelled if self._unfinished.get(r.request_id) is r}
            self._cancelled.clear()
        for request, reason in cancelled.items():
            self._scheduler.remove(request.request_id)
            if reason == STOP:
                self._scheduler.completed(request)  # A stop string ended it.
        return [TokenEvent(request, finish_reason=reason) for request, reason in cancelled.items()]

    def _compute(self, plan: StepPlan, started: float, events: list[TokenEvent]) -> None:
        computing = self._clock()  # A step's time is that of the model alone. A drafter may have taken its own before.
        with self._uncommitted(plan):
            results = self._results(plan, events)
            if results is None:
                return
            ended = self._clock()
            self._scheduler.observe(plan, ended - computing)
            if self._export is not None:
                self._export(plan, results)
        budget = self._scheduler.limit.tokens
        committed = self._scheduler.commit(plan, results, ended)
        events += events_of(committed, results)
        self.metrics.step(plan, results, committed, budget, started, ended)

    @contextlib.contextmanager
    def _uncommitted(self, plan: StepPlan) -> Iterator[None]:
        """If a step is broken off here, the next one computes its tokens again."""
        try:
            yield
        except EngineDead:
            raise
        except BaseException:
            # Ctrl-C. Who has called `Engine.generate` may go on with other requests.
            self._scheduler.break_off(plan)
            raise

    def _results(self, plan: StepPlan, events: list[TokenEvent]) -> Sequence[StepResult] | None:
        """Run the model. Return None after a fault that ends requests of the step, or makes the next steps smaller."""
        try:
            return self._runner.run(plan)
        except OutOfMemory as fault:
            if not self._scheduler.shrink_after_oom(plan):
                events += self._fail(plan, fault)
            else:
                logger.warning(
                    "out of memory in a step of %d tokens; the next steps have at most %d: %s",
                    plan.num_tokens,
                    self._scheduler.limit.tokens,
                    fault,
                )
        except EngineDead:
            raise
        except Exception as fault:
            logger.exception("a step of %d requests failed", len(plan.scheduled))
            events += self._fail(plan, fault)
        return None

    def _fail(self, plan: StepPlan, fault: Exception) -> list[TokenEvent]:
        error = f"{type(fault).__name__}: {fault}"
        return [TokenEvent(request, finish_reason=ERROR, error=error) for request in self._scheduler.fail_step(plan)]

    def _record(
        self,
        plan: StepPlan,
        started: float,
        events: list[TokenEvent],
        *,
        ran: bool = False,
        preempted: Sequence[Request] = (),
    ) -> StepRecord:
        return StepRecord(
            started=started,
            ended=self._clock(),
            plan=plan,
            ran=ran,
            events=events,
            preempted=preempted,
            running=len(self._scheduler.running),
            waiting=self.num_waiting,
            blocks_used=self._scheduler.tables.pool.num_used,
        )

    def stats(self) -> EngineStats:
        """Return a snapshot of the counters. It is exact between steps. Any thread may call this."""
        return EngineStats.of(self._scheduler, self._arrivals, self.metrics)

    def progress(self, request_id: str) -> Progress | None:
        """Return how far a request is; None if it has finished, or is not known. Any thread may call this."""
        request = self._unfinished.get(request_id)
        return None if request is None else Progress.of(request, running=request_id in self._scheduler.running)
