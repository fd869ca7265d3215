"""Names that a client sends: for a tenant, for a request, or for a group that shares cached prefixes."""

from typing import Any

from inflight import InvalidRequest
from inflight.request_options import MAX_NAME_CHARACTERS
from serving import values


def name(field: str, value: Any) -> str:
    """Read a name of 1 to `MAX_NAME_CHARACTERS` characters."""
    text = values.text(field, value)
    if not 1 <= len(text) <= MAX_NAME_CHARACTERS:
        raise InvalidRequest(
            f"{field} has {len(text)} characters; it must have at least 1 and at most {MAX_NAME_CHARACTERS}"
        )
    return text
