"""A short version of `make storm`, on a real service with the default model."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="the server gets its own /dev/shm, which needs root")
def test_no_answer_is_wrong_and_none_is_missing() -> None:
    command = [sys.executable, "-m", "load_tests.storm", "--requests=100", "--users=32"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert re.search(r"^\| \*\*all\*\* \| 100 \| \d+ \| \d+ \| \d+ \| \d+ \| 0 \| 0 \|$", run.stdout, re.MULTILINE), (
        run.stdout
    )
    # After so few requests memory still grows: pools and caches are not full yet.
    broken = [line for line in run.stdout.splitlines() if line.startswith(("the memory of", "every promise"))]
    assert run.stdout.splitlines()[-len(broken) :] == broken, run.stdout + run.stderr


def test_too_few_requests_are_refused() -> None:
    command = [sys.executable, "-m", "load_tests.storm", "--requests=9"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert (run.returncode, run.stderr) == (1, "error: --requests is 9; it must be at least 10\n")
