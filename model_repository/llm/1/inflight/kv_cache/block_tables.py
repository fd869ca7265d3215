"""Allocates blocks of the KV cache to requests and frees them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from inflight.beam_search.beam_group import Move
from inflight.kv_cache.block_events import BlockEvents
from inflight.kv_cache.block_hash import BlockHasher
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_table_array import BlockTableArray
from inflight.kv_cache.cache_salt import CacheSalt
from inflight.kv_cache.host_pool import HostPool
from inflight.kv_cache.imported_blocks import ImportedBlocks
from inflight.request import Request

Imports: TypeAlias = tuple[tuple[NDArray[np.uint8], tuple[int, ...]], ...]
"""Bytes [N, bytes per block], and the N blocks to write them to."""

Copies: TypeAlias = tuple[tuple[int, int], ...]
"""Pairs of a block to copy and the block to copy it to."""


class BlockTables:
    """The block tables of all requests: admission with prefix reuse, growth, release and swapping."""

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        *,
        prefix_caching: bool,
        per_tenant: bool = False,
        hash_key: bytes | None = None,
        host: HostPool | None = None,
        events: BlockEvents | None = None,
    ) -> None:
        """`per_tenant` keeps tenants from sharing blocks, see `CacheSalt`. `hash_key` is the key of `BlockHasher`.

        Blocks that leave the prefix cache are kept in `host` while it has room. `events` records which blocks enter and
        leave the prefix cache.
        """
        self.pool = pool
        self.block_size = block_size
        self.host = host or HostPool(0)
        self.num_promised = 0
        """Maximum number of additional blocks that the requests with blocks may still need."""
        self.swapped_out: list[tuple[int, int]] = []
        """Copies to make before the next forward pass and before all others: (block, host block)."""
        self.swapped_in: list[tuple[int, int]] = []
        """Copies to make after `forked`: (host block, block)."""
        self.forked: list[tuple[int, int]] = []
        """Copies to make after `swapped_out`: (block, block)."""
        self.imported: list[tuple[NDArray[np.uint8], tuple[int, ...]]] = []
        """Bytes to write into blocks, after all copies."""
        self.hits = {"device": 0, "host": 0}
        """Known tokens that requests did not compute when they first joined, by where their keys and values were."""
        self.lost_imports: Counter[str] = Counter()
        """Imports that were of no use because the blocks before them had left the cache, by where they came from."""
        self._array = BlockTableArray()
        self._prefix_caching = prefix_caching
        self._per_tenant = per_tenant
        self._hasher = BlockHasher(block_size, hash_key)
        self._events = events
        if prefix_caching and (events is not None or self.host.num_blocks):
            pool.on_evict = self._evicted

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks `num_tokens` tokens need."""
        return -(-num_tokens // self.block_size)

    def lookup(self, request: Request) -> list[int]:
        """Return the blocks with the longest cached prefix of a request that has no blocks. Takes no reference.

        The prefix never includes tokens that must be computed, see `Request.max_reused_tokens`.
        """
        if not self._prefix_caching:
            return []
        self._hash(request, len(request.token_ids))
        return self.pool.find(request.block_hashes[: self._reusable(request)])

    def num_known(self, request: Request, hit: Sequence[int]) -> int:
        """Return how many tokens would count as computed if the request joined with the blocks `hit`."""
        known = (len(hit) + self._host_hits(request, len(hit))) * self.block_size
        known = max(known, request.num_swapped)
        imported = request.imported
        if imported is None or known // self.block_size < imported.first_block:
            return known
        return max(known, min(imported.num_tokens, request.max_reused_tokens))

    def lacking(self, request: Request) -> tuple[int, list[bytes]]:
        """Return the first block that the request would compute if it joined now, and the hashes of the reusable ones
        from there on.

        Any thread may call this for a request that is not submitted yet. What it says of the cache is a hint then.
        """
        first = self.num_known_of(request) // self.block_size
        return first, request.block_hashes[first : self._reusable(request)]

    def num_known_of(self, request: Request) -> int:
        """Return how many tokens would count as computed if the request joined now. See `lacking`."""
        return self.num_known(request, self.lookup(request))

    def _host_hits(self, request: Request, first: int) -> int:
        """Return how many blocks from block `first` on are in host memory as a prefix."""
        if not (self.host.num_prefixes and self._prefix_caching):
            return 0
        return self.host.count(request.block_hashes[first : self._reusable(request)])

    def _read_kept(self, request: Request, first: int) -> list[int]:
        """Return the blocks in host memory with a prefix from block `first` on, to copy from in this step."""
        count = self._host_hits(request, first)
        return self.host.read(request.block_hashes[first : first + count]) if count else []

    def _evicted(self, name: bytes, block: int) -> None:
        if self._events is not None:
            self._events.removed(name)
        host_block = self.host.keep(name)
        if host_block is not None:
            self.swapped_out.append((block, host_block))

    def next_hash(self, request: Request, hit: Sequence[int]) -> bytes | None:
        """Return the hash of the first full block that the request must compute itself, or None."""
        names = request.block_hashes
        return names[len(hit)] if len(hit) < min(self._reusable(request), len(names)) else None

    def hashes_filled_by(self, request: Request, num_tokens: int) -> list[bytes]:
        """Return the known hashes of the blocks that are full after the next `num_tokens` tokens of a request.

        Blocks that others can reuse already are left out, but not those that the step copies in.
        """
        return request.block_hashes[request.num_named : (request.num_computed + num_tokens) // self.block_size]

    def _reusable(self, request: Request) -> int:
        return request.max_reused_tokens // self.block_size

    def _hash(self, request: Request, num_tokens: int) -> None:
        self._hasher.extend(request.block_hashes, request.token_ids, num_tokens, self._salt(request))

    def _salt(self, request: Request) -> CacheSalt:
        return CacheSalt.of(request, per_tenant=self._per_tenant)

    def fresh_blocks(self, request: Request, hit: Sequence[int]) -> int:
        """Return how many free blocks `admit` would take, including shared blocks that no request uses now."""
        return self.blocks_for(len(request.token_ids)) - len(hit) + self.pool.num_unreferenced(hit)

    def admit(self, request: Request, hit: Sequence[int]) -> None:
        """Give a request without blocks the blocks for all its known tokens.

        Tokens whose keys and values are in the blocks `hit`, in host memory or imported count as computed.

        Raises:
            ValueError: there are fewer free blocks than `fresh_blocks`. No block is taken.
        """
        if self.fresh_blocks(request, hit) > self.pool.num_free:
            raise ValueError(f"{request.request_id} needs {self.fresh_blocks(request, hit)} blocks")
        # Before blocks are evicted, which may take the place of prefixes in host memory.
        kept = self._read_kept(request, len(hit))
        self.pool.share(hit)
        request.blocks = [*hit, *self.pool.allocate(self.blocks_for(len(request.token_ids)) - len(hit))]
        request.slot = self._array.take()
        self._array.put(request.slot, 0, request.blocks)
        self.swapped_in += zip(kept, request.blocks[len(hit) :], strict=False)
        request.num_computed = (len(hit) + len(kept)) * self.block_size
        request.num_named = len(hit)
        request.num_reserved = self.beam_blocks(request)
        self.num_promised += self._growth(request)
        if request.host_blocks:
            self._swap_in(request)
        if not request.preemptions:
            self.hits["device"] += len(hit) * self.block_size
            self.hits["host"] += request.num_computed - len(hit) * self.block_size
        if request.imported is not None:
            self._import(request, request.imported)

    def _growth(self, request: Request) -> int:
        return self.blocks_for(request.max_cached_tokens) - len(request.blocks) + request.num_reserved

    def most_blocks(self, request: Request) -> int:
        """Return how many blocks a request can take at most, with all its beams."""
        return self.blocks_for(request.max_cached_tokens) + self.beam_blocks(request)

    def beam_blocks(self, request: Request) -> int:
        """Return how many blocks the other beams of a request can take at most. They share the prompt's full blocks."""
        shared = len(request.prompt_ids) // self.block_size
        return (request.num_sequences - 1) * (self.blocks_for(request.max_cached_tokens) - shared)

    def grow(self, request: Request) -> bool:
        """Allocate the missing blocks for all known tokens of a running request. Return False if too few are free."""
        missing = self.blocks_for(len(request.token_ids)) - len(request.blocks)
        if missing <= 0:
            return True
        if missing > self.pool.num_free:
            return False
        self._add(request, self.pool.allocate(missing))
        return True

    def _add(self, request: Request, blocks: Sequence[int]) -> None:
        self._array.put(request.slot, len(request.blocks), blocks)
        request.blocks += blocks
        self.num_promised -= len(blocks)

    def room_for_draft(self, request: Request, num_tokens: int) -> int:
        """Return how many drafted tokens, at most `num_tokens`, have room after the known tokens of a running request.

        Empty blocks count, but none that holds a reusable prefix: a draft may be wrong.
        """
        blocks = len(request.blocks) + self.pool.num_empty
        return min(num_tokens, blocks * self.block_size - len(request.token_ids))

    def grow_for_draft(self, request: Request, num_tokens: int) -> None:
        """Allocate the missing blocks for a draft that has room. `trim` gives them back after the step."""
        missing = self.blocks_for(len(request.token_ids) + num_tokens) - len(request.blocks)
        if missing > 0:
            self._add(request, self.pool.allocate(missing))

    def trim(self, request: Request) -> None:
        """Free the blocks of a running request that none of its known tokens needs."""
        count = self.blocks_for(len(request.token_ids))
        surplus = request.blocks[count:]
        if surplus:
            self.pool.release(surplus)
            del request.blocks[count:]
            self._array.cut(request.slot, count)
            self.num_promised += len(surplus)

    def outgrown(self, requests: Iterable[Request]) -> list[Request]:
        """Return the requests that have more tokens than their blocks can hold."""
        size = self.block_size
        return [request for request in requests if len(request.token_ids) > len(request.blocks) * size]

    def commit(self, request: Request, num_tokens: int) -> None:
        """Count `num_tokens` more tokens as computed, and register the blocks that they filled for reuse."""
        end = request.num_computed + num_tokens
        self.register_filled(request, end)
        request.num_computed = end

    def register_filled(self, request: Request, end: int) -> None:
        """Register for reuse the blocks that are filled once the tokens up to `end` are computed."""
        first, request.num_named = request.num_named, end // self.block_size
        if not self._prefix_caching:
            return
        self._hash(request, end)
        new = [
            index
            for index in range(first, request.num_named)
            if self.pool.register(request.blocks[index], request.block_hashes[index])
        ]
        if self._events is not None and self._salt(request) == CacheSalt():
            self._record(self._events, request, new)

    def _record(self, events: BlockEvents, request: Request, indices: Sequence[int]) -> None:
        names, size = request.block_hashes, self.block_size
        for index in indices:
            parent = names[index - 1] if index else None
            events.stored(names[index], parent, request.token_ids[index * size : (index + 1) * size])

    def release(self, request: Request) -> None:
        """Free all blocks of a request, including those in host memory."""
        if request.blocks:
            self.num_promised -= self._growth(request)
            self.pool.release(request.blocks)
            self._array.give_back(request.slot)
            if self.forked:
                self.forked = [copy for copy in self.forked if copy[1] not in request.blocks]
        request.blocks, request.num_reserved, request.num_named = [], 0, 0
        request.num_computed = 0
        self.forget_swapped(request)

    def gather(self, requests: Sequence[Request], ends: Sequence[int]) -> NDArray[np.int64]:
        """Return the tables of requests, [R, blocks]. Row i ends with the block of token `ends[i] - 1`.

        A row is padded with its first block. So a step reads only data of the request itself, and no block that is not
        written yet: it may hold NaN, which attention cannot mask.
        """
        tables = self._array.gather([request.slot for request in requests], self.blocks_for(max(ends, default=0)))
        for row, (request, end) in enumerate(zip(requests, ends, strict=True)):
            if end < len(request.token_ids):  # It holds blocks for later chunks, too.
                tables[row, self.blocks_for(end) :] = tables[row, 0]
        return tables

    # -- beams -------------------------------------------------------------------------------------------------------

    def fork(self, moves: Sequence[Move]) -> bool:
        """Give the targets of moves what their sources have: full blocks are shared, and one that fills is copied.

        Return False if too few blocks are free for the copies. Until this is called again, the targets have no blocks.
        """
        copied = [move for move in moves if move.target is not move.source]
        for move in copied:
            self.release(move.target)
        if sum(move.source.num_computed % self.block_size > 0 for move in copied) > self.pool.num_free:
            return False
        for source, target, _ in copied:
            self._fork(source, target)
        return True

    def _fork(self, source: Request, target: Request) -> None:
        full = source.num_computed // self.block_size
        self.pool.share(source.blocks[:full])
        target.blocks = source.blocks[:full]
        if source.num_computed % self.block_size:
            target.blocks += self.pool.allocate(1)
            self.forked.append((source.blocks[full], target.blocks[full]))
        self.num_promised -= source.num_reserved
        source.num_reserved = 0
        target.slot = self._array.take()
        self._array.put(target.slot, 0, target.blocks)
        self.num_promised += self._growth(target)
        target.token_ids, target.block_hashes = source.token_ids.copy(), source.block_hashes[:full]
        target.num_named = full
        target.num_computed, target.last_token_at = source.num_computed, source.last_token_at

    # -- swapping ----------------------------------------------------------------------------------------------------

    def swap_out(self, request: Request) -> bool:
        """Free all blocks of a request, and plan to copy its computed keys and values to host memory.

        Return False and change nothing if no tokens are computed or host memory is full.
        """
        computed = request.num_computed
        host_blocks = self.host.allocate(self.blocks_for(computed))
        if not host_blocks:
            return False
        self.swapped_out += zip(request.blocks, host_blocks, strict=False)
        self.release(request)
        request.host_blocks, request.num_swapped = host_blocks, computed
        return True

    def _swap_in(self, request: Request) -> None:
        """Plan to copy the computed keys and values back from host memory that the request lacks."""
        first = request.num_computed // self.block_size
        self.swapped_in += zip(request.host_blocks[first:], request.blocks[first:], strict=False)
        request.num_computed = max(request.num_computed, request.num_swapped)
        self.forget_swapped(request)

    def forget_swapped(self, request: Request) -> None:
        """Free the blocks of a request in host memory."""
        self.host.release(request.host_blocks)
        request.host_blocks, request.num_swapped = [], 0

    # -- what comes from elsewhere -----------------------------------------------------------------------------------

    def _import(self, request: Request, imported: ImportedBlocks) -> None:
        """Plan to write the imported blocks that the request lacks. Its last token is computed in any case."""
        request.imported = None
        num_tokens = min(imported.num_tokens, request.max_reused_tokens)
        first, last = request.num_computed // self.block_size, self.blocks_for(num_tokens)
        if first < imported.first_block:
            self.lost_imports[imported.source] += 1
        elif num_tokens > request.num_computed:
            data = imported.data[first - imported.first_block : last - imported.first_block]
            self.imported.append((data, tuple(request.blocks[first:last])))
            if not request.preemptions:
                hits = num_tokens - request.num_computed
                self.hits[imported.source] = self.hits.get(imported.source, 0) + hits
            request.num_computed = num_tokens

    def take_imported(self) -> Imports:
        """Return what is to be written since the last call, for the step that writes it."""
        planned = tuple(self.imported)
        self.imported.clear()
        return planned

    def take_copies(self) -> tuple[Copies, Copies, Copies]:
        """Return the copies planned since the last call for the step that makes them, in the order of making."""
        planned = self.swapped_out, self.forked, self.swapped_in
        out, forked, into = map(tuple, planned)
        for copies in planned:
            copies.clear()
        return out, forked, into
