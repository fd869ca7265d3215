"""Sends requests and records the answers: at planned times (open loop), or from users who wait for answers (closed
loop)."""

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, pairwise

from load_tests.endpoints import Endpoint
from load_tests.failures import RequestFailed
from load_tests.hand_out import PAUSE_AFTER_FAILURE, HandOut
from load_tests.prompts import PlannedRequest
from load_tests.records import UNFINISHED, WRONG_LENGTH, Record, Run

DRAIN_SECONDS = 60.0
"""How long a run waits for answers after its last request was sent. Then it cancels the remaining requests."""


def _nothing() -> None:
    pass


async def open_loop(
    endpoint: Endpoint,
    requests: Sequence[PlannedRequest],
    *,
    advance: Callable[[], object] = _nothing,
    drain: float = DRAIN_SECONDS,
) -> Run:
    """Send each request at its time, however busy the server is. `advance` is called whenever a request has ended.

    `requests` are in the order of their times. Requests that are not answered `drain` seconds after the last one was
    due are cancelled and recorded as `UNFINISHED`.
    """
    observer = _Observer(endpoint, advance)
    end = max((request.at for request in requests), default=0.0) + drain
    async with _until(end) as group:
        for request in requests:
            # Generate the prompt before the request is due, so that this does not delay the request.
            prompt = request.prompt()
            await asyncio.sleep(request.at - observer.now())
            group.create_task(observer.ask(request, prompt, request.at))
    return observer.run()


async def closed_loop(
    endpoint: Endpoint,
    users: int,
    requests: Iterator[PlannedRequest],
    *,
    seconds: float | None = None,
    count: int | None = None,
    advance: Callable[[], object] = _nothing,
    drain: float = DRAIN_SECONDS,
) -> Run:
    """Let users send one request after another, in the order of `requests`. The times of the requests are ignored.
    All turns of a chat come from one user.

    A user whose request failed pauses for `PAUSE_AFTER_FAILURE`. `advance` is called whenever a request has ended.

    The run ends after `seconds` or after `count` requests, whichever comes first. Requests that still run then have
    `drain` more seconds. After that they are cancelled and recorded as `UNFINISHED`.

    Raises:
        ValueError: neither `seconds` nor `count` is given.
    """
    if seconds is None and count is None:
        raise ValueError("closed_loop needs seconds, count or both")
    observer = _Observer(endpoint, advance)
    hand_out = HandOut(islice(requests, count))

    async def user(number: int) -> None:
        while seconds is None or observer.now() < seconds:
            if (request := hand_out.next_for(number)) is None:
                break
            prompt = request.prompt()
            if not await observer.ask(request, prompt, None):
                await asyncio.sleep(PAUSE_AFTER_FAILURE)

    async with _until(None if seconds is None else seconds + drain) as group:
        for number in range(users):
            group.create_task(user(number))
    return observer.run(until=math.inf if seconds is None or count is not None else seconds)


@contextlib.asynccontextmanager
async def _until(seconds: float | None) -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that is cancelled after `seconds` unless it ends earlier. An error in one task ends all and is
    raised."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds), asyncio.TaskGroup() as group:
            yield group


@dataclass
class _Observation:
    """What the generator has seen of one request so far."""

    request: PlannedRequest
    scheduled: float
    sent: float
    times: list[float] = field(default_factory=list)
    """Arrival time of each piece of the answer."""
    tokens: int = 0
    error: str | None = UNFINISHED

    def record(self, index: int) -> Record:
        return Record(
            index=index,
            kind=self.request.kind,
            tenant=self.request.tenant,
            priority=self.request.priority,
            prompt_tokens=self.request.prompt_tokens,
            max_tokens=self.request.output_tokens,
            target_ttft=self.request.target_ttft,
            scheduled=self.scheduled,
            sent=self.sent,
            first_token=self.times[0] if self.times else None,
            last_token=self.times[-1] if self.times else None,
            output_tokens=self.tokens,
            gaps=tuple(later - earlier for earlier, later in pairwise(self.times)),
            error=self.error,
        )


class _Observer:
    """Sends the requests of one run to one endpoint."""

    def __init__(self, endpoint: Endpoint, advance: Callable[[], object]) -> None:
        self._endpoint = endpoint
        self._advance = advance
        self._observations: list[_Observation] = []
        self._origin, self._computed = time.perf_counter(), time.process_time()

    def now(self) -> float:
        """Seconds since the run began."""
        return time.perf_counter() - self._origin

    async def ask(self, request: PlannedRequest, prompt: Sequence[int], scheduled: float | None) -> bool:
        """Send a request, read its answer and return whether the answer was complete."""
        sent = self.now()
        seen = _Observation(request, sent if scheduled is None else scheduled, sent)
        self._observations.append(seen)
        try:
            async for tokens in self._endpoint.ask(request, prompt):
                seen.times.append(self.now())
                seen.tokens += tokens
            seen.error = None if seen.tokens == request.output_tokens else WRONG_LENGTH
        except RequestFailed as failure:
            seen.error = failure.kind
        self._advance()
        return seen.error is None

    def run(self, *, until: float = math.inf) -> Run:
        """The records of all requests, after the last one has ended."""
        busy = (time.process_time() - self._computed) / self.now()
        ordered = sorted(self._observations, key=lambda seen: seen.scheduled)
        return Run([seen.record(index) for index, seen in enumerate(ordered)], busy, until)
