"""Which beams a search keeps, and when it ends.

The rules are those of transformers' `generate` with `num_beams`, so that the outputs are the same token for token: at
each step the continuations of all beams compete, those that end compete with those that ended before, and the others
are the next beams.
"""

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np

from inflight.request import LENGTH, STOP
from inflight.sampling_params import NEVER, SamplingParams


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """An output that the search has found."""

    token_ids: tuple[int, ...]
    finish_reason: str
    logprob: float
    """The sum of the log-probabilities of its tokens, in float32 as in transformers."""
    score: float
    """`logprob / length ** length_penalty`. The outputs with the largest scores are kept."""


@dataclass(frozen=True, slots=True)
class Step:
    """The last token of a beam, and which beam of the step before it continues."""

    parent: int
    token: int


class BeamSearch:
    """The beams of one request, without their tokens: the caller keeps them."""

    def __init__(
        self,
        params: SamplingParams,
        *,
        max_tokens: int,
        stop_token_ids: Collection[int],
        suppress_tokens: Collection[int] = (),
    ) -> None:
        """No output has one of `suppress_tokens`."""
        self.width = params.beam_width
        self.num_candidates = self.width + len(stop_token_ids) + len(suppress_tokens)
        """How many of the likeliest tokens of each beam compete. Of these, `width` go on whatever ends."""
        self._params, self._max_tokens = params, max_tokens
        self._stops, self._suppressed = frozenset(stop_token_ids), frozenset(suppress_tokens)
        self.restart()

    def restart(self) -> None:
        """Begin with the first token again."""
        self.finished: list[Hypothesis] = []
        """The best outputs that have ended, best first, at most `width`."""
        self._logprobs = [np.float32(0)]
        self._length = 0

    @property
    def num_beams(self) -> int:
        """How many beams there are: one before the first token, and later nearly always `width`."""
        return len(self._logprobs)

    def advance(self, found: Sequence[Mapping[int, float]], outputs: Sequence[Sequence[int]]) -> list[Step] | None:
        """Choose the next beams, best first. Return None if the search ends.

        Args:
            found: for each beam its `num_candidates` likeliest tokens, best first, with their log-probabilities.
            outputs: for each beam its output tokens so far.
        """
        self._length += 1
        goes_on = self.width if self._length < self._max_tokens else 0
        steps: list[Step] = []
        logprobs: list[np.float32] = []
        for rank, (logprob, beam, token) in enumerate(self._candidates(found)):
            if rank >= self.width and len(steps) == goes_on:
                break
            if token in self._stops or not goes_on:
                if rank < self.width:
                    reason = STOP if token in self._stops else LENGTH
                    self.finished.append(self._hypothesis((*outputs[beam], token), reason, logprob))
            elif len(steps) < goes_on:
                steps.append(Step(beam, token))
                logprobs.append(logprob)
        self.finished = sorted(self.finished, key=lambda each: -each.score)[: self.width]
        self._logprobs = logprobs
        return None if self._has_ended() else steps

    def best(self, outputs: Sequence[Sequence[int]], reason: str) -> list[Hypothesis]:
        """Return `width` outputs for a search that is cut off for this reason. Those that have ended come first.

        The others are the beams, with these `outputs`. Before the first token there is one, so empty outputs follow.
        """
        beams = zip(outputs, self._logprobs, strict=False)
        cut = [self._hypothesis(tuple(output), reason, logprob) for output, logprob in beams]
        empty = [self._hypothesis((), reason, np.float32(0))] * self.width
        return [*self.finished, *cut, *empty][: self.width]

    def _candidates(self, found: Sequence[Mapping[int, float]]) -> Iterable[tuple[np.float32, int, int]]:
        """Yield the log-probability, beam and token of the continuations of all beams, the likeliest first."""
        # Few of them are looked at, while many stop tokens make many candidates.
        return heapq.merge(*map(self._continuations, count(), found), key=lambda each: -each[0])

    def _continuations(self, beam: int, likeliest: Mapping[int, float]) -> Iterator[tuple[np.float32, int, int]]:
        may_end, before = self._length > self._params.min_tokens, self._logprobs[beam]
        for token, logprob in likeliest.items():
            if token not in self._suppressed and (may_end or token not in self._stops):
                yield before + np.float32(logprob), beam, token

    def _hypothesis(self, token_ids: tuple[int, ...], reason: str, logprob: np.float32) -> Hypothesis:
        return Hypothesis(token_ids, reason, float(logprob), self._score(logprob, len(token_ids)))

    def _score(self, logprob: np.float32, length: int) -> float:
        return float(logprob / max(1, length) ** self._params.length_penalty)

    def _has_ended(self) -> bool:
        """Return whether no beam goes on, or none could become one of the `width` best."""
        if not self._logprobs:
            return True
        if len(self.finished) < self.width:
            return False
        # The score that the best beam may reach is a guess, unless `early_stopping` is "never".
        exact = self._params.early_stopping == NEVER and self._params.length_penalty > 0
        reachable = self._score(self._logprobs[0], self._max_tokens if exact else self._length)
        return self._params.early_stopping is True or reachable <= self.finished[-1].score
