"""A stand-in for the real `llm`: it has the same inputs and outputs, and echoes the words of the prompt.

A token is a word of the answer, and its id is the length of the word. A word that starts with `!` is an instruction:
`!gap MS` sets the pause before each word that follows. `!forever` runs until the request is cancelled.
`!error CODE` ends the request with that error code, which need not be one of Triton's.
`!refuse N KEY` ends the first N requests that contain it, with the same KEY, with UNAVAILABLE.
`!cancelled` answers with the number of requests cancelled so far, `!others` with that of the other requests that run,
`!request` with the request itself as JSON, and `!server` with the environment variable ECHO_NAME of the server.

Each word of a prompt is one of its tokens. All have the log-probability -0.5.
An embedding holds the number of words, the dimensions asked for or 0, and whether it is a mean and normalised.
A classification has two classes, with the number of words, and 1 if there is an activation. That of a query and a
document has one class, with the number of words that both have, and minus that without an activation.

It also answers questions about itself. A token of `tokenize` is a character, and a prompt of such tokens is its text.
For `tokenize` and `detokenize`, the prompt !tenant stands for the tenant that asks.
With the template variable `open`, the prompt has begun a thought (true), or has ended it too (false).
"""

from __future__ import annotations

import collections
import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

CHARACTERS = 2**20
"""The token of the character 0 in the answers to `tokenize`."""

ANSWERS = "answers"
"""The name of each thread that answers a request."""
LONGEST_SLEEP = 0.1


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self.cancelled = 0
        self.refused: collections.Counter[str] = collections.Counter()

    def execute(self, requests: list[Any]) -> None:
        for request in requests:
            sender = request.get_response_sender()
            parameters = json.loads(request.parameters() or "{}")
            if (reply := answer_to_question(request, parameters)) is not None:
                text = json.dumps(reply)
                send(sender, response([text], 1, "None", {}), pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            if "cancel" in parameters:
                # A cancellation from `completion`, whose client has disconnected. This model ignores it.
                sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
                continue
            threading.Thread(target=self.answer, args=(arrived(request), sender), name=ANSWERS).start()

    def answer(self, request: dict[str, Any], sender: Any) -> None:
        sampling = json.loads(request.get("sampling_parameters", "{}"))
        max_tokens = request.get("max_tokens", sampling.get("max_tokens"))
        pieces: list[str] = []
        try:
            for piece in () if max_tokens == 0 else self.pieces(request, sender):
                self.check(sender)
                pieces.append(piece)
                if len(pieces) == max_tokens:
                    break
                if request.get("stream"):
                    send(sender, response([piece], len(pieces), "None", request))
        except RequestFailed as failure:
            with_code = "code_in_error" in request["parameters"]
            sender.send(failure.response(with_code), flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
            return
        count, finish_reason = len(pieces), "length" if len(pieces) == max_tokens else "stop"
        if request.get("stream"):
            # The other pieces have already been sent.
            pieces = pieces[-1:] if finish_reason == "length" else []
        last = response(pieces, count, finish_reason, request)
        send(sender, last, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)

    def check(self, sender: Any) -> None:
        """Raises RequestFailed if the request was cancelled."""
        if sender.is_cancelled():
            self.cancelled += 1
            raise RequestFailed("CANCELLED")

    def pause(self, seconds: float, sender: Any) -> None:
        """Raises RequestFailed if the request is cancelled meanwhile."""
        for _ in range(int(seconds / LONGEST_SLEEP)):
            time.sleep(LONGEST_SLEEP)
            self.check(sender)
        time.sleep(seconds % LONGEST_SLEEP)

    def pieces(self, request: dict[str, Any], sender: Any) -> Iterator[str]:
        words = iter(prompt(request).split())
        gap = 0.0
        for word in words:
            self.pause(gap, sender)
            match word:
                case "!gap":
                    gap = int(next(words)) / 1000
                case "!error":
                    raise RequestFailed(next(words))
                case "!refuse":
                    times, key = int(next(words)), next(words)
                    self.refused[key] += 1
                    if self.refused[key] <= times:
                        raise RequestFailed("UNAVAILABLE")
                case "!forever":
                    while True:
                        yield "tick "
                        self.pause(gap, sender)
                case "!cancelled":
                    yield str(self.cancelled)
                case "!others":
                    yield str(sum(thread.name == ANSWERS for thread in threading.enumerate()) - 1)
                case "!server":
                    yield os.environ["ECHO_NAME"]
                case "!request":
                    yield json.dumps(request)
                case _:
                    yield word + " "


def send(sender: Any, response: Any, flags: int = 0) -> None:
    """See `serving/sending.py` of the real `llm`."""
    tensors = response.output_tensors()
    sender.send(response, flags=flags)
    del tensors


class RequestFailed(Exception):
    def __init__(self, code: str) -> None:
        self.code = code

    def response(self, with_code: bool) -> Any:
        message = f"failed with {self.code}"
        if with_code:
            message = f"{self.code}: {message}"
        code = getattr(pb_utils.TritonError, self.code, pb_utils.TritonError.UNAVAILABLE)
        error = pb_utils.TritonError(message, code)
        return pb_utils.InferenceResponse(error=error)


def arrived(request: Any) -> dict[str, Any]:
    """Return the inputs of a request as Python values, and its parameters under "parameters"."""
    values: dict[str, Any] = {}
    for tensor in request.inputs():
        elements = [e.decode() if isinstance(e, bytes) else e for e in tensor.as_numpy().tolist()]
        values[tensor.name()] = elements if tensor.name() in ("stop_words", "input_ids") else elements[0]
    values["parameters"] = json.loads(request.parameters() or "{}")
    values["timeout_us"] = request.timeout()
    return values


def prompt(request: dict[str, Any]) -> str:
    if "messages" in request:
        return str(json.loads(request["messages"])[-1]["content"])
    if "embedding_request" in request:
        given = json.loads(request["embedding_request"])["input"]
        return " ".join(given.values()) if isinstance(given, dict) else str(given)
    if "text_input" in request:
        return str(request["text_input"])
    ids = request["input_ids"]
    return "".join(chr(token - CHARACTERS) for token in ids) if min(ids) >= CHARACTERS else str(ids)


def answer_to_question(request: Any, parameters: dict[str, Any]) -> object | None:
    if "is_serving" in parameters:
        return {"is_serving": True}
    if "list_requests" in parameters:
        return []  # This model knows no requests by name.
    if "describe_model" in parameters:
        return {
            "model": "echo",
            "vocab_size": CHARACTERS,
            "max_model_len": 8192,
            "chat_template": "{{ messages }}{{ tools }}<tool_call>{{ messages[0].tool_calls }}",
            "template_variables": ["messages", "tools", "enable_thinking"],
            "special_tokens": {"0": "[TOOL_CALLS]"},
            "eos_token_ids": [2],
            "labels": ["long", "active"],
        }
    if "tokenize" in parameters:
        given = arrived(request)
        variables = json.loads(given.get("sampling_parameters", "{}")).get("chat_template_kwargs", {})
        asker = parameters.get("tenant", "")
        text = asker if prompt(given) == "!tenant" else prompt(given)
        ids = [CHARACTERS + ord(character) for character in text]
        end = {True: "<think>\n", False: "<think></think>\n"}.get(variables.get("open"), "Answer:")
        return {"token_ids": ids, "max_model_len": 8192, "end": end, "token_strs": list(text)}
    if "detokenize" in parameters:
        text = prompt(arrived(request))
        return {"text": parameters.get("tenant", "") if text == "!tenant" else text}
    return None


def response(pieces: list[str], count: int, finish_reason: str, request: dict[str, Any]) -> Any:
    """`count`: number of tokens so far."""
    sampling = json.loads(request.get("sampling_parameters", "{}"))
    tensors = [pb_utils.Tensor("text_output", np.array(["".join(pieces).encode()], dtype=np.object_))]
    if finish_reason != "None":
        tensors.append(pb_utils.Tensor("finish_reason", np.array([finish_reason.encode()], dtype=np.object_)))
    if sampling.get("return_token_ids"):
        ids = [[len(piece) for piece in pieces] or [-1]]
        tensors.append(pb_utils.Tensor("token_ids", np.array(ids, dtype=np.int32)))
    if sampling and (count <= 1 or not request.get("stream")):
        tensors += of_prompt(request, sampling)
    if sampling.get("return_usage") and (count <= 1 or finish_reason != "None"):
        tensors.append(pb_utils.Tensor("usage", np.array([len(prompt(request).split()), count], dtype=np.uint32)))
    return pb_utils.InferenceResponse(tensors)


def of_prompt(request: dict[str, Any], sampling: dict[str, Any]) -> list[Any]:
    """Return what the request asks to know of its prompt."""
    tensors = []
    words = prompt(request).split() or [prompt(request)]
    if sampling.get("return_prompt"):
        tokens = [f"{word} " for word in words]
        read: dict[str, Any] = {"token_ids": [len(token) for token in tokens]}
        if sampling["return_prompt"] is True:
            read |= {"text": prompt(request), "tokens": tokens}
        tensors.append(text_tensor("prompt", json.dumps(read)))
    if sampling.get("return_prompt_logprobs"):
        entries = [
            {str(len(word) + 1): {"logprob": -0.5, "rank": 1, "decoded_token": f"{word} "}} for word in words[1:]
        ]
        tensors.append(text_tensor("prompt_logprobs", json.dumps([None, *entries])))
    if sampling.get("return_embedding"):
        values = embedding(json.loads(request["embedding_request"]), len(words))
        tensors.append(pb_utils.Tensor("embedding", np.array(values, dtype=np.float32)))
    return tensors


def embedding(asked: dict[str, Any], num_words: int) -> list[float]:
    given, pooling = asked["input"], asked["pooling_params"]
    if pooling.get("task") != "classify":
        return [num_words, pooling["dimensions"] or 0, pooling["pooling"] == "mean", pooling["normalize"]]
    if not isinstance(given, dict):
        return [num_words, pooling["use_activation"]]
    common = set(given["query"].split()) & set(given["document"].split())
    return [len(common) if pooling["use_activation"] else -len(common)]


def text_tensor(name: str, text: str) -> Any:
    return pb_utils.Tensor(name, np.array([text.encode()], dtype=np.object_))
