"""The thread that loads the model and runs its steps."""

import queue
import threading
from concurrent.futures import Future

from inflight import Engine, EngineConfig
from inflight.outputs import TokenEvent

# Seconds of work. The responder takes all steps in the queue at once, and no client can hold it up: Triton buffers what
# clients do not read. So the queue fills only if the host is too slow for all streams together.
_MAX_STEPS_BEHIND = 1024


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
        self.events: queue.Queue[list[TokenEvent] | None] = queue.Queue(_MAX_STEPS_BEHIND)
        """One list of events per step; None at the end. While it is full, the engine does not step."""

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
        try:
            engine.core.run(self.events.put)
        finally:
            engine.close()
