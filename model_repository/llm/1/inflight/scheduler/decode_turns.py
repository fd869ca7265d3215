"""Which requests decode in a step, if some tenants may have only a part of the decodes."""

import math
from collections.abc import Mapping, Sequence

from inflight.request import Request
from inflight.scheduler.plan import ScheduledRequest


def in_turn(decodes: Sequence[ScheduledRequest], shares: Mapping[str, float]) -> list[ScheduledRequest]:
    """Return the decodes that take place. `shares` has limited tenants, each with its part of all decodes.

    The requests of a limited tenant take turns: those come first that have waited longest for a token, and of these the
    shortest, so that samples of a prompt grow evenly. One always comes.
    """
    wait: set[Request] = set()
    for tenant, share in shares.items():
        own = sorted((d for d in decodes if d.request.tenant == tenant), key=lambda d: (d.last_token_at or 0.0, d.end))
        wait.update(decode.request for decode in own[max(1, math.floor(share * len(decodes))) :])
    return [decode for decode in decodes if decode.request not in wait]
