"""The C++ kernels for processors older than this one. The same tests, run as usual, test those for this processor."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inflight.model.cpu.instruction_sets import INSTRUCTION_SETS, instruction_sets

TESTS = [
    Path(__file__).with_name(name)
    for name in (
        "test_cpu_attention.py",
        "test_cpu_kernels.py",
        "test_cpu_tokenwise.py",
        "test_lora_kernel.py",
        "test_packed_experts.py",
        "test_penalties.py",
        "test_recurrent_kernels.py",
        "test_sampler.py",
        "test_weight_rounding.py",
    )
]


@pytest.mark.slow
@pytest.mark.parametrize("name", list(INSTRUCTION_SETS)[1:])
@pytest.mark.usefixtures("cpu_kernels")
def test_the_kernels_for_older_processors_pass_the_same_tests(name: str) -> None:
    if name not in instruction_sets()[1:]:
        pytest.skip("this processor has no newer instruction set, or lacks this one")
    # The tests run in another process, because a process can load only one library of kernels.
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.engine.older_processor", "-k", "not torch or kernels"]
    command += map(str, TESTS)
    run = subprocess.run(
        command, env=os.environ | {"NEWEST": name}, capture_output=True, text=True, timeout=300, check=False
    )
    assert run.returncode == 0, run.stdout + run.stderr
