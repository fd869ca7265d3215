"""Rules of the waiting queue, with the names and meanings of Triton's `dynamic_batching`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from inflight.request import EXPIRED, SHED, Request
from inflight.request_options import RequestOptions
from inflight.scheduler.scheduler_config import require_count

REJECT = "REJECT"
DELAY = "DELAY"


@dataclass(frozen=True, slots=True)
class QueuePolicy:
    """Triton's ModelQueuePolicy: how many requests may wait at a priority level, and for how long.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the value and the bound.
    """

    max_queue_size: int = 0
    """Maximum number of waiting requests of the level. 0: only the engine's own `max_queue_size` applies."""

    default_timeout_microseconds: int = 0
    """How long a request may wait for its first step before `timeout_action` applies. 0: no limit."""

    allow_timeout_override: bool = False
    """Accept a request's own timeout. It can shorten the wait but not lengthen it."""

    timeout_action: str = REJECT
    """`REJECT` refuses a request that has waited too long. `DELAY` moves it behind the others of its level; under the
    scheduling policies `priority` and `classes`, behind all others."""

    def __post_init__(self) -> None:
        for name in ("max_queue_size", "default_timeout_microseconds"):
            require_count(name, getattr(self, name), 0)
        if not isinstance(self.allow_timeout_override, bool):
            raise ValueError(f"allow_timeout_override is {self.allow_timeout_override!r}; it must be true or false")
        if self.timeout_action not in (REJECT, DELAY):
            raise ValueError(f"timeout_action is {self.timeout_action!r}; it must be {REJECT} or {DELAY}")

    def limits(self, options: RequestOptions, arrival: float) -> tuple[float | None, float | None]:
        """Return the times until which a request may wait, and until which it may wait or run.

        The request's own timeout (microseconds; 0: none) counts only with `allow_timeout_override`. If the action is
        REJECT, the request's own timeout ends the request whether it waits or runs. The default timeout limits only the
        wait, as in Triton. A deadline (milliseconds) always counts.
        """
        deadline_ms = options.deadline_ms
        own = options.timeout if self.allow_timeout_override else 0
        waits = [us for us in (own, self.default_timeout_microseconds) if us]
        lives = [deadline_ms * 1000] if deadline_ms is not None else []
        if own and self.timeout_action == REJECT:
            lives.append(own)
        wait_until = arrival + min(waits) / 1e6 if waits else None
        return wait_until, arrival + min(lives) / 1e6 if lives else None


@dataclass(frozen=True, slots=True)
class QueuePolicies:
    """The policy of each priority level.

    Levels count from 1, the highest. If `priority_levels` is 0, the only level is 0.

    Raises:
        ValueError: fields contradict each other; the message names them.
    """

    default: QueuePolicy = field(default_factory=QueuePolicy)
    """Policy of levels that have none of their own."""

    priority_levels: int = 0
    default_priority_level: int = 0
    by_level: Mapping[int, QueuePolicy] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_count("priority_levels", self.priority_levels, 0)
        require_count("default_priority_level", self.default_priority_level, 0)
        bounds = f"from 1 to priority_levels, {self.priority_levels}"
        if self.priority_levels == 0:
            bounds = "0, as priority_levels is 0"
        if not min(1, self.priority_levels) <= self.default_priority_level <= self.priority_levels:
            raise ValueError(f"default_priority_level is {self.default_priority_level}; it must be {bounds}")
        for level in self.by_level:
            if isinstance(level, bool) or not isinstance(level, int) or not 1 <= level <= self.priority_levels:
                raise ValueError(
                    f"priority_queue_policy has level {level!r}; priority_levels is {self.priority_levels}"
                )

    def level(self, priority: int) -> int:
        """Return the level of a request's priority. As in Triton, it is the default level if no such level exists."""
        return priority if 1 <= priority <= self.priority_levels else self.default_priority_level

    def of(self, level: int) -> QueuePolicy:
        """Return the policy of a level."""
        return self.by_level.get(level, self.default)

    def lateness(self, options: RequestOptions, arrival: float, now: float) -> str | None:
        """Return `expired` or `shed` if a request has waited as long as it may, as the scheduler would; else None."""
        policy = self.of(self.level(options.priority))
        wait_until, deadline = policy.limits(options, arrival)
        if deadline is not None and deadline <= now:
            return EXPIRED
        is_shed = wait_until is not None and wait_until <= now and policy.timeout_action == REJECT
        return SHED if is_shed else None

    def apply(self, request: Request) -> None:
        """Set a request's level, and the times until which it may wait and run. Its arrival time must be set."""
        request.priority = self.level(request.options.priority)
        policy = self.of(request.priority)
        request.wait_until, request.deadline = policy.limits(request.options, request.arrival)


def read_policies(levels: Mapping[Any, Any]) -> dict[int, QueuePolicy]:
    """Return the policies by level from decoded JSON: `{"1": {"max_queue_size": 10}}`.

    As in Triton, fields that a level leaves out get the defaults of `QueuePolicy`, not the values of the default
    policy.

    Raises:
        ValueError: a level or a policy is malformed; the message names the level, the field and the bound.
    """
    policies = {}
    for level, fields in levels.items():
        name = f"priority_queue_policy of level {level}"
        if not str(level).isdecimal():
            raise ValueError(f"priority_queue_policy has level {level!r}; levels are whole numbers from 1")
        if not isinstance(fields, Mapping):
            raise ValueError(f"{name} is {fields!r}; it must be an object")
        known = QueuePolicy.__dataclass_fields__
        unknown = sorted(fields.keys() - known.keys())
        if unknown:
            raise ValueError(f"{name} has unknown fields {', '.join(unknown)}; known are {', '.join(known)}")
        try:
            policies[int(level)] = QueuePolicy(**fields)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from None
    return policies
