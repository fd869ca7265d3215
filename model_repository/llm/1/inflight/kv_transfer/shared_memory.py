"""Memory that goes from one process to another as an open file. It has no name, so that nothing is left behind.

Both sides read and write it as a file: copying from or to a mapping takes a page fault for each page, which can take
longer than the copy.
"""

import os

import numpy as np
from numpy.typing import NDArray


def shared_copy(data: NDArray[np.uint8]) -> int:
    """Return a file descriptor of memory with a copy of `data` [bytes]. The kernel frees it when nobody has it open.

    Raises:
        OSError: there is too little memory, or there are too many open files.
    """
    fd = os.memfd_create("inflight-kv", os.MFD_CLOEXEC)
    try:
        done = 0
        while done < len(data):
            done += os.pwrite(fd, data[done:].data, done)
    except BaseException:
        os.close(fd)
        raise
    return fd


def read_shared(fd: int, num_bytes: int) -> NDArray[np.uint8]:
    """Return what another process has shared, [num_bytes], and close the descriptor.

    Raises:
        ValueError: it has another size.
    """
    try:
        if os.fstat(fd).st_size != num_bytes:
            raise ValueError(f"the shared memory has {os.fstat(fd).st_size} bytes; it must have {num_bytes}")
        found = np.empty(num_bytes, dtype=np.uint8)
        done = 0
        while done < num_bytes:
            if not (count := os.preadv(fd, [found[done:].data], done)):
                raise ValueError(f"the shared memory ends after {done} of {num_bytes} bytes")
            done += count
        return found
    finally:
        os.close(fd)
