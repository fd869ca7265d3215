"""`inflight-gateway`: OpenAI's API for a model on an Inflight server."""

import sys
from collections.abc import Sequence

from inflight_cli.imports import importing


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit status. If it is 1, a line on standard error says why."""
    with importing("gateway"):
        from inflight_gateway.command_line import run

    return run(arguments)


if __name__ == "__main__":
    sys.exit(main())
