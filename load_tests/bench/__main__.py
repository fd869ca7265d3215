"""`make bench`: output tokens per second of this engine and of transformers, on the same requests and weights.

Each system answers the same requests in the same order, from token ids to text. All compute in bfloat16 on the CPU with
torch's own number of threads; transformers computes in float32 if torch has no fast bfloat16 matrix products on this
CPU. Prompts are cut from this project's pages. Where they are cut, and the lengths of prompts and outputs, are random
but the same in every run. End-of-sequence tokens are ignored. Only tokens that the requests asked for count: what a
static batch computes for a finished request is lost.

    transformers `generate`                  one request at a time; only the first eighth of them, because it is slow
    transformers `generate`, static batches  in order of arrival, padded left, each as long as its longest output
    transformers, continuous batching        its own manager, with as many requests and tokens in a step as our engine
    Inflight, in process                     `Engine.generate` with all requests at once; portable: without CPU kernels
    Inflight behind Triton                   that many clients, each sending its next request when the last is done;
                                             they stream over gRPC and share the cores with the server

Under the greedy load all of them are measured. Under each other load of --loads, the engine and the server are measured
with 32 requests at once: sampled answers, short and long prompts, a shared prefix, and chats of several turns.

The regression guard follows: ratios of this run beside the committed ones. The exit status is 1 if a ratio fell by more
than the noise. Among the ratios are the time of a step's matrix products alone over the time of the whole step, and the
speed under each load over that under the greedy one.

One system runs at a time. It is loaded anew and warmed up with other prompts. The systems alternate for two rounds. A
step is one forward pass of the model. Its mean time is the time of `generate` over the number of passes or, for the
engine, the time that the engine counts. Batch use is counted output tokens over steps times requests at once. The
client times the first token, from sending on.
"""

import argparse
import gc
import json
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tqdm import tqdm

from inflight_client import InflightError
from load_tests.bench.ratios import COMMITTED, ENGINE, SERVER, Ratios, comparison, ratios_of, worse
from load_tests.bench.report import Measurement, Round, as_json, table
from load_tests.bench.requests import Incomplete, bench_requests, useful_tokens, warm_up_requests
from load_tests.bench.systems import SYSTEMS, Advance, System
from load_tests.loads import GREEDY, LOADS, read_loads, write_prompts_in_text
from load_tests.model_options import add_model_options, model_folder, model_name
from load_tests.option_types import count, results_file
from load_tests.prompts import PlannedRequest
from load_tests.workload import Workload
from scripts.launch.default_model import NAME
from scripts.launch.environment import environment
from scripts.launch.errors import LauncherError
from scripts.launch.other_load import OtherLoad
from scripts.launch.served_model import DEVICE, DTYPE
from scripts.launch.triton_runtime import triton_runtime
from scripts.peers.dtype import best_dtype

ROUNDS = 2
REQUESTS = 64
AT_ONCE = 32
"""Requests at once under the other loads than the greedy one."""
SHARES = {"long": 4}
"""Of these loads, one of so many requests is measured, because their prompts take long to compute."""


@dataclass(frozen=True)
class Case:
    """A system and the requests with which it is measured."""

    system: System
    workload: Workload
    requests: Sequence[PlannedRequest]

    def measure(self, folder: Path, advance: Advance) -> Round:
        """Load the system, warm it up, time it on the requests and free it."""
        others = OtherLoad()
        with self.system.load(folder, self.system.at_once) as serve:
            serve(warm_up_requests(self.system.at_once, self.workload), lambda count: None)
            started = time.perf_counter()
            seen = serve(self.requests, advance)
            seconds = time.perf_counter() - started
            # Before the system ends: the processor time of its processes is lost once they have ended.
            return Round(useful_tokens(self.requests), seconds, seen, others.share())


def cases(workloads: Sequence[Workload], count: int) -> list[Case]:
    """What to measure under these workloads, with `count` requests at most."""
    found = []
    for workload in workloads:
        requests = bench_requests(max(1, count // SHARES.get(workload.name, 1)), workload=workload)
        for system in SYSTEMS:
            if workload.name == GREEDY or (system.name in (ENGINE, SERVER) and system.at_once == AT_ONCE):
                found.append(Case(system, workload, system.part(requests)))
    return found


def bench(folder: Path, chosen: Sequence[Case]) -> tuple[list[Measurement], list[str]]:
    """Measure one case after the other in every round, with a progress bar.

    Returns what was measured, and a line for each round in which a request was not answered.
    """
    failures = []
    results = [
        Measurement(case.workload.name, case.system.name, case.system.at_once, len(case.requests)) for case in chosen
    ]
    total = ROUNDS * sum(result.requests for result in results)
    with tqdm(total=total, bar_format="{desc} |{bar}| {n_fmt}/{total_fmt} requests, {elapsed}") as bar:
        for number in range(1, ROUNDS + 1):
            for case, result in zip(chosen, results, strict=True):
                bar.set_description_str(f"{number}/{ROUNDS} {result.load}, {result.system}, {result.at_once} at once")
                try:
                    result.rounds.append(case.measure(folder, bar.update))
                except Incomplete as error:
                    failures.append(f"{result.load}, {result.system}, {result.at_once} at once: {error}")
                # A model contains reference cycles. Its memory must be free before the next system starts.
                gc.collect()
    return [result for result in results if result.rounds], failures


def report(options: argparse.Namespace) -> int:
    """Measure, print the tables, write the requested files and return the exit status: 1 after a regression, or
    if a request was not answered."""
    from transformers.utils import logging

    from inflight import EngineConfig
    from load_tests.bench.engine_step import SETTINGS
    from load_tests.bench.step_breakdown import shares_of_products

    # The progress bars for loading weights would disturb ours.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    folder = model_folder(options)
    write_prompts_in_text(options.loads, folder)
    # Download Triton now, not during the measurement.
    triton_runtime()
    about = environment(DTYPE, DEVICE)
    about["transformers"] = best_dtype()
    about["model"] = model_name(options)
    about["rounds"] = ROUNDS
    shares = shares_of_products(EngineConfig(str(folder), **SETTINGS))
    results, failures = bench(folder, cases(options.loads, options.requests))
    print(table(results))
    print("\n" + "; ".join(f"{name}: {value}" for name, value in about.items()))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(as_json(results, about), indent=2) + "\n")
    conditions = f"{about['cpu']}, {about['cores']} cores, {options.requests} requests"
    if about["model"] != NAME:
        conditions += f", {about['model']}"
    now = ratios_of(conditions, results, shares)
    if options.accept and not failures:
        now.write(COMMITTED)
    committed = Ratios.read(COMMITTED, conditions)
    if committed is not None:
        committed = committed.under([workload.name for workload in options.loads])
    print(f"\n{comparison(now, committed)}")
    if failures:
        print("\n".join(["", "Not measured:", *failures]))
    return 1 if failures or worse(now, committed) else 0


def main() -> int:
    """Run the benchmark and return its exit status. If it is 1, a line on standard error says why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_model_options(parser)
    loads = ",".join(LOADS)
    parser.add_argument("--loads", type=read_loads, default="all", metavar="NAME,...", help=f"by default all: {loads}")
    parser.add_argument("--requests", type=count, default=REQUESTS, help="number of requests (%(default)s)")
    parser.add_argument("--json", type=results_file, metavar="FILE", help="also write the results to this file")
    parser.add_argument("--accept", action="store_true", help=f"write the ratios of this run to {COMMITTED.name}")
    # Handle SIGTERM like Ctrl-C, so that `kill` stops the server too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        options = parser.parse_args()
        if options.accept and not {workload.name for workload in options.loads} >= set(LOADS):
            parser.error("--accept needs a run with all loads")
        return report(options)
    except KeyboardInterrupt:
        return 130
    except (LauncherError, InflightError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
