"""Notices when the model's process can no longer serve, and ends it."""

import itertools
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence

from inflight.core import EngineCore
from serving.guardian import BEAT_SECONDS, Guardian
from serving.server_config import EXIT, ServerConfig

logger = logging.getLogger(__name__)

# Between two looks at the threads and the step. A step that hangs is noticed at most two looks late.
_LOOKS_PER_BEAT = 4
_LOOK_SECONDS = BEAT_SECONDS / _LOOKS_PER_BEAT
# For answering all requests. A response that Triton does not take blocks its sender.
_ANSWER_SECONDS = 3.0
# For Triton to pass the answers on, before it ends too.
_DELIVERY_SECONDS = 0.5
# On top of the longest step, because a beat can be late.
_PATIENCE_SECONDS = 5.0


def start_guardian(model: str, config: ServerConfig) -> Guardian | None:
    """Start the guardian of a model that is about to be loaded; None if nothing may end the server.

    Raises what `Guardian` raises.
    """
    if config.on_model_death != EXIT:
        return None
    return Guardian(model, patience_seconds=config.step_timeout_seconds + _PATIENCE_SECONDS)


class Watchdog(threading.Thread):
    """Looks each quarter of a second whether the other threads live, and whether the running step is not too old.

    If something is wrong, every request is answered with an error. Then the process ends, and the guardian ends the
    server, unless `on_model_death` is "none". The guardian also does this for a process that cannot: it was killed, or
    code that does not return holds Python's lock.
    """

    def __init__(
        self,
        guardian: Guardian | None,
        config: ServerConfig,
        core: EngineCore,
        threads: Sequence[threading.Thread],
        fail_all: Callable[[str], None],
    ) -> None:
        """`fail_all` takes a message. It refuses new requests, and answers the unfinished ones with this error."""
        super().__init__(name="watchdog", daemon=True)
        self._guardian, self._config, self._core = guardian, config, core
        self._threads, self._fail_all = threads, fail_all
        self._stopping = threading.Event()
        self._step: float | None = None
        self._step_seconds = 0.0
        self.fault: str | None = None
        """What is wrong, if anything is."""

    def start(self) -> None:
        """Start the thread. From now on, an end of this process without `stop` ends the server."""
        if self._guardian is not None:
            self._guardian.beat()
        super().start()

    def stop(self) -> None:
        """From now on the threads may end, and so may the process."""
        self._stopping.set()
        if self._guardian is not None:
            self._guardian.dismiss()

    def run(self) -> None:
        """Look until `stop`, or until something is wrong."""
        for look in itertools.count(1):
            if self._stopping.wait(_LOOK_SECONDS):
                return
            if self._guardian is not None and look % _LOOKS_PER_BEAT == 0:
                self._guardian.beat()
            self.fault = self._look()
            if self.fault is not None:
                self._end(self.fault)
                return

    def _look(self) -> str | None:
        for thread in self._threads:
            if not thread.is_alive() and not self._stopping.is_set():
                return f"the {thread.name} thread has ended"
        # The engine's thread ends by itself then, unless it waits on a GPU for a rank that is gone.
        if self._core.death is not None:
            return f"the engine has stopped: {self._core.death}"
        # Counted in looks instead of read from a clock: while the process is suspended, a step does not get older.
        step, self._step = self._step, self._core.step_started
        self._step_seconds = self._step_seconds + _LOOK_SECONDS if step is not None and step == self._step else 0.0
        if self._step_seconds >= self._config.step_timeout_seconds:
            return f"a step takes longer than step_timeout_seconds ({self._config.step_timeout_seconds:g} s)"
        return None

    def _end(self, fault: str) -> None:
        logger.critical("the model cannot go on: %s", fault)
        # In a thread of its own, because what is wrong may also block the answers.
        answering = threading.Thread(target=self._fail_all, args=(fault,), name="last answers", daemon=True)
        answering.start()
        answering.join(_ANSWER_SECONDS)
        if self._guardian is not None:
            time.sleep(_DELIVERY_SECONDS)
            # Not sys.exit: a thread that stands still would keep the process alive.
            os._exit(1)
