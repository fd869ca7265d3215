"""The thread that loads the model and runs its steps."""

import queue
import threading
from concurrent.futures import Future

from inflight import Engine, EngineConfig
from inflight.outputs import TokenEvent


class EngineThread(threading.Thread):
    """Creates an engine and runs its steps until it is closed.

    This thread also loads the model, because OpenMP creates worker threads for each thread that computes. If Triton's
    thread loaded the model, there would be more workers than processors. The workers would then no longer spin between
    operators: they would sleep and have to be woken, hundreds of times per step.
    """

    def __init__(self, config: EngineConfig) -> None:
        super().__init__(name="engine", daemon=True)
        self._config = config
        self._loaded: Future[Engine] = Future()
        # There is no backpressure: a responder that falls behind does not slow the engine down. The queue is bounded
        # only by the tokens that the requests in the engine may still get, as each event holds at least one or is the
        # last of its request.
        self.events: queue.SimpleQueue[list[TokenEvent] | None] = queue.SimpleQueue()
        """One list of events per step; None at the end."""

    def load(self) -> Engine:
        """Start the thread, and return the engine when it can take requests. Raises what `Engine` raises."""
        self.start()
        return self._loaded.result()

    def run(self) -> None:
        """Load the model and run steps until the engine is closed."""
        try:
            engine = Engine(self._config)
        except BaseException as error:  # noqa: BLE001 - it is raised in `load`
            self._loaded.set_exception(error)
            return
        self._loaded.set_result(engine)
        engine.core.run(self.events.put)
