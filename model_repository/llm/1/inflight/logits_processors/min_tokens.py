"""`min_tokens`: no token may end the output before the output has this length."""

from collections.abc import Iterable, Sequence

import numpy as np

from inflight.logits_processors.edits import LogitEdits


class MinTokens:
    """Forbids the tokens that end the output, during the first `min_tokens` tokens."""

    def __init__(self, min_tokens: int, stop_token_ids: Iterable[int]) -> None:
        self._left = min_tokens
        self._stops = np.array(sorted(stop_token_ids), dtype=np.int64)

    def edit(self, edits: LogitEdits, ahead: Sequence[int] = ()) -> None:
        if self._left > len(ahead):
            edits.forbid(self._stops)

    def accept(self, token_id: int) -> None:
        self._left -= 1
