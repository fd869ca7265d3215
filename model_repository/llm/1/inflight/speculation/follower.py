"""Follows one output along earlier tokens that predict it."""

from collections.abc import Sequence

from inflight.speculation.acceptance import Acceptance, new_share
from inflight.speculation.match_index import Match, MatchIndex
from inflight.speculation.recent_outputs import SEPARATOR, RecentOutputs


class Follower:
    """Predicts the next tokens of a request.

    It looks up the newest tokens in the tokens of the request itself, in a draft that the client gave, and in recent
    outputs of the tenant. From then on it follows the sequence that it found, until that is wrong. Every token shows
    whether its prediction was right, whether it was drafted or not. So nothing must be tried out on the model.
    """

    def __init__(
        self,
        token_ids: list[int],
        num_prompt: int,
        given: list[int],
        acceptance: Acceptance,
        *,
        shortest: int,
        longest: int,
    ) -> None:
        """
        Args:
            token_ids: the tokens of the request. The list grows by itself.
            num_prompt: how many of them are the prompt.
            given: the client's draft of the output; may be empty.
            shortest, longest: how many of the newest tokens are looked up.
        """
        self._tokens, self._seen = token_ids, num_prompt
        self._own = MatchIndex(token_ids, shortest, longest)
        self._given = MatchIndex(given, shortest, longest)
        self._acceptance, self._share = acceptance, new_share()
        self._source: Sequence[int] | None = None
        self._position = 0
        self._match = 0
        """How many tokens before this position are the newest ones."""
        if given:
            self._given.extend(len(given) - 1)
            self._source, self._match = given, longest
        self.advance()

    def advance(self) -> None:
        """Compare the new tokens of the request with their predictions."""
        for token in self._tokens[self._seen :]:
            if self._source is not None:
                right = self._source[self._position] == token
                self._acceptance.observe(self._share, self._match, right=right)
                self._match += 1
                self._position += 1
                if not right or self._position == len(self._source) or self._source[self._position] == SEPARATOR:
                    self._source = None
        self._seen = len(self._tokens)

    def outlook(self, recent: RecentOutputs | None) -> float:
        """Return the probability that the prediction of the next token is right; 0 if there is none.

        `recent` are the recent outputs in which the newest tokens are looked up, too.
        """
        if self._source is None:
            self._look_up(recent)
        return 0.0 if self._source is None else self._acceptance.probability(self._share, self._match)

    def draft(self, count: int) -> list[int]:
        """Return up to `count` predicted tokens, at least one. The last `outlook` was over 0."""
        assert self._source is not None
        draft = list(self._source[self._position : self._position + count])
        if self._source is self._tokens:
            # Where the sequence repeats itself, what is predicted goes on with itself.
            for index in range(count - len(draft)):
                draft.append(draft[index])
        return draft[: draft.index(SEPARATOR)] if SEPARATOR in draft else draft

    def _look_up(self, recent: RecentOutputs | None) -> None:
        end = len(self._tokens)
        self._own.extend(end)
        self._follow(self._own, self._own.find(self._tokens, end))
        if self._given.tokens:
            self._follow(self._given, self._given.find(self._tokens, end))
        if recent is not None and (found := recent.find(self._tokens, end)) is not None:
            self._follow(*found)

    def _follow(self, index: MatchIndex, match: Match | None) -> None:
        """Follow a match, unless one that is as long has been found before."""
        if match is not None and (self._source is None or match.length > self._match):
            self._source, self._position, self._match = index.tokens, match.position, match.length
