"""A LoRA adapter as the scheduler and the prefix cache see it."""

from dataclasses import dataclass


# Its slot is free again once nothing refers to it, see `AdapterCache`.
@dataclass(frozen=True, slots=True, weakref_slot=True)
class Adapter:
    """Small changes of a model's linear layers (LoRA, arXiv 2106.09685), which some requests ask for."""

    name: str
    slot: int
    """Its place in the tensors of all adapters."""
    digest: str
    """A name of its weights and its scale. Adapters with equal digests give equal keys and values."""
