"""A model with exactly one response per request: it calls the decoupled model `llm` and waits for the whole answer."""

import json
import locale
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

# The Python that Triton embeds ignores the environment and starts with ASCII as its encoding.
locale.setlocale(locale.LC_CTYPE, "C.UTF-8")
# Triton appends this folder to the path, after site-packages. The packages next to this file must come first.
sys.path.insert(0, str(Path(__file__).parent))

from answer import Answer, send_answer  # noqa: E402
from completion_config import CompletionConfig  # noqa: E402
from context_call import KV_TRANSFER, context_inputs, offer_in, with_offer  # noqa: E402
from ended_calls import EndedCalls  # noqa: E402
from llm_call import error_of_llm, llm_request  # noqa: E402
from running_calls import RunningCalls  # noqa: E402
from serving.fields import add_tensors  # noqa: E402
from serving.guardian import Guardian, Pulse  # noqa: E402
from serving.server_config import EXIT  # noqa: E402
from serving.settings import read_values  # noqa: E402
from slots import Slots  # noqa: E402

# How long this process may stand still. It has no work that takes long without Python's lock being free.
PATIENCE_SECONDS = 30.0


class TritonPythonModel:
    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        """Add the inputs and outputs of `llm`, but not its input `stream`."""
        return add_tensors(config, without="stream")

    def initialize(self, args: dict[str, str]) -> None:
        model_config = json.loads(args["model_config"])
        parameters = {name: value["string_value"] for name, value in model_config["parameters"].items()}
        config = CompletionConfig(**read_values(parameters, CompletionConfig))
        threads = config.max_concurrent_requests
        self._slots = Slots(threads + config.max_queued_requests)
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="completion")
        self._batched = model_config["max_batch_size"] > 0
        self._llm_batched = config.llm_has_batch_dimension
        self._ended = EndedCalls()
        self._generation_model, self._context_model = config.generation_model_name, config.context_model_name
        models = [name for name in (self._generation_model, self._context_model) if name]
        self._calls = RunningCalls(self._ended, models, llm_batched=self._llm_batched)
        # Last, because from now on an end of this process without `finalize` ends the server.
        self._pulse = None
        if config.on_model_death == EXIT:
            self._pulse = Pulse(Guardian(args["model_name"], patience_seconds=PATIENCE_SECONDS))

    def execute(self, requests: list[Any]) -> None:
        """Pass the rows of each request to the thread pool and return at once. The threads send the answers."""
        for request in requests:
            sender = request.get_response_sender()
            try:
                rows = self._rows(request)
            except Exception as fault:  # noqa: BLE001 - the error of one request must not affect any other request
                error = pb_utils.TritonError(f"inputs that cannot be read: {fault!r}", pb_utils.TritonError.INTERNAL)
                send_answer(sender, pb_utils.InferenceResponse(error=error))
                continue
            if self._slots.take(len(rows)):
                answer = Answer(sender, len(rows), batched=self._batched)
                for index, row in enumerate(rows):
                    self._pool.submit(self._answer, request, row, index, answer)
            else:
                refusal = pb_utils.TritonError("too many requests are waiting", pb_utils.TritonError.UNAVAILABLE)
                send_answer(sender, pb_utils.InferenceResponse(error=refusal))

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
        for response in self._ended.call(llm_request(self._generation_model, request, row, cancel_key)):
            if response.has_error():
                return error_of_llm(response.error(), self._generation_model)
            # An empty response that only marks the end can follow the answer.
            if response.output_tensors():
                outputs = {tensor.name(): tensor.as_numpy() for tensor in response.output_tensors()}
        if outputs is None:
            return pb_utils.TritonError("llm ended without an answer", pb_utils.TritonError.INTERNAL)
        # TensorRT-LLM's clients expect texts without the batch dimension; see `request_format` of `llm`.
        return {name: array[0] if self._llm_batched and array.ndim > 1 else array for name, array in outputs.items()}

    def _with_context(self, request: Any, row: list[Any], cancel_key: str) -> list[Any]:
        """Let the other model compute the prompt of a row. Return the inputs of the call that continues it."""
        try:
            inputs = context_inputs(row, json.loads(request.parameters() or "{}"), batched=self._llm_batched)
        except ValueError:
            return row
        if inputs is None:
            return row
        asked = llm_request(self._context_model, request, inputs, cancel_key, outputs=[KV_TRANSFER])
        offer = None
        for response in self._ended.call(asked):
            if response.has_error():
                pb_utils.Logger.log_warn(f"{self._context_model} computed no prompt: {response.error().message()}")
                return row
            offer = offer_in(response) or offer
        return row if offer is None else with_offer(row, offer, batched=self._llm_batched)
