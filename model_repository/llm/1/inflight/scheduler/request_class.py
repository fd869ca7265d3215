"""The setting `request_classes`: kinds of requests, each with its own order, share and targets."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

INNER_POLICIES = ("fcfs", "sjf", "fair", "slo")
MAX_REQUEST_CLASSES = 16


@dataclass(frozen=True, kw_only=True, slots=True)
class RequestClass:
    """One class of requests, under `scheduling_policy` `classes`.

    Raises:
        ValueError: a value is out of its bounds; the message names the field, the value and the bound.
    """

    name: str

    tenants: tuple[str, ...] = ()
    """Tenants whose requests belong to the class unless they name another one."""

    priorities: tuple[int, ...] = ()
    """Priorities whose requests belong to the class unless they name another one or their tenant has one."""

    policy: str = "fcfs"
    """The order within the class: `fcfs`, `sjf`, `fair` or `slo`, with the settings of these policies."""

    share: float = 1.0
    """The class's share of the machine, relative to those of others: of classes that all have requests waiting, the
    one is next whose service, divided by its share, is least. Leftover classes share what is left for them."""

    leftover: bool = False
    """The class has only what the others leave within their targets, and gives its room to them."""

    min_share: float = 0.0
    """Of a leftover class: the part of all tokens that it gets whatever the targets, below 1. 0: it may wait as long as
    others keep the machine busy."""

    target_ttft_ms: float | None = None
    """Target time to first token. A step with leftover work alone takes at most a tenth of it. Also the target of the
    class's own `slo` order. Default: the setting `target_ttft_ms`."""

    target_itl_ms: float | None = None
    """Inter-token latency that leftover work leaves to the class: a step with requests of this class has none beyond
    it. Default: 1.08 times what the decodes of the step take."""

    def __post_init__(self) -> None:
        if not isinstance(self.leftover, bool):
            raise self._refusal("leftover", "true or false")
        if self.policy not in INNER_POLICIES:
            raise self._refusal("policy", f"one of {', '.join(INNER_POLICIES)}")
        if not (_is_number(self.share) and 0 < self.share < math.inf):
            raise self._refusal("share", "a finite number over 0")
        if not (_is_number(self.min_share) and 0 <= self.min_share < 1):
            raise self._refusal("min_share", "a number from 0 to below 1")
        if self.min_share and not self.leftover:
            raise self._refusal("min_share", "0 unless leftover is true")
        for name in ("target_ttft_ms", "target_itl_ms"):
            target = getattr(self, name)
            if target is not None and not (_is_number(target) and 0 < target < math.inf):
                raise self._refusal(name, "a finite number over 0")
        if self.leftover and self.target_itl_ms is not None:
            raise self._refusal("target_itl_ms", "left out where leftover is true")

    def _refusal(self, field: str, bound: str) -> ValueError:
        return ValueError(f"request_classes of {self.name!r}: {field} is {getattr(self, field)!r}; it must be {bound}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def read_request_classes(classes: Mapping[str, Any]) -> tuple[RequestClass, ...]:
    """Return the classes from decoded JSON: `{"chat": {"target_itl_ms": 60}, "nightly": {"leftover": true}}`.

    Raises:
        ValueError: a class is malformed, or two contradict each other; the message names the class, the field and the
            bound.
    """
    if len(classes) > MAX_REQUEST_CLASSES:
        raise ValueError(f"request_classes has {len(classes)} classes; it must have at most {MAX_REQUEST_CLASSES}")
    found = tuple(_read(name, values) for name, values in classes.items())
    if found and all(each.leftover for each in found):
        raise ValueError("request_classes has leftover classes alone; it must have another one, whose rest they get")
    guaranteed = sum(each.min_share for each in found)
    if guaranteed >= 1:
        raise ValueError(f"request_classes: min_share is {guaranteed} in all classes together; it must be below 1")
    for field in ("tenants", "priorities"):
        owners: dict[str | int, str] = {}
        for each in found:
            for value in getattr(each, field):
                if (owner := owners.setdefault(value, each.name)) != each.name:
                    raise ValueError(f"request_classes: {value!r} is in {field} of {owner!r} and of {each.name!r}")
    return found


def _read(name: str, values: object) -> RequestClass:
    if not name:
        raise ValueError("request_classes has a class without a name")
    if not isinstance(values, Mapping):
        raise ValueError(f"request_classes of {name!r} is {values!r}; it must be an object")
    known = [field.name for field in fields(RequestClass) if field.name != "name"]
    for field in values:
        if field not in known:
            raise ValueError(f"request_classes of {name!r} has {field!r}; it may have {', '.join(known)}")
    given = dict(values)
    for field, kind in (("tenants", str), ("priorities", int)):
        listed = given.get(field, ())
        if not isinstance(listed, list | tuple) or any(type(value) is not kind for value in listed):
            what = "texts" if kind is str else "whole numbers"
            raise ValueError(f"request_classes of {name!r}: {field} is {listed!r}; it must be a list of {what}")
        given[field] = tuple(listed)
    return RequestClass(name=name, **given)
