"""Ends the calls of `llm` whose clients have disconnected."""

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import triton_python_backend_utils as pb_utils

from answer import Answer
from ended_calls import EndedCalls

# Interval between two checks for clients that have disconnected.
_SWEEP_SECONDS = 0.1


class RunningCalls:
    """The running calls of `llm`. Cancels the calls of clients that have disconnected.

    Triton 24.10 does not pass cancellations on between models. So each call has a key that nobody can guess. A second
    call of `llm`, with this key as its parameter `cancel`, cancels the first one.
    """

    def __init__(self, ended: EndedCalls, models: list[str], *, llm_batched: bool) -> None:
        """`models`: those that a call may be in."""
        self._ended = ended
        self._models = models
        self._llm_batched = llm_batched
        self._answers: dict[str, Answer] = {}
        self._closed = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="cancellation", daemon=True)
        self._sweeper.start()

    @contextmanager
    def watched(self, answer: Answer) -> Iterator[str]:
        """Watch the client of `answer` during a call, and return the key of the call."""
        key = uuid.uuid4().hex
        self._answers[key] = answer
        try:
            yield key
        finally:
            del self._answers[key]

    def close(self) -> None:
        """Stop watching."""
        self._closed.set()
        self._sweeper.join()

    def _sweep(self) -> None:
        while not self._closed.wait(_SWEEP_SECONDS):
            for key, answer in list(self._answers.items()):
                try:
                    if answer.is_cancelled():
                        self._cancel(key)
                except Exception as fault:  # noqa: BLE001 - the thread must go on for the other requests
                    pb_utils.Logger.log_warn(f"a cancellation did not reach llm: {fault!r}")

    def _cancel(self, key: str) -> None:
        # `llm` ignores this input. Triton's batcher cannot handle a request without inputs.
        nothing = pb_utils.Tensor("stream", np.zeros((1, 1) if self._llm_batched else (1,), dtype=np.bool_))
        for model in self._models:
            cancellation = pb_utils.InferenceRequest(
                model_name=model, inputs=[nothing], requested_output_names=["text_output"], parameters={"cancel": key}
            )
            for response in self._ended.call(cancellation):
                if response.has_error():
                    pb_utils.Logger.log_warn(f"{model} did not take a cancellation: {response.error().message()}")
