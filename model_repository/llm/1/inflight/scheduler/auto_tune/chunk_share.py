"""Whether the prompts of a step come one after the other, or side by side."""

from collections import deque
from statistics import fmean

from inflight.scheduler.auto_tune.change import Change

_NAME = "prompts_side_by_side"
_KEPT = 24
_ENOUGH = 12
_VARIED, _EVEN = 1.5, 1.0
"""Squared coefficient of variation of the prompt lengths from which on prompts are side by side, and below which they
are not."""


class ChunkShare:
    """Gives running prompts equal parts of a step, and new ones a part too, while prompt lengths vary much.

    In queues, serving all jobs side by side makes the mean wait shorter than first come, first served exactly if the
    squared coefficient of variation of their lengths is over 1 (Kleinrock, Queueing Systems II, 1976): short prompts do
    not wait for long ones. Prompts of similar length would all be later side by side.
    """

    def __init__(self) -> None:
        self.is_shared = False
        self._lengths: deque[int] = deque(maxlen=_KEPT)

    def observe(self, prompt_tokens: int) -> None:
        """Learn from a prompt that was computed."""
        self._lengths.append(prompt_tokens)

    def look(self) -> Change | None:
        """Adjust to the prompts that were computed lately."""
        if len(self._lengths) < _ENOUGH:
            return None
        mean = fmean(self._lengths)
        variation = fmean([(length - mean) ** 2 for length in self._lengths]) / mean**2
        shared = variation > (_EVEN if self.is_shared else _VARIED)
        if shared == self.is_shared:
            return None
        self.is_shared = shared
        reason = f"the squared coefficient of variation of prompt lengths is {variation:.1f}"
        return Change(_NAME, int(not shared), int(shared), reason)
