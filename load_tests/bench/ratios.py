"""The regression guard of `make bench`: compares the ratios of a run with committed ones.

A ratio is between two measurements of the same run, so it depends on the code more than on other load on the machine.
Higher is better. Ratios are committed for some kinds of machines, numbers of requests and models. For other conditions
nothing is judged.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from load_tests.bench.report import Measurement
from load_tests.loads import GREEDY, LOADS

COMMITTED = Path(__file__).with_name("ratios.json")
# Rounds of one run on an idle machine were up to 11 % off their median.
NOISE = 0.15
PEER = ("transformers `generate`, static batches", 32)
ENGINE, SERVER = "Inflight, in process", "Inflight behind Triton, streamed"
SHORT_NAMES = {ENGINE: "in process", SERVER: "behind Triton"}
PRODUCTS = "products alone"


@dataclass(frozen=True)
class Ratios:
    """Named ratios, with the machine, number of requests and model of the measurement."""

    conditions: str
    values: Mapping[str, float]

    @classmethod
    def read(cls, file: Path, conditions: str) -> "Ratios | None":
        """The ratios for these conditions, or None if there are none. Raises OSError or ValueError if the file is not
        valid."""
        values = json.loads(file.read_text()).get(conditions)
        return None if values is None else cls(conditions, values)

    def under(self, loads: Sequence[str]) -> "Ratios":
        """Those that a measurement of these loads has."""
        return Ratios(
            self.conditions, {name: value for name, value in self.values.items() if _loads_of(name) <= set(loads)}
        )

    def write(self, file: Path) -> None:
        """Write the ratios to an existing file, to be compared with later runs. Ratios for other conditions stay."""
        rounded = {name: round(value, 3) for name, value in self.values.items()}
        document = {**json.loads(file.read_text()), self.conditions: rounded}
        file.write_text(json.dumps(document, indent=2) + "\n")


def ratios_of(conditions: str, results: Sequence[Measurement], shares_of_products: Mapping[str, float]) -> Ratios:
    """All guarded ratios.

    They are a step's products to the step; under the greedy load, the engine to its peer and the server to the engine;
    and under the other loads, each of both to itself under the greedy one.
    """
    values = {f"{PRODUCTS} / step, {work}": share for work, share in shares_of_products.items()}
    speeds = {(each.system, each.at_once): each.tokens_per_second for each in results if each.load == GREEDY}
    for (system, at_once), speed in speeds.items():
        if system == ENGINE and PEER in speeds:
            values[f"in process / transformers' static batches of 32, {at_once} at once"] = speed / speeds[PEER]
        elif system == SERVER and (ENGINE, at_once) in speeds:
            values[f"behind Triton / in process, {at_once} at once"] = speed / speeds[ENGINE, at_once]
    for each in results:
        if each.load != GREEDY and (each.system, each.at_once) in speeds:
            name = f"{each.load} / {GREEDY}, {SHORT_NAMES[each.system]}, {each.at_once} at once"
            values[name] = each.tokens_per_second / speeds[each.system, each.at_once]
    return Ratios(conditions, values)


def _loads_of(name: str) -> set[str]:
    """The loads without which there is no ratio of this name."""
    first = name.partition(" / ")[0]
    return set() if first == PRODUCTS else {GREEDY, first} & set(LOADS)


def worse(now: Ratios, committed: Ratios | None) -> list[str]:
    """Names of the ratios that fell by more than the noise or are missing. Empty if none are committed."""
    if committed is None:
        return []
    # Missing ratios count too: without CPU kernels there are no products alone, and the guard must report that.
    return [name for name, before in committed.values.items() if now.values.get(name, 0.0) < (1 - NOISE) * before]


def comparison(now: Ratios, committed: Ratios | None) -> str:
    """Return a Markdown table of both, and a line with the verdict."""
    lines = ["| Ratio | Now | Committed | Change |", "|---|---:|---:|---:|"]
    for name, value in now.values.items():
        before = committed.values.get(name) if committed else None
        lines.append(f"| {name} | {value:.2f} | {_or_new(before)} | {_change(value, before)} |")
    if committed is None:
        verdict = f"Not judged: none are committed for {now.conditions}."
    elif fallen := worse(now, committed):
        verdict = f"Worse by more than the noise of {NOISE:.0%}, or gone: {'; '.join(fallen)}."
    else:
        verdict = f"None fell by more than the noise of {NOISE:.0%}."
    if committed is not None and (new := now.values.keys() - committed.values.keys()):
        verdict += f" {len(new)} of {len(now.values)} were not judged, as they are not committed."
    return "\n".join([*lines, "", verdict])


def _or_new(before: float | None) -> str:
    return "-" if before is None else f"{before:.2f}"


def _change(value: float, before: float | None) -> str:
    return "new" if before is None else f"{value / before - 1:+.0%}"
