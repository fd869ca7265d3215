"""What each transport offers. All raise an `InflightError` where something fails."""

from collections.abc import AsyncGenerator, Iterator
from typing import Protocol

from inflight_client.request import Request
from inflight_client.response import Reply
from inflight_client.server_info import ModelInfo, ServerInfo


class Call(Protocol):
    """One request on its way."""

    def replies(self) -> Iterator[Reply]:
        """The responses as they come; to be called once, and read to the end or cancelled."""

    def cancel(self) -> None:
        """End it here and on the server; from any thread, and without effect after its end."""


class Connection(Protocol):
    """A connection to a server, for any number of threads."""

    def start(self, request: Request, *, first: float, total: float) -> Call:
        """Begin a request that may take `total` seconds, and `first` until anything comes."""

    def is_ready(self, model: str, timeout: float) -> bool:
        """Whether a model takes requests."""

    def server_info(self, timeout: float) -> ServerInfo:
        """The server."""

    def model_info(self, model: str, timeout: float) -> ModelInfo:
        """A model."""

    def close(self) -> None:
        """End all that is open."""


class AsyncCall(Protocol):
    """One request on its way."""

    def replies(self) -> AsyncGenerator[Reply, None]:
        """The responses as they come; to be called once, and read to the end or cancelled."""

    async def cancel(self) -> None:
        """End it here and on the server; without effect after its end."""


class AsyncConnection(Protocol):
    """A connection to a server, for any number of tasks of one event loop."""

    def start(self, request: Request, *, first: float, total: float) -> AsyncCall:
        """Begin a request that may take `total` seconds, and `first` until anything comes."""

    async def is_ready(self, model: str, timeout: float) -> bool:
        """Whether a model takes requests."""

    async def server_info(self, timeout: float) -> ServerInfo:
        """The server."""

    async def model_info(self, model: str, timeout: float) -> ModelInfo:
        """A model."""

    async def close(self) -> None:
        """End all that is open."""
