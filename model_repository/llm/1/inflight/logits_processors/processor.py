"""The interface of logits processors."""

from typing import Protocol

from inflight.logits_processors.edits import LogitEdits


class LogitsProcessor(Protocol):
    """Changes the logits of a request's next token. Each instance belongs to one request and keeps its state.

    The processors of a request apply one after another, in the order of `factory.make_processors`.
    """

    def edit(self, edits: LogitEdits) -> None:
        """Add changes to the row of the next token. Called once in each step in which the request samples."""

    def accept(self, token_id: int) -> None:
        """Record a new output token. Called when a step is committed."""
