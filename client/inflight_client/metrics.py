"""A look at a server's metrics."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families


@dataclass(frozen=True, slots=True)
class Sample:
    """One line of the metrics."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class MetricsSnapshot:
    """All metrics at one moment."""

    samples: tuple[Sample, ...]

    def select(self, name: str, **labels: str) -> Iterator[Sample]:
        """The samples of that name whose labels include these."""
        return (s for s in self.samples if s.name == name and labels.items() <= s.labels.items())

    def value(self, name: str, **labels: str) -> float:
        """The sum of the samples of that name whose labels include these, such as those of all versions of a model.

        Raises:
            KeyError: there is none.
        """
        values = [sample.value for sample in self.select(name, **labels)]
        if not values:
            raise KeyError(f"the server has no metric {name} with the labels {labels}")
        return sum(values)


def parse_metrics(text: str) -> MetricsSnapshot:
    """Read Prometheus's text format.

    Raises:
        ValueError: a line is not in that format.
    """
    # Where the parser knows from a comment that a metric is a counter, it appends `_total` to the name.
    lines = "\n".join(line for line in text.split("\n") if not line.startswith("#"))
    families = text_string_to_metric_families(lines)
    return MetricsSnapshot(tuple(Sample(s.name, s.labels, float(s.value)) for f in families for s in f.samples))
