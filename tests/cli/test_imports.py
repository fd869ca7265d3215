"""Ctrl-C while a program still imports its packages."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import CLIENT, SECONDS


@pytest.mark.parametrize(
    ("arguments", "package"), [(["inflight_cli", "generate", "x"], "tqdm"), (["inflight_gateway"], "uvicorn")]
)
def test_ctrl_c_while_packages_are_loaded(tmp_path: Path, arguments: list[str], package: str) -> None:
    (tmp_path / f"{package}.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n")
    done = subprocess.run(
        [sys.executable, "-m", *arguments],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{CLIENT}"},
        capture_output=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, b"", b"")
