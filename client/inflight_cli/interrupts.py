"""What Ctrl-C does while a program still imports its packages."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process at once, without a traceback.

    Imports take up to a second, and there is nothing to tidy up yet. As an exception, Ctrl-C would come out of one of
    them. A process in the background that ignores Ctrl-C goes on to do so.
    """
    as_exception = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if as_exception:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    yield
    if as_exception:
        signal.signal(signal.SIGINT, signal.default_int_handler)
