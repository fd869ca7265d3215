"""Timeouts for blocking calls that have no timeout of their own."""

import heapq
import itertools
import math
import threading
import time
from collections.abc import Callable


class Watch:
    """A time and an action. The action runs after some seconds unless `done` is called before.

    `pause` and `resume` cost nothing, so that a stream can call them for each token.
    """

    def __init__(self, seconds: float, action: Callable[[], object]) -> None:
        self.seconds = seconds
        self.at = time.monotonic() + seconds
        self._action: Callable[[], object] | None = action
        self._lock = threading.Lock()
        self.expired = False
        """Whether the action has run."""

    @property
    def is_done(self) -> bool:
        """Whether the action will not run any more."""
        return self._action is None

    def pause(self) -> None:
        """Let the action wait until `resume`."""
        self.at = math.inf

    def resume(self) -> None:
        """Begin to wait anew: the action runs after all of its seconds from now."""
        self.at = time.monotonic() + self.seconds

    def done(self) -> None:
        """Drop the action."""
        with self._lock:
            self._action = None

    def expire(self) -> None:
        """Run the action, unless `done` was called before."""
        with self._lock:
            action, self._action = self._action, None
            self.expired = action is not None
        if action is not None:
            action()


class Watchdog:
    """Watches any number of calls with one thread. The thread starts with the first watch."""

    def __init__(self) -> None:
        self._watches: list[tuple[float, int, Watch]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False

    def watch(self, seconds: float, action: Callable[[], object]) -> Watch:
        """Call `action` from another thread after `seconds`, unless the watch is done by then."""
        watch = Watch(seconds, action)
        with self._changed:
            self._drop_done()
            heapq.heappush(self._watches, (watch.at, next(self._numbers), watch))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="inflight-watchdog", daemon=True)
                self._thread.start()
            elif self._watches[0][2] is watch:
                self._changed.notify()
        return watch

    def close(self) -> None:
        """End the thread. The remaining actions do not run."""
        with self._changed:
            self._closed = True
            self._changed.notify()
        if self._thread is not None:
            self._thread.join()

    def _drop_done(self) -> None:
        while self._watches and self._watches[0][2].is_done:
            heapq.heappop(self._watches)

    def _run(self) -> None:
        while (watch := self._next_due()) is not None:
            watch.expire()

    def _next_due(self) -> Watch | None:
        """Wait until the next watch is due and return it. None when closed."""
        with self._changed:
            while not self._closed:
                self._drop_done()
                wait = self._watches[0][0] - time.monotonic() if self._watches else None
                if wait is not None and wait <= 0:
                    _, number, watch = heapq.heappop(self._watches)
                    now = time.monotonic()
                    if watch.at <= now:
                        return watch
                    # It was paused. Look again no later than it could become due.
                    heapq.heappush(self._watches, (min(watch.at, now + watch.seconds), number, watch))
                    continue
                self._changed.wait(wait)
        return None
