"""Predicts output lengths from the lengths of past outputs."""

from bisect import bisect_right, insort
from collections import OrderedDict, deque

from inflight.request import Request

_KEPT = 500
_MAX_TENANTS = 1000
_ENOUGH = 10


class LengthPredictor:
    """Running quantiles of output lengths, per tenant. For a tenant with few outputs, the outputs of all tenants count.

    As in the Past-Future scheduler (ASPLOS'25), the prediction for a request that has generated n tokens uses only past
    outputs longer than n.
    """

    def __init__(self) -> None:
        self._all = _Lengths()
        self._by_tenant: OrderedDict[str, _Lengths] = OrderedDict()

    def observe(self, request: Request) -> None:
        """Learn from a request whose output is complete."""
        self._all.add(request.num_output)
        lengths = self._by_tenant.setdefault(request.tenant, _Lengths())
        lengths.add(request.num_output)
        self._by_tenant.move_to_end(request.tenant)
        if len(self._by_tenant) > _MAX_TENANTS:
            self._by_tenant.popitem(last=False)

    def remaining(self, request: Request, quantile: float = 0.5) -> int:
        """Predict how many tokens a request will still generate, at least 1.

        While too few past outputs are known, the request is expected to reach its `max_tokens`.
        """
        lengths = self._by_tenant.get(request.tenant)
        if lengths is None or lengths.num_over(request.num_output) < _ENOUGH:
            lengths = self._all
        length = request.max_tokens
        if lengths.num_over(request.num_output) >= _ENOUGH:
            length = min(length, lengths.quantile_over(request.num_output, quantile))
        return max(1, length - request.num_output)


class _Lengths:
    """The newest lengths, also in sorted order."""

    def __init__(self) -> None:
        self._newest: deque[int] = deque()
        self._sorted: list[int] = []

    def add(self, length: int) -> None:
        if len(self._newest) == _KEPT:
            oldest = self._newest.popleft()
            del self._sorted[bisect_right(self._sorted, oldest) - 1]
        self._newest.append(length)
        insort(self._sorted, length)

    def num_over(self, length: int) -> int:
        return len(self._sorted) - bisect_right(self._sorted, length)

    def quantile_over(self, length: int, quantile: float) -> int:
        first = bisect_right(self._sorted, length)
        return self._sorted[min(first + int((len(self._sorted) - first) * quantile), len(self._sorted) - 1)]
