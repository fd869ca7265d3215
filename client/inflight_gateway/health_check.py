"""Asks whether the model serves requests."""

import asyncio
import time

from inflight_client import AsyncClient, InflightError

_FRESH_SECONDS = 1.0


class HealthCheck:
    """Whether the model serves requests. It is asked at most once a second, however many ask this object."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._lock = asyncio.Lock()
        self._error: InflightError | None = None
        self._asked = -_FRESH_SECONDS

    async def error(self) -> InflightError | None:
        """Return why the model does not serve, or None if it does. The last answer is returned while it is fresh."""
        async with self._lock:
            if time.monotonic() - self._asked >= _FRESH_SECONDS:
                self._error = await self._find_error()
                self._asked = time.monotonic()
            return self._error

    async def _find_error(self) -> InflightError | None:
        try:
            await self._client.check_serving()
        except InflightError as error:
            return error
        return None
