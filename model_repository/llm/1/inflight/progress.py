"""How far a request is, for those who watch."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """An unfinished request at one moment. During a step, it is as it was before the step."""

    running: bool
    """False while it waits, also if it ran before and was preempted."""
    priority: int
    """Its level in the queue; 0 without levels."""
    prompt_tokens: int
    computed_prompt_tokens: int
    """Prompt tokens whose keys and values are in the cache."""
