"""Predicts output lengths from those of the same tenant."""

from collections import OrderedDict

from inflight.request import Request
from inflight.scheduler.newest_values import NewestValues
from inflight.scheduler.output_lengths.predictor import LengthPredictor

_KEPT = 500
_MAX_TENANTS = 1000


class TenantQuantiles(LengthPredictor):
    """Running quantiles of output lengths, per tenant. For a tenant with few outputs, the outputs of all tenants
    count."""

    def __init__(self) -> None:
        self._all = NewestValues(kept=_KEPT)
        self._by_tenant: OrderedDict[str, NewestValues] = OrderedDict()

    def observe(self, request: Request) -> None:
        """See `LengthPredictor`."""
        self._all.add(request.num_output)
        lengths = self._by_tenant.setdefault(request.tenant, NewestValues(kept=_KEPT))
        lengths.add(request.num_output)
        self._by_tenant.move_to_end(request.tenant)
        if len(self._by_tenant) > _MAX_TENANTS:
            self._by_tenant.popitem(last=False)

    def past(self, request: Request) -> NewestValues | None:
        """See `LengthPredictor`."""
        own = self._by_tenant.get(request.tenant)
        if own is not None and own.is_enough(request.num_output):
            return own
        return self._all if self._all.is_enough(request.num_output) else None
