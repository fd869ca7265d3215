"""Counters of transfers between engines."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class KVTransferStats:
    """A snapshot. Counters run from the engine's start."""

    exports: Mapping[str, int] = field(default_factory=dict)
    """Prompts that were computed for other engines, by what became of them."""
    exported_bytes: int = 0
    """Bytes of exports that wait to be fetched."""
    imports: int = 0
    """Prompts that were fetched."""
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    """Prompts that were to be fetched and were computed instead, by reason."""
    bytes: Mapping[str, int] = field(default_factory=dict)
    """Bytes that were sent, received, and skipped: those that are cached here, or computed in any case."""
    fetch_seconds: float = 0.0
    """Time of all fetches together."""
    imported_bytes: int = 0
    """Bytes that were fetched and wait for the first step of their request."""
