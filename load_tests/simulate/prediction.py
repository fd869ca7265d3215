"""`python -m load_tests.simulate.prediction`: compare the simulator with the real engine on the same arrivals.

It serves a small open-loop workload on the real engine in process (the default model, bfloat16, CPU). Then it simulates
the workload twice: with step times fitted to that same run, and with step times fitted to another run.
"""

import argparse
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from load_tests.arrivals import Gamma
from load_tests.lengths import Uniform
from load_tests.option_types import count, seed
from load_tests.simulate.engine_run import calibrate, engine_config, run_engine
from load_tests.simulate.report import E2E_MEAN, E2E_P99, ITL_P50, ITL_P99, THROUGHPUT, TTFT_P50, TTFT_P99, table
from load_tests.simulate.result import Result
from load_tests.simulate.simulator import simulate
from load_tests.simulate.step_cost import StepCost
from load_tests.traffic import Stream
from scripts.launch.default_model import default_model

COLUMNS = (THROUGHPUT, TTFT_P50, TTFT_P99, ITL_P50, ITL_P99, E2E_MEAN, E2E_P99)
LENGTHS = Uniform(16, 192), Uniform(8, 48)
MAX_NUM_SEQS = 8
LOAD = 0.7


def predict(folder: Path, requests: int, seed: int) -> tuple[dict[str, Result], dict[str, StepCost]]:
    """Serve some requests at 70 % of the machine's capacity. Return the results and the fitted step times."""
    other = calibrate(folder)
    rate = LOAD * other.capacity(LENGTHS[0].mean, LENGTHS[1].mean, MAX_NUM_SEQS)
    arrivals = Stream(Gamma(rate), *LENGTHS).make(requests, seed)
    with tempfile.TemporaryDirectory() as scratch:
        trace = Path(scratch, "trace.json")
        config = engine_config(folder, max_num_seqs=MAX_NUM_SEQS, kv_cache_tokens=16_384, trace_file=str(trace))
        measured = run_engine(arrivals, config, progress=True)
        costs = {"fitted to this run": StepCost.of_trace(trace), "fitted to another run": other}
    config = replace(config, trace_file=None)
    return {
        "engine": measured,
        **{f"simulator, {name}": simulate(arrivals, config, cost) for name, cost in costs.items()},
    }, costs


def errors(results: dict[str, Result]) -> str:
    """Relative errors of each simulation, in Markdown."""
    measured = results["engine"]
    rows = [["error", *(column.name.partition(",")[0] for column in COLUMNS)], ["---", *["---:"] * len(COLUMNS)]]
    for label, result in results.items():
        if result is not measured:
            rows.append([label, *(f"{c.value(result) / c.value(measured) - 1:+.0%}" for c in COLUMNS)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> int:
    """Run both and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=count, default=64, help="number of requests (%(default)s)")
    parser.add_argument("--seed", type=seed, default=1, help="seed of the workload (%(default)s)")
    options = parser.parse_args()
    results, costs = predict(default_model(), options.requests, options.seed)
    print(table(results, COLUMNS), errors(results), sep="\n\n")
    for name, cost in costs.items():
        print(
            f"\nStep time {name}: {1e3 * cost.per_step:.1f} ms + {1e3 * cost.per_token:.2f} ms per token "
            f"+ {1e6 * cost.per_cached_token:.2f} µs per cached token"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
