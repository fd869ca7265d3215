"""A model of step times on some machine."""

from dataclasses import dataclass
from pathlib import Path

from inflight.scheduler.plan import StepPlan
from inflight.scheduler.step_time import StepTimeModel
from load_tests.simulate.trace import read_trace

_BLOCK_SIZE = 16
"""Default number of tokens in a block of the KV cache."""


@dataclass(frozen=True)
class StepCost:
    """The terms of `StepTimeModel`, and one for sampled tokens: the model's head computes only their rows."""

    per_step: float
    per_token: float
    per_cached_token: float
    per_pair: float = 0.0
    """Seconds for a pair of a query and a key in attention."""
    per_sampled_token: float = 0.0
    per_swapped_block: float = 0.0
    """Seconds to copy a block between the KV cache and host memory, one way."""

    def seconds(self, plan: StepPlan) -> float:
        """Duration of a step. A batching strategy that pads computes the padding too."""
        copies = len(plan.swapped_out) + len(plan.swapped_in)
        return self._step(*self._parts(plan)) + self.per_swapped_block * copies

    def _parts(self, plan: StepPlan) -> tuple[float, float]:
        """Seconds to read weights, keys and values, and to compute."""
        computing = self.per_token * (plan.num_tokens + plan.padding) + self.per_pair * plan.num_pairs
        computing += self.per_sampled_token * (len(plan.sampling) + plan.num_draft)
        return self.per_step + self.per_cached_token * plan.num_cached, computing

    def _step(self, reading: float, computing: float) -> float:
        return reading + computing

    def decode_seconds(self, decodes: int, context: float) -> float:
        """Duration of a step of decodes that read `context` cached tokens each."""
        computing = self.per_token + self.per_sampled_token + self.per_pair * (context + 1)
        return self._step(self.per_step + decodes * self.per_cached_token * context, decodes * computing)

    def prompt_seconds(self, tokens: int) -> float:
        """Duration of a step with one whole prompt and nothing else."""
        pairs = tokens * (tokens + 1) / 2
        return self._step(self.per_step, self.per_token * tokens + self.per_pair * pairs + self.per_sampled_token)

    def capacity(self, prompt: float, output: float, num_seqs: float) -> float:
        """Requests per second if `num_seqs` requests with `prompt` and `output` tokens were always running."""
        reading = self.per_step * output / num_seqs + self.per_cached_token * output * (prompt + output / 2)
        tokens = self.per_token * (prompt + output) + self.per_sampled_token * output
        pairs = self.per_pair * (prompt + output) ** 2 / 2
        return 1 / self._step(reading, tokens + pairs)

    @classmethod
    def of_hardware(
        cls,
        *,
        weight_bytes: float,
        kv_bytes_per_token: float,
        bytes_per_second: float,
        flop_per_second: float,
        host_bytes_per_second: float,
    ) -> "StepCost":
        """Step times from a model's size (2 bytes and 2 FLOP per parameter) and the rates that a machine attains.

        The time to read weights and keys at memory speed and the time to multiply at arithmetic speed are added, not
        overlapped. The sum is at most twice what a roofline model says.
        """
        return cls(
            per_step=weight_bytes / bytes_per_second,
            per_token=weight_bytes / flop_per_second,
            per_cached_token=kv_bytes_per_token / bytes_per_second,
            per_swapped_block=_BLOCK_SIZE * kv_bytes_per_token / host_bytes_per_second,
        )

    @classmethod
    def of_trace(cls, path: Path) -> "StepCost":
        """Step times fitted to the steps in an engine's `trace_file`.

        Raises:
            ValueError: the file is no trace, or has too few steps for a fit.
        """
        model = StepTimeModel()
        for event in read_trace(path):
            if event.get("name") == "step":
                try:
                    args = event["args"]
                    tokens, seconds = args["tokens"] + args["padding_tokens"], event["dur"] / 1e6
                    model.observe(tokens, args["cached_tokens"], args["attention_pairs"], seconds)
                except KeyError as error:
                    raise ValueError(f"{path} is no trace of an engine: a step has no {error}") from error
        if not model.known:
            raise ValueError(f"{path} holds {model.num_steps} steps, too few to fit a step-time model to")
        return cls(*model.coefficients)


class Overlapped(StepCost):
    """A machine that reads weights and keys while it computes, as a roofline model says."""

    def _step(self, reading: float, computing: float) -> float:
        return max(reading, computing)


# Llama 3 8B in bfloat16: 8.03 billion parameters; 32 layers of 8 key-value heads of 128 dimensions. NVIDIA A100 SXM
# 80 GB (data sheet): 2,039 GB/s and 312 TFLOP/s, of which kernels attain some 80 % and 60 %; PCIe 4 x16: 32 GB/s.
WEIGHT_BYTES = 16.06e9
KV_BYTES_PER_TOKEN = 2 * 32 * 8 * 128 * 2
A100_LLAMA_8B = StepCost.of_hardware(
    weight_bytes=WEIGHT_BYTES,
    kv_bytes_per_token=KV_BYTES_PER_TOKEN,
    bytes_per_second=0.8 * 2.039e12,
    flop_per_second=0.6 * 312e12,
    host_bytes_per_second=0.8 * 32e9,
)
A100_CACHE_TOKENS = 400_000
"""Number of tokens that fit beside those weights into 90 % of 80 GB."""
