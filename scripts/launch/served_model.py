"""A tritonserver that serves one model with the project's settings, for measurements."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.launch.model_repository import render_repository
from scripts.launch.triton_server import TritonServer

DTYPE = "bfloat16"
DEVICE = "cpu"
READY_SECONDS = 120.0


@contextlib.contextmanager
def triton_server(folder: Path, **settings: str) -> Iterator[TritonServer]:
    """Yield a tritonserver that is ready to serve the model. `settings` are additional model parameters."""
    parameters = {"model": str(folder), "dtype": DTYPE, "device": DEVICE, **settings}
    with tempfile.TemporaryDirectory(prefix="inflight-bench-") as scratch:
        repository = render_repository(Path(scratch) / "models", parameters=parameters)
        with TritonServer(repository, drain_seconds=5) as server:
            server.wait_ready(READY_SECONDS, ["llm"])
            yield server
