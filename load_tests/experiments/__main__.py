"""`python -m load_tests.experiments NAME ...`: claims of papers on LLM serving, tried on this engine's scheduler.

In the simulator, or with `--engine` on the real engine with the default model on the CPU, where there are fewer and
shorter requests. Each prints a Markdown table and whether the claim held, and draws a plot to results/.
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
    """Serve every arm's requests, with a progress bar."""
    bar = tqdm(experiment.arms(stage), unit="run", desc=experiment.name, leave=False)
    return {arm.label: stage.run(arm.arrivals, arm.settings) for arm in bar}


def report(experiment: Experiment, results: Results, stage: Stage) -> str:
    """What was claimed, what came out, and whether it held, in Markdown."""
    verdicts = experiment.verdicts(results, stage)
    held = "yes" if all(verdict.held for verdict in verdicts) else "not all of it"
    return "\n".join(
        [
            f"## {experiment.name}",
            "",
            f"Claim ({experiment.source}): {experiment.claim}.",
            "",
            table(results, experiment.columns(stage)),
            "",
            *(f"- {'held' if verdict.held else 'did not hold'}: {verdict.text}" for verdict in verdicts),
            "",
            f"Held: {held}.",
            "",
        ]
    )


def draw(experiment: Experiment, results: Results, stage: Stage, path: Path) -> None:
    """Draw the experiment's plot to a PNG."""
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
    parser.add_argument("--engine", action="store_true", help="on the real engine")
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
