"""The metrics of Triton, among which are those of the model."""

import asyncio
import logging
import time
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import httpx

from inflight_client import TransportError
from inflight_client.metrics import MetricsSnapshot, parse_metrics
from inflight_gateway.merged_metrics import merged

logger = logging.getLogger(__name__)

# Fresh enough for routers, and however many ask without a key, Triton is asked at most so often.
_FRESH_SECONDS = 0.05
# Whoever scrapes the gateway waits no longer than a few seconds.
_SECONDS = 2.0


class ModelMetrics:
    """Reads Triton's metrics of one server or of several, at most twenty times a second."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._servers = [httpx.URL(url).netloc.decode() for url in urls]
        self._http = httpx.AsyncClient(timeout=_SECONDS, trust_env=False)
        self._lock = asyncio.Lock()
        self._read_at = -_FRESH_SECONDS
        self._texts: dict[str, str] = {}

    async def text(self) -> str:
        """Return them in Prometheus's text format. Those of several servers have the label `server`.

        Raises:
            TransportError: they cannot be read.
        """
        texts = await self._all()
        return next(iter(texts.values())) if len(self._urls) == 1 else merged(texts)

    def __len__(self) -> int:
        """The number of servers."""
        return len(self._urls)

    def readable(self) -> dict[str, bool]:
        """Return by the servers' hosts and ports whether their metrics could be read the last time."""
        return {server: server in self._texts for server in self._servers}

    async def snapshots(self) -> list[MetricsSnapshot | None]:
        """Return the metrics of each server, or None where they cannot be read.

        Raises:
            TransportError: none can be read.
        """
        texts = await self._all()
        return [self._parsed(server, texts[server]) if server in texts else None for server in self._servers]

    async def snapshot(self) -> MetricsSnapshot:
        """Return all metrics. Raises TransportError if they cannot be read."""
        return self._parsed(", ".join(self._urls), await self.text())

    async def _all(self) -> dict[str, str]:
        """Return the pages by their servers' hosts and ports, without those that cannot be read."""
        async with self._lock:
            if time.monotonic() - self._read_at >= _FRESH_SECONDS:
                texts = await asyncio.gather(*map(self._read, self._urls))
                found = zip(self._servers, texts, strict=True)
                self._texts = {server: text for server, text in found if text is not None}
                self._read_at = time.monotonic()
            if not self._texts:
                raise TransportError(f"no metrics at {', '.join(self._urls)}")
            return self._texts

    async def _read(self, url: str) -> str | None:
        try:
            response = await self._http.get(url)
            response.raise_for_status()
        except httpx.HTTPError as error:
            logger.debug("no metrics at %s: %s", url, error)
            return None
        return response.text

    def _parsed(self, server: str, text: str) -> MetricsSnapshot:
        try:
            return parse_metrics(text)
        except ValueError as error:
            raise TransportError(f"no metrics at {server}: {error}") from error

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._http.aclose()
