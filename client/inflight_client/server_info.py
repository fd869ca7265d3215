"""What a server says of itself."""

import json
from collections.abc import Mapping
from dataclasses import dataclass

from inflight_client.errors import ServerFault


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The server that answers."""

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
    """A model as the server knows it."""

    name: str
    versions: tuple[str, ...]
    decoupled: bool
    """Whether a request may have several responses, or none."""
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]
    parameters: Mapping[str, str]
    """The `parameters` of its config.pbtxt."""


@dataclass(frozen=True, slots=True)
class UnfinishedRequest:
    """A request that waits or runs on the server."""

    request_id: str
    """The client's name for it, or Triton's."""
    tenant: str
    seconds: float
    """Since its arrival."""
    output_tokens: int
    """Of all its samples so far."""


def read_unfinished_requests(text: str) -> list[UnfinishedRequest]:
    """The requests that a server lists as JSON. Raises ServerFault where it is no such list."""
    try:
        return [UnfinishedRequest(**entry) for entry in json.loads(text)]
    except (ValueError, TypeError) as error:
        raise ServerFault(f"the server's list of requests can't be read: {error}") from None
