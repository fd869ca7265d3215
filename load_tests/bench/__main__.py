"""`make bench`: output tokens per second of this engine and of transformers, on the same requests and weights.

Each system answers the same requests in the same order, greedily, from token ids to text. All compute in bfloat16 on
the CPU with torch's own number of threads; transformers computes in float32 if torch has no fast bfloat16 matrix
products on this CPU. Prompts and output lengths are random but the same in every run. End-of-sequence tokens are
ignored. Only tokens that the requests asked for count: what a static batch computes for a finished request is lost.

    transformers `generate`                  one request at a time; only the first eighth of them, because it is slow
    transformers `generate`, static batches  in order of arrival, padded left, each as long as its longest output
    transformers, continuous batching        its own manager, with as many requests and tokens in a step as our engine
    Inflight, in process                     `Engine.generate` with all requests at once; portable: without CPU kernels
    Inflight behind Triton                   that many clients, each sending its next request when the last is done;
                                             they stream over gRPC and share the cores with the server

The regression guard follows: ratios of this run beside the committed ones. The exit status is 1 if a ratio fell by more
than the noise. One of the ratios is the time of a step's matrix products alone over the time of the whole step.

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
from pathlib import Path

from tqdm import tqdm

from inflight_client import InflightError
from load_tests.bench.ratios import COMMITTED, Ratios, comparison, ratios_of, worse
from load_tests.bench.report import Measurement, Round, as_json, table
from load_tests.bench.requests import WORKLOAD, bench_requests, useful_tokens, warm_up_requests
from load_tests.bench.systems import SYSTEMS, Advance, System
from load_tests.prompts import PlannedRequest
from scripts.launch.default_model import NAME, default_model
from scripts.launch.environment import environment
from scripts.launch.errors import LauncherError
from scripts.launch.other_load import OtherLoad
from scripts.launch.served_model import DEVICE, DTYPE
from scripts.launch.triton_runtime import triton_runtime
from scripts.peers.dtype import best_dtype

ROUNDS = 2
REQUESTS = 64


def measure(system: System, folder: Path, requests: Sequence[PlannedRequest], advance: Advance) -> Round:
    """Load a system, warm it up, time it on the requests and free it."""
    others = OtherLoad()
    with system.load(folder, system.at_once) as serve:
        serve(warm_up_requests(system.at_once), lambda count: None)
        started = time.perf_counter()
        seen = serve(requests, advance)
        seconds = time.perf_counter() - started
        # Before the system ends: the processor time of its processes is lost once they have ended.
        return Round(useful_tokens(requests), seconds, seen, others.share())


def bench(folder: Path, requests: Sequence[PlannedRequest]) -> list[Measurement]:
    """Measure one system after the other in every round, with a progress bar."""
    from transformers.utils import logging

    # The progress bars for loading weights would disturb this one.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    results = [Measurement(system.name, system.at_once, len(system.part(requests))) for system in SYSTEMS]
    total = ROUNDS * sum(result.requests for result in results)
    with tqdm(total=total, bar_format="{desc} |{bar}| {n_fmt}/{total_fmt} requests, {elapsed}") as bar:
        for number in range(1, ROUNDS + 1):
            for system, result in zip(SYSTEMS, results, strict=True):
                bar.set_description_str(f"{number}/{ROUNDS} {system.name}, {system.at_once} at once")
                result.rounds.append(measure(system, folder, system.part(requests), bar.update))
                # A model contains reference cycles. Its memory must be free before the next system starts.
                gc.collect()
    return results


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def report(options: argparse.Namespace) -> int:
    """Measure, print the tables, write the requested files and return the exit status: 1 after a regression."""
    from load_tests.bench.step_breakdown import shares_of_floor

    folder = default_model()
    # Download Triton now, not during the measurement.
    triton_runtime()
    about = environment(DTYPE, DEVICE)
    about["transformers"] = best_dtype()
    about["model"] = NAME
    about["workload"] = f"{options.requests} requests of {WORKLOAD.name}, {ROUNDS} rounds"
    shares = shares_of_floor(folder)
    results = bench(folder, bench_requests(options.requests))
    print(table(results))
    print("\n" + "; ".join(f"{name}: {value}" for name, value in about.items()))
    if options.json is not None:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(as_json(results, about), indent=2) + "\n")
    conditions = f"{about['cpu']}, {about['cores']} cores, {options.requests} requests"
    now = ratios_of(conditions, results, shares)
    if options.accept:
        now.write(COMMITTED)
    committed = Ratios.read(COMMITTED, conditions)
    print(f"\n{comparison(now, committed)}")
    return 1 if worse(now, committed) else 0


def main() -> int:
    """Run the benchmark and return its exit status. If it is 1, a line on standard error says why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=_at_least_one, default=REQUESTS, help="number of requests (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the results to this file")
    parser.add_argument("--accept", action="store_true", help=f"write the ratios of this run to {COMMITTED.name}")
    # Handle SIGTERM like Ctrl-C, so that `kill` stops the server too.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return report(parser.parse_args())
    except KeyboardInterrupt:
        return 130
    except (LauncherError, InflightError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
