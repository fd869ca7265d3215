"""A change of a setting by the tuner."""

from typing import NamedTuple


class Change(NamedTuple):
    """A setting that the tuner changed, and why."""

    setting: str
    """Its name, as in the metrics."""
    before: float
    after: float
    reason: str
