"""`pip install ./client` installs the programs, but not what they need."""

import subprocess
import sys

import pytest

PROGRAM = """
import sys
sys.modules[sys.argv[2]] = None  # As if it was not installed.
from importlib import import_module
sys.exit(import_module(sys.argv[1] + ".__main__").main())
"""


@pytest.mark.parametrize(
    ("package", "missing", "extra"),
    [
        ("inflight_cli", "tqdm", "cli"),
        ("inflight_gateway", "uvicorn", "gateway"),
        ("inflight_gateway", "fastapi", "gateway"),
    ],
)
def test_a_program_says_which_extra_it_needs(package: str, missing: str, extra: str) -> None:
    command = [sys.executable, "-c", PROGRAM, package, missing]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1
    assert done.stderr == f"error: {missing} is not installed; install inflight-client[{extra}]\n"
