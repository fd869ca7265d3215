"""Batching strategies (`batching_strategy`): when waiting requests may join."""

from abc import ABC, abstractmethod
from collections.abc import Mapping

from inflight.request import Request
from inflight.scheduler.plan import StepPlan
from inflight.scheduler.waiting_queue import WaitingQueue


class Batching(ABC):
    """Offers waiting requests to the scheduler, one by one."""

    mixes = True
    """Whether a step may hold both decodes and prompts."""

    wakes_at: float | None = None
    """When to plan again even if nothing arrives. Set while no request runs and a batch may still fill."""

    def begin_step(self, now: float) -> None:
        """Called before a step is planned."""

    @abstractmethod
    def next(self, now: float) -> Request | None:
        """Return the waiting request to admit next, if any."""

    def joined(self, request: Request) -> None:
        """Called when the request from `next` has been admitted."""

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Called with the duration of a step."""

    def padding(self, num_decodes: int) -> int:
        """Called when a step is planned. Return the additional tokens that a padded batch would compute."""
        return 0


class Continuous(Batching):
    """Lets requests join at every step (Orca, OSDI'22)."""

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
        """While requests run, let arrivals gather until the first has waited long enough (as in vLLM).

        Long enough is `delay_factor` times the duration of the last step with prompts.
        """
        first = self._waiting.first() if self._delay_factor and self._running else None
        self._delays = first is not None and now - first.arrival < self._delay_factor * self._prefill_seconds

    def next(self, now: float) -> Request | None:
        """Return the first request in the queue, or None while arrivals gather."""
        return None if self._delays else self._waiting.first()

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Remember how long the last step with prompts took."""
        if any(each.first < len(each.request.prompt_ids) for each in plan.scheduled):
            self._prefill_seconds = seconds


class RunToCompletion(Batching):
    """Runs one batch at a time: the next batch begins when the last request of this one has ended.

    A batch fills while its prompts are computed, and closes with its first decode. Requests that end early keep their
    slots. Padding is counted but not computed: prompts padded to the longest of the batch, and empty slots.
    """

    mixes = False

    def __init__(self, waiting: WaitingQueue, running: Mapping[str, Request], *, slots: int, wait: float) -> None:
        """`slots` is the maximum number of requests in a batch, `wait` the seconds that a batch may take to fill."""
        self.waiting = waiting
        self._running = running
        self._slots = slots
        self._wait = wait
        self._open = False
        self.taken = 0
        """Number of requests in the batch."""
        self._sequences = 0
        """Number of rows of these requests in a decode. Each beam has its own."""
        self.tokens = 0
        """Tokens that these requests had when they joined."""
        self._longest = 0
        self._padded = 0
        """Padding of the batch's prompts that has been counted."""

    def begin_step(self, now: float) -> None:
        """If no request runs, open a batch once enough requests have gathered or the first has waited long enough."""
        self.wakes_at = None
        if self._running:
            return
        self._close()
        self.taken, self._sequences, self.tokens, self._longest, self._padded = 0, 0, 0, 0, 0
        first = self.waiting.first()
        if first is None:
            return
        if self.gathered() or now >= first.arrival + self._wait:
            self._open = True
            self.opened()
        else:
            self.wakes_at = first.arrival + self._wait

    def gathered(self) -> bool:
        """Return whether enough requests wait to fill a batch."""
        return len(self.waiting) >= self._slots

    def opened(self) -> None:
        """Called when a batch opens."""

    def _close(self) -> None:
        self._open = False

    def candidate(self) -> Request | None:
        """Return the request that would join next."""
        return self.waiting.first()

    def next(self, now: float) -> Request | None:
        """Return the next request while the batch is open and has free slots."""
        return self.candidate() if self._open and self.taken < self._slots else None

    def joined(self, request: Request) -> None:
        """Give the request a slot of the batch."""
        self.taken += 1
        self._sequences += request.num_sequences
        self.tokens += len(request.token_ids)
        self._longest = max(self._longest, len(request.token_ids))

    def padding(self, num_decodes: int) -> int:
        """Return the padding that new prompts add. With decodes, also close the batch and add its empty slots."""
        newly = self.taken * self._longest - self.tokens - self._padded
        self._padded += newly
        if not num_decodes:
            return newly
        self._close()
        return newly + self._sequences - num_decodes


class Static(RunToCompletion):
    """Batches of a fixed number of requests."""


class Dynamic(RunToCompletion):
    """Batches of about `tokens` prompt tokens in queue order: Triton's dynamic batching, measured in tokens."""

    def __init__(
        self, waiting: WaitingQueue, running: Mapping[str, Request], *, slots: int, wait: float, tokens: int
    ) -> None:
        super().__init__(waiting, running, slots=slots, wait=wait)
        self._max_tokens = tokens

    def gathered(self) -> bool:
        """Return whether enough requests or enough tokens wait to fill a batch."""
        return super().gathered() or self.waiting.num_tokens >= self._max_tokens

    def candidate(self) -> Request | None:
        """Return the first request in the queue if the batch stays within its tokens. A single one may be longer."""
        request = super().candidate()
        if request is None or (self.taken and self.tokens + len(request.token_ids) > self._max_tokens):
            return None
        return request


class Bucketed(RunToCompletion):
    """Batches of requests with prompts of similar length, so that there is less padding.

    The first requests in the queue are sorted by length and cut into buckets. The bucket with the very first request of
    the queue runs, so that no request waits forever.
    """

    # Number of requests that are sorted, in full batches.
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

    def _close(self) -> None:
        super()._close()
        self._bucket = []  # Some may have left the queue, and must not stay in memory with what they bring.

    def candidate(self) -> Request | None:
        """Return the next waiting request of the bucket. A request that is held now may come later."""
        return next((request for request in self._bucket if self.waiting.has(request)), None)

    def joined(self, request: Request) -> None:
        """Give the request a slot, and remove it from the bucket."""
        super().joined(request)
        self._bucket.remove(request)
