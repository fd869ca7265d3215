"""Refuses JSON schemas that take minutes or gigabytes to compile, which llguidance's own limits do not count."""

import math
from collections.abc import Iterator, Set
from decimal import Decimal
from typing import Any

from inflight.errors import InvalidRequest

# The time doubles with each pattern that a text must match, from a hundredth of a second at this number on.
_MOST_COMBINED_PATTERNS = 12
# Each is compared with each other one: a tenth of a second at this number, and eight times as long at twice as many.
_MOST_PATTERN_PROPERTIES = 64
# A state for each remainder: half a second at this number, and 20 seconds at ten times as many.
_MOST_REMAINDERS = 100_000
# The time grows with the square: a third of a second at this number, and nearly three seconds at what fits in a schema.
_MOST_CONSTANT_VALUES = 2000
# Half a second at this number, and one and a half at what fits in a schema.
_MOST_PROPERTIES = 2500

_ALTERNATIVES = ("$ref", "anyOf", "oneOf")
# With one of those, or one in an allOf, beside one of these, both schemas hold for the same value.
_CONSTRAINTS = ("pattern", "multipleOf", "properties", "patternProperties", "additionalProperties", "items")


def check_cost(schema: dict[str, Any]) -> None:
    """Check a schema.

    Raises:
        InvalidRequest: it would take too long to compile. The message names the keyword and the bound.
    """
    parts = list(_objects_in(schema))
    combined = any(map(_combines, parts))
    patterns = {part["pattern"] for part in parts if isinstance(part.get("pattern"), str)}
    if combined and len(patterns) > _MOST_COMBINED_PATTERNS:
        raise InvalidRequest(
            f"json has {len(patterns)} different patterns; it must have at most {_MOST_COMBINED_PATTERNS}, as it has "
            "schemas that hold for the same value, by allOf, or by $ref, anyOf or oneOf beside others"
        )
    by_pattern = [part["patternProperties"] for part in parts if isinstance(part.get("patternProperties"), dict)]
    if (count := sum(map(len, by_pattern))) > _MOST_PATTERN_PROPERTIES:
        raise InvalidRequest(f"json has {count} patternProperties; it must have at most {_MOST_PATTERN_PROPERTIES}")
    if (count := sum(map(_constant_values, parts))) > _MOST_CONSTANT_VALUES:
        raise InvalidRequest(
            f"json has const and enum with {count} keys and values in lists and objects; it must have at most "
            f"{_MOST_CONSTANT_VALUES}"
        )
    named = [part["properties"] for part in parts if isinstance(part.get("properties"), dict)]
    if (count := max(map(len, named), default=0)) > _MOST_PROPERTIES:
        raise InvalidRequest(f"json has an object with {count} properties; it must have at most {_MOST_PROPERTIES}")
    _check_remainders({part["multipleOf"] for part in parts if _is_number(part.get("multipleOf"))}, combined)


def _check_remainders(divisors: Set[float], combined: bool) -> None:
    """Two divisors of the same value have as many remainders as their least common multiple."""
    digits = {int("".join(map(str, Decimal(str(divisor)).normalize().as_tuple().digits))) for divisor in divisors}
    remainders, what = (math.prod(digits), "product") if combined else (sum(digits), "sum")
    if remainders > _MOST_REMAINDERS:
        raise InvalidRequest(
            f"json has multipleOf {', '.join(map(str, sorted(divisors)))}; without decimal point and zeros at the end, "
            f"the {what} of all different ones must be at most {_MOST_REMAINDERS}"
        )


def _combines(part: dict[str, Any]) -> bool:
    """Whether two schemas in a part hold for the same value. Around a single one, allOf means nothing."""
    all_of = part.get("allOf")
    schemas = len(all_of) if isinstance(all_of, list) else 0
    schemas += sum(key in part for key in _ALTERNATIVES)
    return schemas > 1 or (schemas == 1 and any(key in part for key in _CONSTRAINTS))


def _constant_values(part: dict[str, Any]) -> int:
    """How many keys and values the lists and objects of a `const` or an `enum` have. A choice of texts is cheap."""
    allowed = part.get("enum")
    unseen = [part.get("const"), *(allowed if isinstance(allowed, list) else ())]
    count = 0
    while unseen:
        value = unseen.pop()
        if isinstance(value, dict):
            count += 2 * len(value)
            unseen += value.values()
        elif isinstance(value, list):
            count += len(value)
            unseen += value
    return count


def _objects_in(part: Any) -> Iterator[dict[str, Any]]:
    """Yield all objects, also those that are data: a $ref may name any of them."""
    unseen = [part]
    while unseen:
        part = unseen.pop()
        if isinstance(part, dict):
            yield part
        if isinstance(part, dict | list):
            unseen += part.values() if isinstance(part, dict) else part


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
