"""A Triton request to what the engine takes. Each request is read on its own and refused on its own."""

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import triton_python_backend_utils as pb_utils

from inflight import InvalidRequest, SamplingParams
from serving import values

logger = logging.getLogger(__name__)

_Reader = Callable[[str, Any], Any]

_PROMPT: dict[str, _Reader] = {
    "text_input": values.text,
    "messages": values.text,
    "stream": values.truth,
    "exclude_input_in_output": values.truth,
}
_SAMPLING: dict[str, tuple[str, _Reader]] = {
    # Name in a request -> field of SamplingParams.
    "max_tokens": ("max_tokens", values.integer),
    "min_tokens": ("min_tokens", values.integer),
    "temperature": ("temperature", values.number),
    "top_k": ("top_k", values.integer),
    "top_p": ("top_p", values.number),
    "min_p": ("min_p", values.number),
    "repetition_penalty": ("repetition_penalty", values.number),
    "presence_penalty": ("presence_penalty", values.number),
    "frequency_penalty": ("frequency_penalty", values.number),
    "seed": ("seed", values.integer),
    "stop": ("stop", values.texts),
    "stop_words": ("stop", values.texts),
    "stop_token_ids": ("stop_token_ids", values.integers),
    "ignore_eos": ("ignore_eos", values.truth),
}


@dataclass(frozen=True)
class ParsedRequest:
    """One client request, checked as far as it can be without the model."""

    prompt: str | None
    messages: object | None
    """Decoded JSON; exactly one of `prompt` and `messages` is set."""
    params: SamplingParams
    stream: bool
    prepend_prompt: bool
    """The output begins with the prompt."""


def parse(request: Any) -> ParsedRequest:
    """Read a `pb_utils.InferenceRequest`.

    A field may come as a tensor, in the JSON of `sampling_parameters`, or as a request parameter; the first of these
    that has it counts.

    Raises:
        InvalidRequest: the message names the field and what it must be.
    """
    tensors = {name: _tensor_value(t) for t in request.inputs() if (name := t.name()) != "sampling_parameters"}
    parameters = json.loads(request.parameters() or "{}")
    inline = _sampling_json(request, parameters)
    _warn_of_unknown(inline)
    fields = {**_known(parameters), **{k: v for k, v in inline.items() if v is not None}, **tensors}
    given = {name: read(name, fields[name]) for name, read in _PROMPT.items() if name in fields}
    stream = given.get("stream", False)
    excluded = given.get("exclude_input_in_output")
    if stream and excluded is False:
        raise InvalidRequest("exclude_input_in_output is false; when streaming it must be true or absent")
    prompt, messages = _prompt_or_messages(given)
    return ParsedRequest(
        prompt=prompt,
        messages=messages,
        params=_sampling_params(fields),
        stream=stream,
        # vllm_backend prepends the prompt unless told not to, and clients count on it.
        prepend_prompt=not stream and prompt is not None and not excluded,
    )


def _tensor_value(tensor: Any) -> Any:
    """The only element of a tensor of shape [1], the list of elements of any other."""
    items = tensor.as_numpy().reshape(-1).tolist()
    return items[0] if len(items) == 1 else items


def _sampling_json(request: Any, parameters: Mapping[str, Any]) -> dict[str, Any]:
    tensor = pb_utils.get_input_tensor_by_name(request, "sampling_parameters")
    written = parameters.get("sampling_parameters") if tensor is None else _tensor_value(tensor)
    if written is None:
        return {}
    written = values.text("sampling_parameters", written)
    try:
        decoded = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"sampling_parameters is not valid JSON: {error}") from None
    if not isinstance(decoded, dict):
        raise InvalidRequest(f"sampling_parameters is {decoded!r}; it must be a JSON object")
    return decoded


def _known(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Request parameters that are ours; the others belong to Triton or to somebody on the way."""
    return {name: value for name, value in parameters.items() if name in _PROMPT or name in _SAMPLING}


def _warn_of_unknown(inline: Mapping[str, Any]) -> None:
    unknown = sorted(inline.keys() - _SAMPLING.keys())
    if unknown:
        logger.warning("sampling_parameters has unknown keys: %s", ", ".join(unknown))


def _sampling_params(fields: Mapping[str, Any]) -> SamplingParams:
    read = {}
    for name, (field, reader) in _SAMPLING.items():
        if name in fields:
            read[field] = reader(name, fields[name])
    return SamplingParams(**read)


def _prompt_or_messages(given: Mapping[str, Any]) -> tuple[str | None, object | None]:
    if ("text_input" in given) == ("messages" in given):
        raise InvalidRequest("exactly one of text_input and messages must be given")
    if "text_input" in given:
        if not given["text_input"]:
            raise InvalidRequest("text_input is empty; it must have at least 1 character")
        return given["text_input"], None
    try:
        return None, json.loads(given["messages"])
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"messages is not valid JSON: {error}") from None
