"""Where experiments run: in the simulator of a large machine, or on the real engine with a small model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias

from inflight.config import EngineConfig
from load_tests.experiments.padded import Packed, generate
from load_tests.lengths import Lengths
from load_tests.simulate.engine_run import calibrate, engine_config, run_engine
from load_tests.simulate.result import Result
from load_tests.simulate.simulator import simulate
from load_tests.simulate.step_cost import A100_CACHE_TOKENS, A100_LLAMA_8B, StepCost
from load_tests.slo import Slo
from load_tests.traffic import Arrival

_ENGINE_REQUESTS = 32
STATIC = {"batching_strategy": "static"}

Serve: TypeAlias = Callable[[Sequence[Arrival], Mapping[str, Any]], Result]
"""Serves requests under some settings."""


@dataclass(frozen=True)
class Stage:
    """A machine, and the size of requests and batches on it.

    Experiments give lengths as for the simulator, and load as a fraction of the machine's capacity. So the same
    experiment means the same on both stages.
    """

    cost: StepCost
    run: Serve
    """Serves requests with the scheduler. In the simulator other processes can call this one and the next two."""
    padded: Serve
    """Serves them in batches that run to completion, padded to the longest prompt and output."""
    packed: Serve
    """The same without padding."""
    max_num_seqs: int
    cache_tokens: int
    length_scale: float = 1.0
    max_requests: int | None = None
    traces: Path | None = None
    """Folder with the recorded traces. None: experiments leave them out."""

    def requests(self, wanted: int) -> int:
        """Number of requests on this stage for a wanted number in the simulator."""
        return wanted if self.max_requests is None else min(wanted, self.max_requests)

    def tokens(self, count: float) -> int:
        """A number of tokens, scaled as this stage scales lengths."""
        return max(1, round(count * self.length_scale))

    def lengths(self, lengths: Lengths) -> Lengths:
        """A length distribution, scaled for this stage."""
        return lengths.scaled(self.length_scale)

    def both(self, lengths: tuple[Lengths, Lengths]) -> tuple[Lengths, Lengths]:
        """The distributions of prompt and output lengths, scaled for this stage."""
        return self.lengths(lengths[0]), self.lengths(lengths[1])

    def rate(self, load: float, lengths: tuple[Lengths, Lengths], num_seqs: float | None = None) -> float:
        """The request rate, per second, that is a given fraction of the machine's capacity.

        Args:
            load: the fraction.
            lengths: prompt and output lengths as in the simulator.
            num_seqs: how many requests may run at once, where that is less than `max_num_seqs`.
        """
        prompt, output = (x.mean * self.length_scale for x in lengths)
        return load * self.cost.capacity(prompt, output, num_seqs or self.max_num_seqs)

    @cached_property
    def itl(self) -> float:
        """Seconds to expect between two tokens: 1.5 times a step with decodes and little else."""
        return 1.5 * (self.cost.per_step + self.cost.per_token * (self.max_num_seqs + self.tokens(128)))

    @property
    def slo(self) -> Slo:
        """The objective. The first token must come within the time that a prompt of 8,192 tokens takes, and the others
        within `itl`."""
        return Slo(ttft=self.cost.per_step + self.cost.per_token * self.tokens(8192), itl=self.itl)


def simulator(traces: Path | None = None) -> Stage:
    """A stage that simulates Llama 3 8B on an A100. `traces` is the folder with the recorded traces."""
    run = partial(_simulate, A100_LLAMA_8B, {})
    padded = partial(_simulate, A100_LLAMA_8B, STATIC)
    packed = partial(_simulate, Packed(**vars(A100_LLAMA_8B)), STATIC)
    return Stage(A100_LLAMA_8B, run, padded, packed, max_num_seqs=64, cache_tokens=A100_CACHE_TOKENS, traces=traces)


def _simulate(
    cost: StepCost, fixed: Mapping[str, Any], arrivals: Sequence[Arrival], settings: Mapping[str, Any]
) -> Result:
    base: dict[str, Any] = {
        "kv_cache_tokens": A100_CACHE_TOKENS,
        "max_num_seqs": 64,
        "max_queue_size": len(arrivals),
        "enable_prefix_caching": False,
    }
    return simulate(arrivals, EngineConfig(model="simulated", **base | dict(settings) | dict(fixed)), cost)


def engine(folder: Path) -> Stage:
    """A stage that runs a small model on this machine's CPU. It first measures the model's step times."""
    base: dict[str, Any] = {"kv_cache_tokens": 16_384, "max_num_seqs": 8, "enable_prefix_caching": False}

    def run(arrivals: Sequence[Arrival], settings: Mapping[str, Any]) -> Result:
        return run_engine(arrivals, engine_config(folder, **base | dict(settings)), progress=True)

    def packed(arrivals: Sequence[Arrival], settings: Mapping[str, Any]) -> Result:
        # The engine counts the padding of static batches, and does not compute it.
        return run(arrivals, {**settings, **STATIC})

    def padded(arrivals: Sequence[Arrival], settings: Mapping[str, Any]) -> Result:
        return generate(folder, arrivals, settings.get("max_num_seqs", base["max_num_seqs"]))

    return Stage(
        calibrate(folder),
        run,
        padded,
        packed,
        max_num_seqs=8,
        cache_tokens=16_384,
        length_scale=1 / 8,
        max_requests=_ENGINE_REQUESTS,
    )
