"""The phases of a request, from the times that it keeps."""

from collections.abc import Sequence
from typing import NamedTuple

from inflight.request import Request

QUEUED = "queued"
PREFILL = "prefill"
DECODE = "decode"
PREEMPTED = "preempted"
RECOMPUTE = "recompute"


class Phase(NamedTuple):
    """A part of a request's time; seconds on the clock of `Request.arrival`."""

    name: str
    start: float
    end: float


def phases(request: Request, ended: float) -> Sequence[Phase]:
    """Return the phases of a request that ended at `ended`: one after the other, without gaps, from its arrival on.

    The names mean the same as in `trace`.
    """
    changes = [(request.arrival, QUEUED), (request.first_step_at, PREFILL), (request.first_token_at, DECODE)]
    for preemption in request.preemptions:
        changes += [
            (preemption.at, PREEMPTED),
            (preemption.resumed_at, RECOMPUTE),
            (preemption.recomputed_at, DECODE),
        ]
    # The engine may go on for a step with a request that a stop string has ended.
    happened = [(at, name) for at, name in changes if at is not None and at <= ended]
    happened.sort(key=lambda change: change[0])
    found: list[Phase] = []
    for (start, name), (end, _) in zip(happened, [*happened[1:], (ended, "")], strict=True):
        if found and found[-1].name == name:  # Its first token came after a preemption.
            found[-1] = found[-1]._replace(end=end)
        else:
            found.append(Phase(name, start, end))
    return found
