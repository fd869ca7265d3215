"""Turns what became of requests in a step into events."""

from collections.abc import Sequence

from inflight.beam_search.search import Hypothesis
from inflight.outputs import TokenEvent
from inflight.request import DEADLINE, ERROR, INVALID, LENGTH, STOP, Request
from inflight.scheduler.committed import Committed
from inflight.step_result import StepResult

_FORBIDDEN = (
    "no token can be chosen: all tokens are forbidden by what the request asks for, such as structured_outputs with "
    "allowed_token_ids or bad_words"
)
_NO_LOGITS = "no token can be chosen: the model's logits are not numbers"
_NOT_A_NUMBER = "what the model computes for the prompt is not a number"


def events_of(committed: Sequence[Committed], results: Sequence[StepResult]) -> list[TokenEvent]:
    """Return the events of a committed step. `results` has one entry for each of `committed`."""
    return [_event(*each) for each in zip(committed, results, strict=True) if not _is_silent(*each)]


def late_event(request: Request, reason: str, error: str | None) -> TokenEvent:
    """Return the event of a request that `Scheduler.expire` has removed. A beam search gives what it has found."""
    return TokenEvent(request, finish_reason=reason, error=error, beams=_beams(request, reason))


def _is_silent(outcome: Committed, result: StepResult) -> bool:
    """Return whether a step brings nothing to tell: it read a part of a prompt for an embedding."""
    return not (outcome.token_ids or outcome.finish_reason or result.prompt_logprobs)


def _event(outcome: Committed, result: StepResult) -> TokenEvent:
    request, token_ids, reason = outcome.request, outcome.token_ids, outcome.finish_reason
    error = None
    if reason in (ERROR, INVALID):
        error = _NOT_A_NUMBER if result.is_faulty else _why_no_token(request, reason)
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


def _why_no_token(request: Request, reason: str) -> str:
    if request.grammar is not None and request.grammar.error is not None:
        return f"structured_outputs is too complex: {request.grammar.error}"
    return _FORBIDDEN if reason == INVALID else _NO_LOGITS
