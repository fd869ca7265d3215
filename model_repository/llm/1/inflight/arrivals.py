"""Submitted requests that the scheduler's queue does not have yet, and the bounds of that queue."""

from collections import Counter
from collections.abc import Sequence

from inflight.errors import InvalidRequest
from inflight.request import Request
from inflight.scheduler.scheduler import Scheduler

# By default, the waiting requests together may fill the KV cache so many times.
_QUEUED_CACHES = 16


def max_queue_tokens(given: int | None, capacity: int, max_model_len: int) -> int:
    """Return the setting `max_queue_tokens`, or its default if it is not given.

    `capacity` is the number of tokens that the KV cache holds.

    Raises:
        ValueError: a prompt that fits the cache and the context would not fit the empty queue.
    """
    if given is None:
        return _QUEUED_CACHES * capacity
    longest = min(capacity, max_model_len)
    if given < longest:
        raise ValueError(f"max_queue_tokens is {given}; it must be at least {longest}, so that any prompt fits")
    return given


class Arrivals:
    """The requests that arrived since the last step. They count as waiting, like those in the scheduler's queue.

    It has no lock of its own: `EngineCore` holds one.
    """

    def __init__(self, scheduler: Scheduler, *, max_queue_size: int, max_queue_tokens: int) -> None:
        self._scheduler = scheduler
        self._max_queue_size = max_queue_size
        self._max_queue_tokens = max_queue_tokens
        self._requests: list[Request] = []
        self._at_level: Counter[int] = Counter()
        self._num_tokens = 0

    @property
    def requests(self) -> Sequence[Request]:
        """In the order of arrival."""
        return self._requests

    @property
    def num_waiting(self) -> int:
        """Waiting requests, here and in the queue."""
        return len(self._scheduler.waiting) + len(self._requests)

    @property
    def num_waiting_tokens(self) -> int:
        """Known tokens of the waiting requests."""
        return self._scheduler.waiting.num_tokens + self._num_tokens

    def num_waiting_at(self, level: int) -> int:
        """Return how many requests of a priority level wait."""
        return self._scheduler.waiting.count(level) + self._at_level[level]

    def adapters(self) -> set[str]:
        """Return the names of the LoRA adapters that waiting requests ask for. Any thread may call this."""
        arrived = {request.options.lora_name for request in tuple(self._requests)}
        return {*self._scheduler.waiting.adapters(), *arrived} - {""}

    def refusal(self, requests: Sequence[Request]) -> str | None:
        """Return why the queue cannot accept the samples of a request now, or None if it can.

        The message begins like Triton's own, which clients may look for.

        Raises:
            InvalidRequest: the queue could not accept it even if it were empty.
        """
        level, samples = requests[0].priority, len(requests)
        bounds = [("requests wait; max_queue_size", self._max_queue_size, self.num_waiting)]
        if of_level := self._scheduler.policies.of(level).max_queue_size:
            name = f"requests of priority {level} wait; max_queue_size of that level"
            bounds.append((name, of_level, self.num_waiting_at(level)))
        for name, bound, waiting in bounds:
            if samples > bound:
                raise InvalidRequest(f"n is {samples}; it must be at most max_queue_size, {bound}")
            if waiting + samples > bound:
                more = f"{samples} samples more do not fit: " if samples > 1 else ""
                return f"Exceeds maximum queue size: {more}{waiting} {name} is {bound}"
        waiting, tokens = self.num_waiting_tokens, sum(len(request.token_ids) for request in requests)
        if tokens > self._max_queue_tokens:
            raise InvalidRequest(
                f"n is {samples}, which makes {tokens} prompt tokens; they must be at most max_queue_tokens, "
                f"{self._max_queue_tokens}"
            )
        if waiting + tokens > self._max_queue_tokens:
            return (
                f"Exceeds maximum queue size: requests of {waiting} tokens wait, and this one has {tokens}; "
                f"max_queue_tokens is {self._max_queue_tokens}"
            )
        return None

    def add(self, requests: Sequence[Request]) -> None:
        """Keep the samples of a request, which have the same level, for the next step."""
        self._requests += requests
        self._at_level[requests[0].priority] += len(requests)
        self._num_tokens += sum(len(request.token_ids) for request in requests)

    def clear(self) -> None:
        """Forget all requests."""
        self._requests.clear()
        self._at_level.clear()
        self._num_tokens = 0
