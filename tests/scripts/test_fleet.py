"""How `make fleet` ends."""

import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scripts.fleet.fleet import Fleet
from scripts.reference.tiny_models import SERVED, save_model
from tests.eventually import eventually
from tests.processes import children, is_model

START_SECONDS = 120
PROGRAM = """
import pathlib, sys
from scripts.fleet import __main__ as fleet
model = pathlib.Path(sys.argv.pop(1))
fleet.default_model = lambda: model
sys.exit(fleet.main())
"""


def test_a_signal_ends_a_fleet_that_is_starting(tmp_path: Path) -> None:
    save_model(SERVED["llama"].config, tmp_path)
    options = ["--servers=1", "--balancer=none", "--no-prometheus"]
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), *options]
    fleet = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        assert eventually(lambda: _loads_a_model(fleet.pid), START_SECONDS)
        started = psutil.Process(fleet.pid).children(recursive=True)
        fleet.send_signal(signal.SIGTERM)
        output, _ = fleet.communicate(timeout=START_SECONDS)
    finally:
        fleet.kill()
        fleet.wait()
    assert (fleet.returncode, output) == (130, "")
    _, alive = psutil.wait_procs(started, timeout=START_SECONDS)
    assert alive == []


class Ending:
    """A server whose end takes long."""

    def __init__(self, number: int, told: list[str]) -> None:
        self._number, self._told = number, told

    def drain(self, model: str) -> None:
        self._told.append(f"drain {self._number}")

    def stop(self) -> None:
        self._told.append(f"stop {self._number}")
        raise KeyboardInterrupt

    def kill(self) -> None:
        self._told.append(f"kill {self._number}")


def test_a_second_signal_ends_all_servers_at_once(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path, 2, "none", kv_cache_tokens=1024, prometheus=False)
    told: list[str] = []
    fleet.servers = [Ending(number, told) for number in range(2)]  # type: ignore[misc]
    with pytest.raises(KeyboardInterrupt):
        fleet.__exit__(None, None, None)
    assert told == ["drain 0", "drain 1", "stop 0", "kill 0", "kill 1"]


def _loads_a_model(pid: int) -> bool:
    return any(is_model(child, "llm") for server in children(pid) for child in children(server.pid))
