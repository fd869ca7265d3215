"""The thread that loads the model and steps it."""

import queue
import threading
from concurrent.futures import Future

from inflight import Engine, EngineConfig
from inflight.outputs import TokenEvent


class EngineThread(threading.Thread):
    """Makes an engine and steps it until it is closed.

    Loading is not left to Triton's thread: OpenMP gives helpers to each thread that computes, and where it has more of
    them than processors, none waits for the next operator any more; they sleep and have to be woken, some hundred times
    a step.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(name="engine", daemon=True)
        self._config = config
        self._loaded: Future[Engine] = Future()
        # Bounded by the requests in flight: one list of events a step, and a step makes at most one event for each.
        self.events: queue.SimpleQueue[list[TokenEvent] | None] = queue.SimpleQueue()
        """What the steps bring."""

    def load(self) -> Engine:
        """Start, and return the engine when it is ready to take requests; raises what `Engine` raises."""
        self.start()
        return self._loaded.result()

    def run(self) -> None:
        """The body of the thread."""
        try:
            engine = Engine(self._config)
        except BaseException as error:  # noqa: BLE001 - it is raised in `load`
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(engine)
        engine.core.run(self.events.put)
