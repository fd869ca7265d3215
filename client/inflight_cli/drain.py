"""Let a server finish what it has, and send everything new to other servers: before it is stopped.

The server is asked with the operator's key, the environment variable OPERATOR_KEY of both. Its health checks fail from
now on. The command ends when no request is left, or after the timeout. Nothing but a new start ends the drain.
"""

import argparse
import os
import time

from inflight_cli.errors import CommandError, check_text
from inflight_cli.options import check_one_server, positive
from inflight_client import Client, RetryPolicy

HELP = "let a server finish its requests and take no others"

_POLL_SECONDS = 0.5


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument(
        "--timeout", type=positive, default=30, metavar="SECONDS", help="how long to wait for requests (%(default)s)"
    )


def run(options: argparse.Namespace) -> int:
    """Return 0 when no request is left, and 1 if some are left after the timeout.

    Raises:
        CommandError: there is no key, it is not UTF-8, or the URL names several servers.
    """
    key = os.environ.get("OPERATOR_KEY")
    if not key:
        raise CommandError("OPERATOR_KEY is not set; it must be the environment variable OPERATOR_KEY of the server")
    check_text(key, "OPERATOR_KEY")
    check_one_server(options)
    deadline = time.monotonic() + options.timeout
    with Client(**options.connection, retry=RetryPolicy(attempts=1)) as client:
        while not (state := client.drain(key)).is_complete and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
    print("drained" if state.is_complete else f"after {options.timeout} s, {state.num_unfinished} requests run")
    return 0 if state.is_complete else 1
