"""What somebody who follows the events of a prefix cache knows of it."""

from collections.abc import Iterable, Sequence

from inflight.kv_cache.block_events import BlockEvent, BlocksStored
from inflight.kv_cache.block_hash import BlockHasher
from inflight.kv_cache.cache_salt import CacheSalt


class CacheMirror:
    """Applies events, and checks that the tokens in them are those that the hashes stand for."""

    def __init__(self, hasher: BlockHasher, block_size: int) -> None:
        self.names: set[bytes] = set()
        """Hashes of the blocks that are in the cache."""
        self._hasher, self._block_size = hasher, block_size
        self._paths: dict[bytes | None, list[int]] = {None: []}
        """The tokens of each block that was ever there, and of all blocks before it."""

    def apply(self, events: Iterable[BlockEvent]) -> None:
        for event in events:
            if isinstance(event, BlocksStored):
                assert len(event.token_ids) == len(event.hashes) * self._block_size
                self._store(event.hashes, event.parent, event.token_ids)
            else:
                assert self.names.issuperset(event.hashes)
                self.names.difference_update(event.hashes)

    def _store(self, names: Sequence[bytes], parent: bytes | None, token_ids: list[int]) -> None:
        assert self.names.isdisjoint(names)
        path = self._paths[parent] + token_ids
        hashes: list[bytes] = []
        self._hasher.extend(hashes, path, len(path), CacheSalt())
        assert hashes[len(hashes) - len(names) :] == names
        for index, name in enumerate(hashes):
            self._paths[name] = path[: (index + 1) * self._block_size]
        self.names.update(names)
