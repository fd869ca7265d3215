"""Settings that are JSON objects: dataclasses whose fields are the names in the object."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any, TypeVar

T = TypeVar("T")


def read_json_setting(kind: type[T], setting: str, values: Mapping[str, Any]) -> T:
    """Return the dataclass `kind` with the values of the JSON object `setting`.

    Raises:
        ValueError: a name is unknown, or what the dataclass itself raises.
    """
    known = [field.name for field in fields(kind)]  # type: ignore[arg-type]
    for name in values:
        if name not in known:
            raise ValueError(f"{setting} has {name!r}; it may have {', '.join(known)}")
    return kind(**values)
