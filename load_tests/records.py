"""The load generator's records of requests."""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np

from load_tests.arrivals import Floats
from load_tests.intervals import covered_seconds
from load_tests.slo import Slo

UNFINISHED = "Unfinished"
"""Error of a request that was cancelled because the run was over."""
WRONG_LENGTH = "WrongLength"
"""Error of a request whose answer does not have the requested number of tokens."""


@dataclass(frozen=True, slots=True)
class Record:
    """One request. Times are seconds from the start of the run, by the generator's clock."""

    index: int
    kind: str
    """Name of its stream in the workload."""
    tenant: str
    priority: int
    prompt_tokens: int
    max_tokens: int
    target_ttft: float | None
    """In seconds. It replaces the objective's."""
    scheduled: float
    """When the request was due. In an open loop this time is planned, and all waiting counts from it, so that a slow
    server or generator hides no delay (Gil Tene's "coordinated omission"). In a closed loop it is the time of
    sending."""
    sent: float
    first_token: float | None
    """When the first piece of the answer arrived. None if none did."""
    last_token: float | None
    output_tokens: int
    gaps: tuple[float, ...]
    """Seconds between the pieces of the answer. A piece is one token, or several that arrived together."""
    error: str | None
    """Name of the exception that ended the request, or one of the constants above."""

    @property
    def done(self) -> bool:
        """Whether the complete answer arrived."""
        return self.error is None and self.first_token is not None

    @property
    def mean_gap(self) -> float:
        """Mean time between two tokens. 0 if there is one token."""
        assert self.first_token is not None
        assert self.last_token is not None
        return (self.last_token - self.first_token) / max(1, self.output_tokens - 1)

    def ttft_share(self, slo: Slo) -> float:
        """Time to first token, over the request's own target or else the objective's. Infinite if it was not
        answered."""
        if not self.done:
            return math.inf
        assert self.first_token is not None
        return (self.first_token - self.scheduled) / (slo.ttft if self.target_ttft is None else self.target_ttft)

    def tokens_between(self, begin: float, end: float) -> float:
        """Number of tokens that arrived in an interval. Each piece is taken to have equally many tokens."""
        if self.first_token is None:
            return 0.0
        times = self.first_token + np.concatenate([[0.0], np.cumsum(self.gaps)])
        return float(np.mean((begin <= times) & (times < end))) * self.output_tokens

    def meets(self, slo: Slo) -> bool:
        """Whether the request was answered within an objective."""
        return self.ttft_share(slo) <= 1 and self.mean_gap <= slo.itl


@dataclass(frozen=True)
class Run:
    """All requests of a run, in the order in which they were scheduled."""

    records: Sequence[Record]
    generator_busy: float
    """Processor time of the generator's process over elapsed time. Near 1, which is one core, the generator measures
    itself."""
    until: float = math.inf
    """When the users of a closed loop stopped sending. What comes later, to fewer and fewer of them, is part of no
    rate. Infinite: a planned number of requests was sent, and the time until the last answer counts."""

    @property
    def done(self) -> list[Record]:
        """The records of answered requests."""
        return [record for record in self.records if record.done]

    @property
    def duration(self) -> float:
        """Seconds from the first request to `until`, or to the last token."""
        begun = min(record.scheduled for record in self.records)
        if self.until < math.inf:
            return self.until - begun
        return max((r.last_token for r in self.records if r.last_token is not None), default=begun) - begun

    @property
    def throughput(self) -> float:
        """Output tokens per second of answered requests."""
        return sum(record.tokens_between(-math.inf, self.until) for record in self.done) / max(self.duration, 1e-9)

    @property
    def output_tokens(self) -> int:
        """Output tokens of the requests that were answered."""
        return sum(record.output_tokens for record in self.done)

    @property
    def busy_seconds(self) -> float:
        """Time during which at least one request that was answered was waiting or running, in seconds."""
        begins = np.array([record.scheduled for record in self.done])
        return covered_seconds(begins, begins + self.e2e)

    def itl(self, percent: float) -> float:
        """Percentile of the times between two pieces of an answer, over all answers, in seconds. 0 if there are
        none."""
        return float(np.percentile(self.gaps, percent)) if len(self.gaps) else 0.0

    @property
    def ttft(self) -> Floats:
        """Seconds from the scheduled time to the first text, for answered requests."""
        return np.array([r.first_token - r.scheduled for r in self.done if r.first_token is not None])

    def ttft_shares(self, slo: Slo) -> Floats:
        """`Record.ttft_share` of every request."""
        return np.array([record.ttft_share(slo) for record in self.records])

    @property
    def gaps(self) -> Floats:
        """Seconds between pieces, for all answered requests together."""
        return np.array([gap for record in self.done for gap in record.gaps])

    @property
    def e2e(self) -> Floats:
        """Seconds from the scheduled time to the last token, for answered requests."""
        return np.array([r.last_token - r.scheduled for r in self.done if r.last_token is not None])

    def with_failed(self, seconds: Floats) -> Floats:
        """The times of the answered requests, and infinity for each of the others."""
        return np.concatenate([seconds, np.full(len(self.records) - len(seconds), np.inf)])

    @property
    def lateness(self) -> Floats:
        """Seconds by which the generator sent each request later than planned."""
        return np.array([record.sent - record.scheduled for record in self.records])

    def goodput(self, slo: Slo) -> float:
        """Requests per second that were answered within an objective."""
        ended = [record for record in self.done if record.last_token is not None and record.last_token < self.until]
        return sum(record.meets(slo) for record in ended) / max(self.duration, 1e-9)

    def attainment(self, slo: Slo) -> float:
        """Fraction of all requests that were answered within an objective."""
        return sum(record.meets(slo) for record in self.records) / len(self.records)

    def errors(self) -> dict[str, int]:
        """Number of requests that ended with each error."""
        kinds = [record.error for record in self.records if record.error is not None]
        return {kind: kinds.count(kind) for kind in sorted(set(kinds))}

    def between(self, begin: float, end: float) -> "Run":
        """The requests that were scheduled in a part of the run, such as the part after the warm-up."""
        return replace(self, records=[record for record in self.records if begin <= record.scheduled < end])

    def without_first(self, count: int) -> "Run":
        """The requests after the first `count`."""
        return replace(self, records=self.records[count:])


def write_records(records: Iterable[Record], path: Path) -> None:
    """Write each record as a line of JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(asdict(record))}\n" for record in records))


def read_records(path: Path) -> list[Record]:
    """Read what `write_records` wrote."""
    lines = map(json.loads, path.read_text().splitlines())
    return [Record(**{**line, "gaps": tuple(line["gaps"])}) for line in lines]
