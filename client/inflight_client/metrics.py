"""A snapshot of a server's metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


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

    def select(self, name: str, **labels: str) -> Iterator[Sample]:
        """Return the samples with this name whose labels include the given ones."""
        return (s for s in self.samples if s.name == name and labels.items() <= s.labels.items())

    def value(self, name: str, **labels: str) -> float:
        """Return the sum of the samples with this name whose labels include the given ones.

        For example, the sum over all versions of a model.

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
