"""The cards that the kernels are compiled for."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Card:
    """What matters of a card to a compiled kernel (CUDA C++ Programming Guide, compute capabilities)."""

    name: str
    capability: int
    """The compute capability without its dot, such as 80."""
    shared_bytes: int
    """Maximum shared memory of a thread block."""
    instruction: str
    """The widest instruction of its tensor cores for half precision. Small tiles use HMMA on every card."""


CARDS = (
    Card("A100", 80, 163 << 10, "HMMA"),
    Card("H100", 90, 227 << 10, "HGMMA"),
    Card("B200", 100, 227 << 10, "UTCHMMA"),
)
