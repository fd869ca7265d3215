"""GET /ui/events: a stream of what the page shows."""

import asyncio
import ipaddress
import time
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager

from fastapi import APIRouter, Request
from starlette.responses import Response

from inflight_gateway import sse
from inflight_gateway.disconnect import EVENTS
from inflight_gateway.errors import ApiError, overloaded
from inflight_gateway.keys import KEY, ApiKey
from inflight_gateway.service import Service, TheService
from inflight_gateway.ui.frame import frame
from inflight_gateway.ui.observer import Problem

MAX_VIEWERS = 16
# The page asks again. So a viewer who no longer reads does not stay for ever.
_LONGEST_SECONDS = 300.0

router = APIRouter()


class Viewers:
    """Those who watch now."""

    def __init__(self) -> None:
        self._count = 0
        self._closed = asyncio.Event()

    @contextmanager
    def one_more(self) -> Iterator[None]:
        """Count a viewer. Raises ApiError (429) if there are too many."""
        if self._count >= MAX_VIEWERS:
            raise overloaded(f"{self._count} viewers watch the page; at most {MAX_VIEWERS} may")
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1

    async def wait(self, seconds: float) -> bool:
        """Wait for the next observation. Return False at once when all viewers must leave."""
        try:
            async with asyncio.timeout(seconds):
                await self._closed.wait()
        except TimeoutError:
            return True
        return False

    def close(self) -> None:
        """End all streams, which would otherwise keep the server from ending."""
        self._closed.set()


@router.get(EVENTS, include_in_schema=False)
async def watch(request: Request, service: TheService) -> Response:
    """Stream what runs and what waits, more than twice a second."""
    key: ApiKey | None = request.scope.get(KEY)
    if key is None:
        _check_host(request)
    await request.body()  # `CancelOnDisconnect` waits for it.
    viewers: Viewers = request.app.state.viewers
    frames = _frames(viewers, service, None if key is None else key.tenant_name)
    first = asyncio.ensure_future(anext(frames))
    await first
    return sse.EventStream(first, frames, sse.error_as_event)


async def _frames(viewers: Viewers, service: Service, tenant: str | None) -> AsyncGenerator[bytes, None]:
    observer = service.observer
    ends, sent = time.monotonic() + _LONGEST_SECONDS, 0.0
    with viewers.one_more():
        while True:
            found = await observer.observe()
            if isinstance(found, Problem):
                yield sse.event({"model": service.model_name, "problem": found.message})
            else:
                points = observer.history.since(sent)
                sent = points[-1].time if points else sent
                yield sse.event({"model": service.model_name, **frame(found, points, tenant)})
            now = time.monotonic()
            if now >= ends or not await viewers.wait(observer.next_due - now):
                return


def _check_host(request: Request) -> None:
    """Raises ApiError (403) if a page of another host may be asking.

    Without keys, only this machine reaches the gateway. A name that somebody else points to this machine must not let
    the pages under that name read whose requests run (DNS rebinding).
    """
    host = request.url.hostname or ""
    try:
        is_local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = host == "localhost"
    if not is_local:
        message = f"the Host is {host!a}; without API keys it must be localhost or a loopback address"
        raise ApiError(403, "wrong_host", message)
