"""The interface of length predictors."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from inflight.scheduler.newest_values import NewestValues

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from inflight.request import Request


@dataclass(slots=True)
class Forecast:
    """What a predictor keeps of a request from its arrival to its end."""

    features: "NDArray[Any] | None" = None
    """What the predictor reads in the prompt, shape [features]."""
    similar: NewestValues | None = None
    """Lengths of the outputs of similar requests."""
    keys: list[int] = field(default_factory=list)
    """What the request has in common with similar ones; the most specific key first."""
    predicted: tuple[int, int] = (0, 0)
    """The length that was predicted at arrival, by the predictor and by the quantiles of the tenant."""


class LengthPredictor(ABC):
    """Predicts output lengths.

    As in the Past-Future scheduler (ASPLOS'25), the prediction for a request that has generated n tokens uses only past
    outputs longer than n.
    """

    reads_states = False
    """Whether `prompt_computed` is to be called."""

    def prepare(self, request: "Request") -> None:
        """Compute in advance what takes long in `arrived`. Another thread may call this."""

    def arrived(self, request: "Request") -> None:
        """Note what is known of a request that begins to wait."""

    def prompt_computed(self, request: "Request", state: "NDArray[np.float32]") -> None:
        """Note the hidden state [width] of the last token of a prompt."""

    @abstractmethod
    def observe(self, request: "Request") -> None:
        """Learn from a request whose output is complete."""

    def learn(self) -> None:
        """Do a small part of the learning. It is called once after each step."""

    @property
    def correlations(self) -> Mapping[str, float]:
        """How well predictions order outputs; see `EngineStats.length_correlations`."""
        return {}

    @abstractmethod
    def past(self, request: "Request") -> NewestValues | None:
        """Return the lengths of outputs like the one of this request; None while too few are known."""

    def remaining(self, request: "Request", quantile: float = 0.5) -> int:
        """Predict how many tokens a request will still generate, at least 1.

        While too few past outputs are known, the request is expected to reach its `max_tokens`.
        """
        length, past = request.max_tokens, self.past(request)
        if past is not None:
            length = min(length, past.quantile_over(request.num_output, quantile))
        return max(1, length - request.num_output)
