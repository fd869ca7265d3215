"""The sampling parameters of a step's rows, gathered into arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inflight.draws import PARAMETERS
from inflight.logits_processors.edits import LogitEdits
from inflight.scheduler.plan import ScheduledRequest


@dataclass(frozen=True)
class SamplingBatch:
    """The parameters of S rows."""

    edits: LogitEdits
    """The edits of the logits of all rows."""
    num_logprobs: list[int | None]
    """[S], how many of the likeliest tokens to report; None for no log-probabilities."""
    parameters: NDArray[np.float64]
    """[S, 5], the `PARAMETERS` of each row."""

    @classmethod
    def of(cls, scheduled: Sequence[ScheduledRequest]) -> "SamplingBatch":
        """Gather the parameters of `StepPlan.sampling`. Call this before the step is committed.

        A request has a row for its next token, and one for the token after each drafted one, as if the draft were part
        of the output.
        """
        edits = LogitEdits()
        row = 0
        for each in scheduled:
            grammar = each.request.grammar
            if each.request.processors and (grammar is None or not grammar.forced):
                for ahead in range(each.num_rows):
                    edits.begin_row(row + ahead)
                    for processor in each.request.processors:
                        processor.edit(edits, each.draft[:ahead])
            row += each.num_rows
        draws = [each.request.draws.at(place) for each in scheduled for place in range(each.known_end, each.end + 1)]
        return cls(
            edits=edits,
            num_logprobs=[each.request.num_logprobs for each in scheduled for _ in range(each.num_rows)],
            parameters=np.array(draws, dtype=np.float64).reshape(-1, len(PARAMETERS)),
        )
