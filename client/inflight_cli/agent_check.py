"""Tell HAProxy how much a server can take, in HAProxy's agent protocol: run it beside each server.

Whoever connects gets one line. The weight is the free share of the KV cache, so a server whose cache is full gets few
requests. A server that drains or does not answer gets none.
"""

import argparse
import asyncio
import contextlib

from inflight_cli.options import add_metrics_option, check_one_server, port
from inflight_client import AsyncClient, InflightError, ModelNotReady, RetryPolicy, Timeouts

HELP = "tell HAProxy how much a server can take"

_DEFAULT_PORT = 9100
# HAProxy asks once a second.
_SECONDS = 1.0


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_metrics_option(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (%(default)s)")
    parser.add_argument("--port", type=port, default=_DEFAULT_PORT, help="port to listen on (%(default)s)")


def run(options: argparse.Namespace) -> int:
    """Answer until Ctrl-C or SIGTERM."""
    check_one_server(options)
    asyncio.run(_serve(options))
    return 0


async def _serve(options: argparse.Namespace) -> None:
    client = AsyncClient(
        **options.connection,
        metrics_url=options.metrics_url,
        timeouts=Timeouts(connect=_SECONDS),
        retry=RetryPolicy(attempts=1),
    )

    async def answer(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(f"{await state_of(client, options.model)}\n".encode())
        with contextlib.suppress(ConnectionError):  # HAProxy has gone.
            await writer.drain()
        writer.close()

    async with client, await asyncio.start_server(answer, options.host, options.port) as server:
        await server.serve_forever()


async def state_of(client: AsyncClient, model: str) -> str:
    """Return the line for a server, such as "up ready 60%"."""
    try:
        await client.check_serving()
        metrics = await client.metrics()
    except ModelNotReady:
        return "drain"
    except InflightError:
        return "down"
    try:
        used = metrics.mean("inflight:kv_cache_usage_perc", model=model)
    except KeyError:
        used = 0.0  # The model was loaded a moment ago, and publishes its first metrics after that.
    return f"up ready {max(1, round(100 * (1 - used)))}%"
