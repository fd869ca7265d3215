"""`python -m load_tests.experiments NAME ...`: test claims of papers on LLM serving with this engine's scheduler.

The experiments run in the simulator. With `--engine` they run on the real engine with the default model on the CPU,
with fewer and shorter requests. Each experiment prints a Markdown table and whether the claim is confirmed, and draws a
plot to results/.
"""

import argparse
import sys
from pathlib import Path

from tqdm import tqdm

from load_tests.experiments.catalogue import EXPERIMENTS
from load_tests.experiments.experiment import Experiment, Results
from load_tests.experiments.stage import Stage, engine, simulator
from load_tests.simulate.report import table

RESULTS = Path("results")


def run(experiment: Experiment, stage: Stage) -> Results:
    """Serve the requests of every arm, with a progress bar."""
    bar = tqdm(experiment.arms(stage), unit="run", desc=experiment.name, leave=False)
    return {arm.label: stage.run(arm.arrivals, arm.settings) for arm in bar}


def report(experiment: Experiment, results: Results, stage: Stage) -> str:
    """Return the claim, the results and whether the results confirm the claim, in Markdown."""
    verdicts = experiment.verdicts(results, stage)
    confirmed = [verdict.confirmed for verdict in verdicts]
    overall = "confirmed" if all(confirmed) else "partly confirmed" if any(confirmed) else "not confirmed"
    return "\n".join(
        [
            f"## {experiment.name}",
            "",
            f"Claim ({experiment.source}): {experiment.claim}.",
            "",
            table(results, experiment.columns(stage)),
            "",
            *(f"- {'confirmed' if verdict.confirmed else 'not confirmed'}: {verdict.text}" for verdict in verdicts),
            "",
            f"Verdict: {overall}.",
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


def main() -> int:
    """Run the experiments asked for and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", choices=[*EXPERIMENTS, "all"], metavar="NAME", help=", ".join(EXPERIMENTS))
    parser.add_argument("--engine", action="store_true", help="run on the real engine, not in the simulator")
    options = parser.parse_args()
    stage = _engine_stage() if options.engine else simulator()
    kind = "engine" if options.engine else "simulator"
    for name in EXPERIMENTS if "all" in options.names else options.names:
        experiment = EXPERIMENTS[name]
        results = run(experiment, stage)
        path = RESULTS / f"{name}-{kind}.png"
        draw(experiment, results, stage, path)
        print(report(experiment, results, stage) + f"Plot: {path}\n", flush=True)
    return 0


def _engine_stage() -> Stage:
    from scripts.launch.default_model import default_model

    return engine(default_model())


if __name__ == "__main__":
    sys.exit(main())
