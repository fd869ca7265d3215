"""`python -m load_tests.experiments NAME ...`: test claims of papers on LLM serving with this engine's scheduler.

The experiments run in the simulator, each with several seeds: numbers are means with 95 % confidence intervals, and a
part of a claim counts as confirmed, or as not confirmed, only if a whole interval says so. With `--engine` they run on
the real engine with the default model on the CPU, with fewer and shorter requests and one seed. Each experiment prints
a Markdown table and whether the claim is confirmed, and draws a plot to results/.
"""

import argparse
import multiprocessing
import signal
import sys
import textwrap
from collections.abc import Sequence
from multiprocessing.pool import Pool
from pathlib import Path
from typing import TYPE_CHECKING

from load_tests.experiments.catalogue import EXPERIMENTS
from load_tests.experiments.experiment import Experiment, Results
from load_tests.experiments.runs import run
from load_tests.experiments.stage import Stage, engine, simulator
from load_tests.experiments.verdict import overall
from load_tests.option_types import count
from load_tests.simulate.report import markdown
from scripts.launch.errors import LauncherError
from scripts.launch.signals import end_like_ctrl_c

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from matplotlib.text import Text

RESULTS = Path("results")
PROCESSES = 2
SIZE = 8, 5
"""Inches of a plot."""
_TITLE_CHARACTERS = 80


def report(experiment: Experiment, results: Results, stage: Stage) -> str:
    """Return the claim, the results and whether the results confirm the claim, in Markdown."""
    verdicts = experiment.verdicts(results, stage)
    requests = sorted({len(result.arrival) for runs in results.values() for result in runs})
    sizes = f"{requests[0]:,}" if len(requests) == 1 else f"{requests[0]:,} to {requests[-1]:,}"
    return "\n".join(
        [
            f"## {experiment.name}",
            "",
            f"Claim ({experiment.source}): {experiment.claim}.",
            "",
            markdown(experiment.columns(stage), experiment.rows(results, stage)),
            "",
            f"A run has {sizes} requests.",
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

    figure, axes = pyplot.subplots(figsize=SIZE, layout="constrained")
    experiment.plot(axes, results, stage)
    headline(figure, experiment)
    save(figure, path)


def headline(figure: "Figure", experiment: Experiment) -> "Text":
    """Put the experiment's title above its plot, on as many lines as it needs."""
    return figure.suptitle(textwrap.fill(experiment.title, _TITLE_CHARACTERS), fontsize="medium")


def _run_all(names: Sequence[str], kind: str, stage: Stage, seeds: Sequence[int], pool: Pool | None) -> None:
    for name in names:
        experiment = EXPERIMENTS[name]
        results = run(experiment, stage, seeds, pool)
        path = RESULTS / f"{name}-{kind}.png"
        draw(experiment, results, stage, path)
        print(report(experiment, results, stage) + f"Plot: {path}\n", flush=True)


def _run_on_the_engine(names: Sequence[str]) -> None:
    from scripts.launch.default_model import default_model

    _run_all(names, "engine", engine(default_model()), [1], None)


def _run_in_the_simulator(names: Sequence[str], stage: Stage, seeds: Sequence[int]) -> None:
    # Started anew, because a process with threads, such as those of the progress bar, should not be forked. Ctrl-C in a
    # terminal reaches all processes, but this one ends the others. A ProcessPoolExecutor would wait for them instead.
    spawn = multiprocessing.get_context("spawn")
    with spawn.Pool(PROCESSES, signal.signal, (signal.SIGINT, signal.SIG_IGN)) as pool:
        _run_all(names, "simulator", stage, seeds, pool)


def main() -> int:
    """Run the experiments asked for and return the exit status. If it is 1, a line on standard error says why."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=[*EXPERIMENTS, "all"], metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--seeds", type=count, default=5, metavar="N", help="seeds in the simulator (%(default)s)")
    parser.add_argument("--engine", action="store_true", help="run on the real engine with one seed")
    parser.add_argument("--traces", type=Path, metavar="FOLDER", help="folder with the CSV files of the Azure traces")
    options = parser.parse_args()
    names = list(EXPERIMENTS) if "all" in options.names else options.names
    if options.engine:
        simulated = [name for name in options.names if name in EXPERIMENTS and EXPERIMENTS[name].simulated_only]
        if simulated:
            parser.error(f"{', '.join(simulated)}: only in the simulator, without --engine")
        names = [name for name in names if not EXPERIMENTS[name].simulated_only]
    end_like_ctrl_c()
    try:
        if options.engine:
            _run_on_the_engine(names)
        else:
            _run_in_the_simulator(names, simulator(options.traces), range(1, options.seeds + 1))
    except KeyboardInterrupt:
        return 130
    except (LauncherError, ValueError, OSError) as error:
        print("\n".join([f"error: {error}", *getattr(error, "__notes__", [])]), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
