"""What the adaptive token budget promises, on simulated machines."""

import pytest

from load_tests.simulate import closed_loops
from load_tests.simulate.closed_loops import LONG, OURS, SHORT, Load, rows
from load_tests.simulate.cpu_machines import MACHINES, Machine

ADAPTIVE, FIXED = OURS["adaptive"], OURS["fixed, 512"]
LOADS = [
    Load("few long prompts", 4, LONG),
    Load("many long prompts", 16, LONG),
    Load("short prompts", 32, SHORT),
    Load("a shared prefix", 16, SHORT, prefix_tokens=944),
]


@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_gaps_stay_under_three_times_the_undisturbed_ones(machine: Machine, load: Load) -> None:
    result = load.run(machine.ours, ADAPTIVE, requests=8)
    assert result.done.all()
    assert result.itl(99) < 3 * load.undisturbed(machine.ours)


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
def test_a_rush_is_served_about_as_fast_as_with_a_fixed_budget(machine: Machine) -> None:
    load = Load("a rush", 64, SHORT)
    adaptive, fixed = (load.run(machine.ours, settings, requests=1) for settings in (ADAPTIVE, FIXED))
    assert adaptive.ttft.mean() < 1.1 * fixed.ttft.mean()
    assert adaptive.ttft.max() < 1.1 * fixed.ttft.max()


def test_the_table_has_a_row_for_each_load_and_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(closed_loops, "LOADS", [Load("one user", 1, SHORT)])
    lines = list(rows(MACHINES[0]))
    assert [line.split(" | ")[1] for line in lines] == ["other server", *OURS]
    assert len({line.count("|") for line in lines}) == 1
