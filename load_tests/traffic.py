"""What a server is asked, request by request: made from distributions, or read from a recorded trace."""

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
    """A request that will come."""

    at: float
    """Seconds from the start."""
    prompt_tokens: int
    output_tokens: int
    """After which it ends by itself."""
    max_tokens: int
    """What it asks for at most, which is all that a scheduler knows."""
    tenant: str = ""
    priority: int = 0
    target_ttft: float | None = None
    prefix: int = 0
    """Requests with the same number begin with the same `prefix_tokens` tokens."""
    prefix_tokens: int = 0


@dataclass(frozen=True)
class Stream:
    """Requests of one kind."""

    arrivals: Arrivals
    prompts: Lengths
    outputs: Lengths
    max_tokens: int = 0
    """What every request asks for at most; 0: each asks for what it will generate."""
    tenants: Mapping[str, float] = field(default_factory=lambda: {"": 1.0})
    """Their shares of the requests."""
    priority: int = 0
    target_ttft: float | None = None
    """Seconds."""
    prefixes: int = 1
    """How many different beginnings there are."""
    prefix_tokens: int = 0
    """Tokens that come before each prompt and are the same for all with that beginning; 0: none are shared."""

    def make(self, count: int, seed: int) -> list[Arrival]:
        """Return that many requests in the order of arrival, the same ones for the same seed."""
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
    """Several streams as one, in the order of arrival."""
    return list(heapq.merge(*streams, key=lambda arrival: arrival.at))


def replay(path: Path, count: int, speed: float = 1.0) -> list[Arrival]:
    """The first requests of a recorded trace, `speed` times as fast.

    The file is one of the Azure LLM inference traces, or has their columns: TIMESTAMP, ContextTokens, GeneratedTokens.

    Raises:
        ValueError: the file has other columns.
    """
    with path.open(newline="") as file:
        rows = csv.DictReader(file)
        if not {"TIMESTAMP", "ContextTokens", "GeneratedTokens"} <= set(rows.fieldnames or ()):
            raise ValueError(f"{path} must have columns TIMESTAMP, ContextTokens and GeneratedTokens")
        # Python reads microseconds and the traces have a digit more.
        found = [
            (datetime.fromisoformat(row["TIMESTAMP"][:26]), int(row["ContextTokens"]), int(row["GeneratedTokens"]))
            for row, _ in zip(rows, range(count), strict=False)
        ]
    return [Arrival((at - found[0][0]).total_seconds() / speed, prompt, out, out) for at, prompt, out in found]
