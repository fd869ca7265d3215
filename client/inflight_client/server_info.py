"""A server's description of itself, its models and its requests."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from inflight_client.errors import ServerFault


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """A server."""

    name: str
    version: str
    extensions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """An input or output of a model."""

    name: str
    datatype: str
    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ModelInfo:
    """A model on a server."""

    name: str
    versions: tuple[str, ...]
    decoupled: bool
    """Whether a request can have several responses, or none."""
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    parameters: Mapping[str, str]
    """The `parameters` of its config.pbtxt."""


@dataclass(frozen=True, slots=True)
class UnfinishedRequest:
    """A request that is waiting or running on the server."""

    request_id: str
    """The id that the client gave it, or else the server's own."""
    tenant: str
    seconds: float
    """Seconds since its arrival."""
    output_tokens: int
    """Tokens of all its samples so far."""


def read_unfinished_requests(text: str) -> list[UnfinishedRequest]:
    """Read a server's list of requests from JSON. Raises ServerFault if it is not such a list."""
    try:
        return [UnfinishedRequest(**entry) for entry in json.loads(text)]
    except (ValueError, TypeError) as error:
        raise ServerFault(f"the server's list of requests can't be read: {error}") from None
