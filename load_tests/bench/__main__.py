"""`make bench`: output tokens per second of this engine and of transformers, on the same requests and weights.

Each system answers the same requests in the same order, greedily, from token ids to text, in bfloat16 on the CPU
(transformers in float32 where torch has no fast products of that) with torch's own number of threads. Prompts and
output lengths are random but the same in every run, and end-of-sequence tokens are ignored. Only the tokens that the
requests asked for count: what a static batch computes for a request that is already done is lost.

    transformers `generate`                  one request after another; the first eighth of them, as it takes so long
    transformers `generate`, static batches  in order of arrival, padded left, each as long as its longest output
    transformers, continuous batching        its own manager, with as many requests and tokens to a step as ours
    Inflight, in process                     `Engine.generate` with all requests at once; portable: without CPU kernels
    Inflight behind Triton                   that many clients, each sending its next request when the last is done;
                                             they stream over gRPC and share the cores with the server

Then the regression guard: ratios of this run beside the committed ones, and exit status 1 where one fell by more than
the noise. To them belongs how much of a step its matrix products alone take, which no step can be faster than.

One system runs at a time, loaded anew and warmed up with other prompts, and all take turns, twice. A step is one pass
of the model: its time is that of `generate` over the passes, and what the engine itself counts. Batch use is output
tokens counted over steps times requests at once. The first token is timed by the client, from sending on.
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
        # Before its end: what the system used would be lost with processes that nobody waits for.
        return Round(useful_tokens(requests), seconds, seen, others.share())


def bench(folder: Path, requests: Sequence[PlannedRequest]) -> list[Measurement]:
    """Measure one system after the other, as often as there are rounds, behind a progress bar."""
    from transformers.utils import logging

    # Its bars for the loading of weights would break up this one.
    logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    results = [Measurement(system.name, system.at_once, len(system.part(requests))) for system in SYSTEMS]
    total = ROUNDS * sum(result.requests for result in results)
    with tqdm(total=total, bar_format="{desc} |{bar}| {n_fmt}/{total_fmt} requests, {elapsed}") as bar:
        for number in range(1, ROUNDS + 1):
            for system, result in zip(SYSTEMS, results, strict=True):
                bar.set_description_str(f"{number}/{ROUNDS} {system.name}, {system.at_once} at once")
                result.rounds.append(measure(system, folder, system.part(requests), bar.update))
                # A model is full of cycles, and the next system is to find its memory free.
                gc.collect()
    return results


def _at_least_one(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def report(options: argparse.Namespace) -> int:
    """Measure, print the tables, write the files asked for and return the exit status: 1 after a regression."""
    from load_tests.bench.step_breakdown import shares_of_floor

    folder = default_model()
    # Downloaded now rather than in the middle of the run.
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
    """Run the benchmark and return its exit status; where it is 1 a line says why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=_at_least_one, default=REQUESTS, help="how many (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there too")
    parser.add_argument("--accept", action="store_true", help=f"make these ratios the ones in {COMMITTED.name}")
    # As Ctrl-C, so that `kill` stops the server too.
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
