"""What a server says of itself."""

from collections.abc import Mapping
from dataclasses import dataclass


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
