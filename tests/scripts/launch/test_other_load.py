"""Processor time is attributed to the right processes."""

import os
import subprocess
import sys

import pytest

from scripts.launch import other_load
from scripts.launch.other_load import OtherLoad, own_seconds

# A grandchild process, like a server's stub, that works for a while and then stays.
WORK = "import time\nwhile time.process_time() < 0.3: pass\nprint(flush=True)\ninput()"
START = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {WORK!r}])"
# User and system time of both processes are each reported in whole ticks.
ROUNDED_OFF = 4 / os.sysconf("SC_CLK_TCK")


def test_what_descendants_use_is_our_own() -> None:
    before = own_seconds()
    with subprocess.Popen([sys.executable, "-c", START], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdout.readline()
        running = own_seconds() - before
        child.stdin.write(b"\n")
    assert running >= 0.3 - ROUNDED_OFF
    assert own_seconds() - before >= running - ROUNDED_OFF


@pytest.mark.parametrize(("ours", "busy"), [(3.0, False), (0.0, True)])
def test_only_what_others_use_is_their_share(monkeypatch: pytest.MonkeyPatch, ours: float, busy: bool) -> None:
    all_seconds, own = iter([10.0, 13.0]), iter([5.0, 5.0 + ours])
    monkeypatch.setattr(other_load, "_all_seconds", lambda: next(all_seconds))
    monkeypatch.setattr(other_load, "own_seconds", lambda: next(own))
    assert (OtherLoad().share() > 0.0) == busy
