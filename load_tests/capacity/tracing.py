"""Takes a batch timeline: a server that traces, for some seconds at one load."""

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
# The end of the run, when as many run and wait as at that load.
_SHOWN_SECONDS = 3.0
# Prompts that no level of the sweep has sent.
_SEED = 1_000_000


async def take_timeline(model: Path, workload: Workload, kind: LoadKind, load: float) -> Timeline:
    """Start a server of our own with a trace and put a load on it.

    It is not the one that is measured, as tracing takes time. Raises LauncherError where it does not start.
    """
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch, "trace.json")
        with triton_server(model, trace_file=str(path)) as server:
            async with grpc_endpoint(server.grpc_url) as endpoint:
                end = time.time() + _RUN_SECONDS
                await put_load(endpoint, workload, kind, load, _RUN_SECONDS, _SEED)
        return read_timeline(path, load, end - _SHOWN_SECONDS, end)
