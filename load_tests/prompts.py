"""Prompts of token ids, each exactly as long as the traffic says."""

import zlib
from dataclasses import dataclass

import numpy as np

from load_tests.traffic import Arrival

# Every vocabulary has these ids, and special tokens come before or after them.
_FIRST_TOKEN, _LAST_TOKEN = 1_000, 20_000


@dataclass(frozen=True, slots=True)
class PlannedRequest(Arrival):
    """A request with what it takes to write its prompt."""

    kind: str = ""
    """The name of its stream in the workload."""
    seed: int = 0
    """What the tokens of its own, after the shared ones, are drawn from."""

    def prompt(self) -> list[int]:
        """Its token ids, `prompt_tokens` of them, the same in every call.

        The first `prefix_tokens` are those of all requests of the same kind and prefix. A turn of a chat is all prefix,
        so it begins with the whole turn before it; random tokens stand in for the answers in between.
        """
        prefix = _tokens(self.prefix_tokens, zlib.crc32(self.kind.encode()), self.prefix)
        own = _tokens(self.prompt_tokens - self.prefix_tokens, self.seed)
        return prefix + own


def _tokens(count: int, *seed: int) -> list[int]:
    # Token by token a longer draw begins as a shorter one does.
    ids: list[int] = np.random.default_rng(seed).integers(_FIRST_TOKEN, _LAST_TOKEN, count).tolist()
    return ids
