"""What the sampled rows of a step ask of the sampler, gathered into arrays."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inflight.logits_processors.edits import LogitEdits
from inflight.scheduler.plan import ScheduledRequest

# Temperatures below this are greedy: dividing by them would overflow.
_GREEDY_BELOW = 1e-5
# Above this all tokens are as likely as each other; far above it float32 ends.
_HOTTEST = 1e9


@dataclass(frozen=True)
class SamplingBatch:
    """S rows, of which D draw at random; the others take their likeliest token."""

    num_rows: int
    edits: LogitEdits
    """Of all S rows."""
    num_logprobs: list[int | None]
    """[S], how many likeliest tokens to report; None: no log-probabilities."""
    drawn: NDArray[np.int64]
    """[D], the rows that draw; what follows belongs to these."""
    temperatures: NDArray[np.float32]
    top_ks: NDArray[np.int64]
    """0 or less: no bound."""
    top_ps: NDArray[np.float64]
    min_ps: NDArray[np.float64]
    uniforms: NDArray[np.float64]
    """A random number in [0, 1) of each row's own, by its request's seed and the position of the new token."""

    @classmethod
    def of(cls, shares: Sequence[ScheduledRequest]) -> "SamplingBatch":
        """Gather from `StepPlan.sampling`, before the step is committed."""
        edits = LogitEdits()
        for row, share in enumerate(shares):
            if share.request.processors:
                edits.begin_row(row)
                for processor in share.request.processors:
                    processor.edit(edits)
        every = [share.request.params for share in shares]
        drawn = [row for row, params in enumerate(every) if (params.temperature or 0) >= _GREEDY_BELOW]
        params = [every[row] for row in drawn]
        return cls(
            num_rows=len(shares),
            edits=edits,
            num_logprobs=[params.logprobs for params in every],
            drawn=np.array(drawn, dtype=np.int64),
            temperatures=np.array([min(p.temperature or 0, _HOTTEST) for p in params], dtype=np.float32),
            top_ks=np.array([min(p.top_k or 0, 2**62) for p in params], dtype=np.int64),
            top_ps=np.array([1 if p.top_p is None else p.top_p for p in params], dtype=np.float64),
            min_ps=np.array([p.min_p or 0 for p in params], dtype=np.float64),
            uniforms=np.array([_uniform(shares[row].request.seed, shares[row].end) for row in drawn]),
        )


def _uniform(seed: int, position: int) -> float:
    """By a counter-based generator (Philox, SC'11): the same whatever else is in the batch, and after preemption."""
    bits = int(np.random.Philox(key=seed, counter=position).random_raw())
    return (bits >> 11) * 2.0**-53
