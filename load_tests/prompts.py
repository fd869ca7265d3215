"""Prompts of token ids, each exactly as long as the traffic specifies."""

import zlib
from dataclasses import dataclass

import numpy as np

from load_tests.traffic import Arrival

# All supported vocabularies have these ids. The ids of special tokens lie outside this range.
_FIRST_TOKEN, _LAST_TOKEN = 1_000, 20_000


@dataclass(frozen=True, slots=True)
class PlannedRequest(Arrival):
    """A request with the data to generate its prompt."""

    kind: str = ""
    """Name of its stream in the workload."""
    seed: int = 0
    """Seed of the tokens after the shared prefix."""

    def prompt(self) -> list[int]:
        """Return its `prompt_tokens` token ids. They are the same in every call.

        All requests with the same kind and prefix share the first `prefix_tokens` ids. The prompt of a chat turn is all
        prefix, so it starts with the whole prompt of the turn before. Random tokens stand for the answers in between.
        """
        prefix = _tokens(self.prefix_tokens, zlib.crc32(self.kind.encode()), self.prefix)
        own = _tokens(self.prompt_tokens - self.prefix_tokens, self.seed)
        return prefix + own


def _tokens(count: int, *seed: int) -> list[int]:
    # With the same seed, a longer draw starts with the tokens of a shorter one.
    ids: list[int] = np.random.default_rng(seed).integers(_FIRST_TOKEN, _LAST_TOKEN, count).tolist()
    return ids
