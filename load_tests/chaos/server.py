"""`make serve` with a model that obeys the faults, started again when it ends. It has small disks of its own."""

import asyncio
import os
import sys
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from inflight_client import AsyncClient
from load_tests.chaos import commands
from load_tests.chaos.supervised import Supervised
from scripts.launch.default_model import default_model
from scripts.launch.model_repository import MODEL_REPOSITORY, render_repository
from scripts.launch.server_process import ADDRESS

IDLE_SECONDS = 30.0
_POLL_SECONDS = 0.5
_BUSY = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
_HELD = "inflight:kv_transfer_held_bytes"
_SHM_MIB = 64
"""Size of /dev/shm, which is Docker's default."""
_TRACE_MIB = 64


class Server:
    """One Triton server on loopback, and its processes."""

    def __init__(self, folder: Path, ports: Sequence[int], parameters: Mapping[str, str], log: Path) -> None:
        """`folder` gets the model repository and the small disk `trace`. `parameters` are those of `llm`.

        `ports` are those for HTTP, gRPC and metrics.
        """
        self.http_port, self.grpc_port, self.metrics_port = ports
        self.operator_key = uuid.uuid4().hex
        """Opens Triton's interfaces for operators."""
        self._trace = folder / "trace"
        self._trace.mkdir(parents=True)
        self.repository = _repository(folder / "models", parameters)
        self.pipe = self.repository / "llm" / "1" / commands.PIPE
        environment = {
            **os.environ,
            "HTTP_PORT": str(self.http_port),
            "GRPC_PORT": str(self.grpc_port),
            "METRICS_PORT": str(self.metrics_port),
            "OPERATOR_KEY": self.operator_key,
            "ARGS": "--model-control-mode=explicit --load-model=*",
        }
        self._serve = Supervised(self._on_small_disks(), environment, log)
        self.run = self._serve.run

    def _on_small_disks(self) -> list[str]:
        """The command, with its own small /dev/shm and trace folder, in a mount namespace."""
        script = (
            f"mount -t tmpfs -o size={_SHM_MIB}m tmpfs /dev/shm && "
            f"mount -t tmpfs -o size={_TRACE_MIB}m tmpfs '{self._trace}' && exec \"$@\""
        )
        serve = [sys.executable, "-m", "load_tests.chaos.serve", str(self.repository)]
        return ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", *serve]

    def processes(self) -> dict[int, str]:
        """The commands of all its processes by their ids, orphans included."""
        return self._serve.processes()

    def advertise(self, port: int) -> None:
        """From its next start on, tell other servers to fetch keys and values at this port."""
        self.pipe.with_name(commands.ADVERTISED_PORT).write_text(str(port))

    @property
    def pid(self) -> int:
        """The process id of `make serve`. Raises ProcessLookupError if it is not running."""
        return self._serve.pid

    def triton(self) -> int:
        """The process id of tritonserver. Raises ProcessLookupError if there is none."""
        return self._only(lambda command: command.split()[0].endswith("/tritonserver"))

    def model(self) -> int:
        """The process id of the model `llm`. Raises ProcessLookupError if there is none."""
        return self._only(lambda command: "triton_python_backend_stub" in command and "/llm/1/" in command)

    def completion(self) -> int:
        """The process id of the model `completion`. Raises ProcessLookupError if there is none."""
        return self._only(lambda command: "triton_python_backend_stub" in command and "/completion/1/" in command)

    def guardian(self, model: str) -> int:
        """The process id of the guardian of a model. Raises ProcessLookupError if there is none."""
        return self._only(lambda command: f"serving.guardian_process {model} " in command)

    def ranks(self) -> list[int]:
        """The process ids of the other ranks of a divided model."""
        return self._all(lambda command: "inflight.model.parallel.worker" in command)

    def _only(self, wanted: Callable[[str], bool]) -> int:
        found = self._all(wanted)
        if len(found) != 1:
            raise ProcessLookupError(f"{len(found)} such processes")
        return found[0]

    def _all(self, wanted: Callable[[str], bool]) -> list[int]:
        return [pid for pid, command in self.processes().items() if command and wanted(command)]

    def client(self) -> AsyncClient:
        """A client of this server, which can read its metrics."""
        metrics = f"http://{ADDRESS}:{self.metrics_port}/metrics"
        return AsyncClient(f"{ADDRESS}:{self.grpc_port}", metrics_url=metrics)

    async def becomes_idle(self) -> bool:
        """Wait until the model has no request and holds no block. Return whether that happened in `IDLE_SECONDS`."""
        async with self.client() as client:
            for _ in range(round(IDLE_SECONDS / _POLL_SECONDS)):
                # First, so that the model has updated its metrics since the last request.
                await asyncio.sleep(_POLL_SECONDS)
                metrics = await client.metrics()
                held = sum(sample.value for sample in metrics.select(_HELD))  # Only of servers that transfer.
                if not held and not any(metrics.value(f"inflight:{name}") for name in _BUSY):
                    return True
        return False

    @property
    def shm(self) -> Path:
        """Its /dev/shm."""
        return Path(f"/proc/{self.pid}/root/dev/shm")

    @property
    def trace_disk(self) -> Path:
        """Its folder for the trace."""
        return Path(f"/proc/{self.pid}/root{self._trace}")


def _repository(destination: Path, parameters: Mapping[str, str]) -> Path:
    """The model repository, with `faulty_model` around the model."""
    rendered = render_repository(destination, parameters={"model": str(default_model()), **parameters})
    version = rendered / "llm" / "1"
    version.unlink()
    version.mkdir()
    for entry in (MODEL_REPOSITORY / "llm" / "1").iterdir():
        (version / ("shipped_model.py" if entry.name == "model.py" else entry.name)).symlink_to(entry)
    for name, ours in (("model.py", "faulty_model.py"), ("commands.py", "commands.py")):
        (version / name).symlink_to(Path(__file__).with_name(ours))
    os.mkfifo(version / commands.PIPE)
    return rendered
