"""`inflight COMMAND`."""

import signal
import sys

_INTERRUPTED = 130


def main() -> int:
    """Run a command and return the exit status: 1 after an error, 2 for bad arguments, 130 after Ctrl-C."""
    # The imports take up to a second, and there is nothing to tidy up yet. So Ctrl-C ends the process at once; as an
    # exception it would come out of some import, with a traceback. A process in the background may ignore Ctrl-C.
    as_exception = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if as_exception:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from inflight_cli.command_line import run

    if as_exception:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        return run()
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
