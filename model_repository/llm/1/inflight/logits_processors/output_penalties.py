"""`presence_penalty` and `frequency_penalty`: tokens of the output become less likely, as in OpenAI's API."""

import numpy as np

from inflight.logits_processors.edits import LogitEdits
from inflight.logits_processors.token_counts import TokenCounts


class OutputPenalties:
    """Subtracts `presence` once from the logit of each token of the output, and `frequency` once per occurrence."""

    def __init__(self, presence: float, frequency: float) -> None:
        self._presence, self._frequency = presence, frequency
        self._used = TokenCounts()

    def edit(self, edits: LogitEdits) -> None:
        penalties = self._presence + self._frequency * self._used.counts
        edits.add(self._used.tokens, -penalties.astype(np.float32))

    def accept(self, token_id: int) -> None:
        self._used.add(token_id)
