"""A short version of `make chaos`, on a real service with the default model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the server gets its own /dev/shm, which needs root")
def test_the_service_comes_back_with_right_answers() -> None:
    command = [sys.executable, "-m", "load_tests.chaos", "--times=1", "--users=8"]
    run = subprocess.run(
        [*command, "--faults=gateway killed"],
        cwd=ROOT, capture_output=True, text=True, timeout=240, check=False,
    )  # fmt: skip
    assert run.returncode == 0, run.stdout + run.stderr
    assert "every promise was kept" in run.stdout
    assert "| gateway killed | 1 | 2 of 8 |" in run.stdout


def test_an_unknown_fault_is_named() -> None:
    command = [sys.executable, "-m", "load_tests.chaos", "--faults=flood"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 2
    assert "'flood' is none of model process killed," in run.stderr
