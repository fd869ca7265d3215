"""`make sweep`: how much a server carries, and where more load brings no more throughput.

Puts ever more load on a server, twice as much from level to level, until it has enough or breaks its objective twice in
a row, and then looks for the highest load that keeps it. Load is users who each wait for their answer before they ask
again, or requests per second that come whatever the server does. Writes a report to results/.

The server is one with the default model that this starts, or any other that runs:

    python -m load_tests.capacity
    python -m load_tests.capacity --by rate --workload load_tests/workloads/chat.yaml --url 127.0.0.1:8001
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from tqdm import tqdm

from inflight_client import AsyncClient, InflightError
from load_tests.capacity.machine import about_server
from load_tests.capacity.measuring import Measuring, NothingMeasured, ticking
from load_tests.capacity.recommendation import recommendation
from load_tests.capacity.report import write_report
from load_tests.capacity.result import RATE, USERS, LoadKind, Sweep, recommended
from load_tests.capacity.search import search
from load_tests.capacity.tracing import take_timeline
from load_tests.endpoints import grpc_endpoint
from load_tests.workload import WORKLOADS, Workload, WorkloadError, read_workload
from scripts.launch.default_model import default_model
from scripts.launch.errors import LauncherError
from scripts.launch.other_load import OtherLoad
from scripts.launch.served_model import triton_server

MODEL = "llm"
KINDS = {kind.name: kind for kind in (USERS, RATE)}
_BAR = "{desc} |{bar}| {elapsed}, at most {remaining} left"


@dataclass(frozen=True)
class Target:
    """The server that is measured."""

    url: str
    """Host and port for gRPC."""
    metrics_url: str | None
    """None: on the port that Triton usually takes."""
    model_folder: Path | None
    """What it serves, where it is our own."""


@contextlib.contextmanager
def target(options: argparse.Namespace) -> Iterator[Target]:
    """The server that runs already, or one of our own. Raises LauncherError where that does not start."""
    if options.url is not None:
        yield Target(options.url, options.metrics_url, None)
        return
    folder = default_model()
    with triton_server(folder) as server:
        yield Target(server.grpc_url, server.metrics_url, folder)


async def measure(server: Target, workload: Workload, kind: LoadKind, options: argparse.Namespace) -> Sweep:
    """Find the knee and the capacity behind a progress bar; raises what `Measuring` does."""
    async with (
        AsyncClient(server.url, model=MODEL, metrics_url=server.metrics_url) as client,
        grpc_endpoint(server.url, MODEL) as endpoint,
    ):
        info, model = await client.server_info(), await client.model_info()
        with tqdm(total=60 * options.minutes, bar_format=_BAR) as bar:
            measuring = Measuring(endpoint, client, MODEL, workload, kind, options.repeats, 60 * options.minutes, bar)
            async with ticking(measuring):
                await measuring.warm_up()
                start = options.start or kind.start
                found = await search(measuring.level, lambda level: level.keeps(workload.slo), start, whole=kind.closed)
    about = {
        "workload": f"{workload.name}: {workload.about.strip()}",
        "load": f"{kind.axis}, {options.repeats} repeats, {options.minutes:g} minutes at most",
        **about_server(info, server.url, own=server.model_folder is not None),
    }
    return Sweep(kind, workload.slo, found, about, model.parameters)


def run(options: argparse.Namespace) -> Path:
    """Measure, write the report and return its folder.

    Raises LauncherError, InflightError, NothingMeasured, WorkloadError or OSError, with a message for the user.
    """
    workload, kind = read_workload(options.workload), KINDS[options.by]
    others = OtherLoad()
    with target(options) as server:
        sweep = asyncio.run(measure(server, workload, kind, options))
        if server.model_folder is not None:
            sweep = replace(sweep, others=others.share())
    if server.model_folder is not None:
        print("A batch timeline at the recommended load", file=sys.stderr)
        load = recommended(sweep.found).load
        sweep = replace(sweep, timeline=asyncio.run(take_timeline(server.model_folder, workload, kind, load)))
    folder: Path = options.results / time.strftime("sweep-%Y%m%d-%H%M%S")
    write_report(sweep, folder)
    print(recommendation(sweep))
    return folder


def _number(kind: type[int] | type[float], minimum: float, text: str) -> float:
    try:
        number = kind(text)
    except ValueError:
        number = kind(-1)
    if not minimum <= number < float("inf"):
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"must be {what} of at least {minimum:g}, not {text!r}")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--by", choices=sorted(KINDS), default=USERS.name, help="what is varied (%(default)s)")
    add("--workload", type=Path, metavar="FILE", default=WORKLOADS / "small.yaml", help="%(default)s")
    add("--minutes", type=partial(_number, float, 0.1), default=15, help="for all levels together (%(default)s)")
    add("--repeats", type=partial(_number, int, 1), default=3, help="runs at each level (%(default)s)")
    lowest = f"the lowest load (users: {USERS.start:g}, rate: {RATE.start:g})"
    add("--start", type=partial(_number, float, 0.01), help=lowest)
    add("--url", help="host and port for gRPC of a server that runs; one of our own otherwise")
    add("--metrics-url", help="of that server; port 8002 of its host if not given")
    add("--results", type=Path, metavar="FOLDER", default=Path("results"), help="where the report goes (%(default)s)")
    return parser


def main() -> int:
    """Run the sweep and return its exit status; where it is 1 a line says why."""
    parser = _parser()
    options = parser.parse_args()
    if KINDS[options.by].closed and options.start is not None and options.start % 1:
        parser.error(f"argument --start: must be a whole number of {options.by}, not {options.start:g}")
    # As Ctrl-C, so that `kill` stops the server too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        folder = run(options)
    except KeyboardInterrupt:
        return 130
    except (LauncherError, InflightError, NothingMeasured, WorkloadError, OSError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    print(f"Report: {folder / 'report.html'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
