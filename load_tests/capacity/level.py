"""The measurements at one load, taken in several repeats."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from load_tests.arrivals import Floats
from load_tests.capacity.server_metrics import ServerSample, ServerUse, server_use
from load_tests.records import UNFINISHED, Record, Run
from load_tests.slo import Slo


@dataclass(frozen=True)
class Repeat:
    """One run. Its measured part begins after the warm-up and ends when the last request was sent."""

    run: Run
    """All requests of the run. Times are seconds from its start."""
    started: float
    """Start of the run, in seconds from the start of the sweep."""
    begin: float
    end: float
    server: Sequence[ServerSample]
    """Samples from the whole run. Empty if the server is not an Inflight server."""

    @property
    def counted(self) -> Run:
        """The requests that were scheduled in the measured part, and earlier ones that still waited for their first
        token, or their end, when it was over.

        Without these, users who get no answer at all would not count: they send nothing in the measured part.
        """
        waiting = [record for record in self.run.records if record.scheduled < self.begin and self._waits(record)]
        return Run([*waiting, *self._sent.records], self.run.generator_busy)

    def _waits(self, record: Record) -> bool:
        """Whether a request had no token at the end of the measured part, or was never answered completely."""
        late = record.first_token is not None and record.first_token >= self.end
        return late or record.error == UNFINISHED

    @property
    def _sent(self) -> Run:
        return self.run.between(self.begin, self.end)

    @property
    def seconds(self) -> float:
        """Length of the measured part."""
        return self.end - self.begin

    @property
    def throughput(self) -> float:
        """Output tokens per second that arrived in the measured part, also those of requests that were sent earlier."""
        return sum(record.tokens_between(self.begin, self.end) for record in self.run.records) / self.seconds

    @property
    def request_rate(self) -> float:
        """Requests per second that were sent in the measured part and answered."""
        return len(self._sent.done) / self.seconds

    @property
    def failed(self) -> float:
        """Fraction of the counted requests that were refused or ended with an error. If none is counted, for example
        because all users had failed before, it is that of the whole run."""
        run = self.counted if self.counted.records else self.run
        return 1 - len(run.done) / len(run.records) if run.records else 0.0

    @property
    def ttft(self) -> Floats:
        """Seconds to the first token of every request. It is infinite for failed requests."""
        return self.counted.with_failed(self.counted.ttft)

    @property
    def e2e(self) -> Floats:
        """Seconds to the last token of every request. It is infinite for failed requests."""
        return self.counted.with_failed(self.counted.e2e)

    def goodput(self, slo: Slo) -> float:
        """Requests per second that were sent in the measured part and answered within an objective."""
        return sum(record.meets(slo) for record in self._sent.records) / self.seconds

    def attainment(self, slo: Slo) -> float:
        """Fraction of the requests that were answered within an objective."""
        return self.counted.attainment(slo) if self.counted.records else 0.0

    @property
    def use(self) -> ServerUse | None:
        """How busy the server was in the measured part, from its own metrics."""
        return server_use([sample for sample in self.server if self.begin <= sample.at <= self.end])


@dataclass(frozen=True)
class Level:
    """All repeats at one load."""

    load: float
    """Concurrent users, or requests per second."""
    repeats: Sequence[Repeat]

    def middle(self, measure: Callable[[Repeat], float]) -> float:
        """The median of the repeats. NaN if the measure is defined in none."""
        values = self._defined(measure)
        return median(values) if values else float("nan")

    def spread(self, measure: Callable[[Repeat], float]) -> tuple[float, float]:
        """The lowest and the highest of the repeats. NaN if the measure is defined in none."""
        values = self._defined(measure) or [float("nan")]
        return min(values), max(values)

    def _defined(self, measure: Callable[[Repeat], float]) -> list[float]:
        # A run in which nothing was counted has no percentiles, and NaN has no place in an order.
        return [value for value in map(measure, self.repeats) if not math.isnan(value)]

    @property
    def throughput(self) -> float:
        """Output tokens per second."""
        return self.middle(lambda repeat: repeat.throughput)

    @property
    def latency(self) -> float:
        """Seconds from the scheduled time to the last token, for the median request. A failed request counts as
        infinite."""
        return self.middle(lambda repeat: percentile(repeat.e2e, 50))

    def keeps(self, slo: Slo) -> bool:
        """Whether p95 of TTFT and p99 of the gaps are within an objective in every repeat. A failed request counts as
        infinite. A request's own target for TTFT replaces the objective's."""
        return all(ttft_share_p95(repeat, slo) <= 1 and itl_p99(repeat) <= slo.itl for repeat in self.repeats)


def load_text(load: float, digits: int = 3) -> str:
    """A load with so many significant digits, and never without the digits of its whole part."""
    return f"{load:.0f}" if load >= 10 ** (digits - 1) else f"{load:.{digits}g}"


def ttft_p95(repeat: Repeat) -> float:
    """95th percentile of the time to first token, in seconds."""
    return percentile(repeat.ttft, 95)


def ttft_share_p95(repeat: Repeat, slo: Slo) -> float:
    """95th percentile of the time to first token over its target. 1 or less: 95 % of the requests met their targets."""
    return percentile(repeat.counted.ttft_shares(slo), 95)


def itl_p99(repeat: Repeat) -> float:
    """99th percentile of the gaps between two pieces of an answer, in seconds. 0 if no answer has two pieces."""
    gaps = repeat.counted.gaps
    return percentile(gaps, 99) if len(gaps) else 0.0


def percentile(values: Floats, percent: float) -> float:
    """The smallest value that at least `percent` % of the values don't exceed. NaN for no values, so no objective is
    kept."""
    return float(np.percentile(values, percent, method="inverted_cdf")) if len(values) else float("nan")


def static_efficiency(repeat: Repeat, batch_size: int) -> float:
    """Fraction of the slots that static batches of the same requests would have filled.

    It is the sum of the output lengths over the sum of batch size times longest output, with batches formed in the
    order of sending. NaN if there are fewer requests than one batch.
    """
    outputs = [record.output_tokens for record in repeat.counted.done]
    batches = [outputs[i : i + batch_size] for i in range(0, len(outputs) - batch_size + 1, batch_size)]
    slots = sum(batch_size * max(batch) for batch in batches)
    return sum(map(sum, batches)) / slots if slots else float("nan")
