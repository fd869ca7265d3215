"""A head that tells classes apart: rerankers, reward models and classifiers have one in place of a head for text."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIGMOID, SOFTMAX = "sigmoid", "softmax"


@dataclass(frozen=True, kw_only=True, eq=False)
class Classifier:
    """How likely each class is, by the hidden state of a prompt's last token."""

    weight: NDArray[np.float32]
    """[classes, width]."""
    bias: NDArray[np.float32]
    """[classes]."""
    labels: tuple[str, ...]
    """The names of the classes."""
    activation: str | None
    """What makes probabilities of the logits: `sigmoid` of each, or `softmax` of all; None: nothing does."""
    pad_token_id: int | None
    """The last token that is not this one is read, as in transformers."""

    def read_part(self, prompt_ids: Sequence[int]) -> list[int]:
        """Return a prompt up to the token that is read. Of a prompt that is nothing but padding, it is the first."""
        end = len(prompt_ids)
        while end > 1 and prompt_ids[end - 1] == self.pad_token_id:
            end -= 1
        return list(prompt_ids[:end])

    def values(self, state: NDArray[np.float64], *, activated: bool) -> NDArray[np.float32]:
        """Return the probabilities of the classes, or their logits, given the hidden state [width]."""
        values: NDArray[np.float64] = self.weight @ state + self.bias
        if activated and self.activation == SIGMOID:
            values = 0.5 * (1 + np.tanh(0.5 * values))  # The exponential of a large number would be infinite.
        elif activated and self.activation == SOFTMAX:
            likelihoods = np.exp(values - values.max())
            values = likelihoods / likelihoods.sum()
        return values.astype(np.float32)
