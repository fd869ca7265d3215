"""Unions of time intervals."""

import numpy as np

from load_tests.arrivals import Floats


def covered_seconds(begins: Floats, ends: Floats) -> float:
    """Length of the union of the intervals from `begins` to `ends`, both of shape [intervals]. 0 if there are none."""
    if not len(begins):
        return 0.0
    order = np.argsort(begins)
    begins, reached = begins[order], np.maximum.accumulate(ends[order])
    gaps = np.maximum(begins[1:] - reached[:-1], 0.0)
    return float(reached[-1] - begins[0] - gaps.sum())
