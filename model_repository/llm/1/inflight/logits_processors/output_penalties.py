"""`presence_penalty` and `frequency_penalty`: tokens of the output become less likely, as in OpenAI's API."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from inflight.logits_processors.distinct_tokens import DistinctTokens
from inflight.logits_processors.edits import Floats, LogitEdits


class OutputPenalties:
    """Subtracts `presence` once from the logit of each token of the output, and `frequency` once per occurrence."""

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence, self._frequency = presence, frequency
        self._used = DistinctTokens()
        self._counts: list[int] = []
        self._biases = np.empty(16, dtype=np.float32)

    def edit(self, edits: LogitEdits, ahead: Sequence[int] = ()) -> None:
        biases = self._biases[: len(self._counts)]
        if ahead:
            biases = biases.copy()
            self._edit_ahead(edits, biases, Counter(ahead))
        edits.add(self._used.tokens, biases)

    def _edit_ahead(self, edits: LogitEdits, biases: Floats, ahead: Counter[int]) -> None:
        """Count the tokens of a draft: in `biases` if the output has them, too, else by an edit of their own."""
        new: dict[int, float] = {}
        for token, count in ahead.items():
            index = self._used.index(token)
            if index is None:
                new[token] = self._bias(count)
            else:
                biases[index] = self._bias(self._counts[index] + count)
        edits.add(list(new), np.array(list(new.values()), dtype=np.float32))

    def accept(self, token_id: int) -> None:
        index = self._used.add(token_id)
        if index == len(self._counts):
            self._counts.append(0)
            if index == len(self._biases):
                self._biases = np.resize(self._biases, 2 * index)
        self._counts[index] += 1
        self._biases[index] = self._bias(self._counts[index])

    def _bias(self, count: int) -> float:
        return -(self._presence + self._frequency * count)
