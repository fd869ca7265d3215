"""What can go wrong with a request.

InflightError
├── InvalidRequest      the server understood the request and will never serve it as it is
├── AccessDenied        the server wants other credentials
├── ServerOverloaded    refused for now; the same request may succeed later
├── ModelNotReady       no such model, or it is loading or unloading, or its process does not answer
├── DeadlineExceeded    not finished within the request's timeout
├── RequestCancelled    cancelled, by this client or by the server
├── TransportError      no connection, or it broke
└── ServerFault         the server failed while serving the request
"""

import re


class InflightError(Exception):
    """Base of all errors that a request can end with."""


class InvalidRequest(InflightError):
    """The server understood the request and will never serve it as it is."""


class AccessDenied(InflightError):
    """The server wants credentials, or others."""


class ServerOverloaded(InflightError):
    """Refused for now; the same request may succeed later."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which the server expects to have room, where it says."""


class ModelNotReady(InflightError):
    """There is no such model, or it is loading or unloading, or its process does not answer."""


class DeadlineExceeded(InflightError):
    """The request was not finished within its timeout; the server was told to stop."""


class RequestCancelled(InflightError):
    """The request was cancelled, by this client or by the server."""


class TransportError(InflightError):
    """There is no connection to the server, or it broke."""


class ServerFault(InflightError):
    """The server failed while serving the request."""


# What Triton says, without a code, for a Python model whose process died or got no processor for a second.
_SILENT_MODEL = re.compile(r"Stub process '.*' is not healthy")

# The names by which the model spells Triton's codes.
_ERROR_OF_CODE: dict[str, type[InflightError]] = {
    "INVALID_ARG": InvalidRequest,
    "UNSUPPORTED": InvalidRequest,
    "UNAVAILABLE": ServerOverloaded,
    "CANCELLED": RequestCancelled,
    "NOT_FOUND": ModelNotReady,
    "INTERNAL": ServerFault,
    "UNKNOWN": ServerFault,
}


def error_of_model(text: str) -> InflightError | None:
    """The error that a failed response stands for: by Triton's code before a model's message, or as Triton says that
    the model does not answer. None for all else."""
    code, _, message = text.partition(": ")
    if (kind := _ERROR_OF_CODE.get(code)) is not None:
        return kind(message)
    return ModelNotReady(text) if _SILENT_MODEL.search(text) else None
