"""When waiting requests may join: `batching_strategy`."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from inflight.request import Request
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.waiting_queue import WaitingQueue


class Batching(ABC):
    """Offers the scheduler waiting requests one by one."""

    mixes = True
    """Whether a step may hold decodes and prompts together."""

    wakes_at: float | None = None
    """When to look again though nothing arrives, as nobody runs and a batch may fill up till then."""

    def begin_step(self, now: float) -> None:
        """A step is about to be planned."""

    @abstractmethod
    def next(self, now: float) -> Request | None:
        """The waiting request to admit next, if any."""

    def joined(self, request: Request) -> None:
        """The request that `next` gave was admitted."""

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """A step took so long."""

    def padding(self, num_decodes: int) -> int:
        """A step is planned, with so many decodes. Returns the tokens that a padded batch would compute besides."""
        return 0


class Continuous(Batching):
    """At every step (Orca, OSDI'22)."""

    def __init__(
        self, waiting: WaitingQueue, running: Mapping[str, Request], *, mixes: bool = True, delay_factor: float = 0.0
    ) -> None:
        self.mixes = mixes
        self._waiting = waiting
        self._running = running
        self._delay_factor = delay_factor
        self._prefill_seconds = 0.0
        self._delays = False

    def begin_step(self, now: float) -> None:
        """While others run, let arrivals gather until the first has waited as `delay_factor` says (as in vLLM)."""
        first = self._waiting.first() if self._delay_factor and self._running else None
        self._delays = first is not None and now - first.arrival < self._delay_factor * self._prefill_seconds

    def next(self, now: float) -> Request | None:
        """Whoever is first in the queue."""
        return None if self._delays else self._waiting.first()

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Remember how long the last step with prompts took."""
        if plan.num_tokens > len(plan.scheduled):
            self._prefill_seconds = seconds


class RunToCompletion(Batching):
    """A batch at a time: the next begins when the last request of this one has ended.

    A batch fills while its prompts are computed and closes with its first decode. Requests that end early keep their
    slots. We compute no padding, but count it: prompts padded to the batch's longest, and slots that are empty.
    """

    mixes = False

    def __init__(self, waiting: WaitingQueue, running: Mapping[str, Request], *, slots: int, wait: float) -> None:
        """`slots` is the most requests of a batch, `wait` the seconds that one may take to fill."""
        self.waiting = waiting
        self._running = running
        self._slots = slots
        self._wait = wait
        self._open = False
        self.taken = 0
        """Requests of the batch."""
        self.tokens = 0
        """Tokens that they joined with."""
        self._longest = 0
        self._padded = 0
        """Padding of its prompts that has been counted."""

    def begin_step(self, now: float) -> None:
        """Open a batch if nobody runs and enough has gathered, or the first one waits no longer."""
        self.wakes_at = None
        if self._running:
            return
        self._open, self.taken, self.tokens, self._longest, self._padded = False, 0, 0, 0, 0
        first = self.waiting.first()
        if first is None:
            return
        if self.gathered() or now >= first.arrival + self._wait:
            self._open = True
            self.opened()
        else:
            self.wakes_at = first.arrival + self._wait

    def gathered(self) -> bool:
        """Whether a batch is full."""
        return len(self.waiting) >= self._slots

    def opened(self) -> None:
        """A batch is about to fill."""

    def candidate(self) -> Request | None:
        """Who would join next."""
        return self.waiting.first()

    def next(self, now: float) -> Request | None:
        """Whoever is next, as long as the batch is open and has slots."""
        return self.candidate() if self._open and self.taken < self._slots else None

    def joined(self, request: Request) -> None:
        """Take a seat."""
        self.taken += 1
        self.tokens += len(request.token_ids)
        self._longest = max(self._longest, len(request.token_ids))

    def padding(self, num_decodes: int) -> int:
        """What the newcomers add to the padding of the batch's prompts; or its empty slots, and then it closes."""
        newly = self.taken * self._longest - self.tokens - self._padded
        self._padded += newly
        if not num_decodes:
            return newly
        self._open = False
        return newly + self.taken - num_decodes


class Static(RunToCompletion):
    """Batches of a fixed number of requests."""


class Dynamic(RunToCompletion):
    """Batches of about so many prompt tokens, as they come: Triton's dynamic batching, by tokens."""

    def __init__(
        self, waiting: WaitingQueue, running: Mapping[str, Request], *, slots: int, wait: float, tokens: int
    ) -> None:
        super().__init__(waiting, running, slots=slots, wait=wait)
        self._max_tokens = tokens

    def gathered(self) -> bool:
        """Whether all slots would be taken, or the tokens suffice."""
        return super().gathered() or self.waiting.num_tokens >= self._max_tokens

    def candidate(self) -> Request | None:
        """The first in the queue, if the batch keeps within its tokens; one alone may be longer."""
        request = super().candidate()
        if request is None or (self.taken and self.tokens + len(request.token_ids) > self._max_tokens):
            return None
        return request


class Bucketed(RunToCompletion):
    """Batches of requests with prompts of similar length, so that less is padded.

    Of the first requests in the queue, sorted by length and cut into buckets, the bucket with the very first one runs:
    nobody waits for ever.
    """

    # How many batches' worth of requests are sorted.
    _WINDOW = 8

    def __init__(self, waiting: WaitingQueue, running: Mapping[str, Request], *, slots: int, wait: float) -> None:
        super().__init__(waiting, running, slots=slots, wait=wait)
        self._bucket: list[Request] = []

    def opened(self) -> None:
        """Choose the bucket."""
        window = self.waiting.peek(self._WINDOW * self._slots)
        by_length = sorted(window, key=lambda request: len(request.token_ids))
        first = by_length.index(window[0]) // self._slots * self._slots
        self._bucket = by_length[first : first + self._slots]

    def candidate(self) -> Request | None:
        """The next of the bucket that waits; one that is held now may come later."""
        return next((request for request in self._bucket if self.waiting.has(request)), None)

    def joined(self, request: Request) -> None:
        """Take a seat, once."""
        super().joined(request)
        self._bucket.remove(request)
