"""The gateway's process does not keep the memory of large bodies."""

import subprocess
import sys

# Prints how many of two blocks come from the system: one before, and one after a larger block was freed.
COUNT = """
import ctypes
from inflight_gateway.memory import give_back_large_blocks

class Numbers(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in "arena ordblks smblks hblks hblkhd a b c d e".split()]

libc = ctypes.CDLL(None)
libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
libc.free.argtypes = [ctypes.c_void_p]
libc.mallinfo2.restype = Numbers
give_back_large_blocks()
begun = libc.mallinfo2().hblks
libc.malloc(2**20)
libc.free(libc.malloc(2**23))
libc.malloc(2**20)
print(libc.mallinfo2().hblks - begun)
"""


def test_large_blocks_come_from_the_system_also_after_one_was_freed() -> None:
    run = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, timeout=60, check=True)
    assert run.stdout == "2\n"
