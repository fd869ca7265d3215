"""Does work that takes long, beside the thread that accepts requests."""

import math
import os
import threading
import time
from collections.abc import Callable

from inflight.tenant_turns import TenantTurns

_MAX_WAITING = 64
_MAX_WAITING_IN_ALL = 1024
# Work for a request that is refused took a processor from everybody, for nothing. Its tenant waits nine times as long
# for the next turn, and so gets a tenth of a processor for such work, and less than that of the machine.
_PENALTY = 9.0
_LONGEST_PENALTY = 2.0


class TenantWorker(threading.Thread):
    """Does one kind of work for tenants in turn.

    Tokenizing takes a second per megabyte, and a chat template runs in Python. On Triton's thread, this would also hold
    up the short requests that arrive after a long one.
    """

    def __init__(
        self,
        name: str,
        waiting: str,
        *,
        most: int = _MAX_WAITING,
        most_in_all: int = _MAX_WAITING_IN_ALL,
        niceness: int = 0,
    ) -> None:
        """`waiting` says in an error message what waits: `most` of each tenant, and `most_in_all`.

        `niceness` is added to that of this thread, and of those with which torch shares its products.
        """
        super().__init__(name=name, daemon=True)
        self._niceness = niceness
        self._turns = TenantTurns[Callable[[], bool]](waiting, most=most, most_in_all=most_in_all)
        self._punished: dict[str, float] = {}
        """When the next turn of a tenant may be, at the earliest."""
        self._changed = threading.Condition()
        self._stopped = False

    def add(self, tenant: str, work: Callable[[], bool]) -> None:
        """Do a tenant's work soon. It returns whether the request was accepted.

        Raises:
            QueueFull: too much waits.
        """
        with self._changed:
            self._turns.add(tenant, work)
            self._changed.notify()

    def stop(self) -> None:
        """End the thread when it has done all work."""
        with self._changed:
            self._stopped = True
            self._changed.notify()

    def run(self) -> None:
        """Work until `stop`."""
        # Linux has it for each thread. OpenMP starts the other threads from this one, and they inherit it.
        os.nice(self._niceness)
        while (turn := self._next()) is not None:
            tenant, work = turn
            begun = time.thread_time()
            if not work():
                penalty = min(_LONGEST_PENALTY, _PENALTY * (time.thread_time() - begun))
                self._punished[tenant] = time.monotonic() + penalty

    def _next(self) -> tuple[str, Callable[[], bool]] | None:
        with self._changed:
            while True:
                now = time.monotonic()
                self._punished = {tenant: until for tenant, until in self._punished.items() if until > now}
                for tenant in self._turns.tenants():
                    if tenant not in self._punished:
                        return tenant, self._turns.take(tenant)
                if self._stopped and not self._turns:
                    return None
                soonest = min((self._punished[tenant] for tenant in self._turns.tenants()), default=math.inf)
                self._changed.wait(None if soonest == math.inf else soonest - now)
