"""Workloads as YAML files: which requests arrive, how often, and how soon the answers are due."""

import heapq
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import count
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import numpy as np
import yaml
from pydantic import Discriminator, Field, NonNegativeInt, PositiveFloat, Tag, ValidationError
from pydantic_core import ErrorDetails

from load_tests.prompts import PlannedRequest
from load_tests.slo import Slo
from load_tests.workload_fields import Strict
from load_tests.workload_streams import DrawnStream, ReplayedStream

WORKLOADS = Path(__file__).parent / "workloads"
"""The folder of the project's workload files."""
BLOCK_REQUESTS = 1_000
"""The requests of a closed loop are drawn in blocks of about so many."""


def _stream_form(value: Any) -> str:
    replayed = isinstance(value, ReplayedStream) or (isinstance(value, dict) and "replay" in value)
    return "replayed" if replayed else "drawn"


_StreamField: TypeAlias = Annotated[
    Annotated[DrawnStream, Tag("drawn")] | Annotated[ReplayedStream, Tag("replayed")], Discriminator(_stream_form)
]


def part_seed(seed: int, part: int) -> int:
    """The seed of a part of a run. Runs of any two seeds, such as 1 and 2, have no part in common."""
    return int(np.random.default_rng([seed, part]).integers(2**62))


class WorkloadError(ValueError):
    """A workload file is not valid. The message names the file and each error in it."""


class Objective(Strict):
    """Latency limits for a request, in seconds."""

    ttft: PositiveFloat
    itl: PositiveFloat


class WorkloadFile(Strict):
    """The content of a workload file."""

    about: Annotated[str, Field(min_length=1)]
    seed: NonNegativeInt
    slo: Objective
    streams: Annotated[dict[str, _StreamField], Field(min_length=1)]


class Workload:
    """Requests of several streams. The same seed gives the same requests."""

    def __init__(self, name: str, file: WorkloadFile) -> None:
        self.name = name
        self.about = file.about
        self.slo = Slo(file.slo.ttft, file.slo.itl)
        self.text: Sequence[int] = ()
        """Token ids of a long text, from which prompts are cut. Empty: they consist of random ids."""
        self._seed = file.seed
        self._streams = file.streams

    @property
    def rate(self) -> float:
        """Requests per second of all streams together, as the file sets them."""
        return sum(stream.rate for stream in self._streams.values())

    @property
    def bursty(self) -> bool:
        """Whether the file says that requests of some stream cluster."""
        return any(
            isinstance(stream, DrawnStream) and stream.arrivals.process != "poisson"
            for stream in self._streams.values()
        )

    def arrivals(self, rate: float, seconds: float, seed: int = 0, block: int = 0) -> list[PlannedRequest]:
        """The requests of an open loop, ordered by their times from 0 to `seconds`.

        The rates of all streams are scaled by the same factor, so that `rate` requests arrive per second. Another
        `seed` gives other requests of the same kinds, whose prompts no server has seen. A replayed trace begins after
        `block` times `seconds`.
        """
        streams = [self._planned(name, rate / self.rate, seconds, seed, block) for name in self._streams]
        return list(heapq.merge(*streams, key=lambda request: request.at))

    def requests(self, seed: int = 0, block: int = 0) -> Iterator[PlannedRequest]:
        """An endless sequence of requests for a closed loop, in the order in which an open loop would send them.

        A replayed trace begins after `block` times `BLOCK_REQUESTS`, or so, of all requests.
        """
        chance = np.random.default_rng(seed)
        for number in count(block):
            yield from self.arrivals(self.rate, BLOCK_REQUESTS / self.rate, int(chance.integers(2**62)), number)

    def _planned(self, name: str, speed: float, seconds: float, seed: int, block: int) -> list[PlannedRequest]:
        chance = np.random.default_rng([self._seed, seed, zlib.crc32(name.encode())])
        stream = self._streams[name]
        arrivals = stream.draw(stream.rate * speed, seconds, int(chance.integers(2**62)), block)
        seeds = chance.integers(2**62, size=len(arrivals)).tolist()
        same: dict[str, Any] = {
            "kind": name,
            "temperature": stream.temperature,
            "top_p": stream.top_p,
            "passage_tokens": stream.passage_tokens if isinstance(stream, DrawnStream) else 0,
            "text": self.text,
        }
        return [
            PlannedRequest(**asdict(arrival), **same, seed=own) for arrival, own in zip(arrivals, seeds, strict=True)
        ]


def read_workload(path: Path) -> Workload:
    """Read a workload file. The workload's name is the file's name without the suffix.

    Raises:
        WorkloadError: the file is not valid YAML, or a field is unknown, missing or out of bounds.
        OSError: the file can't be read.
    """
    try:
        document = yaml.safe_load(path.read_text())
        file = WorkloadFile.model_validate(document, context=path.parent)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise WorkloadError(f"{path} is not valid YAML: {error}") from error
    except ValidationError as error:
        raise WorkloadError("\n".join(f"{path}: {_explain(one, document)}" for one in error.errors())) from error
    return Workload(path.stem, file)


def _explain(error: ErrorDetails, document: Any) -> str:
    field = _field(error, document)
    match error["type"]:
        case "missing":
            return f"{field} is missing"
        case "extra_forbidden":
            return f"{field} is not a known field"
        case "value_error":
            return f"{field}: {error['ctx']['error']}"
    return f"{field} is {error['input']!r}: {error['msg']}"


def _field(error: ErrorDetails, document: Any) -> str:
    """The keys that lead to the error. pydantic also names the variant that it chose for a value; that part is left
    out."""
    keys = []
    for key in error["loc"]:
        known = key in document if isinstance(document, dict) else isinstance(key, int)
        if known or (error["type"] == "missing" and key == error["loc"][-1]):
            keys.append(str(key))
            document = document[key] if known else None
    return ".".join(keys) or "the file"
