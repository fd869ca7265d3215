"""Allocates blocks of the KV cache to requests and frees them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from inflight.beam_search.beam_group import Move
from inflight.kv_cache.block_events import BlockEvents
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.block_table_array import BlockTableArray
from inflight.kv_cache.host_pool import HostPool
from inflight.kv_cache.imported_blocks import ImportedBlocks
from inflight.kv_cache.planned_copies import PlannedCopies
from inflight.kv_cache.prefix_cache import PrefixCache
from inflight.kv_cache.recurrent_states import RecurrentStates, StatePlan
from inflight.request import Request


class BlockTables:
    """The block tables of all requests: admission with prefix reuse, growth, release, forks of beams, and swapping."""

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
        states: RecurrentStates | None = None,
    ) -> None:
        """
        Args:
            pool: the blocks of the device.
            prefix_caching, per_tenant, hash_key, events: see `PrefixCache`.
            host: the blocks in host memory. Default: none.
            states: where the recurrent states are, if the model has any. Then `host` has no blocks.
        """
        self.pool = pool
        self.block_size = block_size
        self.host = host or HostPool(0)
        self.planned = PlannedCopies()
        self.states = states
        self.prefixes = PrefixCache(
            pool,
            block_size,
            self.host,
            self.planned,
            enabled=prefix_caching,
            per_tenant=per_tenant,
            hash_key=hash_key,
            events=events,
            states=states,
        )
        self.num_promised = 0
        """Maximum number of additional blocks that the requests with blocks may still need."""
        self.lost_imports: Counter[str] = Counter()
        """Imports that were of no use because the blocks before them had left the cache, by where they came from."""
        self._lost = WeakSet[ImportedBlocks]()
        """Those of them that some request still has: the samples of a prompt share one import, which counts once."""
        self._array = BlockTableArray()

    def blocks_for(self, num_tokens: int) -> int:
        """Return how many blocks `num_tokens` tokens need."""
        return -(-num_tokens // self.block_size)

    def num_known(self, request: Request, hit: Sequence[int]) -> int:
        """Return how many tokens would count as computed if the request joined with the blocks `hit`."""
        known = (len(hit) + self.prefixes.count_in_host(request, len(hit))) * self.block_size
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
        return first, self.prefixes.reusable(request, first)

    def num_known_of(self, request: Request) -> int:
        """Return how many tokens would count as computed if the request joined now. See `lacking`."""
        return self.num_known(request, self.prefixes.lookup(request))

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
        kept = self.prefixes.read_from_host(request, len(hit))
        self.pool.share(hit)
        request.blocks = [*hit, *self.pool.allocate(self.blocks_for(len(request.token_ids)) - len(hit))]
        request.slot = self._array.take()
        self._array.put(request.slot, 0, request.blocks)
        if self.states is not None:
            self.states.admitted(request, request.block_hashes[len(hit) - 1] if hit else None)
        self.planned.swap_in(zip(kept, request.blocks[len(hit) :], strict=False))
        request.num_computed = (len(hit) + len(kept)) * self.block_size
        request.num_named = len(hit)
        request.num_reserved = self.beam_blocks(request)
        self.num_promised += self._growth(request)
        if request.host_blocks:
            self._swap_in(request)
        on_device = len(hit) * self.block_size
        request.hits = {"device": on_device, "host": request.num_computed - on_device}
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
        self.prefixes.register(request, end)
        request.num_computed = end

    def release(self, request: Request) -> None:
        """Free all blocks of a request, including those in host memory."""
        if request.blocks:
            self.num_promised -= self._growth(request)
            self.pool.release(request.blocks)
            self._array.give_back(request.slot)
            self.planned.forget_forks(request.blocks)
            if self.states is not None:
                self.states.released(request)
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

    def plan_states(self, requests: Sequence[Request], ends: Sequence[int]) -> StatePlan | None:
        """Return what the next step does with the states of requests that it computes up to `ends`."""
        return None if self.states is None else self.states.plan(requests, ends, self.prefixes.name_of)

    def abandon_states(self, states: StatePlan | None) -> set[int]:
        """Give up the recurrent states of a step that failed. Return the slots of requests that have lost theirs."""
        return set() if self.states is None or states is None else self.states.abandon(states)

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
            self.planned.fork(source.blocks[full], target.blocks[full])
        self.num_promised -= source.num_reserved
        source.num_reserved = 0
        target.slot = self._array.take()
        self._array.put(target.slot, 0, target.blocks)
        if self.states is not None:
            self.states.forked(source, target)
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
        self.planned.swap_out(zip(request.blocks, host_blocks, strict=False))
        self.release(request)
        request.host_blocks, request.num_swapped = host_blocks, computed
        return True

    def _swap_in(self, request: Request) -> None:
        """Plan to copy the computed keys and values back from host memory that the request lacks."""
        first = request.num_computed // self.block_size
        self.planned.swap_in(zip(request.host_blocks[first:], request.blocks[first:], strict=False))
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
        if num_tokens <= request.num_computed:
            return  # It lacks nothing, or computes its prompt again in any case, to read it.
        if first < imported.first_block:
            if imported not in self._lost:
                self._lost.add(imported)
                self.lost_imports[imported.source] += 1
        else:
            data = imported.data[first - imported.first_block : last - imported.first_block]
            self.planned.write(data, request.blocks[first:last])
            request.hits[imported.source] = num_tokens - request.num_computed
            request.num_computed = num_tokens
