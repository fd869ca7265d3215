"""What the tuner aims at (`auto_tune`)."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Objective:
    """How much of the targets each part of a step may take. Infinity: the part has no target."""

    decodes: float
    """Part of `target_itl_ms` that a step of decodes alone may take. It bounds the number of sequences."""
    prompts: float
    """Part of `target_ttft_ms` that a step of prompts alone may take. It bounds the token budget."""
    shortens: bool = False
    """Whether steps get shorter than `target_itl_ms` while first tokens come in time."""
    pace: float = 0.0
    """Part of `target_itl_ms` after which the next token may come at the earliest, so that more requests join a batch
    with free places. The rest is for errors of the step-time model."""


_NONE = float("inf")

OBJECTIVES = {
    "goodput": Objective(decodes=0.9, prompts=0.25),
    "throughput": Objective(decodes=_NONE, prompts=_NONE),
    "latency": Objective(decodes=0.6, prompts=0.125, shortens=True),
    "cost": Objective(decodes=0.9, prompts=0.25, pace=0.85),
}
"""`throughput` has no targets: by the step-time model, the fullest step has the most tokens a second."""
