"""The memory of a service's processes that the kernel cannot drop."""

import contextlib
from pathlib import Path

from load_tests.chaos.service import Service

_NAMES = {
    "/tritonserver": "tritonserver",
    "/llm/1/model.py": "model",
    "/completion/1/model.py": "completion",
    "guardian_process llm": "guardian of the model",
    "guardian_process completion": "guardian of completion",
    "inflight_gateway": "gateway",
    "load_tests.chaos.serve": "make serve",
}
"""Names of processes in reports, by a part of their commands."""


def name_of(command: str) -> str:
    """Return the name of a process in reports."""
    return next((name for part, name in _NAMES.items() if part in command), command)


def memory_of(service: Service) -> dict[str, int]:
    """Return the bytes of each process, by its name. Shared memory is divided among those that use it."""
    # tritonserver's command names the model repository, but no file in it, so its name is found first.
    return {name_of(command): _bytes_of(pid) for pid, command in service.processes().items() if command}


def _bytes_of(pid: int) -> int:
    """Without pages of files, such as those of programs: which of them are in memory is up to the kernel."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(("Pss_Anon:", "Pss_Shmem:")))
    return 0
