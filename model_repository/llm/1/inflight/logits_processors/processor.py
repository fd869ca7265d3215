"""The interface of logits processors."""

from collections.abc import Sequence
from typing import Protocol

from inflight.logits_processors.edits import LogitEdits


class LogitsProcessor(Protocol):
    """Changes the logits of a request's next token. Each instance belongs to one request and keeps its state.

    The processors of a request apply one after another, in the order of `factory.make_processors`.
    """

    def edit(self, edits: LogitEdits, ahead: Sequence[int] = ()) -> None:
        """Add changes to the row of the token that follows the output and the tokens `ahead`.

        Called in each step in which the request samples: for the next token, and for each token after a drafted one,
        with the draft up to there as `ahead`. These tokens do not belong to the output yet.
        """

    def accept(self, token_id: int) -> None:
        """Record a new output token. Called when a step is committed."""
