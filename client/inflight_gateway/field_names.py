"""Lets the errors of the server name the fields of the gateway's clients."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from inflight_client import InvalidRequest
from inflight_gateway.errors import refusal


@contextmanager
def naming_fields(names: Mapping[str, str]) -> Iterator[None]:
    """Turn a refusal of the server into one of the client's field.

    `names`: fields of the server, with the fields that they come from.

    Raises:
        ApiError: the server refused a field that is one of these.
    """
    try:
        yield
    except InvalidRequest as error:
        # If a message of the server is about a field, it begins with the field's name.
        field = names.get(str(error).partition(" ")[0].partition("[")[0].partition(".")[0])
        if field is None:
            raise
        raise refusal(error, f"{field} is refused: {error}", field) from error
