"""Fits step times to a trace of a server under load."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from load_tests.arrivals import Floats
from load_tests.simulate.step_cost import StepCost
from load_tests.simulate.trace import read_trace

_FEWEST_STEPS = 50
_REWEIGHTINGS = 5


@dataclass(frozen=True, slots=True)
class Step:
    """A step of a trace."""

    tokens: int
    cached_tokens: int
    pairs: int
    requests: int
    seconds: float
    """Time until the next step began, if there was more to do, or else until the step ended."""


def step_cost(trace: Path) -> StepCost:
    """Step times fitted to a server's `trace_file`, by least squares without negative terms.

    What a server does between two steps, such as sending answers, is part of the first one here.
    `StepCost.of_trace` leaves it out. The trace does not say how many requests sampled a token; all do in a step
    without unfinished prompts, so the term for a sampled token is fitted to the number of requests.

    Raises:
        ValueError: the trace has too few steps.
    """
    steps = list(read_steps(read_trace(trace)))
    if len(steps) < _FEWEST_STEPS:
        raise ValueError(f"{trace} holds {len(steps)} steps; a fit needs at least {_FEWEST_STEPS}")
    terms = np.array([(1.0, s.tokens, s.cached_tokens, s.pairs, s.requests) for s in steps])
    per_step, per_token, per_cached, per_pair, per_sampled = _fit(terms, np.array([s.seconds for s in steps])).tolist()
    return StepCost(per_step, per_token, per_cached, per_pair, per_sampled)


def read_steps(events: list[dict[str, Any]]) -> Iterator[Step]:
    """The steps of a trace that did not fail, without the last one, whose successor is not known."""
    found: list[tuple[dict[str, Any], bool]] = []
    for event in events:
        if event.get("name") in ("step", "failed step"):
            found.append((event, False))
        elif event.get("name") == "requests" and found:
            found[-1] = (found[-1][0], event["args"]["running"] + event["args"]["waiting"] > 0)
    for (step, goes_on), (following, _) in pairwise(found):
        if step["name"] != "step":
            continue
        args = step["args"]
        until = following["ts"] if goes_on else step["ts"] + step["dur"]
        yield Step(
            tokens=args["tokens"] + args["padding_tokens"],
            cached_tokens=args["cached_tokens"],
            pairs=args["attention_pairs"],
            requests=len(args["requests"]),
            seconds=(until - step["ts"]) / 1e6,
        )


def _fit(terms: Floats, seconds: Floats) -> Floats:
    """Coefficients for `terms`, shape [steps, terms], none of which is negative, shape [terms].

    The error of a step is taken to grow with its length, as in a gamma regression with identity link: otherwise a few
    long steps that other work disturbed would decide everything.
    """
    expected = np.ones_like(seconds)
    for _ in range(_REWEIGHTINGS):
        found = _non_negative(terms / expected[:, None], seconds / expected)
        expected = np.maximum(terms @ found, seconds.min())
    return found


def _non_negative(terms: Floats, values: Floats) -> Floats:
    """Least squares. The term whose coefficient is most negative is left out until none is."""
    scale = np.abs(terms).max(axis=0) + 1e-12
    used = list(range(terms.shape[1]))
    found, *_ = np.linalg.lstsq(terms / scale, values, rcond=None)
    while found.min() < 0:
        used.pop(int(found.argmin()))
        found, *_ = np.linalg.lstsq(terms[:, used] / scale[used], values, rcond=None)
    coefficients = np.zeros(terms.shape[1])
    coefficients[used] = found / scale[used]
    return coefficients
