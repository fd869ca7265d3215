"""The engine's loop: take in new requests, plan a step, run the model, commit the results."""

import contextlib
import logging
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

from inflight.beam_search.search import Hypothesis
from inflight.errors import EngineDead, InvalidRequest, OutOfMemory, QueueFull
from inflight.metrics import EngineMetrics
from inflight.outputs import TokenEvent
from inflight.progress import Progress
from inflight.request import CANCELLED, DEADLINE, ERROR, INVALID, LENGTH, STOP, Request
from inflight.scheduler.committed import Committed
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.scheduler import Scheduler
from inflight.stats import EngineStats
from inflight.step_result import StepResult
from inflight.trace import StepRecord, Trace

logger = logging.getLogger(__name__)

NO_TOKEN = "no token can be chosen: the model's logits are not numbers, or all tokens are forbidden"
NOT_A_NUMBER = "what the model computes for the prompt is not a number"
# Each is a metric. Configurations may have any number of levels.
_MAX_COUNTED_LEVELS = 16


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
        self._max_queue_size = max_queue_size
        self._max_queue_tokens = max_queue_tokens
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
        self._arrived: list[Request] = []
        self._arrived_at_level: Counter[int] = Counter()
        self._arrived_tokens = 0
        self._cancelled: list[tuple[Request, str]] = []
        """Each cancelled request with its finish reason."""
        self._closed = False
        self._death: BaseException | None = None

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
        level = requests[0].priority
        for request in requests:
            self._scheduler.read_prompt(request)
        with self._wake:
            if self._closed or self._death is not None:
                raise EngineDead(f"the engine has stopped: {self._death or 'closed'}")
            for request in requests:
                if request.request_id in self._unfinished:
                    raise InvalidRequest(f"request_id {request.request_id!r} belongs to an unfinished request")
            if (refusal := self._full(requests)) is not None:
                raise QueueFull(refusal)
            self._unfinished.update((request.request_id, request) for request in requests)
            self._arrived += requests
            self._arrived_at_level[level] += len(requests)
            self._arrived_tokens += sum(len(request.token_ids) for request in requests)
            self._wake.notify()

    def has_room(self, request: Request) -> bool:
        """Return whether the queue would accept a request now. Any thread may call this."""
        with self._wake:
            return self._full([request]) is None

    def _full(self, requests: Sequence[Request]) -> str | None:
        """Return why the queue cannot accept the samples of a request now, or None if it can.

        The message begins like Triton's own, which clients may look for.

        Raises:
            InvalidRequest: the queue could not accept it even if it were empty.
        """
        level, samples = requests[0].priority, len(requests)
        bounds = [("requests wait; max_queue_size", self._max_queue_size, self.num_waiting)]
        if of_level := self._scheduler.policies.of(level).max_queue_size:
            waiting = self._scheduler.waiting.count(level) + self._arrived_at_level[level]
            bounds.append((f"requests of priority {level} wait; max_queue_size of that level", of_level, waiting))
        for name, bound, waiting in bounds:
            if samples > bound:
                raise InvalidRequest(f"n is {samples}; it must be at most max_queue_size, {bound}")
            if waiting + samples > bound:
                more = f"{samples} samples more do not fit: " if samples > 1 else ""
                return f"Exceeds maximum queue size: {more}{waiting} {name} is {bound}"
        waiting, tokens = self.num_waiting_tokens, sum(len(request.token_ids) for request in requests)
        if tokens > self._max_queue_tokens:
            raise InvalidRequest(
                f"n is {samples}, which makes {tokens} prompt tokens; they must be at most max_queue_tokens, "
                f"{self._max_queue_tokens}"
            )
        if waiting + tokens > self._max_queue_tokens:
            return (
                f"Exceeds maximum queue size: requests of {waiting} tokens wait, and this one has {tokens}; "
                f"max_queue_tokens is {self._max_queue_tokens}"
            )
        return None

    def cancel(self, request_id: str, reason: str = CANCELLED) -> None:
        """End a request before the next step. A finished request is ignored. Any thread may call this."""
        with self._wake:
            request = self._unfinished.get(request_id)
            if request is not None:
                self._cancelled.append((request, reason))
                self._wake.notify()

    @property
    def num_waiting(self) -> int:
        return len(self._scheduler.waiting) + len(self._arrived)

    @property
    def num_waiting_tokens(self) -> int:
        """Known tokens of the waiting requests."""
        return self._scheduler.waiting.num_tokens + self._arrived_tokens

    @property
    def has_work(self) -> bool:
        return bool(self._arrived or self._cancelled or self._scheduler.waiting or self._scheduler.running)

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
                lambda: self._closed or self._arrived or self._cancelled, timeout=max(0.0, wakes_at - self._clock())
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
            self._arrived.clear()
            self._arrived_at_level.clear()
            self._arrived_tokens = 0
            self._cancelled.clear()
        with contextlib.suppress(Exception):  # The same fault may occur again; the events must still be returned.
            for request in requests:
                self._scheduler.remove(request.request_id)
        return [TokenEvent(r, finish_reason=ERROR, error=f"the engine has stopped: {fault}") for r in requests]

    def step(self) -> list[TokenEvent]:
        """Run one step: new requests join, cancelled and late requests leave, and the others make progress.

        Only the stepping thread may call this.
        """
        events = self._take_arrivals()
        started = self._clock()
        events += [
            TokenEvent(request, finish_reason=reason, error=error, beams=_beams(request, reason))
            for request, reason, error in self._scheduler.expire(started)
        ]
        plan = self._scheduler.schedule(started)
        if plan.scheduled:
            events += self._compute(plan, started)
        if self._publish is not None:
            self._publish()
        if self._trace is not None and (plan.scheduled or plan.preempted or plan.changes or events):
            self._trace.append(self._record(plan, started, events))
        return self._settled(events)

    def drop_cancelled(self) -> list[TokenEvent]:
        """End the requests that were cancelled since the last step, without running another step.

        Only the stepping thread may call this.
        """
        events = self._take_arrivals()
        if self._trace is not None and events:
            self._trace.append(self._record(StepPlan(()), self._clock(), events))
        return self._settled(events)

    def _settled(self, events: list[TokenEvent]) -> list[TokenEvent]:
        """Return `events` after making the ids of the finished requests free again."""
        with self._wake:
            for event in events:
                if event.finish_reason is not None:
                    del self._unfinished[event.request.request_id]
        return events

    def _take_arrivals(self) -> list[TokenEvent]:
        # Outside the lock, for which `submit` would wait: it takes a millisecond for 8,000 tokens.
        for request in tuple(self._arrived):
            self._scheduler.prepare(request)
        with self._wake:
            for request in self._arrived:
                self._scheduler.add(request)
            self._arrived.clear()
            self._arrived_at_level.clear()
            self._arrived_tokens = 0
            # A request may have ended in the meantime, and a new request may have its id.
            cancelled = {r: reason for r, reason in self._cancelled if self._unfinished.get(r.request_id) is r}
            self._cancelled.clear()
        for request, reason in cancelled.items():
            self._scheduler.remove(request.request_id)
            if reason == STOP:
                self._scheduler.completed(request)  # A stop string ended it.
        return [TokenEvent(request, finish_reason=reason) for request, reason in cancelled.items()]

    def _compute(self, plan: StepPlan, started: float) -> list[TokenEvent]:
        computing = self._clock()  # A step's time is that of the model alone. A drafter may have taken its own before.
        try:
            results = self._runner.run(plan)
        except OutOfMemory as fault:
            if not self._scheduler.shrink_after_oom(plan):
                return self._fail(plan, fault)
            logger.warning(
                "out of memory in a step of %d tokens; the next steps have at most %d: %s",
                plan.num_tokens,
                self._scheduler.limit.tokens,
                fault,
            )
            return []
        except EngineDead:
            raise
        except Exception as fault:
            logger.exception("a step of %d requests failed", len(plan.scheduled))
            return self._fail(plan, fault)
        ended = self._clock()
        self._scheduler.observe(plan, ended - computing)
        if self._export is not None:
            self._export(plan, results)
        budget = self._scheduler.limit.tokens
        committed = self._scheduler.commit(plan, results, ended)
        self.metrics.step(plan, results, committed, budget, started, ended)
        return [_event(*each) for each in zip(committed, results, strict=True) if not _is_silent(*each)]

    def _fail(self, plan: StepPlan, fault: Exception) -> list[TokenEvent]:
        error = f"{type(fault).__name__}: {fault}"
        return [TokenEvent(request, finish_reason=ERROR, error=error) for request in self._scheduler.fail_step(plan)]

    def _record(self, plan: StepPlan, started: float, events: list[TokenEvent]) -> StepRecord:
        return StepRecord(
            started=started,
            ended=self._clock(),
            plan=plan,
            events=events,
            running=len(self._scheduler.running),
            waiting=self.num_waiting,
            blocks_used=self._scheduler.tables.pool.num_used,
        )

    def stats(self) -> EngineStats:
        """Return a snapshot of the counters. It is exact between steps. Any thread may call this."""
        metrics, tables = self.metrics, self._scheduler.tables
        pool = tables.pool
        used = pool.num_used
        return EngineStats(
            time=time.time(),
            steps=metrics.steps,
            step_seconds=metrics.step_seconds,
            prompt_tokens=metrics.prompt_tokens,
            cached_tokens=metrics.cached_tokens,
            prefill_tokens=metrics.prefill_tokens,
            decode_tokens=metrics.decode_tokens,
            padding_avoided=metrics.padding_avoided,
            padding_tokens=metrics.padding_tokens,
            budget_tokens=metrics.budget_tokens,
            generated_tokens=metrics.sampled_tokens,
            output_tokens=metrics.output_tokens,
            finished=dict(metrics.finished),
            preemptions=self._scheduler.preemptor.num_preemptions,
            swaps=self._scheduler.preemptor.num_swaps,
            running=len(self._scheduler.running),
            waiting=self.num_waiting,
            waiting_tokens=self.num_waiting_tokens,
            waiting_at_level=self._waiting_at_level(),
            block_size=tables.block_size,
            blocks_total=pool.num_blocks,
            blocks_used=used,
            blocks_free=pool.num_blocks - used,
            blocks_cached=pool.num_cached,
            host_blocks_total=tables.host.num_blocks,
            host_blocks_used=tables.host.num_used,
            host_blocks_kept=tables.host.num_prefixes,
            hits=dict(tables.hits),
            forced_tokens=metrics.forced_tokens,
            drafts=metrics.drafts,
            draft_tokens=metrics.draft_tokens,
            accepted_draft_tokens=metrics.accepted_tokens,
            accepted_draft_tokens_at=tuple(metrics.accepted_at),
            length_correlations=self._scheduler.lengths.correlations,
            tuned={} if self._scheduler.tuner is None else self._scheduler.tuner.values,
            tunings={} if self._scheduler.tuner is None else dict(self._scheduler.tuner.num_changes),
            tenants={} if self._scheduler.costs is None else dict(self._scheduler.costs.by_tenant),
            price_per_second=self._scheduler.config.price_per_hour / 3600,
        )

    def _waiting_at_level(self) -> dict[int, int]:
        levels = range(1, min(self._scheduler.policies.priority_levels, _MAX_COUNTED_LEVELS) + 1)
        return {level: self._scheduler.waiting.count(level) + self._arrived_at_level[level] for level in levels}

    def progress(self, request_id: str) -> Progress | None:
        """Return how far a request is; None if it has finished, or is not known. Any thread may call this."""
        request = self._unfinished.get(request_id)
        if request is None:
            return None
        prompt_tokens = len(request.prompt_ids)
        return Progress(
            running=request_id in self._scheduler.running,
            priority=request.priority,
            prompt_tokens=prompt_tokens,
            computed_prompt_tokens=min(request.num_computed, prompt_tokens),
        )


def _event(outcome: Committed, result: StepResult) -> TokenEvent:
    request, token_ids, reason = outcome.request, outcome.token_ids, outcome.finish_reason
    error = None
    if reason in (ERROR, INVALID):
        error = NOT_A_NUMBER if result.is_faulty else _why_no_token(request)
    return TokenEvent(
        request,
        token_ids,
        result.logprobs[: len(token_ids)],
        reason,
        error,
        () if result.is_faulty else result.prompt_logprobs,
        None if request.pooling is None or reason != STOP else request.embedding(),
        _beams(request, reason),
    )


def _beams(request: Request, reason: str | None) -> Sequence[Hypothesis]:
    """Return the outputs of a beam search that ends with an answer."""
    if request.beams is None or reason not in (STOP, LENGTH, DEADLINE):
        return ()
    return request.beams.best(reason)


def _why_no_token(request: Request) -> str:
    if request.grammar is not None and request.grammar.error is not None:
        return f"structured_outputs is too complex: {request.grammar.error}"
    return NO_TOKEN


def _is_silent(outcome: Committed, result: StepResult) -> bool:
    """Return whether a step brings nothing to tell: it read a part of a prompt for an embedding."""
    return not (outcome.token_ids or outcome.finish_reason or result.prompt_logprobs)
