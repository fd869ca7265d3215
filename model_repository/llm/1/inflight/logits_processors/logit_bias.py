"""`logit_bias`: numbers to add to the logits of some tokens."""

from collections.abc import Mapping, Sequence

import numpy as np

from inflight.logits_processors.edits import LogitEdits


class LogitBias:
    """Adds the same biases at every step."""

    def __init__(self, biases: Mapping[int, float]) -> None:
        self._tokens = np.array(list(biases), dtype=np.int64)
        self._biases = np.array(list(biases.values()), dtype=np.float32)

    def edit(self, edits: LogitEdits, ahead: Sequence[int] = ()) -> None:
        edits.add(self._tokens, self._biases)

    def accept(self, token_id: int) -> None:
        """Do nothing: the biases are constant."""
