"""The load that settings are chosen for."""

import math
from dataclasses import dataclass
from itertools import islice

from load_tests.prompts import PlannedRequest
from load_tests.workload import BLOCK_REQUESTS, Workload


@dataclass(frozen=True)
class Load:
    """Requests of a workload: from users who wait for their answers (closed loop), or at a rate (open loop)."""

    workload: Workload
    users: int | None
    """None: the loop is open, and `rate` is given."""
    rate: float | None = None
    """Requests per second."""

    @property
    def text(self) -> str:
        """The load in words."""
        return f"{self.users} users" if self.users is not None else f"{self.rate:.3g} requests/s"

    def requests(self, count: int, seed: int) -> list[PlannedRequest]:
        """`count` requests, or about as many in an open loop. Another seed gives others of the same kinds, and another
        part of a replayed trace.

        Raises:
            ValueError: no request arrives, in an open loop.
        """
        if self.users is not None:
            return list(islice(self.workload.requests(seed, seed * math.ceil(count / BLOCK_REQUESTS)), count))
        assert self.rate is not None
        seconds = count / self.rate
        found = self.workload.arrivals(self.rate, seconds, seed, seed)
        if not found:
            raise ValueError(
                f"no request of {self.workload.name} arrives in the {seconds:.3g} s for {count} at {self.text}; "
                "--requests, or --seconds for a measured round, must be higher"
            )
        return found
