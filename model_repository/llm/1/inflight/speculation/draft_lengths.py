"""How many tokens to draft for each request of a step, so that tokens come as fast as possible.

A drafted token costs the time by which it makes the step longer. It brings a token with the probability that it and all
drafted tokens before it are right. Drafts pay while a token that they bring costs less than one of a step without them
(goodput, as in SmartSpec, arXiv 2406.14066).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

# A step with drafts must be better by this factor. Sampling more rows and looking up take time that is not predicted.
_MARGIN = 1.05
_LEAST_GAIN = 0.02


class Outlook(NamedTuple):
    """What a draft for one request may bring."""

    probability: float
    """That the first drafted token is right, and each further one if all before it are."""
    most: int
    """Maximum number of drafted tokens."""


def draft_lengths(
    outlooks: Sequence[Outlook],
    *,
    tokens: int,
    seconds: float,
    draft_seconds: Callable[[int], float],
    max_tokens: int,
    max_seconds: float,
) -> list[int]:
    """Return the number of drafted tokens for each request, in the order of `outlooks`.

    Args:
        tokens: how many tokens the step brings without drafts.
        seconds: how long a step of decodes takes without drafts.
        draft_seconds: how much longer a step takes with so many drafted tokens.
        max_tokens: maximum number of drafted tokens in the step.
        max_seconds: maximum of `draft_seconds`.
    """
    gains = _gains(outlooks, least=_least_gain(tokens, seconds, draft_seconds, max_tokens))[:max_tokens]
    best, best_count, gained = _MARGIN * tokens / seconds, 0, 0.0
    for count, (gain, _) in enumerate(gains, start=1):
        longer = draft_seconds(count)
        if longer > max_seconds:
            break
        gained += gain
        if (rate := (tokens + gained) / (seconds + longer)) > best:
            best, best_count = rate, count
    lengths = [0] * len(outlooks)
    for _, index in gains[:best_count]:
        lengths[index] += 1
    return lengths


def _least_gain(tokens: int, seconds: float, draft_seconds: Callable[[int], float], most: int) -> float:
    """Return the gain below which no drafted token can pay, however many others there are."""
    counts = {min(2**power, most) for power in range(most.bit_length() + 1)} - {0}
    cheapest = min((draft_seconds(count) / count for count in counts), default=0.0)
    return max(_LEAST_GAIN, cheapest * tokens / seconds)


def _gains(outlooks: Sequence[Outlook], least: float) -> list[tuple[float, int]]:
    """Return the tokens that each drafted token brings on average, and the index of its request, best first.

    The tokens of a draft stay in order, as each brings less than the one before it.
    """
    gains: list[tuple[float, int]] = []
    for index, (probability, most) in enumerate(outlooks):
        gain = probability
        for _ in range(most):
            if gain < least:
                break
            gains.append((gain, index))
            gain *= probability
    gains.sort(key=lambda each: -each[0])
    return gains
