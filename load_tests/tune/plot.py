"""The plot of a tuning run."""

from pathlib import Path

from load_tests.capacity.drawing import BLUE, GREY, INK, ORANGE, blank, headline, legend, png
from load_tests.tune.confirmation import DEFAULT, TUNED
from load_tests.tune.outcome import Outcome


def draw(outcome: Outcome, path: Path) -> None:
    """Draw the objective of the default, of the choice without each of its settings, and of the choice, as PNG."""
    objective, ablation = outcome.objective, outcome.ablation
    bars = {DEFAULT: ablation.default}
    bars |= {f"without {each.name}": each.served for each in ablation.without}
    bars |= {TUNED: ablation.tuned}
    colours = [GREY, *[BLUE] * len(ablation.without), ORANGE]
    with blank() as axes:
        axes.barh(list(bars), [objective.value(served) for served in bars.values()], color=colours)
        axes.invert_yaxis()
        if (confirmation := outcome.confirmation) is not None:
            names = [DEFAULT, TUNED]
            predicted = [confirmation.predicted_value(name, objective) for name in names]
            measured = [confirmation.measured_value(name, objective) for name in names]
            axes.plot(predicted, names, "D", color=INK, mfc="none", ls="", label="predicted for the requests measured")
            axes.plot(measured, names, "D", color=INK, ls="", label="measured on the real server")
        axes.set_xlabel(f"{objective.unit} ({'higher' if objective.higher_is_better else 'lower'} is better)")
        headline(axes, f"{objective.name} under {outcome.load.workload.name}, predicted")
        legend(axes)
        figure = axes.get_figure(root=True)
        assert figure is not None
        png(figure, path)
