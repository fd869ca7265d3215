"""Typed streaming client for the models of an Inflight server."""

from inflight_client.client import Client
from inflight_client.errors import (
    DeadlineExceeded,
    InflightError,
    InvalidRequest,
    ModelNotReady,
    RequestCancelled,
    ServerFault,
    ServerOverloaded,
    TransportError,
)
from inflight_client.request import Message, Sampling
from inflight_client.response import Chunk, Completion
from inflight_client.stream import TextStream

__all__ = [
    "Chunk",
    "Client",
    "Completion",
    "DeadlineExceeded",
    "InflightError",
    "InvalidRequest",
    "Message",
    "ModelNotReady",
    "RequestCancelled",
    "Sampling",
    "ServerFault",
    "ServerOverloaded",
    "TextStream",
    "TransportError",
]
