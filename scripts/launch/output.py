"""What the launcher of a server says on its standard output."""

import contextlib
import sys


def say(*lines: str, end: str = "\n") -> None:
    """Print lines, with escapes for characters that the terminal's encoding lacks. If it is impossible, go on without.

    The terminal may be closed, the reader of a pipe may have ended, and a disk may be full. The caller may have closed
    the output, and then Python has none. The server must not end, nor cut off its requests, because nobody reads its
    log.
    """
    if sys.stdout is None:
        return
    encoding = sys.stdout.encoding or "utf-8"
    text = "\n".join(lines).encode(encoding, "backslashreplace").decode(encoding)
    with contextlib.suppress(OSError):
        print(text, end=end, flush=True)
