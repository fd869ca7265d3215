"""Step times of CPU machines for the simulator, behind Triton.

They are fitted by hand to the tables of docs/performance.md and docs/notes/cpu-steps.md. With those of AMX, the
simulator also reproduces the throughput and the first tokens that were measured with long prompts.
"""

from dataclasses import dataclass

from load_tests.simulate.step_cost import StepCost


@dataclass(frozen=True)
class Machine:
    """A machine with a model, and step times of our server and of another one."""

    name: str
    ours: StepCost
    theirs: StepCost


_AMX = Machine(
    "AMX, 135M",
    StepCost(
        per_step=13.6e-3, per_token=94e-6, per_cached_token=0.92e-6, per_pair=0.0715e-6, per_sampled_token=0.18e-3
    ),
    # vLLM 0.32, fitted to its rows in docs/performance.md.
    StepCost(per_step=26.5e-3, per_token=140e-6, per_cached_token=0.72e-6, per_pair=0.08e-6, per_sampled_token=0.36e-3),
)
_AVX512_BF16 = Machine(
    "AVX512_BF16, 135M",
    StepCost(per_step=9.2e-3, per_token=299e-6, per_cached_token=0.92e-6, per_pair=0.115e-6, per_sampled_token=12e-6),
    # Not measured: 2 times our time for a step, and 1.25 times for prompts.
    StepCost(per_step=18.4e-3, per_token=374e-6, per_cached_token=0.9e-6, per_pair=0.144e-6, per_sampled_token=92e-6),
)
_AMX_1B = Machine(
    "AMX, 1B",
    StepCost(per_step=78e-3, per_token=1.08e-3, per_cached_token=2.75e-6, per_pair=0.25e-6),
    # vLLM has 0.95 to 0.99 of our throughput with this shape.
    StepCost(per_step=82e-3, per_token=1.19e-3, per_cached_token=2.75e-6, per_pair=0.275e-6),
)

MACHINES = (_AMX, _AVX512_BF16, _AMX_1B)
