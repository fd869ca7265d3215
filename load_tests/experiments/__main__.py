"""`python -m load_tests.experiments NAME ...`: test claims of papers on LLM serving with this engine's scheduler.

The experiments run in the simulator, each with several seeds: numbers are means with 95 % confidence intervals, and a
part of a claim counts as confirmed, or as not confirmed, only if a whole interval says so. With `--engine` they run on
the real engine with the default model on the CPU, with fewer and shorter requests and one seed. Each experiment prints
a Markdown table and whether the claim is confirmed, and draws a plot to results/.
"""

import argparse
import multiprocessing
import sys
from collections.abc import Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from pathlib import Path

from load_tests.experiments.catalogue import EXPERIMENTS
from load_tests.experiments.experiment import Experiment, Results
from load_tests.experiments.runs import run
from load_tests.experiments.stage import Stage, engine, simulator
from load_tests.experiments.verdict import overall
from load_tests.simulate.report import markdown

RESULTS = Path("results")
PROCESSES = 2


def report(experiment: Experiment, results: Results, stage: Stage) -> str:
    """Return the claim, the results and whether the results confirm the claim, in Markdown."""
    verdicts = experiment.verdicts(results, stage)
    return "\n".join(
        [
            f"## {experiment.name}",
            "",
            f"Claim ({experiment.source}): {experiment.claim}.",
            "",
            markdown(experiment.columns(stage), experiment.rows(results, stage)),
            "",
            *(f"- {verdict.outcome}: {verdict.text}" for verdict in verdicts),
            "",
            f"Verdict: {overall(verdicts)}.",
            "",
        ]
    )


def draw(experiment: Experiment, results: Results, stage: Stage, path: Path) -> None:
    """Draw the plot of the experiment to a PNG file."""
    from matplotlib import pyplot

    from load_tests.simulate.plots import save

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    experiment.plot(axes, results, stage)
    axes.set_title(experiment.title, fontsize="medium")
    save(figure, path)


def _run_all(names: Sequence[str], kind: str, stage: Stage, seeds: Sequence[int], pool: Executor | None) -> None:
    for name in names:
        experiment = EXPERIMENTS[name]
        results = run(experiment, stage, seeds, pool)
        path = RESULTS / f"{name}-{kind}.png"
        draw(experiment, results, stage, path)
        print(report(experiment, results, stage) + f"Plot: {path}\n", flush=True)


def main() -> int:
    """Run the experiments asked for and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=[*EXPERIMENTS, "all"], metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="seeds in the simulator (%(default)s)")
    parser.add_argument("--engine", action="store_true", help="run on the real engine with one seed")
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="folder with the CSV files of the Azure traces")
    options = parser.parse_args()
    if options.seeds < 1:
        parser.error(f"--seeds is {options.seeds}; it must be at least 1")
    names = list(EXPERIMENTS) if "all" in options.names else options.names
    if options.engine:
        simulated = [name for name in options.names if name in EXPERIMENTS and EXPERIMENTS[name].simulated_only]
        if simulated:
            parser.error(f"{', '.join(simulated)}: only in the simulator, without --engine")
        names = [name for name in names if not EXPERIMENTS[name].simulated_only]
        from scripts.launch.default_model import default_model

        _run_all(names, "engine", engine(default_model()), [1], None)
        return 0
    # Started anew, because a process with threads, such as those of the progress bar, should not be forked.
    with ProcessPoolExecutor(PROCESSES, multiprocessing.get_context("spawn")) as pool:
        _run_all(names, "simulator", simulator(options.traces), range(1, options.seeds + 1), pool)
    return 0


if __name__ == "__main__":
    sys.exit(main())
