"""Folders of ranks that were killed are removed, and those of others are not."""

import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from inflight.model.parallel.ranks_folder import RanksFolder

PROGRAM = """
import sys, tempfile
tempfile.tempdir = sys.argv[1]
from inflight.model.parallel.ranks_folder import RanksFolder
folder = RanksFolder()
(folder.path / "store").write_text("a")
print(folder.path, flush=True)
sys.stdin.read()
"""


def test_only_the_folder_of_a_killed_process_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, text=True, **pipes) as process:
        assert process.stdout is not None
        theirs = Path(process.stdout.readline().strip())
        mine = RanksFolder()
        assert {theirs, mine.path} == set(tmp_path.iterdir())
        process.send_signal(signal.SIGKILL)
        process.wait()
        other = RanksFolder()
        assert {mine.path, other.path} == set(tmp_path.iterdir())
    mine.remove()
    other.remove()
    assert list(tmp_path.iterdir()) == []
