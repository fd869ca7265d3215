"""Names that a client gives: of a tenant, of a request, of a group that shares cached prefixes."""

from typing import Any

from inflight import InvalidRequest
from inflight.request_options import MAX_NAME_CHARACTERS
from serving import values


def name(field: str, value: Any) -> str:
    """Reads a name that is neither empty nor too long."""
    text = values.text(field, value)
    if not 1 <= len(text) <= MAX_NAME_CHARACTERS:
        raise InvalidRequest(
            f"{field} has {len(text)} characters; it must have at least 1 and at most {MAX_NAME_CHARACTERS}"
        )
    return text
