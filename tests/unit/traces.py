"""Reads a trace and checks that it hangs together."""

import json
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Span:
    """A span of a request's track; times are microseconds from the beginning of the trace."""

    name: str
    begin: float
    end: float | None = None
    args: dict[str, Any] = field(default_factory=dict)
    inner: list["Span"] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens computed in the steps within."""
        return int(self.args.get("tokens", 0)) + sum(span.tokens for span in self.inner)


@dataclass
class ReadTrace:
    """Finished and unfinished requests by id, and the steps."""

    requests: dict[str, Span] = field(default_factory=dict)
    steps: list[dict[str, Any]] = field(default_factory=list)
    failed: list[dict[str, Any]] = field(default_factory=list)
    counters: dict[str, list[dict[str, int]]] = field(default_factory=lambda: defaultdict(list))

    def phases(self, request_id: str) -> list[str]:
        return [span.name for span in self.requests[request_id].inner]


def read_trace(path: Path) -> ReadTrace:
    """Read a trace; spans of a track must lie within each other, one after the other."""
    trace, open_spans = ReadTrace(), defaultdict[int, list[Span]](list)
    for event in json.loads(path.read_text()):
        if event["ph"] == "X":
            {"step": trace.steps, "failed step": trace.failed}[event["name"]].append(event)
        elif event["ph"] == "C":
            trace.counters[event["name"]].append(event["args"])
        elif event["ph"] == "B":
            stack, span = open_spans[event["tid"]], Span(event["name"], event["ts"], args=event.get("args", {}))
            if stack:
                before = stack[-1].inner[-1] if stack[-1].inner else None
                floor = stack[-1].begin if before is None else before.end
                assert floor is not None
                assert span.begin >= floor
                stack[-1].inner.append(span)
            else:
                assert span.name == "request"
                assert span.args["request_id"] not in trace.requests
                trace.requests[span.args["request_id"]] = span
            stack.append(span)
        elif event["ph"] == "E":
            span = open_spans[event["tid"]].pop()
            assert event["ts"] >= max([span.begin, *(inner.end or 0 for inner in span.inner)])
            span.end = event["ts"]
            span.args.update(event.get("args", {}))
    for before, after in zip(trace.steps, trace.steps[1:], strict=False):
        assert before["ts"] + before["dur"] <= after["ts"] + 0.002
    for step in trace.steps:
        assert step["args"]["tokens"] == sum(step["args"]["requests"].values()) <= step["args"]["budget"]
    return trace


def check_trace(trace: ReadTrace, computed_tokens: int) -> None:
    """Every request has ended, and the steps hold all tokens computed."""
    for span in trace.requests.values():
        assert span.end is not None
        assert span.inner[0].name == "queued"
        assert span.inner[-1].end == span.end
        assert span.args["finish_reason"]
        assert all(after.begin == before.end for before, after in zip(span.inner, span.inner[1:], strict=False))
    assert sum(step["args"]["tokens"] for step in trace.steps) == computed_tokens
    by_request = sum(span.tokens for span in trace.requests.values())
    assert by_request == computed_tokens + sum(step["args"]["tokens"] for step in trace.failed)
