"""Requests as they are sent: prompts of token ids, each exactly as long as the traffic specifies, and the sampling."""

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any

import numpy as np

from load_tests.traffic import Arrival

# All supported vocabularies have these ids. The ids of special tokens lie outside this range.
_FIRST_TOKEN, _LAST_TOKEN = 1_000, 20_000


@dataclass(frozen=True, slots=True)
class PlannedRequest(Arrival):
    """A request with the data to generate its prompt, and how its tokens are chosen."""

    kind: str = ""
    """Name of its stream in the workload."""
    seed: int = 0
    """Seed of the tokens after the shared prefix."""
    temperature: float = 0.0
    """0 is greedy."""
    top_p: float = 1.0
    passage_tokens: int = 0
    """So many tokens of its own are repeated. 0: none are."""
    text: Sequence[int] = field(default=(), repr=False, compare=False)
    """Token ids of a long text, from which the prompt is cut. Empty: it consists of random ids."""

    @property
    def prefix_id(self) -> int:
        """A number that no other prefix has, as those of each kind are numbered from 0."""
        return self.prefix ^ zlib.crc32(self.kind.encode()) << 30

    @property
    def chat(self) -> tuple[str, int] | None:
        """The chat that this is a turn of. A turn's prompt is all prefix."""
        return (self.kind, self.prefix) if 0 < self.prompt_tokens == self.prefix_tokens else None

    @property
    def sampling(self) -> dict[str, Any]:
        """Sampling parameters that leave nothing to a server's or a model's own defaults.

        Greedy requests say it twice: llama.cpp has no shortcut for a temperature of 0, but a fast one for the likeliest
        token alone.
        """
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": 0 if self.temperature else 1,
            "min_p": 0.0,
            "repetition_penalty": 1.0,
        }

    def prompt(self) -> list[int]:
        """Return its `prompt_tokens` token ids. They are the same in every call.

        All requests with the same kind and prefix share the first `prefix_tokens` ids. The prompt of a chat turn is all
        prefix, so it starts with the whole prompt of the turn before. Other tokens stand for the answers in between.
        """
        prefix = self._tokens(self.prefix_tokens, zlib.crc32(self.kind.encode()), self.prefix)
        count = self.prompt_tokens - self.prefix_tokens
        own = self._tokens(min(count, self.passage_tokens or count), self.seed)
        return prefix + list(islice(cycle(own), count))

    def _tokens(self, count: int, *seed: int) -> list[int]:
        # With the same seed, a longer draw starts with the tokens of a shorter one.
        chance = np.random.default_rng(seed)
        if self.text:
            start, length = int(chance.integers(len(self.text))), len(self.text)
            return [self.text[position % length] for position in range(start, start + count)]
        ids: list[int] = chance.integers(_FIRST_TOKEN, _LAST_TOKEN, count).tolist()
        return ids
