"""The recent outputs of a tenant, in which later requests look for what they are about to say."""

from collections import OrderedDict
from collections.abc import Sequence

from inflight.speculation.match_index import Match, MatchIndex

SEPARATOR = -1
"""Stands between outputs. No token is equal to it."""

# Tokens of a generation. A tenant has two.
_GENERATION = 32_768
_MAX_TENANTS = 16


class RecentOutputs:
    """The last outputs of one tenant. When the young generation is full, it becomes the old one, which is dropped."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._bounds = shortest, longest
        self._young = MatchIndex([], shortest, longest)
        self._old = self._young

    def add(self, output: Sequence[int]) -> None:
        """Add the output of a request that has ended."""
        if len(self._young.tokens) >= _GENERATION:
            self._old, self._young = self._young, MatchIndex([], *self._bounds)
        tokens = self._young.tokens
        tokens += [*output[:_GENERATION], SEPARATOR]
        self._young.extend(len(tokens) - 1)

    def find(self, context: Sequence[int], end: int) -> tuple[MatchIndex, Match] | None:
        """Return the longest match, and the index that has it. See `MatchIndex.find`."""
        found: tuple[MatchIndex, Match] | None = None
        for index in dict.fromkeys((self._young, self._old)):
            match = index.find(context, end)
            if match is not None and (found is None or match.length > found[1].length):
                found = index, match
        return found


class OutputsByTenant:
    """The recent outputs of each tenant. Beyond a number of tenants, the one that has not ended a request for longest
    is forgotten."""

    def __init__(self, shortest: int, longest: int) -> None:
        self._bounds = shortest, longest
        self._by_tenant: OrderedDict[str, RecentOutputs] = OrderedDict()

    def of(self, tenant: str) -> RecentOutputs | None:
        return self._by_tenant.get(tenant)

    def add(self, tenant: str, output: Sequence[int]) -> None:
        """Add the output of a request that has ended."""
        if tenant not in self._by_tenant:
            self._by_tenant[tenant] = RecentOutputs(*self._bounds)
        self._by_tenant.move_to_end(tenant)
        self._by_tenant[tenant].add(output)
        if len(self._by_tenant) > _MAX_TENANTS:
            self._by_tenant.popitem(last=False)
