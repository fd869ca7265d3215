"""What rank 0 and the other ranks say to each other: commands from rank 0, and an answer from each of the others.

A command is bytes: one that names it, one that numbers it, and its argument. An answer is bytes: the number of the
command, one that names the answer, and a reason.
"""

from dataclasses import dataclass

from inflight.config import EngineConfig
from inflight.errors import OutOfMemory
from inflight.model.parallel.rendezvous import Rendezvous
from inflight.model.parallel.shards import RANK_LEFT

PREPARE, LOAD, ALLOCATE, STEP, HEAD, RENEW, ADAPTER = b"P", b"L", b"A", b"S", b"H", b"R", b"W"
"""Look whether a model can be loaded (pickled `Load`), load it, allocate a cache (pickled settings), run a step
(`StepMessage`), compute logits of hidden states (their two sizes as int64), connect anew (the generation as int64), put
a part of a LoRA adapter into its slot (`adapter_messages`)."""

DONE, SHORT, LEFT, FAILED = b"D", b"M", b"L", b"F"
"""It is done, memory was short, another rank has left, or something else has failed. The last three have a reason."""


@dataclass(frozen=True)
class Load:
    """What a rank needs to load its part of a model."""

    config: EngineConfig
    rendezvous: Rendezvous
    checkpoint: str
    """See `checkpoint_digest`."""


def answer_of(error: Exception) -> bytes:
    """The answer of a rank that has failed."""
    text = f"{type(error).__name__}: {error}"
    if isinstance(error, OutOfMemory):
        return SHORT + str(error).encode()
    # Not by its class: an operator in a traced graph raises a RuntimeError with the text of the exception.
    return (LEFT if RANK_LEFT in text else FAILED) + text.encode()
