"""Uses a predictor while its predictions prove right."""

from collections import deque
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from inflight.request import Request
from inflight.scheduler.newest_values import NewestValues
from inflight.scheduler.output_lengths.predictor import Forecast, LengthPredictor
from inflight.scheduler.output_lengths.tenant_quantiles import TenantQuantiles

_WINDOW = 256
_ENOUGH = 64
_INTERVAL = 16
"""The watch looks again after so many outputs."""
_GOOD = 0.3
_POOR = 0.15
_MARGIN = 0.05


class Watched(LengthPredictor):
    """Compares the order of the predicted lengths with that of the true ones, over the newest outputs (Spearman's rank
    correlation). While a predictor's order is no better than that of the tenants' quantiles, these are used instead.

    Both predict all the time, so that a predictor that has learned is used again.
    """

    def __init__(self, learned: LengthPredictor) -> None:
        self._learned = learned
        self.reads_states = learned.reads_states
        self._tenants = TenantQuantiles()
        self._seen: deque[tuple[int, int, int]] = deque(maxlen=_WINDOW)
        """Of the newest outputs: the two predictions and the length."""
        self._num_seen = 0
        self.correlation = 0.0
        """Of the predictor's order with the true one, from -1 to 1. 0 while too few outputs are known."""
        self.tenants_correlation = 0.0
        """Of the order by the tenants' quantiles with the true one."""
        self.trusted = False
        """Whether the predictor is used."""

    def prepare(self, request: Request) -> None:
        """See `LengthPredictor`."""
        self._learned.prepare(request)

    def arrived(self, request: Request) -> None:
        """See `LengthPredictor`."""
        self._learned.arrived(request)
        self._note_predictions(request)

    def _note_predictions(self, request: Request) -> None:
        forecast = request.forecast or Forecast()
        request.forecast = forecast
        similar = self._learned.past(request)
        plain = self._tenants.remaining(request)
        own = plain if similar is None else min(request.max_tokens, similar.quantile_over(request.num_output, 0.5))
        forecast.predicted = own, plain

    def prompt_computed(self, request: Request, state: NDArray[np.float32]) -> None:
        """See `LengthPredictor`."""
        self._learned.prompt_computed(request, state)
        self._note_predictions(request)

    def observe(self, request: Request) -> None:
        """See `LengthPredictor`."""
        self._learned.observe(request)
        self._tenants.observe(request)
        if request.forecast is None:
            return
        self._seen.append((*request.forecast.predicted, request.num_output))
        self._num_seen += 1
        if len(self._seen) >= _ENOUGH and self._num_seen % _INTERVAL == 0:
            self._compare()

    def _compare(self) -> None:
        own, plain, true = np.array(self._seen).T
        self.correlation = rank_correlation(own, true)
        self.tenants_correlation = rank_correlation(plain, true)
        if self.trusted:
            self.trusted = self.correlation >= max(_POOR, self.tenants_correlation - _MARGIN)
        else:
            self.trusted = self.correlation >= max(_GOOD, self.tenants_correlation + _MARGIN)

    def learn(self) -> None:
        """See `LengthPredictor`."""
        self._learned.learn()

    @property
    def correlations(self) -> Mapping[str, float]:
        """See `LengthPredictor`."""
        used = self.correlation if self.trusted else self.tenants_correlation
        return {"prompt": self.correlation, "tenant": self.tenants_correlation, "used": used}

    def past(self, request: Request) -> NewestValues | None:
        """See `LengthPredictor`."""
        found = self._learned.past(request) if self.trusted else None
        return self._tenants.past(request) if found is None else found


def rank_correlation(one: NDArray[np.int64], other: NDArray[np.int64]) -> float:
    """Return Spearman's rank correlation of two arrays of shape [n]. Equal values share their mean rank.

    0 if all values of an array are equal.
    """
    ranks = np.array([_ranks(one), _ranks(other)])
    deviations = ranks - ranks.mean(axis=1, keepdims=True)
    spread = np.sqrt((deviations**2).sum(axis=1).prod())
    return float(deviations.prod(axis=0).sum() / spread) if spread else 0.0


def _ranks(values: NDArray[np.int64]) -> NDArray[np.float64]:
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks: NDArray[np.float64] = (np.cumsum(counts) - (counts - 1) / 2)[places]
    return ranks
