"""A model that computes nothing and sends tokens at known times, to test the measuring tools.

It sends the first token of an answer `first_ms` after the request, and each further token `gap_ms` after the one
before. If the configuration sets `times_file`, the model writes a line of JSON for each answer to that file, with the
actual times of sending on the clock that all processes share. Of `sampling_parameters` only `max_tokens` is used.
Inputs and outputs are those of Inflight's `llm`.
"""

import heapq
import itertools
import json
import threading
import time
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# Checking whether a request was cancelled takes as long as sending a response.
_TOKENS_PER_LOOK = 16


class TritonPythonModel:
    """One thread sends the tokens that are due."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        self.first, self.gap = (float(parameters[name]["string_value"]) / 1000 for name in ("first_ms", "gap_ms"))
        self.times_file = parameters["times_file"]["string_value"]
        self.due: list[tuple[float, int, Answer]] = []
        self.numbers = itertools.count()
        self.changed = threading.Condition()
        self.stopping = False
        self.thread = threading.Thread(target=self.run)
        self.thread.start()

    def execute(self, requests: list[Any]) -> None:
        with self.changed:
            for request in requests:
                self.put(Answer(request, self.first, self.gap, self.times_file))
            self.changed.notify()

    def finalize(self) -> None:
        with self.changed:
            self.stopping = True
            self.changed.notify()
        self.thread.join()

    def put(self, answer: "Answer") -> None:
        heapq.heappush(self.due, (answer.next_time, next(self.numbers), answer))

    def run(self) -> None:
        while (answer := self.next_due()) is not None:
            if answer.send():
                with self.changed:
                    self.put(answer)

    def next_due(self) -> "Answer | None":
        with self.changed:
            while not self.stopping:
                wait = self.due[0][0] - time.monotonic() if self.due else None
                if wait is not None and wait <= 0:
                    return heapq.heappop(self.due)[2]
                self.changed.wait(wait)
        return None


class Answer:
    """The remaining part of one answer."""

    def __init__(self, request: Any, first: float, gap: float, times_file: str) -> None:
        inputs = {tensor.name(): tensor.as_numpy().reshape(-1) for tensor in request.inputs()}
        self.sender = request.get_response_sender()
        self.prompt_tokens = len(inputs["input_ids"] if "input_ids" in inputs else inputs["text_input"][0].split())
        self.wanted = self.left = json.loads(inputs["sampling_parameters"][0])["max_tokens"]
        # One response for each token, or one response for all tokens.
        self.tokens = 1 if "stream" in inputs and inputs["stream"][0] else self.wanted
        self.gap = gap
        self.next_time = time.monotonic() + first + gap * (self.tokens - 1)
        self.times: list[float] = []
        """When responses were sent."""
        self.times_file = times_file

    def send(self) -> bool:
        """Send the tokens that are due. Return whether more will follow."""
        if self.left % _TOKENS_PER_LOOK == 0 and self.sender.is_cancelled():
            self.note_times()
            self.sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return False
        self.times.append(time.monotonic())
        self.left -= self.tokens
        self.next_time += self.gap * self.tokens
        final = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if self.left == 0 else 0
        if final:
            self.note_times()
        tensors = self.tensors()
        # Until all is sent, `tensors` keeps what Triton removes: see `serving/sending.py` of the real `llm`.
        self.sender.send(pb_utils.InferenceResponse(tensors), flags=final)
        return bool(self.left > 0)

    def note_times(self) -> None:
        """Write down when responses were sent. Whoever has the last one may look at once."""
        if self.times_file:
            with open(self.times_file, "a") as file:
                file.write(f"{json.dumps(self.times)}\n")

    def tensors(self) -> list[Any]:
        tensors = [
            pb_utils.Tensor("text_output", np.array([b"tick " * self.tokens], dtype=np.object_)),
            pb_utils.Tensor("token_ids", np.ones((1, self.tokens), dtype=np.int32)),
        ]
        sent = self.wanted - self.left
        if not self.left:
            tensors.append(pb_utils.Tensor("finish_reason", np.array([b"length"], dtype=np.object_)))
        if sent == self.tokens or not self.left:
            tensors.append(pb_utils.Tensor("usage", np.array([self.prompt_tokens, sent], dtype=np.uint32)))
        return tensors
