"""A look at a server's metrics."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})? (?P<value>\S+)")
_LABEL = re.compile(r'(?P<name>\w+)="(?P<value>(?:[^"\\]|\\.)*)"')


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
    """Read Prometheus's text format."""
    matches = filter(None, map(_SAMPLE.match, text.splitlines()))
    return MetricsSnapshot(
        tuple(
            Sample(
                match["name"],
                {label["name"]: label["value"] for label in _LABEL.finditer(match["labels"] or "")},
                float(match["value"]),
            )
            for match in matches
        )
    )
