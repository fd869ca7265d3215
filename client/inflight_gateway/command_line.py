"""Parse the command line of `inflight-gateway`, and serve."""

import contextlib
import logging
import sys
from collections.abc import Sequence

import uvicorn

from inflight_cli import standard_streams
from inflight_gateway.app import create_app
from inflight_gateway.connections import GatewayServer, TimedConnection, allow_many_connections
from inflight_gateway.memory import give_back_large_blocks
from inflight_gateway.options import make_parser, settings_of

# How long running streams may continue after SIGTERM.
_DRAIN_SECONDS = 30
# Longer than clients and proxies keep a connection without a request, most of them 60 s at most: whoever closes it must
# be the one who would use it next. Otherwise a request that is sent at that moment is lost.
_KEEP_ALIVE_SECONDS = 75


def run(arguments: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM or Ctrl-C, and return the exit status. If it is 1, a line on standard error says why."""
    standard_streams.prepare()
    options = make_parser("OpenAI's API for a model on an Inflight server.").parse_args(arguments)
    try:
        app = create_app(settings_of(options))
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    logging.basicConfig(level=logging.INFO, format="%(levelname)s: %(name)s: %(message)s")
    give_back_large_blocks()
    allow_many_connections()
    config = uvicorn.Config(
        app,
        host=options.host,
        port=options.port,
        http=TimedConnection,
        timeout_graceful_shutdown=_DRAIN_SECONDS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        server_header=False,
    )
    server = GatewayServer(config, app.state.viewers)
    with contextlib.suppress(KeyboardInterrupt):
        server.run()
    return 0 if server.started else 1
