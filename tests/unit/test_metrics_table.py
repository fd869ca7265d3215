"""docs/metrics.md says what the code says."""

from pathlib import Path

from inflight import metrics
from inflight.metric_families import FAMILIES
from scripts.metrics_table import metrics_page

PAGE = Path(__file__).parents[2] / "docs/metrics.md"


def test_the_page_is_that_of_the_code() -> None:
    assert PAGE.read_text() == metrics_page(), "run: python -m scripts.metrics_table > docs/metrics.md"


def test_names_differ_and_histograms_have_rising_buckets() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert (family.kind == "histogram") == bool(family.buckets)
        assert sorted(set(family.buckets)) == list(family.buckets)


def test_every_observation_is_shown_once() -> None:
    names = {value for name, value in vars(metrics).items() if name.isupper() and isinstance(value, str)}
    assert sorted(family.observes for family in FAMILIES if family.observes) == sorted(names)
