"""Requests in the order of a key, any of which may leave at any time."""

import heapq
from collections.abc import Iterator

from inflight.request import Request

# Below this many entries nothing is gained by sweeping out those of requests that left.
_FEW = 64


class RequestHeap:
    """The request with the smallest key first; keys must differ, also from those of requests that have left.

    What leaves from the middle stays in the heap as a bare key until it comes to the top, or until half of the heap is
    like that and all such keys go at once. So every operation takes O(log n) on average, and memory follows
    the number of requests that are here.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[tuple[float, ...], str]] = []
        self._here: dict[str, tuple[tuple[float, ...], Request]] = {}

    def __len__(self) -> int:
        return len(self._here)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._here

    def __iter__(self) -> Iterator[Request]:
        """All requests in order; sorts them, so it is no part of a step."""
        return (request for _, request in sorted(self._here.values(), key=lambda entry: entry[0]))

    def add(self, request: Request, key: tuple[float, ...]) -> None:
        """Take in a request that is not here yet."""
        self._here[request.request_id] = key, request
        heapq.heappush(self._heap, (key, request.request_id))

    def remove(self, request_id: str) -> Request | None:
        """Take out a request; None if it is not here."""
        entry = self._here.pop(request_id, None)
        if entry is None:
            return None
        if len(self._heap) > 2 * len(self._here) + _FEW:
            self._heap = [(key, name) for name, (key, _) in self._here.items()]
            heapq.heapify(self._heap)
        return entry[1]

    def first(self) -> tuple[tuple[float, ...], Request] | None:
        """The smallest key and its request, which stays; None if there is none."""
        while self._heap:
            key, request_id = self._heap[0]
            entry = self._here.get(request_id)
            if entry is not None and entry[0] == key:
                return entry
            heapq.heappop(self._heap)
        return None
