"""The errors of a request.

InflightError
├── InvalidRequest      the server understood the request and will never accept it in this form
├── AccessDenied        the credentials are missing or wrong
├── ServerOverloaded    refused for now; the same request may succeed later
├── ModelNotReady       the model does not exist, is loading, unloading or draining, has stopped, or does not answer
├── DeadlineExceeded    not finished within one of the request's time limits
├── RequestCancelled    cancelled by this client or by the server, or the client was closed
├── TransportError      there is no connection to the server, it broke, or nothing comes through it
└── ServerFault         the server failed while it served the request
"""

import re


class InflightError(Exception):
    """Base class of all errors of a request."""


class InvalidRequest(InflightError):
    """The server understood the request and will never accept it in this form."""


class AccessDenied(InflightError):
    """The credentials are missing or wrong."""


class ServerOverloaded(InflightError):
    """The server refused the request for now. The same request may succeed later."""

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after
        """Seconds after which the server asks to be tried again. None if it does not say."""


class ModelNotReady(InflightError):
    """The model does not exist, is loading, unloading or draining, has stopped, or its process does not answer."""


class DeadlineExceeded(InflightError):
    """One of the request's time limits has passed. The server has ended the request, or was told to stop it."""


class RequestCancelled(InflightError):
    """The request was cancelled by this client or by the server, or the client was closed."""


class TransportError(InflightError):
    """There is no connection to the server, it broke, or nothing comes through it."""


class ServerFault(InflightError):
    """The server failed while it served the request."""


# Triton's messages, without a code, if the process of a Python model died or got no CPU time for a second, and if there
# is no such model, or it is being loaded. A moment later it may be ready, so nobody can be asked what was meant.
_NOT_READY = re.compile(r"Stub process '.*' is not healthy|^Request for unknown model ?:")

# Of a model that is about to end, or whose engine has. Unlike one that is busy, it will never take the request.
_NEVER_TAKES = ("the server is draining", "the engine has stopped")

# The model puts the name of an error code before its message: Triton's codes, and one of gRPC's that Triton lacks.
_ERROR_OF_CODE: dict[str, type[InflightError]] = {
    "INVALID_ARG": InvalidRequest,
    "UNSUPPORTED": InvalidRequest,
    "UNAVAILABLE": ServerOverloaded,
    "CANCELLED": RequestCancelled,
    "DEADLINE_EXCEEDED": DeadlineExceeded,
    "NOT_FOUND": ModelNotReady,
    "INTERNAL": ServerFault,
    "UNKNOWN": ServerFault,
}


def client_closed() -> InflightError:
    """Return the error of a request whose client was closed before it was sent."""
    return RequestCancelled("the client is closed")


def error_of_model(text: str) -> InflightError | None:
    """Return the error that the message of a failed response means, or None if the message alone does not decide.

    It decides if it begins with the name of a Triton error code, or if it is one of Triton's messages for a model that
    does not answer or is not there.
    """
    code, _, message = text.partition(": ")
    if code == "UNAVAILABLE" and message.startswith(_NEVER_TAKES):
        return ModelNotReady(message)
    if (kind := _ERROR_OF_CODE.get(code)) is not None:
        return kind(message)
    return ModelNotReady(text) if _NOT_READY.search(text) else None
