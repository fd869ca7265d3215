"""What an engine has done and holds."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot; counters run from the engine's start."""

    steps: int
    step_seconds: float
    """Time spent in steps."""
    prompt_tokens: int
    """Tokens of prompts admitted."""
    cached_tokens: int
    """Those of them that the prefix cache spared."""
    computed_tokens: int
    """Tokens that went through the model, recomputed ones included."""
    generated_tokens: int
    preemptions: int
    running: int
    waiting: int
    blocks_total: int
    blocks_used: int
    blocks_free: int
    """Blocks that a request may take: total less used."""
    blocks_cached: int
    """Free blocks that hold a reusable prefix."""
