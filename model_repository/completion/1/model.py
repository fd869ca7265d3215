"""A model with exactly one response per request: it calls the decoupled model `llm` and waits for the whole answer."""

from __future__ import annotations

import json
import locale
import shutil
import sys
import threading
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# The Python that Triton embeds ignores the environment and starts with ASCII as its encoding.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
# Triton appends this folder to the path, after site-packages. The packages next to this file must come first.
sys.path.insert(0, str(Path(__file__).parent))

from context_call import KV_TRANSFER, context_inputs, kept_parameters, offer_in, with_offer  # noqa: E402
from ended_calls import EndedCalls  # noqa: E402
from joined_rows import joined  # noqa: E402
from serving.fields import add_tensors  # noqa: E402
from serving.guardian import Guardian, Pulse  # noqa: E402
from serving.sending import send  # noqa: E402
from serving.server_config import EXIT, check_on_model_death  # noqa: E402

SHARED_MEMORY = "/dev/shm"
# Triton's region begins with a free megabyte.
SMALL_RESPONSE = 2**16
# Parameters with which a client would call another function of `llm`.
NOT_PASSED_ON = ("cancel", "list_requests", "is_serving", "drain", "describe_model", "tokenize", "detokenize")
# Interval between two checks for clients that have disconnected.
SWEEP_SECONDS = 0.1
# How long this process may stand still. It has no work that takes long without Python's lock being free.
PATIENCE_SECONDS = 30.0
# The codes that `llm` puts before its messages, and those of Triton. Triton answers UNAVAILABLE to its own timeouts.
ERROR_CODES = {
    **{name: name for name in ("INVALID_ARG", "UNAVAILABLE", "CANCELLED", "NOT_FOUND", "UNSUPPORTED", "INTERNAL")},
    "DEADLINE_EXCEEDED": "UNAVAILABLE",
}


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add the inputs and outputs of `llm`, but not its input `stream`."""
        return add_tensors(config, without="stream")

    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in config["parameters"].items()}
        threads = int(parameters["max_concurrent_requests"])
        self._slots = Slots(threads + int(parameters["max_queued_requests"]))
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="completion")
        self._batched = config["max_batch_size"] > 0
        self._llm_batched = parameters["llm_has_batch_dimension"] == "true"
        self._ended = EndedCalls()
        self._generation_model = parameters.get("generation_model_name") or "llm"
        self._context_model = parameters.get("context_model_name") or ""
        models = [name for name in (self._generation_model, self._context_model) if name]
        self._calls = Calls(self._ended, models, llm_batched=self._llm_batched)
        on_model_death = parameters.get("on_model_death", EXIT)
        check_on_model_death(on_model_death)
        # Last, because from now on an end of this process without `finalize` ends the server.
        self._pulse = None
        if on_model_death == EXIT:
            self._pulse = Pulse(Guardian(args["model_name"], patience_seconds=PATIENCE_SECONDS))

    def execute(self, requests: list[Any]) -> None:
        """Pass the rows of each request to the thread pool and return at once. The threads send the answers."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                rows = self._rows(request)
            except Exception as fault:  # noqa: BLE001 - the error of one request must not affect any other request
                error = pb_utils.TritonError(f"inputs that cannot be read: {fault!r}", pb_utils.TritonError.INTERNAL)
                _send(sender, pb_utils.InferenceResponse(error=error))
                continue
            if self._slots.take(len(rows)):
                answer = Answer(sender, len(rows), batched=self._batched)
                for index, row in enumerate(rows):
                    self._pool.submit(self._answer, request, row, index, answer)
            else:
                refusal = pb_utils.TritonError("too many requests are waiting", pb_utils.TritonError.UNAVAILABLE)
                _send(sender, pb_utils.InferenceResponse(error=refusal))

    def finalize(self) -> None:
        """Stop the threads. Triton calls this after every request has received its answer."""
        if self._pulse is not None:
            self._pulse.stop()
        self._pool.shutdown()
        self._calls.close()

    def _rows(self, request: Any) -> list[list[Any]]:
        """The input tensors of each call of `llm`: one call per row of the batch dimension, or one if there is none."""
        inputs = [(tensor.name(), tensor.as_numpy()) for tensor in request.inputs()]
        count = inputs[0][1].shape[0] if self._batched and inputs else 1
        rows = []
        for index in range(count):
            arrays = [(name, array[index] if self._batched else array) for name, array in inputs]
            arrays.append(("stream", np.array([False])))
            rows.append(
                [pb_utils.Tensor(name, array[np.newaxis] if self._llm_batched else array) for name, array in arrays]
            )
        return rows

    def _answer(self, request: Any, row: list[Any], index: int, answer: Answer) -> None:
        try:
            answer.put(index, self._outcome(request, row, answer))
        finally:
            self._slots.give_back()

    def _outcome(self, request: Any, row: list[Any], answer: Answer) -> Any:
        """The outputs of one row, or its error. Raises nothing: otherwise the client would wait for ever."""
        try:
            if self._ended.ask(answer.is_cancelled):
                return pb_utils.TritonError("cancelled before it began", pb_utils.TritonError.CANCELLED)
            with self._calls.watched(answer) as cancel_key:
                return self._complete(request, row, cancel_key)
        except Exception as fault:  # noqa: BLE001 - the error of one request must not affect any other request
            return pb_utils.TritonError(f"no answer from llm: {fault!r}", pb_utils.TritonError.INTERNAL)

    def _complete(self, request: Any, row: list[Any], cancel_key: str) -> Any:
        """The outputs of one row by name, without the batch dimension, or the error of the row."""
        outputs = None
        if self._context_model:
            row = self._with_context(request, row, cancel_key)
        for response in self._ended.call(_llm_request(self._generation_model, request, row, cancel_key)):
            if response.has_error():
                return _passed_on(response.error())
            # An empty response that only marks the end can follow the answer.
            if response.output_tensors():
                outputs = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
        if outputs is None:
            return pb_utils.TritonError("llm ended without an answer", pb_utils.TritonError.INTERNAL)
        return {name: array[0] if self._llm_batched else array for name, array in outputs.items()}

    def _with_context(self, request: Any, row: list[Any], cancel_key: str) -> list[Any]:
        """Let the other model compute the prompt of a row. Return the inputs of the call that continues it."""
        try:
            inputs = context_inputs(row, json.loads(request.parameters() or "{}"), batched=self._llm_batched)
        except ValueError:
            return row
        if inputs is None:
            return row
        asked = _llm_request(self._context_model, request, inputs, cancel_key, outputs=[KV_TRANSFER])
        offer = None
        for response in self._ended.call(asked):
            if response.has_error():
                pb_utils.Logger.log_warn(f"{self._context_model} computed no prompt: {response.error().message()}")
                return row
            offer = offer_in(response) or offer
        return row if offer is None else with_offer(row, offer, batched=self._llm_batched)


class Calls:
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
        while not self._closed.wait(SWEEP_SECONDS):
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


class Slots:
    """Counts how many more calls of `llm` may run or wait for a thread."""

    def __init__(self, count: int) -> None:
        self._lock = threading.Lock()
        self._free = count

    def take(self, count: int) -> bool:
        """Take `count` slots and return True, or take none and return False."""
        with self._lock:
            if count > self._free:
                return False
            self._free -= count
            return True

    def give_back(self) -> None:
        """Give back one slot."""
        with self._lock:
            self._free += 1


class Answer:
    """The only response of a request, sent when all rows are complete. An error of one row becomes its error."""

    def __init__(self, sender: Any, num_rows: int, *, batched: bool) -> None:
        self._sender = sender
        self._lock = threading.Lock()
        self._sent = False
        self._rows: dict[int, Any] = {}
        self._num_rows = num_rows
        self._batched = batched

    def is_cancelled(self) -> bool:
        """Whether the client has cancelled the request or disconnected.

        False after the response. Triton must not be asked then, because it has freed the request.
        """
        with self._lock:
            return not self._sent and bool(self._sender.is_cancelled())

    def put(self, index: int, row: Any) -> None:
        """Add the outputs of a row, or its error. The last row sends the response."""
        with self._lock:
            self._rows[index] = row
            if len(self._rows) == self._num_rows:
                self._sent = True
                _send(self._sender, self._response_or_fault())

    def _response_or_fault(self) -> Any:
        try:
            return self._response()
        except Exception as fault:  # noqa: BLE001 - otherwise the client would wait for ever
            message = f"rows that don't fit together: {fault!r}"
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INTERNAL))

    def _response(self) -> Any:
        rows = [self._rows[index] for index in range(self._num_rows)]
        error = next((row for row in rows if not isinstance(row, dict)), None)
        if error is not None:
            return pb_utils.InferenceResponse(error=error)
        outputs = joined(rows) if self._batched else rows[0]
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, array) for name, array in outputs.items()])


def _llm_request(model: str, request: Any, row: list[Any], cancel_key: str, outputs: list[str] | None = None) -> Any:
    """`outputs`: those of a call that computes a prompt; the request says which ones the other call has."""
    parameters = json.loads(request.parameters() or "{}")
    if outputs is not None:
        parameters = kept_parameters(parameters)
    for name in NOT_PASSED_ON:
        parameters.pop(name, None)
    # Triton accepts no floating-point numbers as request parameters between models.
    passed_on = {key: repr(value) if isinstance(value, float) else value for key, value in parameters.items()}
    return pb_utils.InferenceRequest(
        model_name=model,
        request_id=request.request_id(),
        inputs=row,
        # The text is in every answer of `llm`. Without it, an answer that has none of the client's outputs would look
        # like the response that only marks the end.
        requested_output_names=outputs or [*{*request.requested_output_names(), "text_output"}],
        parameters={**passed_on, "code_in_error": True, "cancel_key": cancel_key},
        timeout=request.timeout(),
    )


def _passed_on(error: Any) -> Any:
    # Between models Triton 24.10 replaces every error code with INTERNAL. So `llm` puts the code before the message.
    name, _, message = error.message().partition(": ")
    if name in ERROR_CODES:
        return pb_utils.TritonError(message, getattr(pb_utils.TritonError, ERROR_CODES[name]))
    return pb_utils.TritonError(error.message(), error.code())


def _send(sender: Any, response: Any) -> None:
    size = sum(_num_bytes(tensor.as_numpy()) for tensor in response.output_tensors())
    free = shutil.disk_usage(SHARED_MEMORY).free
    if size > SMALL_RESPONSE and 2 * size > free:
        # If Triton's sender finds no room, it has closed itself already, and the client would wait for ever.
        message = f"the answer has {size} bytes, and {SHARED_MEMORY} has room for {free}; give it more (--shm-size)"
        response = pb_utils.InferenceResponse(error=pb_utils.TritonError(message, pb_utils.TritonError.INTERNAL))
    try:
        send(sender, response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    except pb_utils.TritonModelException as fault:
        pb_utils.Logger.log_error(f"an answer could not be sent: {fault}")


def _num_bytes(array: Any) -> int:
    """The size of a tensor as Triton writes it. Texts are written with their lengths."""
    return sum(len(text) + 4 for text in array.flat) if array.dtype == np.object_ else int(array.nbytes)
