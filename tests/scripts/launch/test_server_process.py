"""A server that is paused, one that leaves its memory to a helper, and how many files one may open."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from scripts.launch.command_process import CommandProcess
from tests.eventually import eventually

LAUNCHER = """
import os, time
from scripts.launch.command_process import CommandProcess

server = CommandProcess("a server", ["sleep", "600"], dict(os.environ), port=1)
server.start()
server.pause()
server.resume()
server.pause()
print(server.pid, flush=True)
time.sleep(600)
"""


def test_a_paused_server_ends_with_a_launcher_that_is_killed() -> None:
    """Otherwise it would keep its memory for ever."""
    command = [sys.executable, "-c", LAUNCHER]
    with subprocess.Popen(command, cwd=Path(__file__).parents[3], stdout=subprocess.PIPE, text=True) as launcher:
        assert launcher.stdout is not None
        server = psutil.Process(int(launcher.stdout.readline()))
        assert eventually(lambda: server.status() == psutil.STATUS_STOPPED)
        launcher.kill()
    try:
        assert eventually(lambda: has_ended(server))
    finally:
        if not has_ended(server):
            server.kill()


def has_ended(process: psutil.Process) -> bool:
    """Whether it is gone, or waits for its parent to read its status."""
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.mark.parametrize("end", ["resume", "kill"])
def test_nothing_watches_a_server_that_is_paused_no_more(end: str) -> None:
    before = {child.pid for child in psutil.Process().children()}
    server = CommandProcess("a server", ["sleep", "600"], dict(os.environ), port=1)
    server.start()
    try:
        server.pause()
        assert len({child.pid for child in psutil.Process().children()} - before) == 2
        getattr(server, end)()
        left = {child.pid for child in psutil.Process().children()} - before
        assert len(left) == (1 if end == "resume" else 0)
    finally:
        server.kill()


SHARER = """
import os, signal
from multiprocessing.shared_memory import SharedMemory

memory = SharedMemory(create=True, size=1)
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
print(memory.name, flush=True)
signal.pause()
"""


def test_what_a_server_shares_is_removed_after_its_end() -> None:
    """Python has a process for that, which goes to work once the others have ended."""
    server = CommandProcess("a server", [sys.executable, "-c", SHARER], dict(os.environ), port=1)
    server.start()
    assert eventually(lambda: bool(server.log_tail()))
    memory = Path("/dev/shm", server.log_tail())
    assert memory.exists()
    server.stop()
    assert not memory.exists()


def test_a_server_may_open_as_many_files_as_the_system_permits() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard - 1, hard))
    try:
        server = CommandProcess("a server", ["sleep", "600"], dict(os.environ), port=1)
        server.start()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    try:
        process = psutil.Process(server.pid)
        assert eventually(lambda: process.rlimit(psutil.RLIMIT_NOFILE) == (hard, hard))
    finally:
        server.kill()
