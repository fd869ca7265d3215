"""How a request draws its tokens: its parameters as the numbers that the sampler computes with, and random numbers."""

import numpy as np

from inflight.sampling_params import SamplingParams

PARAMETERS = ("temperature", "top_k", "top_p", "min_p", "uniform")
"""What the sampler needs to know of a row."""

# Lower temperatures count as 0, because dividing by them would overflow.
_GREEDY_BELOW = 1e-5
# Above this temperature, all tokens are equally likely. Far above it, float32 would overflow.
_HOTTEST = 1e9
# No vocabulary is as large.
_NO_LIMIT = 2**24
_GREEDY = (0.0, 0.0, 1.0, 0.0, 0.0)
# Creating a generator takes as long as making hundreds of numbers.
_CHUNK = 64
_WORDS = 4
"""The generator makes this many words for each value of its counter. Only the first one is used."""


class Draws:
    """The draws of one request. Each depends only on the parameters, the seed and the new token's position."""

    __slots__ = ("_first", "_fixed", "_seed", "_uniforms")

    def __init__(self, params: SamplingParams, seed: int) -> None:
        temperature = params.temperature or 0
        self._fixed: tuple[float, float, float, float] | None = None
        if temperature >= _GREEDY_BELOW:
            self._fixed = (
                float(min(temperature, _HOTTEST)),
                float(min(max(params.top_k or 0, 0), _NO_LIMIT)),
                1.0 if params.top_p is None else float(params.top_p),
                float(params.min_p or 0),
            )
        self._seed, self._first = seed, -1
        self._uniforms: list[float] = []

    def at(self, position: int) -> tuple[float, ...]:
        """The `PARAMETERS` of the token at a position. A temperature of 0 is greedy, a `top_k` of 0 means no limit."""
        return _GREEDY if self._fixed is None else (*self._fixed, self._uniform(position))

    def _uniform(self, position: int) -> float:
        """A number in [0, 1) from a counter-based generator (Philox, SC'11). It is the same after a preemption."""
        offset = position % _CHUNK
        if position - offset != self._first:
            self._first = position - offset
            words = np.random.Philox(key=self._seed, counter=self._first).random_raw(_CHUNK * _WORDS)[::_WORDS]
            self._uniforms = ((words >> np.uint64(11)) * 2.0**-53).tolist()
        return self._uniforms[offset]
