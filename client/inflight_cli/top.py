"""Watch a server: requests, tokens, latencies, and how many requests join and leave the running batch.

Rates and latencies cover the last 10 seconds. Ctrl-C quits.
"""

import argparse
import time
from collections import deque

from rich.console import Console
from rich.live import Live
from rich.text import Text

from inflight_cli.errors import CommandError
from inflight_cli.options import add_metrics_option, check_one_server
from inflight_cli.screen import plain, screen
from inflight_client import Client, InflightError, TransportError
from inflight_client.load import DEFAULT_MAX_NUM_SEQS, Reading, Turnover, load, turnover

HELP = "watch a server"

REFRESH_SECONDS = 1.0
WINDOW_SECONDS = 10.0
# More than fit on any screen.
MAX_TURNOVERS = 500


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    parser.add_argument("--once", action="store_true", help="print the figures of one second as text and exit")
    add_metrics_option(parser)


def run(options: argparse.Namespace) -> int:
    """Show the load until interrupted, also while the server is started again. With `--once`, print it once and
    return 0.

    Raises:
        CommandError: there are no metrics, the model lacks one, or standard output is not a terminal.
        InflightError: the server does not answer.
    """
    check_one_server(options)
    console = Console()
    if not options.once and not console.is_terminal:
        raise CommandError("standard output is not a terminal; --once prints the figures as text")
    with Client(**options.connection, metrics_url=options.metrics_url) as client:
        max_num_seqs = int(client.model_info().parameters.get("max_num_seqs", DEFAULT_MAX_NUM_SEQS))
        try:
            if options.once:
                _print_once(client, options.model, max_num_seqs)
            else:
                _watch(client, options.model, max_num_seqs, console)
        except KeyError as error:
            raise CommandError(f"{error.args[0]}; check that it is a model of Inflight") from None
    return 0


def _read(client: Client, model: str) -> Reading:
    return Reading(time.monotonic(), client.metrics(), model)


def _first_reading(client: Client, model: str) -> Reading:
    try:
        return _read(client, model)
    except TransportError as error:
        raise CommandError(f"{error}; give --metrics-url") from None


def _print_once(client: Client, model: str, max_num_seqs: int) -> None:
    before = _first_reading(client, model)
    time.sleep(REFRESH_SECONDS)
    print(plain(load(before, _read(client, model)), client.unfinished_requests(), max_num_seqs))


def _watch(client: Client, model: str, max_num_seqs: int, console: Console) -> None:
    readings = deque([_first_reading(client, model)])
    turnovers: deque[Turnover] = deque(maxlen=MAX_TURNOVERS)
    with Live(console=console, auto_refresh=False, screen=True) as live:
        while True:
            time.sleep(REFRESH_SECONDS)
            try:
                requests = client.unfinished_requests()
                reading = _read(client, model)
                latest = turnover(readings[-1], reading)
                # Keep one to compare with, even if the server did not answer for a long time.
                while len(readings) > 1 and reading.seconds - readings[0].seconds > WINDOW_SECONDS:
                    readings.popleft()
                now = load(readings[0], reading)
            except (InflightError, KeyError) as error:
                # The first reading was good, so the server is being started again, or its model is being loaded.
                live.update(Text(f"{error.args[0]}; trying again", style="red"), refresh=True)
                continue
            readings.append(reading)
            turnovers.append(latest)
            shown = screen(now, list(turnovers), requests, max_num_seqs, console.size)
            live.update(shown, refresh=True)
