"""docs/reference/ says what the code says."""

import pytest

from inflight import metrics
from inflight.metric_families.families import FAMILIES
from scripts.reference_pages import FOLDER, pages


@pytest.mark.parametrize(("name", "text"), pages().items())
def test_the_page_is_that_of_the_code(name: str, text: str) -> None:
    assert (FOLDER / name).read_text() == text, "run: python -m scripts.reference_pages"


def test_names_differ_and_histograms_have_rising_buckets() -> None:
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    for family in FAMILIES:
        assert (family.kind == "histogram") == bool(family.buckets)
        assert sorted(set(family.buckets)) == list(family.buckets)


def test_every_observation_is_shown_once() -> None:
    names = {value for name, value in vars(metrics).items() if name.isupper() and isinstance(value, str)}
    assert sorted(family.observes for family in FAMILIES if family.observes) == sorted(names)
