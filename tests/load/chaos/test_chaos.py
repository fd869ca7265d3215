"""A short version of `make chaos`, on a real service with the default model."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from load_tests.chaos.__main__ import chaos
from load_tests.chaos.experiment import Outcome
from load_tests.chaos.faults import FAULTS, Fault
from load_tests.chaos.report import broken_promises
from load_tests.chaos.service import Service
from load_tests.chaos.workplace import workplace

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the server gets its own /dev/shm, which needs root")
def test_the_service_comes_back_with_right_answers() -> None:
    fault = next(fault for fault in FAULTS if fault.name == "gateway killed")
    outcomes: dict[Fault, list[Outcome]] = {}
    with workplace(None) as folder:
        asyncio.run(chaos(Service(folder), [fault], 1, 8, outcomes))
    assert broken_promises(outcomes) == []
    # Two of the eight users ask the gateway. Either may be between two requests.
    assert outcomes[fault][0].failed in {1, 2}


def test_an_unknown_fault_is_named() -> None:
    command = [sys.executable, "-m", "load_tests.chaos", "--faults=flood"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "'flood' is none of model process killed," in run.stderr
