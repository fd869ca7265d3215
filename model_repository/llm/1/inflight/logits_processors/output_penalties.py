"""`presence_penalty` and `frequency_penalty`: tokens of the output become less likely, as in OpenAI's API."""

import numpy as np

from inflight.logits_processors.distinct_tokens import DistinctTokens
from inflight.logits_processors.edits import LogitEdits


class OutputPenalties:
    """Subtracts `presence` once from the logit of each token of the output, and `frequency` once per occurrence."""

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence, self._frequency = presence, frequency
        self._used = DistinctTokens()
        self._counts: list[int] = []
        self._biases = np.empty(16, dtype=np.float32)

    def edit(self, edits: LogitEdits) -> None:
        edits.add(self._used.tokens, self._biases[: len(self._counts)])

    def accept(self, token_id: int) -> None:
        index = self._used.add(token_id)
        if index == len(self._counts):
            self._counts.append(0)
            if index == len(self._biases):
                self._biases = np.resize(self._biases, 2 * index)
        self._counts[index] += 1
        self._biases[index] = -(self._presence + self._frequency * self._counts[index])
