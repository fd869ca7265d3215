"""The requests that a server receives: drawn from distributions, or read from a recorded trace."""

import csv
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import numpy as np

from load_tests.arrivals import Arrivals
from load_tests.lengths import Lengths


@dataclass(frozen=True, slots=True)
class Arrival:
    """A request that will arrive."""

    at: float
    """Seconds from the start."""
    prompt_tokens: int
    output_tokens: int
    """Number of output tokens after which the request ends by itself."""
    max_tokens: int
    """The limit that the request sets. It is all that a scheduler knows of the output length."""
    tenant: str = ""
    priority: int = 0
    target_ttft: float | None = None
    prefix: int = 0
    """Requests with the same number share their first `prefix_tokens` tokens."""
    prefix_tokens: int = 0


@dataclass(frozen=True)
class Stream:
    """Requests of one kind."""

    arrivals: Arrivals
    prompts: Lengths
    outputs: Lengths
    max_tokens: int = 0
    """The limit that every request sets. 0: each request sets its own output length as the limit."""
    tenants: Mapping[str, float] = field(default_factory=lambda: {"": 1.0})
    """Weight of each tenant among the requests."""
    priority: int = 0
    target_ttft: float | None = None
    """Seconds."""
    prefixes: int = 1
    """Number of different shared prefixes."""
    prefix_tokens: int = 0
    """Length of the shared prefix before each prompt. 0: no prefix is shared."""

    def make(self, count: int, seed: int | Sequence[int]) -> list[Arrival]:
        """Return `count` requests in the order of arrival. The same seed, which may be of several numbers, gives the
        same requests."""
        chance = np.random.default_rng(seed)
        times = self.arrivals.times(count, chance).tolist()
        prompts = (self.prompts.draw(count, chance) + self.prefix_tokens).tolist()
        outputs = self.outputs.draw(count, chance)
        limits = (np.full(count, self.max_tokens) if self.max_tokens else outputs).tolist()
        shares = np.array(list(self.tenants.values()))
        tenants = chance.choice(list(self.tenants), count, p=shares / shares.sum()).tolist()
        prefixes = chance.integers(self.prefixes, size=count).tolist()
        return [
            Arrival(
                at=at,
                prompt_tokens=prompt,
                output_tokens=min(output, limit),
                max_tokens=limit,
                tenant=tenant,
                priority=self.priority,
                target_ttft=self.target_ttft,
                prefix=prefix,
                prefix_tokens=self.prefix_tokens,
            )
            for at, prompt, output, limit, tenant, prefix in zip(
                times, prompts, outputs.tolist(), limits, tenants, prefixes, strict=True
            )
        ]


def merge(*streams: Sequence[Arrival]) -> list[Arrival]:
    """Merge several streams into one, in the order of arrival."""
    return list(heapq.merge(*streams, key=lambda arrival: arrival.at))


def replay(path: Path, count: int, speed: float = 1.0) -> list[Arrival]:
    """The first requests of a recorded trace, `speed` times as fast.

    The file is one of the Azure LLM inference traces, or has the same columns: TIMESTAMP, ContextTokens,
    GeneratedTokens.

    Raises:
        ValueError: the file has other columns.
    """
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        if not {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(rows.fieldnames or ()):
            raise ValueError(f"{path} must have columns TIMESTAMP, ContextTokens and GeneratedTokens")
        # Python parses microseconds, and the traces have one more digit.
        found = [
            (datetime.fromisoformat(row["TIMESTAMP"][:26]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for row, _ in zip(rows, range(count), strict=False)
        ]
    return [Arrival((at - found[0][0]).total_seconds() / speed, prompt, out, out) for at, prompt, out in found]
