"""One tritonserver process: it is started on loopback, waited for until ready, and leaves nothing behind when
stopped."""

import contextlib
import http.client
import json
import os
import re
import secrets
import signal
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from scripts.launch.exposure import OPERATOR_HEADER, restrict
from scripts.launch.server_process import ADDRESS, ServerProcess, fill_ports
from scripts.launch.task_limit import check_room_for_tasks
from scripts.launch.triton_runtime import TritonRuntime, triton_runtime

SHARED_MEMORY = Path("/dev/shm")

# `completion` occupies a thread for each request that it has passed on. With the default of 32 threads a burst would
# wait.
_BACKEND_THREADS = 128
# Threads of Triton and its models besides those: 60 when they are ready.
_OTHER_TASKS = 80
# By default glibc's allocator keeps pools of free memory for eight threads per core, and tritonserver has many threads:
# 60 MiB of them after a storm of requests, and half of that with this bound. Throughput stays the same.
_ALLOCATOR = {"MALLOC_ARENA_MAX": "2"}
# A model that does not answer has nothing to finish.
_DRAIN_SECONDS = 2.0
# How long after the beginning of a drain a server may be idle: the model refuses new requests after 3 s, and 5 s later
# its last requests are in the metrics, and its traces were sent.
_IDLE_SECONDS = 8.0
_WAITS_FOR_CONNECTIONS = re.compile(r"Timeout \d+: Found \d+ HTTP service connections")
_WAITS_FOR_MODELS = "Waiting for in-flight requests to complete"
_MODEL = re.compile(r'^nv_inference_pending_request_count\{model="([^"]+)"', re.MULTILINE)
_NUM_REQUESTS = re.compile(
    r'^inflight:num_requests_(?:running|waiting)\{(?:.*,)?model="([^"]+)".*\} (\S+)$', re.MULTILINE
)
# Its requests are also those of `llm`.
_PASSES_ON = "completion"
_FATAL_SIGNAL = re.compile(r"Signal \((4|6|7|8|11)\) received\.")


class TritonServer(ServerProcess):
    """A tritonserver over a model repository, used as a context manager like `ServerProcess`.

    A port of None stands for a free port. `environment` is added to the server's environment.
    """

    name = "tritonserver"
    # An orderly end would refuse all new requests for as long as the running ones take, and the next launcher could not
    # have the ports. The guardians of the models end everything else.
    orphan_signal = signal.SIGKILL

    def __init__(
        self,
        repository: Path,
        *,
        http_port: int | None = None,
        grpc_port: int | None = None,
        metrics_port: int | None = None,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        log: Callable[[str], object] | None = None,
        drain_seconds: int = 30,
        runtime: TritonRuntime | None = None,
    ) -> None:
        http_port, self.grpc_port, self.metrics_port = fill_ports(http_port, grpc_port, metrics_port)
        super().__init__(http_port, log=log, drain_seconds=drain_seconds)
        self.repository = repository
        self._arguments = list(arguments)
        self._environment = dict(environment or {})
        self._runtime = runtime
        # The model reads it, too.
        self.operator_key = os.environ.get("OPERATOR_KEY") or secrets.token_hex(16)
        self._drains_since: float | None = None
        self._held_open: http.client.HTTPConnection | None = None
        # Only this server's shared memory regions have this prefix, so that they can be removed even after a crash.
        self.region_prefix = f"inflight_{os.getpid()}_{uuid.uuid4().hex[:8]}_"

    def _is_last_word(self, line: str) -> bool:
        """Triton names the fatal signal that it has received, and then writes a stack trace, which may hang."""
        return _FATAL_SIGNAL.match(line) is not None

    @property
    def grpc_url(self) -> str:
        """Host and port of the gRPC endpoint, as tritonclient wants them."""
        return f"{ADDRESS}:{self.grpc_port}"

    @property
    def metrics_url(self) -> str:
        """The whole URL of the Prometheus metrics."""
        return f"http://{ADDRESS}:{self.metrics_port}/metrics"

    @property
    def operator_headers(self) -> dict[str, str]:
        """Headers of HTTP requests to the interfaces that `restrict` closes to clients."""
        return {OPERATOR_HEADER: self.operator_key}

    def wait_ready(self, timeout: float, models: Sequence[str] = ()) -> None:
        """Wait until the server and each of `models` are ready. Raises what `wait_for` raises."""
        self.wait_for(["/v2/health/ready", *(f"/v2/models/{model}/ready" for model in models)], timeout)

    def drain(self, model: str) -> bool:
        """Tell a model to take no further requests, if it can be told. Return whether it was told.

        Triton itself takes new requests until it ends, which then wait with those that it lets finish.

        The connection stays open until Triton waits for it. If SIGTERM comes right after a response and no connection
        is open, Triton 24.10 may stop its HTTP threads too early: the request then keeps its model loaded, and the
        server runs until its exit timeout.
        """
        body = json.dumps({"text_input": "", "drain": True, "operator_key": self.operator_key})
        self._held_open = http.client.HTTPConnection(ADDRESS, self.http_port, timeout=_DRAIN_SECONDS)
        with contextlib.suppress(OSError, http.client.HTTPException):
            self._held_open.request("POST", f"/v2/models/{model}/generate", body)
            if self._held_open.getresponse().status == 200:
                self._drains_since = time.monotonic()
                return True
        return False

    def _is_idle(self) -> bool:
        """After SIGTERM Triton waits until all HTTP connections are closed, or until its exit timeout, even if they are
        idle. Clients keep connections open for minutes."""
        if not self._waits_for_connections():
            return False
        if self._held_open is not None:
            self._held_open.close()
        if self._drains_since is None or time.monotonic() < self._drains_since + _IDLE_SECONDS:
            return False
        return self._num_requests() == 0

    def _waits_for_connections(self) -> bool:
        for line in reversed(self.log_tail().splitlines()):
            if _WAITS_FOR_MODELS in line:
                return False
            if _WAITS_FOR_CONNECTIONS.search(line):
                return True
        return False

    def _num_requests(self) -> int | None:
        """The requests of all models in the server. None if the metrics do not tell, as of a user's own model."""
        connection = http.client.HTTPConnection(ADDRESS, self.metrics_port, timeout=_DRAIN_SECONDS)
        with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/metrics")
            metrics = connection.getresponse().read().decode()
            counted = [(model, float(number)) for model, number in _NUM_REQUESTS.findall(metrics)]
            if counted and {*_MODEL.findall(metrics)} <= {_PASSES_ON, *(model for model, _ in counted)}:
                return int(sum(number for _, number in counted))
        return None

    def kill(self) -> None:
        """End the server and its stubs at once and remove their shared memory. Otherwise like `stop`."""
        super().kill()
        if self._held_open is not None:
            self._held_open.close()
        for region in SHARED_MEMORY.glob(f"{self.region_prefix}*"):
            region.unlink(missing_ok=True)

    def _launch(self) -> tuple[list[str], dict[str, str]]:
        """Return the command and its environment. Raises what `triton_runtime()` and `check_room_for_tasks` raise."""
        runtime = self._runtime or triton_runtime()
        if not any("thread-pool-size" in argument for argument in self._arguments):
            # Otherwise Triton 24.10 waits for ever for the threads that it could start.
            num_models = sum(path.is_dir() for path in self.repository.glob("*"))
            check_room_for_tasks(num_models * _BACKEND_THREADS + _OTHER_TASKS)
        command = [
            str(runtime.server),
            f"--model-repository={self.repository}",
            f"--backend-directory={runtime.backends}",
            f"--http-address={ADDRESS}",
            f"--http-port={self.http_port}",
            f"--grpc-address={ADDRESS}",
            f"--grpc-port={self.grpc_port}",
            f"--metrics-address={ADDRESS}",
            f"--metrics-port={self.metrics_port}",
            f"--exit-timeout-secs={self.drain_seconds}",
            f"--backend-config=python,shm-region-prefix-name={self.region_prefix}",
            f"--backend-config=python,thread-pool-size={_BACKEND_THREADS}",
            *restrict(self.operator_key),
            *self._arguments,
        ]
        environment = {"OPERATOR_KEY": self.operator_key, **self._environment}
        return command, {**_ALLOCATOR, **runtime.environment(), **environment}
