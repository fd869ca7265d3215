"""How far a request is, for those who watch."""

from dataclasses import dataclass

from inflight.request import Request


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

    @classmethod
    def of(cls, request: Request, *, running: bool) -> "Progress":
        """Return how far a request is."""
        prompt_tokens = len(request.prompt_ids)
        return cls(running, request.priority, prompt_tokens, min(request.num_computed, prompt_tokens))
