"""`make sweep`: find how much load a server carries, and from which load on throughput no longer grows.

The sweep doubles the load from level to level. It stops when more load brings no more throughput, or when the server
misses its objective at two levels in a row. Then it searches for the highest load at which the server keeps the
objective. Load is either a number of users, who each wait for their answer before they send the next request, or a
number of requests per second, sent however busy the server is. The report goes to results/.

The sweep starts a server of its own with the default model. It can also measure any server that runs already:

    python -m load_tests.capacity
    python -m load_tests.capacity --by rate --workload load_tests/workloads/chat.yaml --url 127.0.0.1:8001
"""

import argparse
import asyncio
import contextlib
import random
import signal
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tqdm import tqdm

from inflight_client import AsyncClient, InflightError
from load_tests.capacity.machine import about_server
from load_tests.capacity.measuring import Measuring, NothingMeasured, ticking
from load_tests.capacity.recommendation import recommendation
from load_tests.capacity.report import write_report
from load_tests.capacity.result import RATE, USERS, LoadKind, Sweep, recommended
from load_tests.capacity.search import Interrupted, search
from load_tests.capacity.tracing import take_timeline
from load_tests.endpoints import grpc_endpoint
from load_tests.option_types import MOST, count, number, results_folder, seed
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
    """The server to measure."""

    url: str
    """Host and port of its gRPC endpoint."""
    metrics_url: str | None
    """None: port 8002 on the same host, which is Triton's default."""
    model_folder: Path | None
    """The folder of its model. None if the sweep did not start this server."""


@contextlib.contextmanager
def target(options: argparse.Namespace) -> Iterator[Target]:
    """Yield the server given by `--url`, or start one. Raises LauncherError if that one does not start."""
    if options.url is not None:
        yield Target(options.url, options.metrics_url, None)
        return
    folder = default_model()
    with triton_server(folder) as server:
        yield Target(server.grpc_url, server.metrics_url, folder)


async def measure(server: Target, workload: Workload, kind: LoadKind, options: argparse.Namespace) -> Sweep:
    """Find the knee and the capacity, with a progress bar. Raises what `Measuring` raises."""
    async with (
        AsyncClient(server.url, model=MODEL, metrics_url=server.metrics_url) as client,
        grpc_endpoint(server.url, MODEL) as endpoint,
    ):
        info, model = await client.server_info(), await client.model_info()
        with tqdm(total=60 * options.minutes, bar_format=_BAR) as bar:
            measuring = Measuring(
                endpoint, client, MODEL, workload, kind, options.repeats, 60 * options.minutes, options.seed, bar
            )
            async with ticking(measuring):
                await measuring.warm_up()
                start = options.start or kind.start
                found = await search(measuring.level, lambda level: level.keeps(workload.slo), start, whole=kind.closed)
    about = {
        "workload": f"{workload.name}: {workload.about.strip()}",
        "load": f"{kind.axis}, {options.repeats} repeats, {options.minutes:g} minutes at most",
        "seed": str(options.seed),
        **about_server(info, server.url, own=server.model_folder is not None),
    }
    return Sweep(kind, workload.slo, found, about, model.parameters)


def run(options: argparse.Namespace) -> None:
    """Measure and write the report.

    Raises LauncherError, InflightError, NothingMeasured, Interrupted, WorkloadError or OSError, with a message for the
    user. If the sweep was interrupted, that comes after the report of the levels that were measured.
    """
    workload, kind = read_workload(options.workload), KINDS[options.by]
    others = OtherLoad()
    with target(options) as server:
        sweep = asyncio.run(measure(server, workload, kind, options))
        if server.model_folder is not None:
            sweep = replace(sweep, others=others.share())
    if server.model_folder is not None and not sweep.found.interrupted:
        print("A batch timeline at the recommended load", file=sys.stderr)
        load = recommended(sweep.found).load
        sweep = replace(sweep, timeline=asyncio.run(take_timeline(server.model_folder, workload, kind, load)))
    folder: Path = options.results / time.strftime("sweep-%Y%m%d-%H%M%S")
    write_report(sweep, folder)
    print(recommendation(sweep))
    print(f"Report: {folder / 'report.html'}")
    if sweep.found.interrupted:
        raise Interrupted(f"the sweep is not complete: {sweep.found.ended}")


def _address(text: str) -> str:
    if "://" in text or not all(part.strip() for part in text.split(",")):
        raise argparse.ArgumentTypeError(f"must be a host and the port of gRPC, such as 127.0.0.1:8001, not {text!r}")
    return text


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--by", choices=sorted(KINDS), default=USERS.name, help="which kind of load to vary (%(default)s)")
    add("--workload", type=Path, metavar="FILE", default=WORKLOADS / "small.yaml", help="%(default)s")
    add("--minutes", type=number(0.1), default=15, help="time for all levels together (%(default)s)")
    add("--repeats", type=count, default=3, help="runs at each level (%(default)s)")
    lowest = f"the lowest load (users: {USERS.start:g}, rate: {RATE.start:g})"
    add("--start", type=number(0.01, MOST), help=lowest)
    seed_help = "repeat the prompts of an earlier sweep; by default those for --url are new, as servers cache prompts"
    add("--seed", type=seed, help=seed_help)
    url_help = "host and port of the gRPC endpoint of a running server; without it the sweep starts a server"
    add("--url", type=_address, help=url_help)
    add("--metrics-url", help="metrics URL of that server; the default is port 8002 of its host")
    add(
        "--results",
        type=results_folder,
        metavar="FOLDER",
        default="results",
        help="folder for the report (%(default)s)",
    )
    return parser


def main() -> int:
    """Run the sweep and return its exit status. If it is 1, a line on standard error says why."""
    parser = _parser()
    options = parser.parse_args()
    if KINDS[options.by].closed and options.start is not None and options.start % 1:
        parser.error(f"argument --start: must be a whole number of {options.by}, not {options.start:g}")
    if options.seed is None:
        # A server that the sweep starts has no prompts in its prefix cache. One that runs has those of earlier sweeps.
        options.seed = 0 if options.url is None else random.randrange(2**31)
    # Handle SIGTERM like Ctrl-C, so that `kill` stops the server too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        run(options)
    except KeyboardInterrupt:
        return 130
    except (LauncherError, InflightError, NothingMeasured, Interrupted, WorkloadError, OSError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
