"""Folders of processes that run, and of those that were killed."""

import subprocess
import sys
from pathlib import Path

from scripts.launch.scratch import scratch_folder

_HOLDER = """
import sys
from pathlib import Path
from scripts.launch.scratch import scratch_folder
with scratch_folder(Path(sys.argv[1])) as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    sys.stdin.read()
"""


def test_only_the_folders_of_killed_processes_are_removed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _HOLDER, str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdin is not None
        assert holder.stdout is not None
        theirs = Path(holder.stdout.readline().strip())
        with scratch_folder(tmp_path) as ours:
            assert ours.is_dir()
            assert (theirs / "file").exists()
            holder.kill()
            holder.wait()
        assert not ours.exists()
    assert (theirs / "file").exists()
    with scratch_folder(tmp_path) as ours:
        assert not theirs.exists()
    assert [entry.name for entry in tmp_path.iterdir()] == [".lock"]
