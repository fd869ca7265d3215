"""The failure of a request in a load test."""

from collections.abc import Iterator
from contextlib import contextmanager


class RequestFailed(Exception):
    """A request was refused, ended with an error, or was not answered completely."""

    def __init__(self, kind: str, message: str) -> None:
        super().__init__(message)
        self.kind = kind
        """Under which it is counted: the name of the exception that it comes from, where there is one."""


@contextmanager
def failing(*errors: type[Exception]) -> Iterator[None]:
    """Turn errors of these types into RequestFailed."""
    try:
        yield
    except errors as error:
        raise RequestFailed(type(error).__name__, str(error)) from error
