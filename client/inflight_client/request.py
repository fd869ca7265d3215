"""What a caller asks for, and its form on the wire."""

import json
from collections.abc import Mapping, Sequence
from typing import TypedDict

from tritonclient.grpc import service_pb2


class Message(TypedDict):
    """One message of a chat."""

    role: str
    content: str


class Sampling(TypedDict, total=False):
    """How the text is to be sampled; what is left out is the model's own default."""

    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    seed: int
    stop: Sequence[str]
    stop_token_ids: Sequence[int]
    ignore_eos: bool
    # Sent as it is; the keys above win over it.
    sampling_parameters: Mapping[str, object]


def encode(
    model: str,
    prompt: str | None,
    messages: Sequence[Message] | None,
    sampling: Sampling,
    stream: bool,
) -> service_pb2.ModelInferRequest:
    """Return the request message.

    Raises TypeError for a sampling key that does not exist, and unless exactly one of `prompt` and
    `messages` is given.
    """
    if (prompt is None) == (messages is None):
        raise TypeError("give either a prompt or messages")
    if unknown := sampling.keys() - Sampling.__optional_keys__:
        raise TypeError(f"no such sampling parameter: {', '.join(sorted(unknown))}")

    request = service_pb2.ModelInferRequest(model_name=model)
    # Streams end with the text of an error alone. Triton has a header for status codes, `triton_grpc_error`, but
    # release 24.10 crashed in minutes where many streams with it failed.
    request.parameters["code_in_error"].bool_param = True
    if prompt is not None:
        _add_string(request, "text_input", prompt)
    else:
        _add_string(request, "messages", json.dumps(messages))
    _add_string(request, "sampling_parameters", json.dumps(_flat(sampling)))
    _add_bool(request, "stream", stream)
    _add_bool(request, "exclude_input_in_output", True)
    return request


def _flat(sampling: Sampling) -> dict[str, object]:
    named = {key: value for key, value in sampling.items() if key != "sampling_parameters"}
    return {**sampling.get("sampling_parameters", {}), **named}


def _add_string(request: service_pb2.ModelInferRequest, name: str, value: str) -> None:
    content = value.encode()
    request.inputs.add(name=name, datatype="BYTES", shape=[1])
    request.raw_input_contents.append(len(content).to_bytes(4, "little") + content)


def _add_bool(request: service_pb2.ModelInferRequest, name: str, value: bool) -> None:
    request.inputs.add(name=name, datatype="BOOL", shape=[1])
    request.raw_input_contents.append(bytes([value]))
