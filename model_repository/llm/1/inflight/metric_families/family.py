"""What a metric is, and short ways to describe one."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from inflight import metrics
from inflight.stats import EngineStats

COUNTER = "counter"
GAUGE = "gauge"
HISTOGRAM = "histogram"

COMMON_LABELS = ("model", "version", "instance")
"""Labels of every metric: name and version of the model, and the name of Triton's model instance."""


@dataclass(frozen=True)
class Family:
    """Metrics with the same name, which differ in at most one label besides the common ones."""

    name: str
    kind: str
    help: str
    label: str | None = None
    """The label whose values are the keys of what `read` returns."""
    read: Callable[[EngineStats], Mapping[str, float]] | None = None
    """Returns the current numbers by the value of the label, or by the empty string if there is no label. Counters that
    the server itself keeps have no `read`."""
    observes: str | None = None
    """Name of the observations of a histogram. Triton's histogram counts them unless the engine does."""
    buckets: tuple[float, ...] = ()
    is_live: bool = False
    """Whether routers read it, which need it fresh: it is updated ten times a second, and the others twice."""


def value(name: str, kind: str, help: str, read: Callable[[EngineStats], float]) -> Family:
    """Return a metric that is one number."""
    return Family(name, kind, help, read=lambda stats: {"": read(stats)})


def live(name: str, help: str, read: Callable[[EngineStats], float]) -> Family:
    """Return a gauge that routers read."""
    return replace(value(name, GAUGE, help, read), is_live=True)


def histogram(name: str, observes: str, buckets: tuple[float, ...], help: str) -> Family:
    """Return a histogram that Triton fills."""
    return Family(name, HISTOGRAM, help, observes=observes, buckets=buckets)


def filled(name: str, observes: str, help: str) -> Family:
    """Return a histogram that the engine fills. It has the buckets."""
    return histogram(name, observes, metrics.FILLED_BOUNDS[observes], help)
