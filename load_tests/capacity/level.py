"""What was measured at one load, several times."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from load_tests.arrivals import Floats
from load_tests.capacity.server_metrics import ServerSample, ServerUse, server_use
from load_tests.records import Record, Run
from load_tests.slo import Slo


@dataclass(frozen=True)
class Repeat:
    """One run; what counts of it begins after the warm-up and ends when the last request was sent."""

    run: Run
    """All of it; times are seconds from its start."""
    started: float
    """When that was, in seconds from the start of the sweep."""
    begin: float
    end: float
    server: Sequence[ServerSample]
    """All of the run; empty where the server is none of ours."""

    @property
    def counted(self) -> Run:
        """The requests that were scheduled in the part that counts."""
        return self.run.between(self.begin, self.end)

    @property
    def seconds(self) -> float:
        """How long that part is."""
        return self.end - self.begin

    @property
    def throughput(self) -> float:
        """Output tokens per second that came in the part that counts, whenever their requests were sent."""
        return sum(_tokens_between(record, self.begin, self.end) for record in self.run.records) / self.seconds

    @property
    def request_rate(self) -> float:
        """Requests per second that were sent and answered."""
        return len(self.counted.done) / self.seconds

    @property
    def failed(self) -> float:
        """Share of the requests that were refused or broke off."""
        counted = self.counted
        return 1 - len(counted.done) / len(counted.records) if counted.records else 0.0

    @property
    def ttft(self) -> Floats:
        """Seconds to the first token, of all requests; infinite for those that failed."""
        counted = self.counted
        return np.concatenate([counted.ttft, np.full(len(counted.records) - len(counted.done), np.inf)])

    def goodput(self, slo: Slo) -> float:
        """Requests per second that were answered within an objective."""
        return sum(record.meets(slo) for record in self.counted.records) / self.seconds

    def attainment(self, slo: Slo) -> float:
        """Share of the requests that were answered within an objective."""
        return self.counted.attainment(slo) if self.counted.records else 0.0

    @property
    def use(self) -> ServerUse | None:
        """How busy the server was meanwhile, by its own metrics."""
        return server_use([sample for sample in self.server if self.begin <= sample.at <= self.end])


@dataclass(frozen=True)
class Level:
    """All repeats at one load."""

    load: float
    """Users at once, or requests per second."""
    repeats: Sequence[Repeat]

    def middle(self, measure: Callable[[Repeat], float]) -> float:
        """The median of the repeats."""
        return median(map(measure, self.repeats))

    def spread(self, measure: Callable[[Repeat], float]) -> tuple[float, float]:
        """The lowest and the highest of the repeats."""
        values = list(map(measure, self.repeats))
        return min(values), max(values)

    @property
    def throughput(self) -> float:
        """Output tokens per second."""
        return self.middle(lambda repeat: repeat.throughput)

    @property
    def latency(self) -> float:
        """Seconds from the scheduled time to the last token, the median request's."""
        return self.middle(lambda repeat: percentile(repeat.counted.e2e, 50))

    def keeps(self, slo: Slo) -> bool:
        """Whether in every repeat p95 of TTFT and p99 of the gaps are within an objective, failures being endless."""
        return all(ttft_p95(repeat) <= slo.ttft and itl_p99(repeat) <= slo.itl for repeat in self.repeats)


def ttft_p95(repeat: Repeat) -> float:
    """Seconds to the first token that 95% of the requests stay within."""
    return percentile(repeat.ttft, 95)


def itl_p99(repeat: Repeat) -> float:
    """Seconds between two pieces of an answer that 99% of all gaps stay within; 0 where no answer has two."""
    gaps = repeat.counted.gaps
    return percentile(gaps, 99) if len(gaps) else 0.0


def percentile(values: Floats, percent: float) -> float:
    """The smallest value that so many percent don't exceed; NaN of nothing, so that it is within no objective."""
    return float(np.percentile(values, percent, method="inverted_cdf")) if len(values) else float("nan")


def static_efficiency(repeat: Repeat, batch_size: int) -> float:
    """What share of its slots static batches of the same requests would have filled: the sum of what the answers have,
    over the sum of batch size times longest answer, in the order of sending; NaN of fewer than one batch."""
    outputs = [record.output_tokens for record in repeat.counted.done]
    batches = [outputs[i : i + batch_size] for i in range(0, len(outputs) - batch_size + 1, batch_size)]
    slots = sum(batch_size * max(batch) for batch in batches)
    return sum(map(sum, batches)) / slots if slots else float("nan")


def _tokens_between(record: Record, begin: float, end: float) -> float:
    """Its tokens that came then, where each of its pieces stands for as many tokens."""
    if record.first_token is None:
        return 0.0
    times = record.first_token + np.concatenate([[0.0], np.cumsum(record.gaps)])
    return float(np.mean((begin <= times) & (times < end))) * record.output_tokens
