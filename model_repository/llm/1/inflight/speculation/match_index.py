"""Finds where the newest tokens of a sequence occurred before."""

from collections.abc import Sequence
from typing import NamedTuple

# Candidates that a look-up compares, newest first. Common pairs of tokens occur very often.
_MAX_CANDIDATES = 8
_FACTOR = 0x9E3779B97F4A7C15
_MASK = (1 << 64) - 1


class Match(NamedTuple):
    """A place in a sequence before which the same tokens stand as at the end of another one."""

    position: int
    """Of the token that follows there."""
    length: int
    """How many tokens before it are the same, up to the maximum that is compared."""


class MatchIndex:
    """All runs of `shortest` tokens in a growing sequence, as hash chains (LZ77, as in DEFLATE).

    Adding a token and a look-up take O(1).
    """

    def __init__(self, tokens: list[int], shortest: int, longest: int) -> None:
        """`tokens` may grow by itself; `extend` takes in what is new. A look-up compares up to `longest` tokens."""
        self.tokens = tokens
        self._shortest, self._longest = shortest, longest
        self._newest: dict[int, int] = {}
        """By the hash of a run, the position after the newest run that has it."""
        self._previous = [-1] * shortest
        """For each position in `tokens`, the one after the run before it that has the same hash; -1 if there is none.
        A run ends before its position."""

    def extend(self, end: int) -> None:
        """Index the runs that end before position `end` or at it."""
        shortest, tokens, newest, previous = self._shortest, self.tokens, self._newest, self._previous
        for position in range(len(previous), end + 1):
            key = _hash(tokens[position - shortest : position])
            previous.append(newest.get(key, -1))
            newest[key] = position

    def find(self, context: Sequence[int], end: int) -> Match | None:
        """Return the longest match of the tokens of `context` before `end`, of equally long ones the newest.

        Only runs that were indexed and that a token follows are found. Numbers below 0 are no tokens.
        """
        shortest = self._shortest
        if end < shortest:
            return None
        position = self._newest.get(_hash(context[end - shortest : end]), -1)
        best: Match | None = None
        for _ in range(_MAX_CANDIDATES):
            if position < 0:
                break
            length = self._common(context, end, position) if self._has_token(position) else 0
            if length >= shortest and (best is None or length > best.length):
                best = Match(position, length)
                if length == self._longest:
                    break
            position = self._previous[position]
        return best

    def _has_token(self, position: int) -> bool:
        return position < len(self.tokens) and self.tokens[position] >= 0

    def _common(self, context: Sequence[int], end: int, position: int) -> int:
        """How many tokens before `position` are those before `end` of the context."""
        most = min(self._longest, end, position)
        for length in range(most):
            if self.tokens[position - 1 - length] != context[end - 1 - length]:
                return length
        return most


def _hash(run: Sequence[int]) -> int:
    value = 0
    for token in run:
        value = (value * _FACTOR + token + 1) & _MASK
    return value
