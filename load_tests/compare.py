"""`make compare`: servers and settings beside each other, under one workload in one run.

All servers are started first. Then they take turns, as often as there are rounds, each alone: the others are stopped
where they are (SIGSTOP), so that whatever else the machine does hits all alike. In a round all get the same requests,
which are new in every round; users are closed loops. Ratios are to the first one.

Without --system, our batching strategies are compared. A system of ours is its name and parameters of config.pbtxt that
differ from it: --system 'fair: scheduling_policy=fair' --system 'small steps: max_num_batched_tokens=128'.
With --peers alone our server as it is, transformers' static batches and continuous batching, each behind a small server
of its own, and vLLM and llama.cpp, where `make peers` has installed them; those that it has not are reported as absent.
All have the same weights in bfloat16, and as many slots as there are users; transformers and vLLM compute in float32
on processors for which torch has no fast products of bfloat16.
"""

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
from tqdm import tqdm

from load_tests.arrivals import Floats
from load_tests.endpoints import Endpoint, grpc_endpoint, openai_endpoint
from load_tests.generator import closed_loop
from load_tests.records import Run, write_records
from load_tests.workload_file import WORKLOADS, Workload, WorkloadError, read_workload
from scripts.launch.default_model import default_model
from scripts.launch.environment import environment
from scripts.launch.errors import LauncherError
from scripts.launch.model_repository import render_repository
from scripts.launch.server_process import ServerProcess
from scripts.launch.triton_server import TritonServer
from scripts.peers import llama_cpp, transformers, vllm
from scripts.peers.dtype import best_dtype
from scripts.peers.peer import MODEL, Peer
from scripts.peers.transformers_server import BATCHINGS

STRATEGIES = ("continuous", "static", "dynamic", "bucketed")
READY_SECONDS = 300.0
WARM_UP_REQUESTS = 8
_WARM_UP_SEED = 1_000_000

Connect: TypeAlias = Callable[[], AbstractAsyncContextManager[Endpoint]]


@dataclass(frozen=True)
class System:
    """Something that is compared."""

    name: str
    start: Callable[[], AbstractContextManager[tuple[ServerProcess, Connect]]]
    """A running server, and how to reach it."""


@dataclass
class Compared:
    """All rounds of one system."""

    runs: list[Run] = field(default_factory=list)

    def of(self, measure: Callable[[Run], float]) -> list[float]:
        """A measure of each round."""
        return [measure(run) for run in self.runs]


def ours(name: str, parameters: Mapping[str, str]) -> System:
    """Our server with the default model and some parameters of config.pbtxt set otherwise."""

    @contextlib.contextmanager
    def start() -> Iterator[tuple[ServerProcess, Connect]]:
        with tempfile.TemporaryDirectory(prefix="inflight-compare-") as scratch:
            settings = {"model": str(default_model()), **parameters}
            repository = render_repository(Path(scratch) / "models", parameters=settings)
            with TritonServer(repository, drain_seconds=5) as server:
                server.wait_ready(READY_SECONDS, ["llm"])
                yield server, lambda: grpc_endpoint(server.grpc_url)

    return System(name, start)


def peer(name: str, make: Callable[[], Peer]) -> System:
    """Another server, which speaks OpenAI's protocol."""

    @contextlib.contextmanager
    def start() -> Iterator[tuple[ServerProcess, Connect]]:
        with make() as server:
            server.wait_ready(READY_SECONDS)
            yield server, lambda: openai_endpoint(f"http://{server.http_url}", MODEL)

    return System(name, start)


def compare(
    systems: Sequence[System], workload: Workload, *, users: int, rounds: int, seconds: float
) -> dict[str, Compared]:
    """Start all, let them take turns behind a progress bar, and return what was seen of each."""
    results = {system.name: Compared() for system in systems}
    with ExitStack() as stack, tqdm(total=len(systems) * (rounds + 1), unit="run") as bar:
        running = []
        for system in systems:
            bar.set_description_str(f"starting {system.name}")
            server, connect = stack.enter_context(system.start())
            asyncio.run(_warm_up(connect, workload))
            server.pause()
            running.append((system.name, server, connect))
            bar.update()
        for number in range(rounds):
            for name, server, connect in running:
                bar.set_description_str(f"{number + 1}/{rounds} {name}")
                server.resume()
                results[name].runs.append(asyncio.run(_load(connect, workload, users, seconds, number)))
                server.pause()
                bar.update()
    return results


async def _warm_up(connect: Connect, workload: Workload) -> None:
    async with connect() as endpoint:
        requests = workload.requests(_WARM_UP_SEED)
        await closed_loop(endpoint, WARM_UP_REQUESTS, requests, count=WARM_UP_REQUESTS)


async def _load(connect: Connect, workload: Workload, users: int, seconds: float, seed: int) -> Run:
    async with connect() as endpoint:
        return await closed_loop(endpoint, users, workload.requests(seed), seconds=seconds)


def table(results: Mapping[str, Compared], workload: Workload) -> str:
    """Return a Markdown table: medians of the rounds, and the spread of the ratio over them."""
    lines = [
        "| | Tokens/s | Each round | To the first (min to max) | TTFT p50, p99 (s) | ITL p50, p99 (ms) "
        "| In SLO | Goodput (req/s) | Errors |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---|",
    ]
    first = next(iter(results.values())).of(lambda run: run.throughput)
    for name, compared in results.items():
        rates = compared.of(lambda run: run.throughput)
        ratios = [rate / other for rate, other in zip(rates, first, strict=True)]
        errors = Counter(record.error for run in compared.runs for record in run.records if record.error is not None)
        cells = [
            name,
            f"{np.median(rates):.0f}",
            ", ".join(f"{rate:.0f}" for rate in rates),
            f"{np.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})",
            _percentiles(np.concatenate([run.ttft for run in compared.runs]), 1, 2),
            _percentiles(np.concatenate([run.gaps for run in compared.runs]), 1000, 0),
            f"{np.median(compared.of(lambda run: run.attainment(workload.slo))):.0%}",
            f"{np.median(compared.of(lambda run: run.goodput(workload.slo))):.2f}",
            ", ".join(f"{kind}: {count}" for kind, count in errors.items()) or "none",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _percentiles(values: Floats, unit: float, digits: int) -> str:
    if not len(values):
        return "-"
    return ", ".join(f"{unit * value:.{digits}f}" for value in np.percentile(values, (50, 99)))


def read_system(text: str) -> System:
    """A system of ours as the command line names it; raises argparse.ArgumentTypeError where it makes no sense."""
    name, _, written = text.partition(":")
    pairs = [pair.partition("=") for pair in written.split(",") if pair.strip()]
    if not name.strip() or any(not separator for _, separator, _ in pairs):
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form 'NAME: PARAMETER=VALUE,...'")
    return ours(name.strip(), {key.strip(): value.strip() for key, _, value in pairs})


def chosen_systems(options: argparse.Namespace) -> tuple[list[System], list[str]]:
    """The systems that the options ask for, and the names of those that are absent."""
    if not options.peers:
        return options.system or [ours(name, {"batching_strategy": name}) for name in STRATEGIES], []
    model, users = default_model(), options.users
    present: dict[str, Callable[[], Peer]] = {
        f"transformers, {batching}": partial(transformers.server, batching, model, users) for batching in BATCHINGS
    }
    if vllm.installed():
        present[vllm.NAME] = partial(vllm.server, model, users)
    if llama_cpp.installed():
        present[llama_cpp.NAME] = partial(llama_cpp.server, users)
    systems = options.system or [ours("Inflight", {"max_num_seqs": str(users)})]
    systems += [peer(name, make) for name, make in present.items()]
    return systems, [name for name in (vllm.NAME, llama_cpp.NAME) if name not in present]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--system", type=read_system, action="append", metavar="'NAME: KEY=VALUE,...'", help="one of ours"
    )
    parser.add_argument("--peers", action="store_true", help="other servers too")
    parser.add_argument("--workload", type=Path, default=WORKLOADS / "small.yaml", metavar="FILE", help="(%(default)s)")
    parser.add_argument("--users", type=int, default=16, help="closed loops (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each (%(default)s)")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each turn (%(default)s)")
    parser.add_argument("--records", type=Path, metavar="FOLDER", help="write what was seen of every request there")
    return parser


def main() -> int:
    """Run the comparison and return its exit status; where it is 1 a line says why."""
    parser = _parser()
    options = parser.parse_args()
    # As Ctrl-C: a server that stands still hears of no other end.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        systems, absent = chosen_systems(options)
        workload = read_workload(options.workload)
        results = compare(systems, workload, users=options.users, rounds=options.rounds, seconds=options.seconds)
    except KeyboardInterrupt:
        return 130
    except (LauncherError, WorkloadError, OSError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    print(f"{options.users} users, workload {workload.name}, {options.rounds} rounds of {options.seconds:g} s\n")
    print(table(results, workload))
    about = environment("bfloat16", "cpu")
    if options.peers:
        about["transformers and vLLM"] = best_dtype()
        print(f"\nabsent: {', '.join(absent) or 'none'}")
    print("; ".join(f"{name}: {value}" for name, value in about.items()))
    if options.records is not None:
        for name, compared in results.items():
            for number, run in enumerate(compared.runs):
                write_records(run.records, options.records / f"{name}-{number}.jsonl")
    return 0


if __name__ == "__main__":
    sys.exit(main())
