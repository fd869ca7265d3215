"""The prefix cache: blocks whose keys and values other requests can reuse, found by the hashes of their tokens."""

from collections.abc import Collection, Sequence

from inflight.kv_cache.block_events import BlockEvents
from inflight.kv_cache.block_hash import BlockHasher
from inflight.kv_cache.block_pool import BlockPool
from inflight.kv_cache.cache_salt import CacheSalt
from inflight.kv_cache.host_pool import HostPool
from inflight.kv_cache.planned_copies import PlannedCopies
from inflight.kv_cache.recurrent_states import RecurrentStates
from inflight.request import Request


class PrefixCache:
    """Finds the prefixes of requests in the blocks of the device, and then in those of host memory.

    Full blocks enter when they are computed. A block that leaves the device is kept in host memory while it has room.
    """

    def __init__(
        self,
        pool: BlockPool,
        block_size: int,
        host: HostPool,
        planned: PlannedCopies,
        *,
        enabled: bool,
        per_tenant: bool,
        hash_key: bytes | None,
        events: BlockEvents | None,
        states: RecurrentStates | None = None,
    ) -> None:
        """
        Args:
            planned: where to note the copies to host memory.
            enabled: False: nothing enters, so nothing is found.
            per_tenant: keeps tenants from sharing blocks, see `CacheSalt`.
            hash_key: the key of `BlockHasher`.
            events: records which blocks enter and leave.
            states: a prefix is reused up to a snapshot of these. None: the model has no such states.
        """
        self.enabled = enabled
        self.per_tenant = per_tenant
        self.hasher = BlockHasher(block_size, hash_key)
        self._pool = pool
        self._block_size = block_size
        self._host = host
        self._planned = planned
        self._events = events
        self._states = states
        if enabled and (events is not None or host.num_blocks):
            pool.on_evict = self._evicted

    def lookup(self, request: Request) -> list[int]:
        """Return the blocks with the longest cached prefix of a request that has no blocks. Takes no reference.

        The prefix never includes tokens that must be computed, see `Request.max_reused_tokens`.
        """
        if not self.enabled:
            return []
        self._hash(request, len(request.token_ids))
        found = self._pool.find(self.reusable(request))
        if self._states is None:
            return found
        request.num_matched = len(found)
        return found[: self._states.num_reusable(request.block_hashes[: len(found)])]

    def reusable(self, request: Request, first: int = 0) -> list[bytes]:
        """Return the hashes of the blocks, from block `first` on, that the request may reuse if they are cached."""
        return request.block_hashes[first : self._num_reusable(request)]

    def name_of(self, request: Request, end: int) -> bytes:
        """Return the hash of the block of a request that ends at a position."""
        self._hash(request, end)
        return request.block_hashes[end // self._block_size - 1]

    def is_filling(self, request: Request, hit: Sequence[int], filling: Collection[bytes]) -> bool:
        """Return whether a request that would share the blocks `hit` could share more of them soon.

        `filling` are the hashes that `filled_by` returns for the requests that compute now.
        """
        names = request.block_hashes
        if self._states is not None:
            return any(name in filling for name in self.reusable(request, len(hit)))
        return len(hit) < min(self._num_reusable(request), len(names)) and names[len(hit)] in filling

    def filled_by(self, request: Request, num_tokens: int) -> list[bytes]:
        """Return the known hashes of the blocks that are full after the next `num_tokens` tokens of a request.

        Blocks that others can reuse already are left out, but not those that the step copies in. If the model has
        recurrent states, return those that will be full and have a snapshot once the prompt is computed.
        """
        if self._states is not None:
            return [self.name_of(request, end) for end in self._states.to_come(request)]
        return request.block_hashes[request.num_named : (request.num_computed + num_tokens) // self._block_size]

    def count_in_host(self, request: Request, first: int) -> int:
        """Return how many blocks from block `first` on are in host memory as a prefix."""
        if not (self._host.num_prefixes and self.enabled):
            return 0
        return self._host.count(self.reusable(request, first))

    def read_from_host(self, request: Request, first: int) -> list[int]:
        """Return the blocks in host memory with a prefix from block `first` on, to copy from in this step."""
        count = self.count_in_host(request, first)
        return self._host.read(request.block_hashes[first : first + count]) if count else []

    def register(self, request: Request, end: int) -> None:
        """Let others reuse the blocks that are filled once the tokens up to `end` are computed."""
        first, request.num_named = request.num_named, end // self._block_size
        if not self.enabled:
            return
        self._hash(request, end)
        new = [
            index
            for index in range(first, self._shared(request, end) // self._block_size)
            if self._pool.register(request.blocks[index], request.block_hashes[index])
        ]
        if self._events is not None and self._salt(request) == CacheSalt():
            # Routers compute the names of blocks from tokens alone.
            told = request.num_named if request.inserts is None else request.inserts.first_place // self._block_size
            self._record(self._events, request, [index for index in new if index < told])

    def _record(self, events: BlockEvents, request: Request, indices: Sequence[int]) -> None:
        names, size = request.block_hashes, self._block_size
        for index in indices:
            parent = names[index - 1] if index else None
            events.stored(names[index], parent, request.token_ids[index * size : (index + 1) * size])

    def _evicted(self, name: bytes, block: int) -> None:
        if self._events is not None:
            self._events.removed(name)
        host_block = self._host.keep(name)
        if host_block is not None:
            self._planned.swap_out([(block, host_block)])

    def _num_reusable(self, request: Request) -> int:
        return self._shared(request, request.max_reused_tokens) // self._block_size

    def _shared(self, request: Request, num_tokens: int) -> int:
        """Return how many of the first `num_tokens` tokens requests may share: only prompts, if output differs."""
        if self._states is None or self._states.reuses_output:
            return num_tokens
        return min(num_tokens, len(request.prompt_ids))

    def _hash(self, request: Request, num_tokens: int) -> None:
        salt = self._salt(request)
        self.hasher.extend(request.block_hashes, request.token_ids, num_tokens, salt, request.inserts)

    def _salt(self, request: Request) -> CacheSalt:
        return CacheSalt.of(request, per_tenant=self.per_tenant)
