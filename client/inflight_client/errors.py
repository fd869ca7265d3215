"""What can go wrong with a request.

InflightError
├── InvalidRequest      the server understood the request and will never serve it as it is
├── ServerOverloaded    refused for now; the same request may succeed later
├── ModelNotReady       no such model, or it is loading or unloading
├── DeadlineExceeded    not finished within the request's timeout
├── RequestCancelled    cancelled, by this client or by the server
├── TransportError      no connection, or it broke
└── ServerFault         the server failed while serving the request
"""

import grpc


class InflightError(Exception):
    """Base of all errors that a request can end with."""


class InvalidRequest(InflightError):
    """The server understood the request and will never serve it as it is."""


class ServerOverloaded(InflightError):
    """Refused for now; the same request may succeed later."""


class ModelNotReady(InflightError):
    """There is no such model, or it is loading or unloading."""


class DeadlineExceeded(InflightError):
    """The request was not finished within its timeout; the server was told to stop."""


class RequestCancelled(InflightError):
    """The request was cancelled, by this client or by the server."""


class TransportError(InflightError):
    """There is no connection to the server, or it broke."""


class ServerFault(InflightError):
    """The server failed while serving the request."""


# UNAVAILABLE is missing: the client has to ask the server what it means (see Client).
ERROR_OF_STATUS: dict[grpc.StatusCode, type[InflightError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.UNIMPLEMENTED: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: ModelNotReady,
    grpc.StatusCode.DEADLINE_EXCEEDED: DeadlineExceeded,
    grpc.StatusCode.CANCELLED: RequestCancelled,
}

# The names by which the model spells Triton's codes.
ERROR_OF_CODE: dict[str, type[InflightError]] = {
    "INVALID_ARG": InvalidRequest,
    "UNSUPPORTED": InvalidRequest,
    "UNAVAILABLE": ServerOverloaded,
    "CANCELLED": RequestCancelled,
    "NOT_FOUND": ModelNotReady,
    "INTERNAL": ServerFault,
    "UNKNOWN": ServerFault,
}
