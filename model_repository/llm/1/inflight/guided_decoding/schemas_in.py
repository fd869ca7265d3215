"""Finds the schemas in a JSON schema."""

from collections.abc import Iterator
from typing import Any

BY_NAME = frozenset({"properties", "patternProperties", "$defs", "definitions"})
"""Keywords whose values are schemas by name."""
# Keywords whose values are data, not schemas.
_DATA = frozenset({"const", "enum", "default", "examples"})


def schemas_in(schema: Any) -> Iterator[dict[str, Any]]:
    """Yield a schema and all schemas in it. A property may have the name of any keyword."""
    unseen = [schema]
    while unseen:
        part = unseen.pop()
        if isinstance(part, list):
            unseen += part
        elif isinstance(part, dict):
            yield part
            for key, value in part.items():
                if key in BY_NAME and isinstance(value, dict):
                    unseen += value.values()
                elif key not in _DATA:
                    unseen.append(value)
