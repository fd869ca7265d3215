"""The blocks of the KV cache: in use, empty, or free with a reusable prefix."""

from collections import OrderedDict
from collections.abc import Callable, Sequence


class BlockPool:
    """Counts references to blocks, and remembers full blocks by hash until their memory is needed.

        empty ──allocate──▶ used ──release, no hash──▶ empty
                             ▲ └───release, hashed───▶ cached ──allocate (oldest first)──▶ used
                             └──────share (hit)──────────┘

    `num_used + num_free == num_blocks` always holds. Cached blocks count as free, because any allocation may take them.
    Every operation takes O(1) per block.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self.on_evict: Callable[[bytes, int], None] | None = None
        """Called with the hash of each block that is evicted, and with the block, whose content is still there."""
        self.on_register: Callable[[bytes, int], None] | None = None
        """Called with the hash of each block that can be found from now on, and with the block."""
        self._references = [0] * num_blocks
        self._empty = list(range(num_blocks - 1, -1, -1))
        self._cached: OrderedDict[int, None] = OrderedDict()
        self._hash_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        return len(self._empty) + len(self._cached)

    @property
    def num_empty(self) -> int:
        """Free blocks that hold no reusable prefix."""
        return len(self._empty)

    @property
    def num_cached(self) -> int:
        """Free blocks that hold a reusable prefix."""
        return len(self._cached)

    @property
    def num_used(self) -> int:
        return self.num_blocks - self.num_free

    def allocate(self, count: int) -> list[int]:
        """Take `count` blocks: empty ones first, then the least recently used cached ones.

        Raises:
            ValueError: fewer than `count` blocks are free. No block is taken.
        """
        if count > self.num_free:
            raise ValueError(f"{count} blocks asked for, {self.num_free} free")
        blocks = [self._empty.pop() if self._empty else self._evict() for _ in range(count)]
        for block in blocks:
            self._references[block] = 1
        return blocks

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        name = self._hash_of.pop(block)
        del self._block_of[name]
        if self.on_evict is not None:
            self.on_evict(name, block)
        return block

    def release(self, blocks: Sequence[int]) -> None:
        """Give up one reference to each block of a table.

        The last blocks are released first and so evicted first: a prefix is useful without its tail, but not the
        reverse.

        Raises:
            ValueError: a block has no reference left to give up.
        """
        for block in reversed(blocks):
            if self._references[block] < 1:
                raise ValueError(f"block {block} is released but not in use")
            self._references[block] -= 1
            if self._references[block] == 0:
                if block in self._hash_of:
                    self._cached[block] = None
                else:
                    self._empty.append(block)

    def find(self, hashes: Sequence[bytes]) -> list[int]:
        """Return the blocks that hold the longest known prefix of the chain `hashes`, in order. Takes no reference."""
        blocks = []
        for name in hashes:
            block = self._block_of.get(name)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def num_unreferenced(self, blocks: Sequence[int]) -> int:
        """Return how many of `blocks` are free now, so that `share` would take them."""
        return sum(self._references[block] == 0 for block in blocks)

    def share(self, blocks: Sequence[int]) -> None:
        """Add a reference to each of `blocks`, which `find` returned."""
        for block in blocks:
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1

    def register(self, block: int, name: bytes) -> bool:
        """Let `find` return `block` for the hash `name`. Call this once the step that fills the block is committed.

        Return False and do nothing if another block already has this hash, so that block tables are append-only, or if
        the block has a hash.
        """
        if name in self._block_of or block in self._hash_of:
            return False
        self._block_of[name] = block
        self._hash_of[block] = name
        if self.on_register is not None:
            self.on_register(name, block)
        return True
