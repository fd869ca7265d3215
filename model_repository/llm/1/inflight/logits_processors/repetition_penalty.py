"""`repetition_penalty`: tokens of the prompt and the output become less likely (CTRL, arXiv 1909.05858)."""

from collections.abc import Sequence

from inflight.logits_processors.distinct_tokens import DistinctTokens
from inflight.logits_processors.edits import LogitEdits


class RepetitionPenalty:
    """Penalises every token of the sequence once, however often the token occurs."""

    def __init__(self, penalty: float, prompt_ids: Sequence[int]) -> None:
        self._penalty = penalty
        self._seen = DistinctTokens(prompt_ids)

    def edit(self, edits: LogitEdits, ahead: Sequence[int] = ()) -> None:
        edits.penalise(self._seen.tokens, self._penalty)
        edits.penalise(list({token for token in ahead if token not in self._seen}), self._penalty)

    def accept(self, token_id: int) -> None:
        self._seen.add(token_id)
