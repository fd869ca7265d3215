"""A snapshot of a server's metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

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

    def select(self, name: str, **labels: str) -> Iterator[Sample]:
        """Return the samples with this name whose labels include the given ones."""
        return (s for s in self.samples if s.name == name and labels.items() <= s.labels.items())

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with this name whose labels include the given ones.

        For example, the sum over all versions of a model. Of several servers, it is the sum over these, too; for a
        metric that cannot be added up, such as a fraction, give `server`.

        Raises:
            KeyError: there is no such sample.
        """
        values = [sample.value for sample in self.select(name, **labels)]
        if not values:
            raise KeyError(f"the server has no metric {name} with the labels {labels}")
        return sum(values)


def parse_metrics(text: str) -> MetricsSnapshot:
    """Read metrics in Prometheus's text format.

    Raises:
        ValueError: a line is not in that format.
    """
    # Without the comments. If a comment says that a metric is a counter, the parser appends `_total` to its name.
    lines = "\n".join(line for line in text.split("\n") if not line.startswith("#"))
    families = text_string_to_metric_families(lines)
    return MetricsSnapshot(tuple(Sample(s.name, s.labels, float(s.value)) for f in families for s in f.samples))


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
