"""The common part of predictors that give each request a score: the lengths of requests with similar scores."""

from abc import abstractmethod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflight.request import Request
from inflight.scheduler.newest_values import NewestValues
from inflight.scheduler.output_lengths.predictor import LengthPredictor

_KEPT = 512
_NEIGHBOURS = 32
_STALE = 32
"""After so many changes, the scores of past requests are computed anew."""


class Scored(LengthPredictor):
    """Keeps the features and lengths of the newest requests. A request is similar to those with the nearest scores."""

    kept = _KEPT

    def __init__(self, features: NDArray[Any]) -> None:
        """`features` [kept, features] will hold those of the newest requests."""
        self.features = features
        self.lengths = np.zeros(_KEPT, np.int64)
        self.num_kept = 0
        self._num_observed = 0
        self._num_changes = 0
        self._order = np.zeros(0, np.int64)
        """Past requests by score."""
        self._scores = np.zeros(0)
        """The scores in this order."""

    @abstractmethod
    def score(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """Return the scores of requests, shape [...], given their features, [..., features]."""

    @abstractmethod
    def added(self, index: int) -> None:
        """Called when the features and the length of a request are known."""

    def changed(self) -> None:
        """Called when scores have changed."""
        self._num_changes += 1

    def observe(self, request: Request) -> None:
        """See `LengthPredictor`."""
        forecast = request.forecast
        if forecast is None or forecast.features is None or not request.num_output:
            return
        index = self._num_observed % _KEPT
        self.features[index] = forecast.features
        self.lengths[index] = request.num_output
        self._num_observed += 1
        self.num_kept = min(self._num_observed, _KEPT)
        self.added(index)

    def find_similar(self, request: Request) -> None:
        """Note the lengths of past requests with similar scores."""
        forecast = request.forecast
        if forecast is None or forecast.features is None or self.num_kept < _NEIGHBOURS:
            return
        if self._num_changes >= _STALE or not len(self._order):
            scores = self.score(self.features[: self.num_kept])
            self._order = np.argsort(scores)
            self._scores = scores[self._order]
            self._num_changes = 0
        place = int(np.searchsorted(self._scores, self.score(forecast.features)))
        first = max(0, min(place - _NEIGHBOURS // 2, len(self._order) - _NEIGHBOURS))
        lengths = self.lengths[self._order[first : first + _NEIGHBOURS]].tolist()
        forecast.similar = NewestValues(lengths, kept=_NEIGHBOURS)

    def past(self, request: Request) -> NewestValues | None:
        """See `LengthPredictor`."""
        similar = request.forecast.similar if request.forecast else None
        return similar if similar is not None and similar.is_enough(request.num_output) else None
