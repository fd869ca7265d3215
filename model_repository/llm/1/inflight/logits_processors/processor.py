"""What a logits processor is."""

from typing import Protocol

from inflight.logits_processors.edits import LogitEdits


class LogitsProcessor(Protocol):
    """Changes the logits of one request's next token; an instance belongs to one request and keeps its state.

    A request's processors apply one after the other, in the order of `factory.make_processors`.
    """

    def edit(self, edits: LogitEdits) -> None:
        """Say what to change in the row of the next token. Called once a step, when the request samples."""

    def accept(self, token_id: int) -> None:
        """Take note of a new output token. Called when a step is committed."""
