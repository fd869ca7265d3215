"""From sampled tokens to what a client sees: text, stop strings, finish reason."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from tokenizers import Tokenizer

from inflight.request import LENGTH, STOP, Request
from inflight.text.detokenizer import Detokenizer
from inflight.text.stop_strings import StopStrings


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one position, before penalties and temperature."""

    chosen: float
    rank: int
    """Place of the chosen token among all, 1 for the likeliest."""
    top: dict[int, float]
    """The likeliest tokens, best first."""


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What a step did for a request: a new token, its end, or both."""

    request: Request
    token_id: int | None = None
    logprobs: TokenLogprobs | None = None
    finish_reason: str | None = None
    error: str | None = None
    """Why a request ended with finish reason `error`."""


@dataclass(slots=True, eq=False)
class RequestOutput:
    """The output of one request; grows from step to step until `finish_reason` is set."""

    request_id: str
    prompt_ids: list[int]
    arrival: float = 0.0
    """Seconds on the monotonic clock."""
    token_ids: list[int] = field(default_factory=list)
    finish_reason: str | None = None
    """`stop`, `length`, `deadline`, `cancelled`, `expired` (its time was up before it ran) or `error`."""
    error: str | None = None
    logprobs: list[TokenLogprobs] | None = None
    """One entry for each of `token_ids` if asked for."""
    num_cached_tokens: int = 0
    """Prompt tokens that the prefix cache spared."""
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    @property
    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True)
class Delta:
    """What one batch of events added to a request's output."""

    output: RequestOutput
    text: str = ""
    num_tokens: int = 0


class OutputProcessor:
    """Turns token events into outputs, for all requests of an engine. One thread at a time."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._tokenizer = tokenizer
        self._open: dict[str, _OpenOutput] = {}

    def process(self, events: Iterable[TokenEvent]) -> tuple[list[Delta], list[str]]:
        """Apply events in order.

        Returns one delta per request that changed, and the ids of requests that a stop string ended here: the engine
        still runs those and must be told to drop them.
        """
        deltas: dict[str, Delta] = {}
        stopped: list[str] = []
        for event in events:
            request_id = event.request.request_id
            state = self._open.get(request_id)
            if state is None:
                state = self._open[request_id] = _OpenOutput(self._tokenizer, event.request)
            if not state.output.finished:
                delta = deltas.setdefault(request_id, Delta(state.output))
                state.apply(event, delta)
                if state.output.finished and event.finish_reason is None:
                    stopped.append(request_id)
            if event.finish_reason is not None:
                del self._open[request_id]
        return list(deltas.values()), stopped


class _OpenOutput:
    def __init__(self, tokenizer: Tokenizer | None, request: Request) -> None:
        self.output = RequestOutput(
            request.request_id, request.prompt_ids, arrival=request.arrival, num_cached_tokens=request.num_cached
        )
        if request.params.logprobs is not None:
            self.output.logprobs = []
        self._min_tokens = request.params.min_tokens
        self._detokenizer = Detokenizer(tokenizer, request.prompt_ids) if tokenizer else None
        self._stops = StopStrings(request.params.stop)

    def apply(self, event: TokenEvent, delta: Delta) -> None:
        output = self.output
        text, stopped = "", False
        if event.token_id is not None:
            output.token_ids.append(event.token_id)
            delta.num_tokens += 1
            if output.logprobs is not None and event.logprobs is not None:
                output.logprobs.append(event.logprobs)
            # Like a stop string, a token that ends the output is not part of its text.
            if self._detokenizer is not None and event.finish_reason != STOP:
                text, stopped = self._show(self._detokenizer.push(event.token_id))
        if stopped:
            output.finish_reason = STOP
        elif event.finish_reason is not None:
            output.finish_reason, output.error = event.finish_reason, event.error
            text += self._flush()
        if text:
            output.pieces.append(text)
            delta.text += text

    def _show(self, piece: str) -> tuple[str, bool]:
        return self._stops.push(piece, may_stop=len(self.output.token_ids) >= self._min_tokens)

    def _flush(self) -> str:
        """The rest of the text at the end; a stop string may complete even here."""
        if self._detokenizer is None:
            return ""
        text, stopped = self._show(self._detokenizer.flush())
        if not stopped:
            return text + self._stops.flush()
        if self.output.finish_reason == LENGTH:
            self.output.finish_reason = STOP
        return text
