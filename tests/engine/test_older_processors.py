"""The C++ kernels for AVX2, where test_cpu_kernels.py tests those for AVX512."""

import subprocess
import sys
from pathlib import Path

import pytest

from inflight.model.cpu.kernels import INSTRUCTION_SETS, instruction_set

TESTS = Path(__file__).with_name("test_cpu_kernels.py")


@pytest.mark.skipif(instruction_set() in (None, INSTRUCTION_SETS[-1]), reason="this processor has nothing newer")
@pytest.mark.usefixtures("cpu_kernels")
def test_the_kernels_for_older_processors_pass_the_same_tests() -> None:
    # In a process of its own, as a process holds one library of kernels.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.engine.older_processor", str(TESTS)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
