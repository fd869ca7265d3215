"""Predicts output lengths from the hidden state of the last token of a prompt."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflight.request import Request
from inflight.scheduler.output_lengths.predictor import Forecast
from inflight.scheduler.output_lengths.scored import Scored

_SIZE = 129
_FORGETTING = 0.999
_PRIOR = 10.0


class StateRegression(Scored):
    """A linear regression of the logarithm of the length on the hidden state, which the model has computed anyway.

    'Don't Stop Me Now' (TRAIL, ICLR'25) trains such a probe in advance. Here recursive least squares learn it from each
    request that ends. A random projection (Johnson and Lindenstrauss 1984) shortens the state to 128 numbers, so that
    learning takes microseconds whatever the width of the model is.

    Before its prompt is computed, nothing is known of a request. So this helps to choose whom to preempt and whom to
    admit beside the running ones, not who is first.
    """

    reads_states = True

    def __init__(self) -> None:
        super().__init__(np.zeros((self.kept, _SIZE)))
        self._weights = np.zeros(_SIZE)
        self._covariance = _PRIOR * np.eye(_SIZE)
        self._projection: NDArray[np.float32] | None = None

    def prompt_computed(self, request: Request, state: NDArray[np.float32]) -> None:
        """See `LengthPredictor`."""
        if not np.isfinite(state).all():
            return
        forecast = request.forecast = request.forecast or Forecast()
        forecast.features = self._features(state)
        self.find_similar(request)

    def _features(self, state: NDArray[np.float32]) -> NDArray[np.float64]:
        if self._projection is None:
            chance = np.random.default_rng(0)
            self._projection = chance.standard_normal((_SIZE - 1, len(state)), np.float32)
        # Sums of large numbers may be too large for float32. Only the direction of the state counts.
        state = state / max(1.0, float(np.abs(state).max()))
        projected = (self._projection @ state).astype(np.float64)
        return np.append(projected / max(1e-6, float(np.linalg.norm(projected))), 1.0)

    def score(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """See `Scored`."""
        score: NDArray[np.float64] = features @ self._weights
        return score

    def added(self, index: int) -> None:
        """See `Scored`."""
        x, length = self.features[index], self.lengths[index]
        gained = self._covariance @ x
        scale = _FORGETTING + float(x @ gained)
        self._weights += gained * (float(np.log(length)) - float(x @ self._weights)) / scale
        self._covariance = (self._covariance - np.outer(gained, gained) / scale) / _FORGETTING
        # Forgetting makes the covariance grow in directions that no request has.
        self._covariance *= min(1.0, _PRIOR * _SIZE / float(np.trace(self._covariance)))
        self.changed()
