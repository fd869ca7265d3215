"""Takes a batch timeline: runs a server with tracing for some seconds under one load."""

import tempfile
import time
from pathlib import Path

from load_tests.capacity.measuring import put_load
from load_tests.capacity.result import LoadKind
from load_tests.capacity.timeline import Timeline, read_timeline
from load_tests.endpoints import grpc_endpoint
from load_tests.workload import Workload
from scripts.launch.served_model import triton_server

_RUN_SECONDS = 8.0
# Length of the window, which is the end of the run. By then the batch and the queue have filled.
_SHOWN_SECONDS = 3.0
# This seed gives prompts that no level of the sweep has sent.
_SEED = 1_000_000


async def take_timeline(model: Path, workload: Workload, kind: LoadKind, load: float) -> Timeline:
    """Start another server with tracing and put a load on it.

    It is not the server that is measured, because tracing takes time. Raises LauncherError if it does not start.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "trace.json")
        with triton_server(model, trace_file=str(path)) as server:
            async with grpc_endpoint(server.grpc_url) as endpoint:
                end = time.time() + _RUN_SECONDS
                await put_load(endpoint, workload, kind, load, _RUN_SECONDS, _SEED)
        return read_timeline(path, load, end - _SHOWN_SECONDS, end)
