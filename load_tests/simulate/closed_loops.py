"""`python -m load_tests.simulate.closed_loops`: first tokens and gaps of users in closed loops, by token budget.

Users send one request after another to simulated CPU machines. The budgets are those of our server, and that of a
server with a fixed budget of 2,048 tokens and its own step times, as vLLM has by default.

All users send their first request at once. The columns of the start have the times to the first tokens of these
requests; the other times to first token are without them. Undisturbed is a step in which all users decode, with the
mean context.
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
from load_tests.simulate.cpu_machines import AMX, AMX_1B, AVX512_BF16, Machine
from load_tests.simulate.result import Result
from load_tests.simulate.simulator import simulate
from load_tests.simulate.step_cost import StepCost
from load_tests.traffic import Stream

REQUESTS_OF_A_USER = 40
SEED = 1
OUTPUTS = Uniform(48, 96)
SHORT, LONG = Uniform(40, 163), Uniform(950, 1650)
MACHINES = (AMX, AVX512_BF16, AMX_1B)
BUDGETS: Mapping[str, Mapping[str, Any]] = {
    "adaptive": {"token_budget": "adaptive"},
    "fixed, 512": {"token_budget": "fixed"},
}
THEIRS = "other server, fixed, 2048"


@dataclass(frozen=True)
class Load:
    """Users and the lengths of their prompts."""

    name: str
    users: int
    prompts: Lengths
    prefix_tokens: int = 0
    """Tokens that all prompts share, before those of `prompts`."""

    @property
    def context(self) -> float:
        """Mean number of cached tokens of a request that decodes."""
        return self.prefix_tokens + self.prompts.mean + OUTPUTS.mean / 2

    def run(self, cost: StepCost, settings: Mapping[str, Any]) -> Result:
        """Serve the users."""
        stream = Stream(AllAtOnce(), self.prompts, OUTPUTS, prefix_tokens=self.prefix_tokens)
        arrivals = stream.make(REQUESTS_OF_A_USER * self.users, SEED)
        config = EngineConfig(
            model="simulated",
            kv_cache_tokens=64 * 2048,
            max_num_seqs=self.users,
            enable_prefix_caching=self.prefix_tokens > 0,
            **{"max_num_batched_tokens": 512, **settings},
        )
        return simulate(arrivals, config, cost, users=self.users)


LOADS = (
    *(Load(f"{users}, short prompts", users, SHORT) for users in (1, 8, 32, 64)),
    *(Load(f"{users}, long prompts", users, LONG) for users in (4, 16)),
    Load("16, shared prefix", 16, SHORT, prefix_tokens=944),
)


def row(load: Load, cost: StepCost, result: Result) -> str:
    """The measures of a result, as cells of a Markdown table."""
    start, later = (1e3 * ttft for ttft in np.split(result.ttft, [load.users]))
    undisturbed = cost.decode_seconds(load.users, load.context)
    gaps = [result.itl(percent) / undisturbed for percent in (50, 99)]
    return (
        f"{result.throughput:.0f} | {np.median(later):,.0f}, {np.percentile(later, 99):,.0f} "
        f"| {np.median(start):,.0f}, {start.max():,.0f} | {1e3 * undisturbed:.0f} | {gaps[0]:.2f}, {gaps[1]:.2f}"
    )


def rows(machine: Machine) -> Iterator[str]:
    """Lines of the table of a machine."""
    for load in tqdm(LOADS, desc=machine.name, leave=False):
        yield f"| {load.name} | {THEIRS} | {row(load, machine.theirs, load.run(machine.theirs, VLLM))} |"
        for name, settings in BUDGETS.items():
            yield f"| {load.name} | {name} | {row(load, machine.ours, load.run(machine.ours, settings))} |"


VLLM = {"token_budget": "fixed", "max_num_batched_tokens": 2048}


def main() -> None:
    """Print a table for each machine."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    for machine in MACHINES:
        print(f"{machine.name}\n")
        print("| Users | Budget | Tokens/s | First token p50, p99 (ms) | At the start p50, worst (ms) ", end="")
        print("| Undisturbed gap (ms) | Gap p50, p99 to it |\n|---|---|---:|---:|---:|---:|---:|")
        print("\n".join(rows(machine)), end="\n\n")


if __name__ == "__main__":
    main()
