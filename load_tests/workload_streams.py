"""The streams of a workload file, and the requests that they produce."""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Annotated, Self

import numpy as np
from pydantic import (
    BeforeValidator,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationInfo,
    model_validator,
)

from load_tests.arrivals import Floats
from load_tests.option_types import MOST, MOST_NUMBER
from load_tests.traffic import Arrival, Stream, replay
from load_tests.workload_fields import ArrivalField, LengthField, PoissonArrivals, Strict, Tokens

_MOST_TURNS = 10_000
"""Of a chat."""
_DRAWN_TURNS = 1_000_000
"""About so many turns are drawn at most, to estimate how many fit into a chat."""


class Prefixes(Strict):
    """Prefixes that prompts share, such as system prompts. They come before the prompts' own tokens."""

    count: Annotated[PositiveInt, Field(le=MOST)]
    tokens: Tokens


class Chats(Strict):
    """Conversations. A turn's prompt is the whole conversation so far plus a new message, whose length the stream sets.

    The time of a turn does not depend on the answer to the turn before, because the loop is open.
    """

    turns: LengthField
    """Maximum number of turns in a chat."""
    think_seconds: NonNegativeFloat
    """Mean time from one message of a user to the next (exponential). It includes the time to read the answer."""
    max_tokens: Tokens
    """Limit for prompt and answer together. A chat ends before a turn that would exceed it."""


class StreamField(Strict):
    """The fields of all streams."""

    rate: PositiveFloat
    """Requests per second."""
    priority: NonNegativeInt = 0
    """1 is the highest priority. 0: no priority is sent."""
    target_ttft: PositiveFloat | None = None
    """Seconds."""
    temperature: NonNegativeFloat = 0.0
    """0 is greedy."""
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0


class DrawnStream(StreamField):
    """Requests drawn from distributions."""

    arrivals: ArrivalField = PoissonArrivals(process="poisson")
    prompts: LengthField
    outputs: LengthField
    tenants: dict[str, Annotated[PositiveFloat, Field(le=MOST_NUMBER)]] = Field({"": 1.0}, min_length=1)
    """Weight of each tenant among the requests."""
    prefixes: Prefixes | None = None
    chats: Chats | None = None
    passage_tokens: NonNegativeInt = 0
    """A prompt repeats a passage of so many tokens and breaks off inside it, so that models go on copying it. 0: none
    is repeated."""

    @model_validator(mode="after")
    def _prefixes_or_chats(self) -> Self:
        if self.prefixes is not None and self.chats is not None:
            raise ValueError("prefixes and chats are both given; it must be one of them at most")
        return self

    @model_validator(mode="after")
    def _turns_fit(self) -> Self:
        if self.chats is not None:
            self._mean_turns(self.chats)
        return self

    def draw(self, rate: float, seconds: float, seed: int, block: int) -> list[Arrival]:
        """The requests of the first `seconds`, with `rate` requests per second instead of the stream's own rate.

        Blocks differ only by their seeds.
        """
        turns = 1.0 if self.chats is None else self._mean_turns(self.chats)
        stream = Stream(
            self.arrivals.arrivals(rate / turns, seconds),
            self.prompts.lengths(0),
            self.outputs.lengths(1),
            tenants=self.tenants,
            priority=self.priority,
            target_ttft=self.target_ttft,
            prefixes=1 if self.prefixes is None else self.prefixes.count,
            prefix_tokens=0 if self.prefixes is None else self.prefixes.tokens,
        )
        first = _covering(lambda count: stream.make(count, seed), rate, seconds)
        return first if self.chats is None else self._turns(self.chats, first, seconds, seed)

    def _mean_turns(self, chats: Chats) -> float:
        """Mean number of turns that fit into a chat's limit, estimated from a large draw. Raises ValueError if none
        fits."""
        chance = np.random.default_rng(0)
        turns = chats.turns.lengths(0).draw(20_000, chance)
        if turns.max() > _MOST_TURNS:
            raise ValueError(f"chats.turns reaches {turns.max()}; it must be at most {_MOST_TURNS}")
        turns = turns[: max(1, np.searchsorted(np.cumsum(turns), _DRAWN_TURNS))]
        count = int(turns.sum())
        said = np.cumsum(self.prompts.lengths(0).draw(count, chance) + self.outputs.lengths(1).draw(count, chance))
        said_before = np.concatenate([[0], said])[np.cumsum(turns) - turns]
        fitting = np.count_nonzero(said - np.repeat(said_before, turns) <= chats.max_tokens)
        if not fitting:
            raise ValueError(
                f"chats.max_tokens is {chats.max_tokens}; prompts and outputs are so long that no turn fits"
            )
        return fitting / len(turns)

    def _turns(self, chats: Chats, first: Sequence[Arrival], seconds: float, seed: int) -> list[Arrival]:
        """All turns of the chats that start with these requests, in the order of arrival.

        Turns after the end come as much later than the beginning instead, as turns of a chat that began before it.
        Otherwise, a short run would hardly have later turns, and fewer requests than its rate says.
        """
        chance = np.random.default_rng([seed, 1])
        prompts, outputs = self.prompts.lengths(0), self.outputs.lengths(1)
        found = []
        for begin, turns in zip(first, chats.turns.lengths(0).draw(len(first), chance).tolist(), strict=True):
            chat, at, said = int(chance.integers(2**62)), begin.at, 0
            messages, answers = prompts.draw(turns, chance).tolist(), outputs.draw(turns, chance).tolist()
            for message, answer in zip(messages, answers, strict=True):
                said += message
                if said + answer > chats.max_tokens:
                    break
                if at >= seconds:
                    chat, at = int(chance.integers(2**62)), at % seconds
                # The whole prompt is prefix, so that the next turn of this chat starts with it.
                lengths = {"prompt_tokens": said, "prefix_tokens": said, "output_tokens": answer, "max_tokens": answer}
                found.append(replace(begin, at=at, prefix=chat, **lengths))
                said += answer
                at += chance.exponential(chats.think_seconds)
        return sorted(found, key=lambda arrival: arrival.at)


def _beside(value: object, info: ValidationInfo) -> object:
    """Resolve a relative path from the folder of the file that contains it."""
    return Path(info.context, value) if isinstance(value, str) and isinstance(info.context, Path) else value


class ReplayedStream(StreamField):
    """A recorded trace, replayed at the given rate. It starts again after its end."""

    replay: Annotated[Path, BeforeValidator(_beside)]
    """A file in the format of `load_tests.traffic.replay`. A relative path starts at the folder of the workload
    file."""

    @cached_property
    def trace(self) -> list[Arrival]:
        """The recorded requests. Raises what `load_tests.traffic.replay` raises."""
        return replay(self.replay, sys.maxsize)

    @model_validator(mode="after")
    def _trace_has_a_rate(self) -> Self:
        if len(self.trace) < 2:
            raise ValueError(f"{self.replay} has {len(self.trace)} requests; it must have at least 2")
        if not self.trace[-1].at:
            raise ValueError(f"{self.replay} has only requests of the same time; it must have at least 2 times")
        return self

    def draw(self, rate: float, seconds: float, seed: int, block: int) -> list[Arrival]:
        """See `DrawnStream.draw`. The rate is that of whole passes of the trace; a part of one may have another.

        Each block of `seconds` goes on where the one before it ended. Its times begin at 0, too.
        """
        recorded, begin, end = self.trace, block * seconds, (block + 1) * seconds
        # The period has one more gap: from the last request to the first one of the next pass.
        period = recorded[-1].at * len(recorded) / (len(recorded) - 1)
        speed = rate * period / len(recorded)
        found = []
        for lap in range(math.floor(begin * speed / period), math.ceil(end * speed / period)):
            times = (self._times + lap * period) / speed
            part = slice(*np.searchsorted(times, [begin, end]))
            found += [
                replace(one, at=at, priority=self.priority, target_ttft=self.target_ttft)
                for one, at in zip(recorded[part], (times[part] - begin).tolist(), strict=True)
            ]
        return found

    @cached_property
    def _times(self) -> Floats:
        return np.array([one.at for one in self.trace])


def _covering(make: Callable[[int], list[Arrival]], rate: float, seconds: float) -> list[Arrival]:
    """The arrivals of the first `seconds`. `make` returns as many arrivals as it is asked for."""
    count = math.ceil(rate * seconds) + 16
    while (arrivals := make(count))[-1].at < seconds:
        count *= 2
    return [arrival for arrival in arrivals if arrival.at < seconds]
