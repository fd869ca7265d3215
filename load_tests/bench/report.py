"""The results of `make bench` and their tables."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

HEADER = (
    "Load",
    "System",
    "Requests at once",
    "Requests measured",
    "Output tokens/s",
    "Each round",
    "Ratio to one by one",
    "Mean step, ms",
    "Batch use",
    "First token p50, ms",
    "Others' CPU share",
)
UNKNOWN = "-"
ONE_BY_ONE = ("transformers `generate`", 1)


@dataclass(frozen=True)
class Observed:
    """What a system reports besides its answers. Zero or empty if it does not."""

    steps: int = 0
    step_seconds: float = 0.0
    first_token_seconds: tuple[float, ...] = ()


@dataclass(frozen=True)
class Round:
    """One round of one system."""

    tokens: int
    """Number of output tokens that the requests asked for."""
    seconds: float
    observed: Observed
    others: float
    """Fraction of the processors that other processes used, from loading the system to its last answer."""

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True)
class Measurement:
    """All rounds of one system under one load."""

    load: str
    system: str
    at_once: int
    requests: int
    rounds: list[Round] = field(default_factory=list)

    @property
    def tokens_per_second(self) -> float:
        """The median of the rounds."""
        return median(each.tokens_per_second for each in self.rounds)

    @property
    def step_milliseconds(self) -> float | None:
        """Mean over all steps of all rounds."""
        seconds = sum(each.observed.step_seconds for each in self.rounds)
        return 1000 * seconds / self._steps if self._steps else None

    @property
    def batch_use(self) -> float | None:
        """Fraction of the slots, over all steps, that yielded a requested token."""
        tokens = sum(each.tokens for each in self.rounds)
        return tokens / (self._steps * self.at_once) if self._steps else None

    @property
    def first_token_milliseconds(self) -> float | None:
        """Median over the requests of all rounds."""
        seconds = [second for each in self.rounds for second in each.observed.first_token_seconds]
        return 1000 * median(seconds) if seconds else None

    @property
    def _steps(self) -> int:
        return sum(each.observed.steps for each in self.rounds)


def table(results: Sequence[Measurement]) -> str:
    """Return a Markdown table; ratios are to `ONE_BY_ONE` under the same load."""
    one_by_one = {each.load: each.tokens_per_second for each in results if (each.system, each.at_once) == ONE_BY_ONE}
    rows = [HEADER, ("---", "---", *["---:"] * (len(HEADER) - 2))]
    rows += [_row(result, one_by_one.get(result.load)) for result in results]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _row(result: Measurement, one_by_one: float | None) -> tuple[str, ...]:
    return (
        result.load,
        result.system,
        str(result.at_once),
        str(result.requests),
        f"{result.tokens_per_second:.1f}",
        ", ".join(f"{each.tokens_per_second:.1f}" for each in result.rounds),
        _or_unknown(one_by_one and result.tokens_per_second / one_by_one, ".1f"),
        _or_unknown(result.step_milliseconds, ".1f"),
        _or_unknown(result.batch_use, ".0%"),
        _or_unknown(result.first_token_milliseconds, ".0f"),
        ", ".join(f"{each.others:.0%}" for each in result.rounds),
    )


def _or_unknown(value: float | None, form: str) -> str:
    return UNKNOWN if value is None else format(value, form)


def as_json(results: Sequence[Measurement], about: Mapping[str, Any]) -> dict[str, Any]:
    """Return all measurements and the numbers in the table."""
    systems = [
        {
            **dataclasses.asdict(result),
            "tokens_per_second": result.tokens_per_second,
            "step_milliseconds": result.step_milliseconds,
            "batch_use": result.batch_use,
            "first_token_milliseconds": result.first_token_milliseconds,
        }
        for result in results
    ]
    return {"environment": dict(about), "systems": systems}
