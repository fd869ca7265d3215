"""Settings of the allocator of glibc, the C library of most Linux systems."""

import ctypes

_M_MMAP_THRESHOLD = -3
_THRESHOLD_BYTES = 128 * 1024


def give_back_large_blocks() -> None:
    """Make the allocator return the memory of large bodies to the system as soon as they are freed.

    By default it changes its mind when a large block is freed: from then on it takes large blocks from the heap, too.
    Small blocks between them keep the heap from shrinking, so that the process grows with the bodies that clients send.
    This does nothing where the C library is another one.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _THRESHOLD_BYTES)
