"""The sampling parameters of a step's rows, gathered into arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inflight.logits_processors.edits import LogitEdits
from inflight.scheduler.plan import ScheduledRequest

# Lower temperatures count as greedy, because dividing by them would overflow.
_GREEDY_BELOW = 1e-5
# Above this temperature, all tokens are equally likely. Far above it, float32 would overflow.
_HOTTEST = 1e9


@dataclass(frozen=True)
class SamplingBatch:
    """The parameters of S rows. D of them draw at random; the others take their likeliest token."""

    num_rows: int
    edits: LogitEdits
    """The edits of the logits of all S rows."""
    num_logprobs: list[int | None]
    """[S], how many of the likeliest tokens to report; None for no log-probabilities."""
    drawn: NDArray[np.int64]
    """[D], the rows that draw at random. The arrays below are [D], too, and have the parameters of these rows."""
    temperatures: NDArray[np.float32]
    top_ks: NDArray[np.int64]
    """0 or less means no limit."""
    top_ps: NDArray[np.float64]
    min_ps: NDArray[np.float64]
    uniforms: NDArray[np.float64]
    """A random number in [0, 1) for each row. It depends only on the request's seed and the new token's position."""

    @classmethod
    def of(cls, scheduled: Sequence[ScheduledRequest]) -> "SamplingBatch":
        """Gather the parameters of `StepPlan.sampling`. Call this before the step is committed."""
        edits = LogitEdits()
        for row, each in enumerate(scheduled):
            if each.request.processors:
                edits.begin_row(row)
                for processor in each.request.processors:
                    processor.edit(edits)
        all_params = [each.request.params for each in scheduled]
        drawn = [row for row, params in enumerate(all_params) if (params.temperature or 0) >= _GREEDY_BELOW]
        params = [all_params[row] for row in drawn]
        return cls(
            num_rows=len(scheduled),
            edits=edits,
            num_logprobs=[params.logprobs for params in all_params],
            drawn=np.array(drawn, dtype=np.int64),
            temperatures=np.array([min(p.temperature or 0, _HOTTEST) for p in params], dtype=np.float32),
            top_ks=np.array([min(p.top_k or 0, 2**62) for p in params], dtype=np.int64),
            top_ps=np.array([1 if p.top_p is None else p.top_p for p in params], dtype=np.float64),
            min_ps=np.array([p.min_p or 0 for p in params], dtype=np.float64),
            uniforms=np.array([_uniform(scheduled[row].request.seed, scheduled[row].end) for row in drawn]),
        )


def _uniform(seed: int, position: int) -> float:
    """A number in [0, 1) from a counter-based generator (Philox, SC'11).

    It does not depend on the rest of the batch and is the same after a preemption.
    """
    bits = int(np.random.Philox(key=seed, counter=position).random_raw())
    return (bits >> 11) * 2.0**-53
