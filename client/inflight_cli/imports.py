"""How a program imports its packages."""

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def importing(extra: str) -> Iterator[None]:
    """Import the packages of an extra of inflight-client. Neither Ctrl-C nor a missing package shows a traceback.

    Imports take up to a second, and there is nothing to tidy up yet, so Ctrl-C ends the process at once. As an
    exception, it would come out of one of them. A process in the background that ignores Ctrl-C goes on to do so.

    Raises:
        SystemExit: a package is not installed. pip installs the program without its extra, too.
    """
    as_exception = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if as_exception:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        yield
    except ModuleNotFoundError as error:
        sys.exit(f"error: {error.name} is not installed; install inflight-client[{extra}]")
    if as_exception:
        signal.signal(signal.SIGINT, signal.default_int_handler)
