"""Finds the load from which on more load brings hardly any more throughput."""

import warnings
from collections.abc import Sequence

import numpy as np
from kneed import KneeLocator

_FEWEST_POINTS = 3
# How far the curve must rise above the line between its ends, with both axes scaled to 0..1. A smaller bend may be
# noise.
_MIN_BEND = 0.05
# By how much the throughput must rise above that of the lowest load. A smaller rise may be the noise of a server that
# the lowest load fills.
_MIN_RISE = 0.05


def knee(loads: Sequence[float], throughputs: Sequence[float]) -> float | None:
    """The load at the knee of a rising curve, by Kneedle (Satopaa et al., ICDCSW 2011), or None if there is none.

    Both sequences are in the order of load. Kneedle needs a curve that never falls. Where overload lowers the
    throughput, the highest throughput so far is used instead. If a curve bends smoothly, the position of the knee
    depends on where the curve ends. This is a property of the method.
    """
    if len(loads) < _FEWEST_POINTS:
        return None
    rising = np.maximum.accumulate(throughputs)
    if rising[-1] <= rising[0] * (1 + _MIN_RISE):
        return None
    with warnings.catch_warnings():
        # Kneedle warns if it finds no knee, but that is a valid result here.
        warnings.simplefilter("ignore", UserWarning)
        locator = KneeLocator(loads, rising, curve="concave", direction="increasing")
    if locator.knee is None or max(locator.y_difference) < _MIN_BEND:
        return None
    return float(locator.knee)
