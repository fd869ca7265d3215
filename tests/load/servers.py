"""Real servers for the tests of load generators."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from scripts.launch.model_repository import render_repository
from scripts.launch.triton_server import TritonServer
from tests.client.conftest import COMPLETION, ECHO
from tests.running_server import running_server

METRONOME = Path(__file__).parents[2] / "load_tests" / "metronome"


@contextmanager
def echo_server(folder: Path) -> Iterator[TritonServer]:
    """A model whose answers have at most as many tokens as the prompt, with `completion` in front of it."""
    (folder / "llm").symlink_to(ECHO)
    (folder / "completion").symlink_to(COMPLETION)
    with running_server(folder, ["llm", "completion"]) as server:
        yield server


@contextmanager
def metronome_server(folder: Path, *, first_ms: int, gap_ms: int) -> Iterator[TritonServer]:
    """A model that sends tokens at known times, however many requests there are. See `sent_times`."""
    times_file = str(folder / "times.jsonl")
    parameters = {"first_ms": str(first_ms), "gap_ms": str(gap_ms), "times_file": times_file}
    repository = render_repository(folder / "models", parameters=parameters, source=METRONOME)
    with running_server(repository, ["llm"]) as server:
        yield server


def sent_times(server: TritonServer, since: float) -> list[list[float]]:
    """Times at which a metronome sent the tokens of each answer, by `time.monotonic`, for the answers begun after
    `since`."""
    answers = map(json.loads, (server.repository.parent / "times.jsonl").read_text().splitlines())
    return sorted(times for times in answers if times[0] > since)
