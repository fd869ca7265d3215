"""Writes what a tuning run found: a variant of config.pbtxt, a report in Markdown with a plot, and the machine."""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path

from load_tests.tune.confirmation import DEFAULT, TUNED, Confirmation
from load_tests.tune.outcome import Outcome
from load_tests.tune.plot import draw
from load_tests.tune.search import best
from scripts.launch.model_repository import write_variant

PLOT, MACHINE = "settings.png", "machine.json"


def write_outcome(outcome: Outcome, folder: Path) -> Path:
    """Write all files and return the path of the variant. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)
    variant = folder / f"{outcome.load.workload.name}-{outcome.objective.name}.pbtxt"
    write_variant(variant, outcome.settings, _about_variant(outcome))
    outcome.machine.write(folder / MACHINE)
    draw(outcome, folder / PLOT)
    (folder / "report.md").write_text("\n\n".join(_sections(outcome, variant)) + "\n")
    return variant


def summary(outcome: Outcome) -> str:
    """The result in a sentence or two."""
    if not outcome.ablation.without:
        return (
            f"The default configuration stays for {_goal(outcome)}: nothing that was tried brings 1 % more, on other "
            "requests too."
        )
    settings = ", ".join(f"{name}={value}" for name, value in outcome.settings.items())
    text = f"For {_goal(outcome)}: {settings}. "
    if (confirmation := outcome.confirmation) is None:
        return f"{text}Predicted gain: {outcome.ablation.gain(outcome.objective):.1%}."
    predicted, measured = confirmation.predicted_gain(outcome.objective), confirmation.measured_gain(outcome.objective)
    return f"{text}Measured gain: {measured:.1%}, predicted for the same requests: {predicted:.1%}."


def _goal(outcome: Outcome) -> str:
    return f"{outcome.objective.name} under {outcome.load.workload.name} with {outcome.load.text}"


def _about_variant(outcome: Outcome) -> str:
    return (
        f"Found by `make tune` for {_goal(outcome)}\n({outcome.objective.unit}).\n"
        f"Predicted gain over config.pbtxt: {outcome.ablation.gain(outcome.objective):.1%}."
    )


def _sections(outcome: Outcome, variant: Path) -> Iterator[str]:
    yield f"# Settings for {_goal(outcome)}"
    yield f"**{summary(outcome)}**"
    if outcome.misses_targets:
        yield "No settings that were tried keep the targets. These come closest."
    if outcome.settings:
        yield _how_to_serve(variant)
    if outcome.confirmation is not None:
        yield "## On the real server"
        yield _confirmed(outcome, outcome.confirmation)
    yield f"## What each setting brings\n\n![what each setting brings]({PLOT})"
    yield _brought(outcome)
    yield f"## What was tried\n\n{_tried(outcome)}"
    yield f"## Workload, machine and versions\n\n{_conditions(outcome)}"


def _how_to_serve(variant: Path) -> str:
    return (
        f"To serve with them, copy `{variant.name}` to `model_repository/llm/configs/`, then run\n"
        f"`make serve ARGS=--model-config-name={variant.stem}`."
    )


def _confirmed(outcome: Outcome, confirmation: Confirmation) -> str:
    objective = outcome.objective
    measured, predicted = confirmation.measured_gain(objective), confirmation.predicted_gain(objective)
    rows: list[tuple[str, ...]] = [("", f"predicted, {objective.unit}", "measured", "measured rounds", "not answered")]
    for name in (DEFAULT, TUNED):
        rounds = ", ".join(f"{objective.value(run):.4g}" for run in confirmation.measured[name])
        values = (confirmation.predicted_value(name, objective), confirmation.measured_value(name, objective))
        rows.append((name, *(f"{value:.4g}" for value in values), rounds, str(confirmation.errors(name))))
    rows.append(("gain", f"{predicted:.1%}", f"{measured:.1%}", "", ""))
    return (
        f"{_table(rows)}\n\n"
        f"{_difference(confirmation.difference(objective))} Both servers got the same requests in turn, "
        f"and the prediction is for these requests. Other programs used {confirmation.others:.0%} of the processors "
        "meanwhile."
    )


def _difference(difference: float) -> str:
    if math.isnan(difference):
        return "The default has a value of 0, so that no ratios can be compared."
    return f"The measured ratio of tuned to default differs from the predicted one by {difference:+.1%}."


def _brought(outcome: Outcome) -> str:
    objective, ablation = outcome.objective, outcome.ablation
    rows = [("Setting", "Default", "Found", f"{objective.unit}, without it", "It brings")]
    rows.append(("none: the default", "", "", f"{objective.value(ablation.default):.4g}", ""))
    for each in ablation.without:
        value, gain = objective.value(each.served), ablation.brought(each, objective)
        rows.append((each.name, each.default, each.chosen, f"{value:.4g}", f"{gain:.1%}"))
    rows.append(("all of them", "", "", f"{objective.value(ablation.tuned):.4g}", f"{ablation.gain(objective):.1%}"))
    return (
        "In the simulator, on other requests than the search had. Each row returns one setting to its default; the\n"
        "last one has them all. Settings that bring less than 1 % together were left at their defaults.\n\n"
        + _table(rows)
    )


def _tried(outcome: Outcome) -> str:
    names = [knob.name for knob in outcome.space.knobs]
    winner = best(outcome.trials)
    rows = [("Trial", outcome.objective.unit, *names)]
    for number, trial in enumerate(outcome.trials):
        label = f"**{number}**" if trial is winner else str(number)
        rows.append((label, f"{outcome.objective.value(trial.served):.4g}", *(trial.choice[name] for name in names)))
    return f"{len(outcome.trials)} of {outcome.space.size} combinations, in the simulator.\n\n{_table(rows)}"


def _conditions(outcome: Outcome) -> str:
    workload, cost = outcome.load.workload, outcome.machine.cost
    seconds = (
        f"{1e3 * cost.per_step:.2f} ms + {1e3 * cost.per_token:.3f} ms per token + "
        f"{1e6 * cost.per_cached_token:.3f} µs per cached token + "
        f"{1e6 * cost.per_pair:.3f} µs per pair of query and key + "
        f"{1e3 * cost.per_sampled_token:.3f} ms per sampled token"
    )
    targets = outcome.objective.targets
    about = {
        "workload": f"{workload.name}: {workload.about.strip()}",
        "targets": f"first token within {targets.ttft:g} s, {1000 * targets.itl:g} ms between tokens",
        "step time in the simulator": seconds,
        "KV cache": f"{outcome.machine.kv_cache_tokens} tokens",
        **outcome.about,
    }
    return "\n".join(f"- {name}: {value}" for name, value in about.items())


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *body = rows
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *body]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
