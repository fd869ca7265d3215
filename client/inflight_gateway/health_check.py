"""Asks whether the model serves requests."""

import asyncio
import time

from inflight_client import AsyncClient

_FRESH_SECONDS = 1.0


class HealthCheck:
    """Whether the model serves requests. It is asked at most once a second, however many ask this object."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._serving = False
        self._asked = -_FRESH_SECONDS

    async def is_serving(self) -> bool:
        """Return the last answer if it is fresh, and ask again otherwise."""
        async with self._lock:
            if time.monotonic() - self._asked >= _FRESH_SECONDS:
                self._serving = await self._client.is_serving()
                self._asked = time.monotonic()
            return self._serving
