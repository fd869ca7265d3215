"""How often drafted tokens are right."""

# How many tokens the estimate of a request remembers, and how many the one of all requests.
_OWN_MEMORY = 12.0
_MEMORY = 500.0
# So many tokens of a request count as much as what all requests have shown.
_WEIGHT = 4.0
# A prediction from a longer match is better. What is assumed before any was observed, by the bit length of the match.
_ASSUMED = (0.1, 0.2, 0.35, 0.55, 0.7, 0.8, 0.9)
_LONGEST = 2 ** (len(_ASSUMED) - 1)


class Share:
    """The share of right tokens among the newest ones."""

    __slots__ = ("_keep", "right", "tried")

    def __init__(self, memory: float, *, right: float = 0.0, tried: float = 0.0) -> None:
        """`memory` is the number of tokens after which an observation has lost two thirds of its weight."""
        self._keep = 1 - 1 / memory
        self.right, self.tried = right, tried

    def observe(self, *, right: bool) -> None:
        self.fade()
        self.right += right
        self.tried += 1

    def fade(self) -> None:
        """Let what was observed count less."""
        self.right *= self._keep
        self.tried *= self._keep


class Acceptance:
    """The shares of all requests, by the length of the match that predicted a token."""

    def __init__(self) -> None:
        self._shares = [Share(_MEMORY, right=10 * assumed, tried=10.0) for assumed in _ASSUMED]

    def observe(self, own: Share, match: int, *, right: bool) -> None:
        """Note whether a token of a request was right, that a match of `match` tokens predicted."""
        own.observe(right=right)
        self._of(match).observe(right=right)

    def probability(self, own: Share, match: int) -> float:
        """Return the probability that the next token that such a match predicts for a request is right."""
        shared = self._of(match)
        return (_WEIGHT * shared.right / shared.tried + own.right) / (_WEIGHT + own.tried)

    def _of(self, match: int) -> Share:
        bits: int = min(match, _LONGEST).bit_length()
        return self._shares[bits - 1]


def new_share() -> Share:
    """Return the share of a new request."""
    return Share(_OWN_MEMORY)
