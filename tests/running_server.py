"""Servers that tests share."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from scripts.launch.triton_server import TritonServer

# Of a model in torch, while another test computes.
READY_SECONDS = 120


@contextmanager
def running_server(
    repository: Path,
    models: Sequence[str],
    arguments: Sequence[str] = (),
    log: Callable[[str], object] | None = None,
) -> Iterator[TritonServer]:
    """A server whose models are ready.

    It is killed at the end: an orderly one takes three seconds, and has tests of its own.
    """
    with TritonServer(repository, arguments=arguments, log=log) as server:
        server.wait_ready(READY_SECONDS, models)
        yield server
        server.kill()
