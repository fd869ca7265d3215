"""Gives requests their blocks and takes them back."""

from inflight.kv_cache.block_hash import extend_hashes
from inflight.kv_cache.block_pool import BlockPool
from inflight.request import Request


class BlockTables:
    """The block table of every request: admission with prefix reuse, growth, release."""

    def __init__(self, pool: BlockPool, block_size: int, *, prefix_caching: bool) -> None:
        self.pool = pool
        self.block_size = block_size
        self._prefix_caching = prefix_caching

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that hold `num_tokens` tokens."""
        return -(-num_tokens // self.block_size)

    def admit(self, request: Request) -> bool:
        """Give blocks for all tokens known to a request that holds none; False, and nothing taken, if they don't fit.

        What the prefix cache holds counts as computed, except for the last token: its logits are needed.
        """
        hit = self._cached_prefix(request)
        fresh = self.blocks_for(len(request.token_ids)) - len(hit)
        if fresh + self.pool.num_unreferenced(hit) > self.pool.num_free:
            return False
        self.pool.share(hit)
        request.blocks = hit + self.pool.allocate(fresh)
        request.num_computed = len(hit) * self.block_size
        return True

    def _cached_prefix(self, request: Request) -> list[int]:
        if not self._prefix_caching:
            return []
        extend_hashes(request.block_hashes, request.token_ids, len(request.token_ids), self.block_size)
        return self.pool.find(request.block_hashes[: (len(request.token_ids) - 1) // self.block_size])

    def grow(self, request: Request) -> bool:
        """Make sure that a running request has room for all its known tokens; False if there is none left."""
        missing = self.blocks_for(len(request.token_ids)) - len(request.blocks)
        if missing > self.pool.num_free:
            return False
        if missing > 0:
            request.blocks += self.pool.allocate(missing)
        return True

    def commit(self, request: Request, num_tokens: int) -> None:
        """Count `num_tokens` more tokens as computed and offer the blocks that they filled for reuse."""
        first = request.num_computed // self.block_size
        request.num_computed += num_tokens
        last = request.num_computed // self.block_size
        if self._prefix_caching and last > first:
            extend_hashes(request.block_hashes, request.token_ids, request.num_computed, self.block_size)
            for index in range(first, last):
                self.pool.register(request.blocks[index], request.block_hashes[index])

    def release(self, request: Request) -> None:
        """Take back every block of a request."""
        self.pool.release(request.blocks)
        request.blocks = []
        request.num_computed = 0
