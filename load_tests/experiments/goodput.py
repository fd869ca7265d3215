"""The highest rate at which nearly all requests are in time, from one run whose rate rises."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from load_tests.simulate.result import Result
from load_tests.simulate.step_cost import StepCost

ENOUGH = 0.9
"""Share of requests that must meet both targets, as in DistServe (OSDI'24)."""


@dataclass(frozen=True)
class Targets:
    """Targets relative to what a request takes on an idle machine, as in Splitwise (ISCA'24)."""

    name: str
    ttft: float
    """How many times as long the first token may take."""
    tpot: float
    """How many times as long the mean gap between tokens may be (time per output token)."""

    def met(self, result: Result, cost: StepCost) -> NDArray[np.bool_]:
        """Which requests meet both, shape [requests]."""
        alone = np.array([cost.prompt_seconds(tokens) for tokens in result.prompt])
        contexts = result.prompt + result.output / 2
        gap_alone = np.array([cost.decode_seconds(1, context) for context in contexts])
        gap = (result.finish - result.first_token) / np.maximum(result.output - 1, 1)
        late = np.maximum((result.first_token - result.arrival) / (self.ttft * alone), gap / (self.tpot * gap_alone))
        return np.asarray(late <= 1)


def goodput(result: Result, targets: Targets, cost: StepCost, levels: int) -> float:
    """Requests per second up to which `ENOUGH` of the requests meet the targets.

    The rate rises in `levels` steps of equal length. Between the last one where enough requests are in time and the
    next one, the share is interpolated. At a rate of 0 all would be. If the last level has enough, it is its rate.
    """
    seconds = float(result.arrival[-1]) / levels
    level = np.minimum((result.arrival / seconds).astype(int), levels - 1)
    counts = np.bincount(level)
    seen = counts > 0
    met = np.bincount(level, targets.met(result, cost))
    rates = np.concatenate([[0.0], counts[seen] / seconds])
    shares = np.concatenate([[1.0], met[seen] / counts[seen]])
    last = int(np.flatnonzero(shares >= ENOUGH)[-1])
    if last == len(rates) - 1:
        return float(rates[last])
    part = (shares[last] - ENOUGH) / (shares[last] - shares[last + 1])
    return float(rates[last] + part * (rates[last + 1] - rates[last]))
