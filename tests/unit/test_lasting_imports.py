"""What is imported for good costs no search for garbage."""

import subprocess
import sys

PROGRAM = """
import atexit
import gc
from inflight.lasting_imports import lasting_imports

# What is registered first is called last.
atexit.register(lambda: print("frozen at the end:", gc.get_freeze_count()))
frozen = gc.get_freeze_count()
try:
    with lasting_imports():
        assert not gc.isenabled()
        made = [[number] for number in range(1000)]
        raise ImportError
except ImportError:
    pass
assert gc.isenabled()
assert gc.get_freeze_count() >= frozen + 1000
gc.disable()
with lasting_imports():
    pass
assert not gc.isenabled(), "whoever has turned it off wants it so"
assert gc.get_freeze_count() > 0
"""


def test_garbage_is_looked_for_again_afterwards() -> None:
    """In a process of its own: nothing that is frozen is freed."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "frozen at the end: 0\n"
