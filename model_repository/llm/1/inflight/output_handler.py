"""Handles the events of steps: they become outputs, and are counted and traced."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from inflight.core import EngineCore
from inflight.outputs import Delta, OutputProcessor, TokenEvent
from inflight.request import STOP
from inflight.trace import Trace

if TYPE_CHECKING:
    from inflight.request_spans import RequestSpans


class OutputHandler:
    """How outputs leave an engine. One thread at a time may call `process`, and one the other methods."""

    def __init__(
        self, core: EngineCore, tokenizer: Tokenizer | None, trace: Trace | None, spans: "RequestSpans | None"
    ) -> None:
        """`trace` is the one that `core` appends to."""
        self._core = core
        self._processor = OutputProcessor(tokenizer)
        self._trace = trace
        self._spans = spans

    def process(self, events: Sequence[TokenEvent]) -> list[Delta]:
        """Detokenise the events of a step. Requests that a stop string ends are dropped from the core."""
        deltas, stopped = self._processor.process(events)
        for request_id in stopped:
            self._core.cancel(request_id, STOP)
        self._core.metrics.outputs(deltas)
        if self._spans is not None:
            self._spans.add(deltas)
        return deltas

    def flush_traces(self) -> None:
        """Write the trace, and make the spans of the requests that have ended."""
        if self._trace is not None:
            self._trace.flush()
        if self._spans is not None:
            self._spans.flush()

    def close_traces(self) -> None:
        """Like `flush_traces`, for the last time. Also send the spans, which takes at most 5 seconds."""
        self.flush_traces()
        if self._spans is not None:
            self._spans.close()
