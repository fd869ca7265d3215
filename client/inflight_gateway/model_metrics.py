"""The metrics of Triton, among which are those of the model."""

import asyncio
import logging
import time
from types import TracebackType
from typing import Self

import httpx

from inflight_client import TransportError
from inflight_client.metrics import MetricsSnapshot, parse_metrics

logger = logging.getLogger(__name__)

# Fresh enough for routers, and however many ask without a key, Triton is asked at most so often.
_FRESH_SECONDS = 0.05
# Whoever scrapes the gateway waits no longer than a few seconds.
_SECONDS = 2.0


class ModelMetrics:
    """Reads Triton's metrics, at most twenty times a second."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._http = httpx.AsyncClient(timeout=_SECONDS, trust_env=False)
        self._lock = asyncio.Lock()
        self._read_at = -_FRESH_SECONDS
        self._text: str | None = None

    async def text(self) -> str:
        """Return them in Prometheus's text format. Raises TransportError if they cannot be read."""
        async with self._lock:
            if time.monotonic() - self._read_at >= _FRESH_SECONDS:
                self._text = await self._read()
                self._read_at = time.monotonic()
            if self._text is None:
                raise TransportError(f"no metrics at {self._url}")
            return self._text

    async def _read(self) -> str | None:
        try:
            response = await self._http.get(self._url)
            response.raise_for_status()
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            logger.debug("no metrics at %s: %s", self._url, error)
            return None
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
