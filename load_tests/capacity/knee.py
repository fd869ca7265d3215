"""Where more load stops to bring more throughput."""

import warnings
from collections.abc import Sequence

import numpy as np
from kneed import KneeLocator

_FEWEST_POINTS = 3
# How far a curve must rise above the line between its ends, both scaled to 0..1; below that it may be noise.
_MIN_BEND = 0.05


def knee(loads: Sequence[float], throughputs: Sequence[float]) -> float | None:
    """The load at the knee of a rising curve, by Kneedle (Satopaa et al., ICDCSW 2011); None where there is none.

    Both are in the order of load. Kneedle wants a curve that never falls, so where overload costs throughput the
    highest so far takes its place. On a curve that bends smoothly, where the knee is depends on how far the curve goes;
    that is in the method.
    """
    if len(loads) < _FEWEST_POINTS:
        return None
    rising = np.maximum.accumulate(throughputs)
    with warnings.catch_warnings():
        # It warns where it finds none, which is an answer.
        warnings.simplefilter("ignore", UserWarning)
        locator = KneeLocator(loads, rising, curve="concave", direction="increasing")
    if locator.knee is None or max(locator.y_difference) < _MIN_BEND:
        return None
    return float(locator.knee)
