"""The requests that a server receives: drawn from distributions, or read from a recorded trace."""

import csv
import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from load_tests.arrivals import Arrivals
from load_tests.lengths import MOST_TOKENS, Lengths

_TRACE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")


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

    @property
    def prefix_id(self) -> int:
        """A number that no other prefix has."""
        return self.prefix

    @property
    def chat(self) -> tuple[str, int] | None:
        """The chat that this is a turn of. None: there is none."""
        return None


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
    """The first requests of a recorded trace in the order of their times, `speed` times as fast.

    The file is one of the Azure LLM inference traces, or has the same columns: TIMESTAMP, ContextTokens,
    GeneratedTokens. A time without a zone is UTC.

    Raises:
        ValueError: the file has other columns, or a row without a time and positive numbers of tokens.
        OSError: the file can't be read.
    """
    # Spreadsheet programs write a byte order mark, which is no part of the first column's name.
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.DictReader(file)
        try:
            if not set(_TRACE_COLUMNS) <= set(rows.fieldnames or ()):
                raise ValueError(f"{path} must have columns TIMESTAMP, ContextTokens and GeneratedTokens")
            found = (_traced(row, f"{path}, line {rows.line_num}") for row in rows)
            # A trace may have tens of millions of rows, so only those that are asked for are kept.
            first = heapq.nsmallest(count, found, key=lambda traced: traced[0])
        except csv.Error as error:
            raise ValueError(f"{path}, line {rows.line_num + 1}: {error}") from error
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is no text in UTF-8: {error}") from error
    return [Arrival((at - first[0][0]).total_seconds() / speed, prompt, out, out) for at, prompt, out in first]


def _traced(row: Mapping[str, str | None], place: str) -> tuple[datetime, int, int]:
    """The time and the numbers of prompt and output tokens of a row."""
    time, prompt, output = (row[name] or "" for name in _TRACE_COLUMNS)
    try:
        at = datetime.fromisoformat(time)
    except ValueError as error:
        raise ValueError(f"{place}: TIMESTAMP is {time!r}; it must be a time such as 2024-05-10 00:00:02.5") from error
    for name, text in zip(_TRACE_COLUMNS[1:], (prompt, output), strict=True):
        if not text.isdecimal() or not 1 <= int(text) <= MOST_TOKENS:
            raise ValueError(
                f"{place}: {name} is {text!r}; it must be a whole number of at least 1 and at most {MOST_TOKENS}"
            )
    return at if at.tzinfo else at.replace(tzinfo=UTC), int(prompt), int(output)
