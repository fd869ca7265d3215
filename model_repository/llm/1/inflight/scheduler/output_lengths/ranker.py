"""Predicts output lengths by learning from prompts which of two outputs is longer."""

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from inflight.request import Request
from inflight.scheduler.newest_values import ENOUGH
from inflight.scheduler.output_lengths.predictor import Forecast
from inflight.scheduler.output_lengths.scored import Scored

_WEIGHTS = 1 << 16
_TOKENS = 64
"""So many tokens are read at the beginning of a prompt, and as many at its end."""
_FEATURES = 2 + 2 * _TOKENS + 2 * _TOKENS - 1
_SCALE = _FEATURES**-0.5
_PAIRS = 16
_PASSES = 2
"""How often a request is the first of its pairs."""
_RATE = 1.0
_FIRST_SQUARE = 0.01
_CLEAR = 0.3
"""A pair whose lengths differ by less than this factor, as a logarithm, teaches nothing."""


class PairwiseRanker(Scored):
    """A linear score of hashed n-grams of the prompt, such that of two requests the one with the longer output has the
    higher score. A prediction is a quantile of the outputs of the past requests with the nearest scores.

    'Efficient LLM Scheduling by Learning to Rank' (NeurIPS'24) ranks prompts with a language model of its own, trained
    in advance. Here the logistic loss of pairs (RankNet, ICML'05) is reduced by AdaGrad (JMLR'11), with each request
    that ends. A score takes microseconds. Learning from a request takes under 0.1 ms, in a step of its own.
    """

    def __init__(self) -> None:
        super().__init__(np.zeros((self.kept, _FEATURES), np.int64))
        self._weights = np.zeros(_WEIGHTS)
        self._squares = np.full(_WEIGHTS, _FIRST_SQUARE)
        self._chance = np.random.default_rng(0)
        self._pending: deque[int] = deque(maxlen=_PASSES * self.kept)

    def prepare(self, request: Request) -> None:
        """See `LengthPredictor`."""
        request.forecast = Forecast(features=prompt_features(request.prompt_ids, request.max_tokens))

    def arrived(self, request: Request) -> None:
        """See `LengthPredictor`."""
        if request.forecast is None:
            self.prepare(request)
        self.find_similar(request)

    def score(self, features: NDArray[Any]) -> NDArray[np.float64]:
        """See `Scored`."""
        score: NDArray[np.float64] = _SCALE * self._weights[features].sum(axis=-1)
        return score

    def added(self, index: int) -> None:
        """See `Scored`."""
        self._pending.extend([index] * _PASSES)

    def learn(self) -> None:
        """See `LengthPredictor`."""
        if not self._pending or self.num_kept < ENOUGH:
            return
        first = self._pending.popleft()
        others = self._chance.integers(self.num_kept, size=_PAIRS)
        ratios = np.log(self.lengths[first] / self.lengths[others])
        others, ratios = others[np.abs(ratios) > _CLEAR], ratios[np.abs(ratios) > _CLEAR]
        if not len(others):
            return
        one, more, signs = self.features[first], self.features[others], np.sign(ratios)
        margins = signs * (self.score(one) - self.score(more))
        pulls = _SCALE * signs / (1 + np.exp(margins)) / len(others)
        self._add(np.append(one, more), np.append(np.full(len(one), pulls.sum()), -np.repeat(pulls, len(one))))
        self.changed()

    def _add(self, places: NDArray[np.int64], gradient: NDArray[np.float64]) -> None:
        np.add.at(self._squares, places, gradient**2)
        np.add.at(self._weights, places, _RATE * gradient / np.sqrt(self._squares[places]))
        self._weights[0] = 0.0


def prompt_features(prompt_ids: list[int], max_tokens: int) -> NDArray[np.int64]:
    """Return which tokens and pairs of tokens a prompt has, and how long prompt and output may be, as hashes.

    Shape [257], filled up with 0, which counts nothing. Of a long prompt, the beginning and the end count.
    """
    shown = prompt_ids if len(prompt_ids) <= 2 * _TOKENS else prompt_ids[:_TOKENS] + prompt_ids[-_TOKENS:]
    tokens = np.array(shown, np.uint64) + np.uint64(64)
    limits = np.array([len(prompt_ids).bit_length(), 32 + max_tokens.bit_length()], np.uint64)
    names = np.concatenate([limits, tokens, tokens[1:] * np.uint64(0x1_0000_01B3) + tokens[:-1]])
    hashed = (names * np.uint64(0x9E37_79B9_7F4A_7C15)) >> np.uint64(48)
    features = np.zeros(_FEATURES, np.int64)
    features[: len(hashed)] = hashed
    return features
