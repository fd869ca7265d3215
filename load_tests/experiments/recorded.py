"""Parts of recorded traces as loads of experiments."""

import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from load_tests.experiments.stage import Stage
from load_tests.traffic import Arrival, replay

FILES = {"azure chat": "AzureLLMInferenceTrace_conv.csv", "azure code": "AzureLLMInferenceTrace_code.csv"}
_GOLDEN_RATIO = 0.6180339887498949


def recorded(
    stage: Stage, service: str, count: int, load: float, seed: int, *, num_seqs: float, max_tokens: int
) -> list[Arrival]:
    """A part of a trace, `count` requests long, at such a speed that it is a given fraction of the machine's capacity.

    Each seed has another part; their begins are spread evenly over the trace. Gaps keep their proportions.

    Args:
        stage: the machine, and where the traces are.
        service: a key of `FILES`.
        count: number of requests.
        load: the fraction.
        seed: number of the part.
        num_seqs: how many requests may run at once.
        max_tokens: the limit that every request sets.

    Raises:
        ValueError: the trace is too short, or what `replay` raises.
        OSError: the trace can't be read.
    """
    assert stage.traces is not None
    path = stage.traces / FILES[service]
    trace = _read(path)
    if len(trace) < count:
        raise ValueError(f"{path} has {len(trace)} requests; the experiment needs {count}")
    first = round((seed * _GOLDEN_RATIO % 1) * (len(trace) - count))
    part = trace[first : first + count]
    prompt, output = np.mean([(arrival.prompt_tokens, arrival.output_tokens) for arrival in part], axis=0).tolist()
    seconds = (len(part) - 1) / (load * stage.cost.capacity(prompt, output, num_seqs))
    begin, speed = part[0].at, (part[-1].at - part[0].at) / seconds
    return [replace(arrival, at=(arrival.at - begin) / speed, max_tokens=max_tokens) for arrival in part]


@cache
def _read(path: Path) -> Sequence[Arrival]:
    return replay(path, sys.maxsize)
