"""The metrics of Triton, among which are those of the model."""

from types import TracebackType
from typing import Self

import httpx

from inflight_client import TransportError
from inflight_client.metrics import MetricsSnapshot, parse_metrics

# Whoever scrapes the gateway waits no longer than a few seconds.
_SECONDS = 2.0


class ModelMetrics:
    """Reads Triton's metrics over one connection, as often as it is asked."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = httpx.AsyncClient(timeout=_SECONDS, trust_env=False)

    async def text(self) -> str:
        """Return them in Prometheus's text format. Raises TransportError if they cannot be read."""
        try:
            response = await self._http.get(self._url)
            response.raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise TransportError(f"no metrics at {self._url}: {error}") from error
        return response.text

    async def snapshot(self) -> MetricsSnapshot:
        """Return the metrics. Raises TransportError if they cannot be read."""
        text = await self.text()
        try:
            return parse_metrics(text)
        except ValueError as error:
            raise TransportError(f"no metrics at {self._url}: {error}") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._http.aclose()
