"""A snapshot of a server's metrics."""

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import httpx
from prometheus_client.parser import text_string_to_metric_families

from inflight_client.errors import TransportError


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the metrics: a name with its labels, and a value."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """All metrics at one moment."""

    samples: tuple[Sample, ...]
    """Those of several servers have the further label `server`, which is the host and port of the metrics."""
    _by_name: Mapping[str, Sequence[Sample]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[str, list[Sample]] = {}
        for sample in self.samples:
            by_name.setdefault(sample.name, []).append(sample)
        object.__setattr__(self, "_by_name", by_name)

    def select(self, name: str, **labels: str) -> Iterator[Sample]:
        """Return the samples with this name whose labels include the given ones."""
        return (sample for sample in self._by_name.get(name, ()) if labels.items() <= sample.labels.items())

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with this name whose labels include the given ones.

        For example, the sum over all versions and instances of a model. Of several servers, it is the sum over these,
        too. For a metric that cannot be added up, such as a fraction, see `mean`.

        Raises:
            KeyError: there is no such sample.
        """
        return sum(self._values(name, labels))

    def mean(self, name: str, **labels: str) -> float:
        """Return the mean of these samples. Arguments and exceptions are those of `value`."""
        values = self._values(name, labels)
        return sum(values) / len(values)

    def _values(self, name: str, labels: Mapping[str, str]) -> list[float]:
        values = [sample.value for sample in self.select(name, **labels)]
        if not values:
            raise KeyError(f"the server has no metric {name} with the labels {labels}")
        return values


def parse_metrics(text: str) -> MetricsSnapshot:
    """Read metrics in Prometheus's text format.

    Raises:
        ValueError: a line is not in that format.
    """
    # Without the comments. If a comment says that a metric is a counter, the parser appends `_total` to its name.
    lines = (line for line in text.split("\n") if line.strip() and not line.startswith("#"))
    return MetricsSnapshot(tuple(_sample(line) for line in lines))


def _sample(line: str) -> Sample:
    # Labels come first, and may contain any character. A time may follow the value, but no brace.
    end = line.rfind("}") + 1 or line.index(" ")
    name, labels = _series(line[:end])
    value, *_ = line[end:].split()
    return Sample(name, labels, float(value))


@functools.lru_cache(maxsize=4096)
def _series(text: str) -> tuple[str, Mapping[str, str]]:
    """Read a name and its labels. They are the same in each reading, and take nearly all of the time."""
    ((sample,),) = (family.samples for family in text_string_to_metric_families(f"{text} 0"))
    return sample.name, sample.labels


def merge_metrics(snapshots: Mapping[str, MetricsSnapshot | TransportError]) -> MetricsSnapshot:
    """Return the metrics of several servers, given by URL. Those that could not be read are left out.

    Raises:
        TransportError: none could be read.
    """
    read = {url: snapshot for url, snapshot in snapshots.items() if isinstance(snapshot, MetricsSnapshot)}
    if not read:
        raise next(error for error in snapshots.values() if isinstance(error, TransportError))
    if len(snapshots) == 1:
        return next(iter(read.values()))
    return MetricsSnapshot(
        tuple(
            Sample(sample.name, {**sample.labels, "server": httpx.URL(url).netloc.decode()}, sample.value)
            for url, snapshot in read.items()
            for sample in snapshot.samples
        )
    )


def read_response(url: str, response: httpx.Response) -> MetricsSnapshot | TransportError:
    """Return what a server answered to the question for its metrics."""
    try:
        return parse_metrics(response.raise_for_status().text)
    except (httpx.HTTPError, ValueError) as error:
        return TransportError(f"no metrics at {url}: {error}")
