"""`inflight COMMAND`."""

import sys

from inflight_cli.imports import importing

_INTERRUPTED = 130


def main() -> int:
    """Run a command and return the exit status: 1 after an error, 2 for bad arguments, 130 after Ctrl-C."""
    with importing("cli"):
        from inflight_cli.command_line import run

    try:
        return run()
    except KeyboardInterrupt:
        return _INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
