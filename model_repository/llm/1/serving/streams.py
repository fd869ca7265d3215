"""The requests that a model instance has accepted and not answered in full."""

import threading
from collections.abc import Callable, Iterable, Iterator

from serving.stream import ResponseStream


class Streams:
    """Unfinished requests by the engine's ids of their samples. Any thread may use it."""

    def __init__(self) -> None:
        self._by_sample: dict[str, ResponseStream] = {}
        self._left = threading.Condition()
        """Notified when a request has left."""

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self._by_sample)

    def __contains__(self, stream: ResponseStream) -> bool:
        """Whether a request is unfinished."""
        return next(iter(stream.samples)) in self._by_sample

    def __iter__(self) -> Iterator[ResponseStream]:
        """Yield each request once, the oldest first."""
        return iter(dict.fromkeys(list(self._by_sample.values())))

    def get(self, sample: str) -> ResponseStream | None:
        """Return the request of a sample. None if it was dropped."""
        return self._by_sample.get(sample)

    def of(self, samples: Iterable[str]) -> list[ResponseStream]:
        """Return the requests of these samples, each once, without those that were dropped."""
        found = map(self._by_sample.get, samples)
        return list(dict.fromkeys(stream for stream in found if stream is not None))

    def add(self, stream: ResponseStream) -> None:
        """Add a request."""
        self._by_sample.update(dict.fromkeys(stream.samples, stream))

    def drop(self, stream: ResponseStream) -> None:
        """Forget a request. Its later events are ignored."""
        for sample in stream.samples:
            self._by_sample.pop(sample, None)
        with self._left:
            self._left.notify_all()

    def wait_until(self, condition: Callable[["Streams"], bool], timeout: float | None = None) -> None:
        """Return when the condition is true, which is looked at when a request leaves, or after the timeout."""
        with self._left:
            self._left.wait_for(lambda: condition(self), timeout)
