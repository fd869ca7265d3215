"""What enters and leaves the prefix cache, recorded for those who follow it from outside."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(slots=True)
class BlocksStored:
    """Consecutive blocks of a sequence can be reused from now on."""

    hashes: list[bytes]
    parent: bytes | None
    """Hash of the block before them. None: they begin the sequence."""
    token_ids: list[int]
    """The tokens of all of these blocks."""


@dataclass(slots=True)
class BlocksRemoved:
    """Blocks cannot be reused any more."""

    hashes: list[bytes]


BlockEvent: TypeAlias = BlocksStored | BlocksRemoved


class BlockEvents:
    """Records the blocks that any request may reuse: those without a salt.

    Followers look for the tokens of a prompt in what they were told. They would take the blocks of one tenant for
    everybody's, so blocks with a salt are left out. vLLM marks them instead (`extra_keys`), but routers may ignore the
    mark: vllm-router 0.1.17 takes a marked block for that of a prompt without a salt.
    """

    def __init__(self) -> None:
        self._events: list[BlockEvent] = []
        self._told: set[bytes] = set()
        """Hashes of the recorded blocks that are in the cache."""

    def stored(self, name: bytes, parent: bytes | None, token_ids: Sequence[int]) -> None:
        """Record that a block without a salt can be reused. `name` is its hash, `parent` that of the block before."""
        self._told.add(name)
        last = self._events[-1] if self._events else None
        if isinstance(last, BlocksStored) and last.hashes[-1] == parent:
            last.hashes.append(name)
            last.token_ids += token_ids
        else:
            self._events.append(BlocksStored([name], parent, list(token_ids)))

    def removed(self, name: bytes) -> None:
        """Record that a block cannot be reused any more. A block with a salt is ignored."""
        if name not in self._told:
            return
        self._told.remove(name)
        last = self._events[-1] if self._events else None
        if isinstance(last, BlocksRemoved):
            last.hashes.append(name)
        else:
            self._events.append(BlocksRemoved([name]))

    def take(self) -> list[BlockEvent]:
        """Return the events since the last call, in order."""
        events, self._events = self._events, []
        return events
