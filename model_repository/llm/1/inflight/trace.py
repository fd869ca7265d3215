"""A trace of every request in every step, as a file for ui.perfetto.dev or chrome://tracing.

The stepping thread appends one record per step. Another thread turns the records into trace events and writes them.
After every write the file is a complete JSON array, even if the process is killed. A span has a begin event and an end
event of its own, so that the trace also shows requests that still run.
"""

import contextlib
import json
import logging
import os
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

from inflight.outputs import TokenEvent
from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest, StepPlan

logger = logging.getLogger(__name__)

MAX_BYTES = 1 << 30
"""Maximum size of the file. Viewers cannot open larger ones."""

_ENGINE, _REQUESTS = 1, 2
"""Process ids in the trace."""
_END = b"\n]\n"


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step; times are seconds on the engine's clock."""

    started: float
    ended: float
    plan: StepPlan
    ran: bool
    """Whether the plan was computed to its end."""
    events: Sequence[TokenEvent]
    preempted: Sequence[Request]
    """Requests preempted after the step: it failed, had too little memory, or a draft had no numbers."""
    running: int
    waiting: int
    blocks_used: int


@dataclass(slots=True)
class _Track:
    """The line of an unfinished request in the trace."""

    number: int
    phase: str
    outputs: int = 0


class Trace:
    """Writes steps to a file. The stepping thread calls `append`, and one other thread calls `flush`.

    Raises:
        ValueError: the file cannot be written.
    """

    def __init__(self, path: str, token_budget: int, clock: Callable[[], float] = time.monotonic) -> None:
        # While Triton loads a model again, the old process writes on for a while, to its own file of this name.
        with contextlib.suppress(OSError):  # Where the folder is not ours, there is only one file.
            _remove_file(path)
        try:
            self._file = Path(path).open("wb", buffering=0)  # noqa: SIM115 - open as long as the engine runs
        except OSError as error:
            raise ValueError(f"trace_file is {path!r}, which cannot be written: {error.strerror}") from error
        self._token_budget = token_budget
        self._records: deque[StepRecord] = deque()
        self._origin = clock()
        self._tracks: dict[Request, _Track] = {}
        self._num_tracks = 0
        self._events: list[dict[str, Any]] = [
            {"ph": "M", "pid": _ENGINE, "name": "process_name", "args": {"name": "engine"}},
            {"ph": "M", "pid": _ENGINE, "tid": 1, "name": "thread_name", "args": {"name": "steps"}},
            {"ph": "M", "pid": _REQUESTS, "name": "process_name", "args": {"name": "requests"}},
            # The Unix time at which the trace begins. The times in the trace count from 0.
            {"ph": "i", "pid": _ENGINE, "tid": 1, "ts": 0, "name": "start", "args": {"unix_time": time.time()}},
        ]
        self._size = 0
        """Bytes in the file, which end with `_END`."""
        self._full = False

    def append(self, record: StepRecord) -> None:
        """Keep the record of a step for the next `flush`."""
        if not self._full:
            self._records.append(record)

    def flush(self) -> None:
        """Write the records since the last call. If that fails, log the error once and end the trace."""
        if self._full:
            return
        while self._records:
            self._add_record(self._records.popleft())
        if not self._events:
            return
        try:
            self._write()
        except OSError as error:
            logger.error("the trace ends here: %s", error)
            self._full = True
        if self._full:
            # What a request refers to, such as a LoRA adapter, must not stay in memory.
            self._records.clear()
            self._events.clear()
            self._tracks.clear()

    def _write(self) -> None:
        rows = ",\n".join(json.dumps(event, separators=(",", ":")) for event in self._events)
        self._events.clear()
        text = (b",\n" if self._size else b"[\n") + rows.encode() + _END
        begin = max(0, self._size - len(_END))
        try:
            self._write_at(begin, text)
        except OSError:
            # Remove what was written in part, so that the file is complete again.
            os.ftruncate(self._file.fileno(), begin)
            self._write_at(begin, _END if self._size else b"")
            raise
        self._size = begin + len(text)
        if self._size > MAX_BYTES:
            logger.warning("the trace has reached %d bytes and ends here", MAX_BYTES)
            self._full = True

    def _write_at(self, begin: int, text: bytes) -> None:
        while text:
            count = os.pwrite(self._file.fileno(), text, begin)
            begin, text = begin + count, text[count:]

    # -- records to events -------------------------------------------------------------------------------------------

    def _add_record(self, record: StepRecord) -> None:
        for request in record.plan.preempted:
            self._change_phase(request, "preempted", record.started)
        accepted = _accepted(record)
        for scheduled in record.plan.scheduled:
            self._add_scheduled(scheduled, record, accepted.get(scheduled.request, 0))
        took_part = {scheduled.request.leader for scheduled in record.plan.scheduled}
        for event in record.events:
            self._add_event(event, record.ended if event.request in took_part else record.started)
        for request in record.preempted:
            self._change_phase(request, "preempted", record.ended)
        self._add_step(record, sum(accepted.values()))

    def _add_scheduled(self, scheduled: ScheduledRequest, record: StepRecord, accepted: int) -> None:
        request = scheduled.request
        if request is not request.leader:
            return  # The line of a beam search shows the steps of one beam.
        track = self._track(request)
        if track.phase == "queued":
            self._change_phase(request, "prefill", record.started, {"cached_tokens": scheduled.first})
        elif track.phase == "preempted":
            self._change_phase(request, "recompute", record.started)
        elif track.phase != "decode" and request.beams is not None and scheduled.last_token_at is not None:
            self._change_phase(request, "decode", record.started)
        known = scheduled.num_tokens - scheduled.num_draft
        name = f"chunk of {known}" if track.phase != "decode" else "token" if known == 1 else f"{known} tokens"
        args = {"tokens": scheduled.num_tokens}
        if scheduled.num_draft:
            name += f" + {scheduled.num_draft} drafted, {accepted} right"
            args |= {"drafted_tokens": scheduled.num_draft, "accepted_tokens": accepted}
        self._begin(track, name, record.started, args)
        self._end(track, record.ended)

    def _add_event(self, event: TokenEvent, at: float) -> None:
        track = self._track(event.request)
        if event.token_ids:
            track.outputs += len(event.token_ids)
            if event.finish_reason is None and track.phase != "decode":
                self._change_phase(event.request, "decode", at)
        if event.finish_reason is not None:
            self._end(track, at)
            ending: dict[str, object] = {"finish_reason": event.finish_reason, "output_tokens": track.outputs}
            if (grammar := event.request.grammar) is not None:
                ending |= {"forced_tokens": event.request.num_forced, "mask_ms": _milliseconds(grammar.mask_seconds)}
            if event.request.num_drafted:
                ending["drafted_tokens"] = event.request.num_drafted
                ending["accepted_tokens"] = event.request.num_accepted
            self._end(track, at, ending)
            del self._tracks[event.request]

    def _add_step(self, record: StepRecord, accepted: int) -> None:
        plan = record.plan
        tokens_by_request = {scheduled.request.request_id: scheduled.num_tokens for scheduled in plan.scheduled}
        if tokens_by_request:
            args = {
                "tokens": plan.num_tokens,
                "budget": self._token_budget,
                "cached_tokens": plan.num_cached,
                "attention_pairs": plan.num_pairs,
                "padding_tokens": plan.padding,
                "requests": tokens_by_request,
            }
            if plan.num_draft:
                args |= {"drafted_tokens": plan.num_draft, "accepted_tokens": accepted}
            if plan.prefill_budget is not None:
                args |= {
                    "prefill_budget": plan.prefill_budget.tokens,
                    "prefill_budget_set_by": plan.prefill_budget.set_by,
                }
            if plan.swapped_out or plan.swapped_in:
                args |= {"blocks_swapped_out": len(plan.swapped_out), "blocks_swapped_in": len(plan.swapped_in)}
            self._events.append(
                {
                    "ph": "X",
                    "pid": _ENGINE,
                    "tid": 1,
                    "ts": self._microseconds(record.started),
                    "dur": round((record.ended - record.started) * 1e6, 3),
                    "name": "step" if record.ran else "failed step",
                    "args": args,
                }
            )
        for change in plan.changes:
            self._events.append(
                {
                    "ph": "i",
                    "pid": _ENGINE,
                    "tid": 1,
                    "ts": self._microseconds(record.started),
                    "name": f"{change.setting} {change.before:g} -> {change.after:g}",
                    "args": change._asdict(),
                }
            )
        self._count("requests", record.ended, {"running": record.running, "waiting": record.waiting})
        self._count("tokens in the step", record.started, {"tokens": plan.num_tokens})
        self._count("KV cache", record.ended, {"blocks used": record.blocks_used})

    # -- events ------------------------------------------------------------------------------------------------------

    def _track(self, request: Request) -> _Track:
        """Return the request's track. A new track begins with the events from before the request's first step."""
        track = self._tracks.get(request)
        if track is None:
            self._num_tracks += 1
            track = self._tracks[request] = _Track(self._num_tracks, "queued")
            self._events.append(
                {
                    "ph": "M",
                    "pid": _REQUESTS,
                    "tid": track.number,
                    "name": "thread_name",
                    "args": {"name": request.request_id},
                }
            )
            details: dict[str, object] = {"request_id": request.request_id, "prompt_tokens": len(request.prompt_ids)}
            for name, value in (
                ("tenant", request.tenant),
                ("client_request_id", request.options.client_request_id),
                ("opentelemetry", request.options.trace_context),
            ):
                if value:
                    details[name] = value
            if request.params.structured_outputs is not None:
                details["structured_outputs"] = request.params.structured_outputs.kind
            if request.grammar is not None:
                details["compile_ms"] = _milliseconds(request.grammar.compile_seconds)
            self._begin(track, "request", request.arrival, details)
            self._begin(track, "queued", request.arrival)
        return track

    def _change_phase(self, request: Request, phase: str, at: float, args: dict[str, Any] | None = None) -> None:
        track = self._track(request)
        self._end(track, at)
        self._begin(track, phase, at, args)
        track.phase = phase

    def _begin(self, track: _Track, name: str, at: float, args: dict[str, Any] | None = None) -> None:
        event = {"ph": "B", "pid": _REQUESTS, "tid": track.number, "ts": self._microseconds(at), "name": name}
        self._events.append(event if args is None else {**event, "args": args})

    def _end(self, track: _Track, at: float, args: dict[str, Any] | None = None) -> None:
        event: dict[str, Any] = {"ph": "E", "pid": _REQUESTS, "tid": track.number, "ts": self._microseconds(at)}
        self._events.append(event if args is None else {**event, "args": args})

    def _count(self, name: str, at: float, values: dict[str, int]) -> None:
        self._events.append(
            {"ph": "C", "pid": _ENGINE, "ts": self._microseconds(at), "name": name, "args": values},
        )

    def _microseconds(self, at: float) -> float:
        return round((at - self._origin) * 1e6, 3)


def _remove_file(path: str) -> None:
    """Remove the file, but nothing else of this name, such as a pipe. A link to the file stays."""
    if os.path.isfile(path):
        os.unlink(os.path.realpath(path))


def _accepted(record: StepRecord) -> dict[Request, int]:
    """Return how many drafted tokens of each request were right, for those that have drafts."""
    new = {event.request: event.token_ids for event in record.events}
    return {
        each.request: _num_equal(each.draft, new.get(each.request, ()))
        for each in record.plan.scheduled
        if each.num_draft
    }


def _num_equal(draft: Sequence[int], token_ids: Sequence[int]) -> int:
    """Return up to where a draft equals what came."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(draft, token_ids, strict=False)))


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1e3, 3)
