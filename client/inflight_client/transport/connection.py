"""The interface of the transports. All methods raise an `InflightError` if they fail."""

from collections.abc import AsyncGenerator, Generator
from typing import Protocol

from inflight_client.options import TimeLimits
from inflight_client.request import Request
from inflight_client.response import Reply
from inflight_client.server_info import ModelInfo, ServerInfo


class Call(Protocol):
    """One running request."""

    def replies(self) -> Generator[Reply, None, None]:
        """Yield the responses as they arrive. Call it once, and read it to the end or cancel the call."""

    def cancel(self) -> None:
        """Cancel the request here and on the server. Any thread may call this; after the end it has no effect."""


class Connection(Protocol):
    """A connection to a server, for any number of threads."""

    def start(self, request: Request, limits: TimeLimits) -> Call:
        """Start a request. Raises RequestCancelled after `close`."""

    def is_ready(self, model: str, timeout: float) -> bool:
        """Whether a model takes requests."""

    def server_info(self, timeout: float) -> ServerInfo:
        """Describe the server."""

    def model_info(self, model: str, timeout: float) -> ModelInfo:
        """Describe a model."""

    def close(self) -> None:
        """Close the connection and cancel its requests, which end with RequestCancelled."""


class AsyncCall(Protocol):
    """One running request."""

    def replies(self) -> AsyncGenerator[Reply, None]:
        """Yield the responses as they arrive. Call it once, and read it to the end or cancel the call."""

    async def cancel(self) -> None:
        """Cancel the request here and on the server. After the end it has no effect."""


class AsyncConnection(Protocol):
    """A connection to a server, for any number of tasks of one event loop."""

    def start(self, request: Request, limits: TimeLimits) -> AsyncCall:
        """Start a request. Raises RequestCancelled after `close`."""

    async def is_ready(self, model: str, timeout: float) -> bool:
        """Whether a model takes requests."""

    async def server_info(self, timeout: float) -> ServerInfo:
        """Describe the server."""

    async def model_info(self, model: str, timeout: float) -> ModelInfo:
        """Describe a model."""

    async def close(self) -> None:
        """Close the connection and cancel its requests, which end with RequestCancelled."""
