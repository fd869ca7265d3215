"""`python -m load_tests.simulate.closed_loops`: first tokens and gaps of users in closed loops, by token budget.

Users send one request after another to simulated CPU machines. Our budgets are compared with another server, which has
step times of its own and a fixed budget of 2,048 tokens, as vLLM has by default.

All users send their first request at once. Times to the first tokens of these requests are in a column of their own,
not in those of the others. The undisturbed gap is the time of a step in which all users decode and nothing else
happens. Gaps are relative to it.
"""

import argparse
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm import tqdm

from inflight.config import EngineConfig
from load_tests.arrivals import AllAtOnce
from load_tests.lengths import Lengths, Uniform
from load_tests.simulate.cpu_machines import MACHINES, Machine
from load_tests.simulate.result import Result
from load_tests.simulate.simulator import simulate
from load_tests.simulate.step_cost import StepCost
from load_tests.traffic import Stream

REQUESTS_OF_A_USER = 40
SEED = 1
ANSWERS = Uniform(48, 96)
SHORT, LONG = Uniform(40, 163), Uniform(950, 1650)
OURS: Mapping[str, Mapping[str, Any]] = {
    "adaptive": {"token_budget": "adaptive"},
    "fixed, 512": {"token_budget": "fixed"},
}
THEIRS = {"token_budget": "fixed", "max_num_batched_tokens": 2048}


@dataclass(frozen=True)
class Load:
    """Users and the lengths of their prompts."""

    name: str
    users: int
    prompts: Lengths
    prefix_tokens: int = 0
    """Tokens that all prompts share, before those of `prompts`."""

    def run(self, cost: StepCost, settings: Mapping[str, Any], requests: int = REQUESTS_OF_A_USER) -> Result:
        """Serve `requests` requests of each user."""
        stream = Stream(AllAtOnce(), self.prompts, ANSWERS, prefix_tokens=self.prefix_tokens)
        config = EngineConfig(
            model="simulated",
            kv_cache_tokens=self.users * 2048,
            max_num_seqs=self.users,
            enable_prefix_caching=self.prefix_tokens > 0,
            **{"max_num_batched_tokens": 512, **settings},
        )
        return simulate(stream.make(requests * self.users, SEED), config, cost, users=self.users)

    def undisturbed(self, cost: StepCost) -> float:
        """Seconds of a step in which all users decode, after half of their answers."""
        return cost.decode_seconds(self.users, self.prefix_tokens + self.prompts.mean + ANSWERS.mean / 2)


LOADS = (
    *(Load(f"{users}, short prompts", users, SHORT) for users in (1, 8, 32, 64)),
    *(Load(f"{users}, long prompts", users, LONG) for users in (4, 16)),
    Load("16, shared prefix", 16, SHORT, prefix_tokens=944),
)


def rows(machine: Machine) -> Iterator[str]:
    """Lines of the table of a machine."""
    for load in tqdm(LOADS, desc=machine.name, leave=False):
        yield _row(load, "other server", machine.theirs, load.run(machine.theirs, THEIRS))
        for name, settings in OURS.items():
            yield _row(load, name, machine.ours, load.run(machine.ours, settings))


def _row(load: Load, name: str, cost: StepCost, result: Result) -> str:
    start, later = (1e3 * ttft for ttft in np.split(result.ttft, [load.users]))
    undisturbed = load.undisturbed(cost)
    gaps = [result.itl(percent) / undisturbed for percent in (50, 99)]
    return (
        f"| {load.name} | {name} | {result.throughput:.0f} | {np.median(later):,.0f}, {np.percentile(later, 99):,.0f} "
        f"| {np.median(start):,.0f}, {start.max():,.0f} | {1e3 * undisturbed:.0f} | {gaps[0]:.2f}, {gaps[1]:.2f} |"
    )


def main() -> None:
    """Print a table for each machine."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for machine in MACHINES:
        print(f"{machine.name}\n")
        print("| Users | Budget | Tokens/s | First token p50, p99 (ms) | At the start p50, worst (ms) ", end="")
        print("| Undisturbed gap (ms) | Gap p50, p99 |\n|---|---|---:|---:|---:|---:|---:|")
        print("\n".join(rows(machine)), end="\n\n")


if __name__ == "__main__":
    main()
