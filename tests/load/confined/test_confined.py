"""A limit of memory: the kernel's counts, and a server that stays within it."""

import subprocess
import sys
from pathlib import Path

import pytest

from load_tests.confined.memory_group import memory_group
from scripts.launch.errors import LauncherError

ROOT = Path(__file__).parents[3]
MIB = 2**20


@pytest.fixture(autouse=True)
def _may_limit_memory() -> None:
    try:
        with memory_group(64 * MIB):
            pass
    except LauncherError as error:
        pytest.skip(str(error))


def test_a_process_that_needs_more_is_killed_and_counted() -> None:
    with memory_group(64 * MIB) as group:
        command = group.inside([sys.executable, "-c", f"bytes(range(256)) * {MIB}"])
        run = subprocess.run(command, check=False)
        assert (run.returncode, group.kills()) == (-9, 1)


def test_memory_in_use_is_counted() -> None:
    program = f"held = bytes(range(256)) * {MIB // 16}; print(len(held), flush=True); input()"
    with memory_group(64 * MIB) as group:
        command = group.inside([sys.executable, "-c", program])
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            assert 16 * MIB < group.used_bytes() < 32 * MIB
            process.communicate(b"\n")
        assert group.kills() == 0


def test_processes_that_are_left_are_killed() -> None:
    with memory_group(64 * MIB) as group:
        process = subprocess.Popen(group.inside(["sleep", "60"]))
        while not group.group.words("cgroup.procs"):
            assert process.poll() is None
    assert process.wait(10) == -9
    assert not group.group.folder.exists()


@pytest.mark.slow
def test_a_server_stays_within_a_limit() -> None:
    command = [sys.executable, "-m", "load_tests.confined", "--mib=1536", "--users=2", "--seconds=1", "--loads=long"]
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    assert "every request was answered or refused" in run.stdout
