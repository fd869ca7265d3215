"""`python -m load_tests.tune.grid`: compare the search of `make tune` with all combinations, in the simulator.

For each workload it simulates every combination of the space. Then it searches with several seeds, in 12 trials each,
for each objective. A cell says how much worse than the best of all combinations the found one is, for the worst seed,
and how much worse the default configuration is.

Requests come from users in a closed loop. Where a workload file says that requests cluster, they come at 90 % of the
rate that these users are served at.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from tqdm import tqdm

from load_tests.loads import read_loads
from load_tests.option_types import count
from load_tests.simulate.cpu_machines import MACHINES
from load_tests.tune.load import Load
from load_tests.tune.machine import Machine, read_machine
from load_tests.tune.objective import OBJECTIVES, Objective, objective
from load_tests.tune.search import best, search
from load_tests.tune.simulated import Simulated, default_config
from load_tests.tune.space import Space, space_for
from load_tests.workload import WORKLOADS, Workload

SIMULATED = Machine(MACHINES[0].ours, kv_cache_tokens=131_072)
"""The machine without `--machine`."""
_LOAD = 0.9
_BEYOND = 1000.0
"""A gap as large as this means that a choice misses the targets."""


@dataclass(frozen=True)
class Gap:
    """By which fraction choices are worse than the best of all."""

    found: float
    """The choice that the search found, with the worst of its seeds."""
    default: float


@dataclass(frozen=True)
class Compared:
    """All objectives under one workload."""

    load: Load
    size: int
    """Number of combinations."""
    gaps: Mapping[str, Gap]
    """By the name of the objective."""


def compare(workload: Workload, machine: Machine, *, users: int, requests: int, seeds: int) -> Compared:
    """Simulate all combinations, and search for each objective, with a progress bar."""
    load = load_of(workload, machine, users, requests)
    arrivals = load.requests(requests, seed=0)
    space = space_for(default_config(machine), arrivals, load.users, workload.slo)
    serve = Simulated(load, arrivals, space, machine)
    for choice in tqdm(space.choices(), total=space.size, desc=workload.name, unit="choice", leave=False):
        serve(choice)
    aims = [objective(name, workload.slo, load.users) for name in OBJECTIVES]
    return Compared(load, space.size, {aim.name: _gap(space, serve, aim, seeds) for aim in aims})


def load_of(workload: Workload, machine: Machine, users: int, requests: int) -> Load:
    """The load for a workload: users, or a rate where requests cluster."""
    closed = Load(workload, users)
    if not workload.bursty:
        return closed
    served = Simulated(closed, closed.requests(requests, seed=0), Space(default_config(machine), []), machine)({})
    return Load(workload, None, _LOAD * len(served.arrival) / served.busy_seconds)


def _gap(space: Space, serve: Simulated, aim: Objective, seeds: int) -> Gap:
    lowest = min(aim.loss(serve(choice)) for choice in space.choices())
    found = [best(search(space, serve, aim.loss, seed=seed, bar=tqdm(disable=True))).loss for seed in range(seeds)]
    return Gap(worse_by(max(found), lowest), worse_by(aim.loss(serve(space.default)), lowest))


def worse_by(loss: float, lowest: float) -> float:
    """By which fraction a loss is worse than the lowest one. It is negative where higher measures are better."""
    if loss == lowest:
        return 0.0
    if not lowest:
        return float("inf")
    return 1 - loss / lowest if lowest < 0 else loss / lowest - 1


def row(compared: Compared) -> Sequence[str]:
    """A row of the table."""
    cells = [f"{_percent(gap.found)} ({_percent(gap.default)})" for gap in compared.gaps.values()]
    return compared.load.workload.name, compared.load.text, str(compared.size), *cells


def _percent(gap: float) -> str:
    """A gap as text. Losses beyond the targets are millions of times as high as those within them."""
    return f"{gap:.1%}" if gap < _BEYOND else "misses the targets"


def main() -> int:
    """Print the table, a row as soon as it is known, and return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    shipped = sorted(path.stem for path in WORKLOADS.glob("*.yaml"))
    add("workloads", type=read_loads, nargs="*", metavar="WORKLOAD", help="by default all")
    add("--machine", type=Path, metavar="FILE", help="a machine.json of `make tune`, instead of a simulated machine")
    add("--users", type=count, default=32, help="(%(default)s)")
    add("--requests", type=count, default=192, help="requests in each simulation (%(default)s)")
    add("--seeds", type=count, default=3, help="searches for each objective (%(default)s)")
    options = parser.parse_args()
    if options.requests <= options.users:
        parser.error(
            f"argument --requests: must be more than the {options.users} --users, whose first requests do not count "
            f"for ttft, not {options.requests}"
        )
    try:
        machine = SIMULATED if options.machine is None else read_machine(options.machine)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    head = ("Workload", "Load", "Combinations", *OBJECTIVES)
    print(f"| {' | '.join(head)} |\n|---|---|{'---:|' * (len(head) - 2)}")
    size = {"users": options.users, "requests": options.requests, "seeds": options.seeds}
    for workload in chain.from_iterable(options.workloads or map(read_loads, shipped)):
        compared = compare(workload, machine, **size)
        print(f"| {' | '.join(row(compared))} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
