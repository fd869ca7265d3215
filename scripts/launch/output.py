"""What the launcher of a server says on its standard output."""

import contextlib


def say(*lines: str, end: str = "\n") -> None:
    """Print lines. If that is impossible, go on without.

    The terminal may be closed, the reader of a pipe may have ended, and a disk may be full. The server must not end,
    nor cut off its requests, because nobody reads its log.
    """
    with contextlib.suppress(OSError):
        print(*lines, sep="\n", end=end, flush=True)
