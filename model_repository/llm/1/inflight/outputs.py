"""Turns sampled tokens into what a client sees: text, cut at stop strings, and a finish reason."""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from inflight.beam_search.search import Hypothesis
from inflight.request import ERROR, STOP, Request
from inflight.step_result import TokenLogprobs
from inflight.text.detokenizer import Detokenizer, TokenDecoder
from inflight.text.stop_strings import StopStrings

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TokenEvent:
    """What a step produced for a request: new tokens, scores of its prompt, its end, or several of these."""

    request: Request
    token_ids: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] = ()
    """One entry for each of `token_ids` if the request asked for them, else empty."""
    finish_reason: str | None = None
    error: str | None = None
    """Why the request ended, if the finish reason is `error`, `invalid`, `expired` or `shed`."""
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    """Those of the next prompt tokens, if the request asked for them. The first token of the prompt has none."""
    embedding: NDArray[np.float32] | None = None
    """[dimensions], at the end of a request that wanted an embedding."""
    beams: Sequence[Hypothesis] = ()
    """The outputs of a beam search, best first, at its end. There are no other tokens."""


@dataclass(frozen=True, slots=True)
class Beam:
    """One output of a beam search."""

    text: str
    token_ids: Sequence[int]
    logprob: float
    """The sum of the log-probabilities of its tokens."""
    finish_reason: str
    stop_reason: int | None
    """Which of the request's own stop tokens ended it, if one did."""


@dataclass(slots=True)
class Delta:
    """What some events added to the output of a request. It does not hold the earlier output."""

    request: Request
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """One entry for each of `token_ids` if the request asked for them, else empty."""
    num_output: int = 0
    """Number of output tokens so far, including these."""
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    """Which of the request's own stop strings or stop tokens ended it, if one did."""
    error: str | None = None
    """Why the request ended, if the finish reason is `error`, `invalid`, `expired` or `shed`."""
    prompt_logprobs: list[TokenLogprobs] = field(default_factory=list)
    """As in `TokenEvent`."""
    embedding: NDArray[np.float32] | None = None
    """As in `TokenEvent`."""
    beams: list[Beam] = field(default_factory=list)
    """The outputs of a beam search, best first, at its end. The text and the tokens are those of the best one."""


class OutputProcessor:
    """Turns token events into deltas for all requests of an engine. Only one thread at a time may use it."""

    def __init__(self, tokenizer: Tokenizer | None) -> None:
        self._decoders: dict[bool, TokenDecoder] = {}
        """By `skip_special_tokens`."""
        if tokenizer is not None:
            self._decoders = {skip: TokenDecoder(tokenizer, skip_special_tokens=skip) for skip in (True, False)}
        self._open: dict[str, _OpenOutput] = {}

    def process(self, events: Iterable[TokenEvent]) -> tuple[list[Delta], list[str]]:
        """Apply events in order.

        Return one delta per request that changed, and the ids of the requests that ended here, by a stop string or a
        fault in their own output. The engine still runs those requests and must be told to drop them.
        """
        deltas: dict[str, Delta] = {}
        stopped: list[str] = []
        for event in events:
            request_id = event.request.request_id
            output = self._open.get(request_id)
            if output is None:
                decoder = self._decoders.get(event.request.params.skip_special_tokens)
                output = self._open[request_id] = _OpenOutput(decoder, event.request)
            if not output.finished:
                delta = deltas.setdefault(request_id, Delta(event.request))
                try:
                    output.apply(event, delta)
                except Exception as fault:
                    logger.exception("the output of request %s cannot be processed", request_id)
                    output.fail(delta, f"{type(fault).__name__}: {fault}")
                if output.finished and event.finish_reason is None:
                    stopped.append(request_id)
            if event.finish_reason is not None:
                del self._open[request_id]
        return list(deltas.values()), stopped


class _OpenOutput:
    """Text, stop strings and token count of one unfinished request."""

    def __init__(self, decoder: TokenDecoder | None, request: Request) -> None:
        self.finished = False
        self._num_tokens = 0
        self._min_tokens = request.params.min_tokens
        self._decoder = decoder
        self._detokenizer: Detokenizer | None = None
        self._stops = StopStrings(request.params.stop, shown=request.params.include_stop_str_in_output)

    def apply(self, event: TokenEvent, delta: Delta) -> None:
        """Add an event to a delta. Tokens after a stop string are dropped."""
        delta.prompt_logprobs += event.prompt_logprobs
        delta.embedding = event.embedding
        if event.beams:
            self._apply_beams(event, delta)
            return
        if self._decoder is not None and self._detokenizer is None and event.token_ids:
            self._detokenizer = Detokenizer(self._decoder, event.request.prompt_ids)
        for index, token in enumerate(event.token_ids):
            self._num_tokens += 1
            delta.token_ids.append(token)
            delta.logprobs += event.logprobs[index : index + 1]
            # Like a stop string, a stop token is not part of the text. The last token of a grammar is.
            is_last = event.finish_reason == STOP and index == len(event.token_ids) - 1
            ends = is_last and token in event.request.stop_token_ids
            if ends and token in event.request.params.stop_token_ids:
                delta.stop_reason = token
            ends &= not event.request.params.include_stop_str_in_output
            if self._detokenizer is not None and not ends:
                text, stopped = self._show(self._detokenizer.push(token))
                delta.text += text
                if stopped:
                    delta.stop_reason = self._stops.found
                    self._finish(delta, STOP)
                    break
        if not self.finished and event.finish_reason is not None:
            delta.text += self._stops.flush()
            self._finish(delta, event.finish_reason, event.error)
        delta.num_output = self._num_tokens

    def _apply_beams(self, event: TokenEvent, delta: Delta) -> None:
        for found in event.beams:
            text = self._text_of(found, event.request)
            stop = found.token_ids[-1] if found.finish_reason == STOP else None
            stop_reason = stop if stop in event.request.params.stop_token_ids else None
            delta.beams.append(Beam(text, found.token_ids, found.logprob, found.finish_reason, stop_reason))
        best = delta.beams[0]
        delta.stop_reason = best.stop_reason
        delta.text, delta.token_ids, delta.num_output = best.text, list(best.token_ids), len(best.token_ids)
        self._finish(delta, best.finish_reason)

    def _text_of(self, found: Hypothesis, request: Request) -> str:
        if self._decoder is None:
            return ""
        detokenizer = Detokenizer(self._decoder, request.prompt_ids)
        shown = found.token_ids[:-1] if found.finish_reason == STOP else found.token_ids
        return "".join([detokenizer.push(token) for token in shown])

    def fail(self, delta: Delta, error: str) -> None:
        """End the output with an error."""
        self._finish(delta, ERROR, error)

    def _finish(self, delta: Delta, reason: str, error: str | None = None) -> None:
        self.finished = True
        delta.finish_reason, delta.error = reason, error

    def _show(self, piece: str) -> tuple[str, bool]:
        return self._stops.push(piece, may_stop=self._num_tokens >= self._min_tokens)
