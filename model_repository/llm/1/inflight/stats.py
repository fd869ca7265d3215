"""What an engine has done and holds."""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot; counters run from the engine's start."""

    time: float
    """When the snapshot was taken, in seconds since 1970."""
    steps: int
    step_seconds: float
    """Time spent in steps."""
    prompt_tokens: int
    """Tokens of prompts admitted."""
    cached_tokens: int
    """Those of them that the prefix cache spared."""
    prefill_tokens: int
    """Tokens that went through the model before a request's first token, or again after a preemption."""
    decode_tokens: int
    """Tokens that went through the model one at a time, after the first."""
    padding_avoided: int
    """What more would have been computed, had the shares of each step been padded to the longest of them."""
    padding_tokens: int
    """What more the batching strategy would have computed if it padded."""
    budget_tokens: int
    """Most tokens that the steps could have computed: their token budgets added up."""
    generated_tokens: int
    """Tokens sampled."""
    output_tokens: int
    """Tokens in outputs; those sampled after a stop string was complete are not."""
    finished: Mapping[str, int]
    """Outputs that ended, by finish reason."""
    preemptions: int
    swaps: int
    """Those of them that kept their keys and values in host memory."""
    running: int
    waiting: int
    block_size: int
    """Tokens that a block holds."""
    blocks_total: int
    blocks_used: int
    blocks_free: int
    """Blocks that a request may take: total less used."""
    blocks_cached: int
    """Free blocks that hold a reusable prefix."""
    host_blocks_total: int
    """Blocks that host memory takes up from preempted requests."""
    host_blocks_used: int

    @property
    def computed_tokens(self) -> int:
        """Tokens that went through the model."""
        return self.prefill_tokens + self.decode_tokens
