"""`allowed_token_ids`: the output consists of these tokens only."""

from collections.abc import Sequence

import numpy as np

from inflight.logits_processors.edits import Ints, LogitEdits


class AllowedTokens:
    """Forbids all tokens but some."""

    def __init__(self, allowed: Sequence[int], num_logits: int) -> None:
        self._allowed, self._num_logits = allowed, num_logits
        self._others: Ints | None = None

    def edit(self, edits: LogitEdits, ahead: Sequence[int] = ()) -> None:
        if self._others is None:
            # Not before the request runs: it takes a megabyte for large vocabularies, and many requests may wait.
            self._others = np.setdiff1d(np.arange(self._num_logits, dtype=np.int64), np.array(self._allowed))
        edits.forbid(self._others)

    def accept(self, token_id: int) -> None:
        pass
