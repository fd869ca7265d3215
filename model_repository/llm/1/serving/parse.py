"""Converts a Triton request into the engine's arguments. An invalid request does not affect any other."""

import dataclasses
import json
import logging
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from inflight import InvalidRequest, PoolingParams, RequestOptions, SamplingParams
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.request_options import MAX_NAME_CHARACTERS
from inflight.sampling_params import MAX_STOP_TOKENS, ROOM_FOR_ALL
from inflight.text.chat import Chat
from serving import values
from serving.beam_fields import beam_width, check_beams
from serving.embedding_request import read_embedding_request
from serving.embeds import EMBEDS, read_embeds
from serving.output_options import OutputOptions
from serving.read_fields import KNOWN, read_fields
from serving.structured_output_fields import structured_outputs

logger = logging.getLogger(__name__)

MAX_SAMPLES = 16
MAX_KEYS = 128
MAX_KEY_CHARACTERS = 128
MAX_MESSAGES_CHARACTERS = 2**24
_MAX_WARNINGS = 100
_CANCEL_KEY = re.compile("[0-9a-f]{32}")
_warned_of: set[str] = set()
_PROMPTS = ("text_input", "messages", "input_ids", "embedding_request")
_OF_CHATS = {
    "tools": "tools",
    "chat_template_kwargs": "template_kwargs",
    "add_generation_prompt": "add_generation_prompt",
    "continue_final_message": "continue_final_message",
}
"""The fields that need messages, and their names in `Chat`."""
_SAMPLING = [field.name for field in dataclasses.fields(SamplingParams) if field.name != "structured_outputs"]
_OPTIONS = [
    field.name
    for field in dataclasses.fields(RequestOptions)
    if field.name not in ("arrival", "trace_context", "kv_transfer_params")
]
_HEADERS = {"traceparent": MAX_NAME_CHARACTERS, "tracestate": 512}
"""Those of W3C Trace Context, and how many characters they may have."""
_OUTPUTS = [field.name for field in dataclasses.fields(OutputOptions)]


@dataclass(frozen=True)
class ParsedRequest:
    """One client request, after all checks that do not need the model."""

    prompt: str | tuple[int, ...] | None
    """Text, or token ids."""
    chat: Chat | None
    """Exactly one of `prompt` and `chat` is set, unless `embeds` are the prompt."""
    images: tuple[str | bytes, ...]
    """Those of the prompt or the chat, as base64."""
    embeds: NDArray[Any] | None
    """[rows, width] float, which take the place of tokens of the prompt."""
    truncate_prompt_tokens: int | None
    """How many tokens of the prompt to keep, at most; -1: as many as there is room for."""
    params: SamplingParams
    pooling: PoolingParams | None
    """How to make an embedding, if that is what is asked for."""
    options: RequestOptions
    num_samples: int
    num_beams: int
    """How many of the outputs of a beam search to return; 0: there is no beam search."""
    stream: bool
    prepend_prompt: bool
    """Whether the output begins with the prompt."""
    outputs: OutputOptions
    cancel_key: str | None
    """See `_cancel_key`."""


def read_request(request: Any, max_model_len: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the fields of a `pb_utils.InferenceRequest` under their own names, and its request parameters as they are.

    A field can come as a tensor, in the JSON of `sampling_parameters`, or as a request parameter. If several of them
    hold the field, the first in this order is used.

    Raises:
        InvalidRequest: the message names the field and what it must be.
    """
    most = max(max_model_len, MAX_STOP_TOKENS)
    tensors = {tensor.name(): _tensor_value(tensor, most) for tensor in request.inputs()}
    parameters = values.decoded("the JSON of all request parameters", request.parameters() or "{}")
    _check_keys("request parameters", parameters)
    inline = _sampling_json(tensors.get("sampling_parameters", parameters.get("sampling_parameters")))
    return {**read_fields(parameters), **read_fields(inline), **read_fields(tensors)}, parameters


def parse(request: Any, num_logits: int, max_model_len: int) -> ParsedRequest:
    """Read a request to generate, for a model whose outputs hold tokens below `num_logits`.

    Raises:
        InvalidRequest: the message names the field and what it must be.
    """
    fields, parameters = read_request(request, max_model_len)
    prompt, chat, pooling = read_prompt(fields)
    stream = fields.get("stream", False)
    excluded = fields.get("exclude_input_in_output")
    if stream and excluded is False:
        # The second sentence is vllm_backend's; its clients look for it.
        raise InvalidRequest(
            "exclude_input_in_output is false. When streaming, `exclude_input_in_output` = False is not allowed."
        )
    outputs = _output_options(fields)
    width, count = beam_width(fields), _count(fields)
    if width > 1:
        check_beams(fields, width, outputs)
    params = _sampling_params(fields, width, outputs, num_logits)
    if params.max_tokens == 0 and count is not None and count > 1:
        raise InvalidRequest(f"n is {count}; it must be 1 where max_tokens is 0")
    return ParsedRequest(
        prompt=prompt,
        chat=chat,
        images=_images(fields, pooling),
        embeds=read_embeds(fields),
        truncate_prompt_tokens=_truncation(fields, chat),
        params=params,
        pooling=pooling,
        options=_options(fields, request),
        num_samples=1 if width > 1 else count or 1,
        num_beams=(count or width) if width > 1 else 0,
        stream=stream,
        # vllm_backend prepends the prompt by default, and clients rely on it.
        prepend_prompt=not stream and isinstance(prompt, str) and not excluded and pooling is None,
        outputs=outputs,
        cancel_key=_cancel_key(parameters.get("cancel_key")),
    )


def _images(fields: Mapping[str, Any], pooling: PoolingParams | None) -> tuple[str | bytes, ...]:
    images: tuple[str | bytes, ...] = fields.get("image", ())
    if images and pooling is not None:
        raise InvalidRequest("image is given with embedding_request; it needs a prompt to generate from")
    return images


def _truncation(fields: Mapping[str, Any], chat: Chat | None) -> int | None:
    most: int | None = fields.get("truncate_prompt_tokens")
    if most is None:
        return None
    if fields.keys() & EMBEDS:
        raise InvalidRequest("truncate_prompt_tokens is given with prompt_embeds; such a prompt cannot be cut")
    if fields.get("image"):
        raise InvalidRequest("truncate_prompt_tokens is given with image; a prompt with images cannot be cut")
    if chat is not None:
        raise InvalidRequest("truncate_prompt_tokens is given with messages; it needs a prompt without a chat template")
    if most < 1 and most != -1:
        raise InvalidRequest(f"truncate_prompt_tokens is {most}; it must be at least 1, or -1")
    return most


def _cancel_key(key: object) -> str | None:
    """Read the key with which another request can cancel this one. Only keys that nobody can guess are accepted."""
    if key is None or (isinstance(key, str) and _CANCEL_KEY.fullmatch(key)):
        return key
    raise InvalidRequest(
        f"cancel_key is {key!r}; it must be 32 random digits from 0-9 and a-f, such as those of a UUID"
    )


def _tensor_value(tensor: Any, most: int) -> Any:
    """The element of a tensor that has exactly one, otherwise the list of all elements. Embeddings stay an array."""
    array = tensor.as_numpy()
    if tensor.name() in EMBEDS:
        return array
    # Only a model with a batch dimension gets tensors of more than one.
    if array.ndim > 1 and len(array) != 1:
        raise InvalidRequest(
            f"{tensor.name()} has the batch size {len(array)}; it must be 1, as a request has one prompt (the model "
            "`completion` takes several)"
        )
    if array.size > most:
        raise InvalidRequest(f"{tensor.name()} has {array.size} elements; it must have at most {most}")
    items = array.reshape(-1).tolist()
    return items[0] if len(items) == 1 else items


def _sampling_json(written: Any) -> dict[str, Any]:
    if written is None:
        return {}
    decoded = values.decoded("sampling_parameters", values.text("sampling_parameters", written))
    if not isinstance(decoded, dict):
        raise InvalidRequest(f"sampling_parameters is {decoded!r}; it must be a JSON object")
    _check_keys("sampling_parameters", decoded)
    if "max_tokens" in decoded and decoded["max_tokens"] is None:
        decoded["max_tokens"] = ROOM_FOR_ALL  # As in vLLM.
    for name in sorted(decoded.keys() - KNOWN):
        _warn_of_unknown(name)
    return decoded


def _check_keys(what: str, given: Mapping[str, Any]) -> None:
    if len(given) > MAX_KEYS:
        raise InvalidRequest(f"{what} have {len(given)} keys; there must be at most {MAX_KEYS}")
    longest = max(map(len, given), default=0)
    if longest > MAX_KEY_CHARACTERS:
        raise InvalidRequest(f"{what} have a key of {longest} characters; each must have at most {MAX_KEY_CHARACTERS}")


def _warn_of_unknown(name: str) -> None:
    """Warn once per name, because a client sends the same names with every request, and of so many names in all."""
    if name in _warned_of or len(_warned_of) == _MAX_WARNINGS:
        return
    _warned_of.add(name)
    last = "; no other unknown keys will be logged" if len(_warned_of) == _MAX_WARNINGS else ""
    logger.warning("sampling_parameters has the unknown key %a%s", name, last)


def read_prompt(fields: Mapping[str, Any]) -> tuple[str | tuple[int, ...] | None, Chat | None, PoolingParams | None]:
    """Return the prompt or the chat, and how to make an embedding of the prompt if that is asked for.

    Raises:
        InvalidRequest: there is not exactly one prompt, or it is empty, or a field of chats is given without one.
    """
    given = [name for name in _PROMPTS if name in fields]
    if not given and fields.keys() & EMBEDS:
        return None, None, None
    if given == ["text_input", "embedding_request"] and not fields["text_input"]:
        given = ["embedding_request"]  # Clients of vllm_backend, which requires both, leave the text empty.
    if len(given) != 1:
        raise InvalidRequest(
            f"exactly one of {', '.join(_PROMPTS[:-1])} and {_PROMPTS[-1]} must be given, "
            f"not {' and '.join(given) or 'none'}"
        )
    value = fields[given[0]]
    if not value:
        raise InvalidRequest(f"{given[0]} is empty; it must have at least 1 element")
    if given[0] == "messages":
        messages = values.decoded("messages", value, MAX_MESSAGES_CHARACTERS)
        return None, Chat(messages, **{mine: fields[name] for name, mine in _OF_CHATS.items() if name in fields}), None
    for name in _OF_CHATS:
        if name in fields:
            raise InvalidRequest(f"{name} is given with {given[0]}; it needs messages")
    if given[0] == "embedding_request":
        prompt, pooling = read_embedding_request(fields)
        return prompt, None, pooling
    return value, None, None


def _output_options(fields: Mapping[str, Any]) -> OutputOptions:
    wanted = {option: fields[f"return_{option}"] for option in _OUTPUTS if f"return_{option}" in fields}
    return OutputOptions(
        **wanted,
        has_logprobs=bool({"logprobs", "logprob_token_ids"} & fields.keys()),
        kv_transfer_params=bool(fields.get("kv_transfer_params", {}).get("do_remote_decode")),
    )


def _sampling_params(fields: Mapping[str, Any], width: int, outputs: OutputOptions, num_logits: int) -> SamplingParams:
    given = {name: fields[name] for name in _SAMPLING if name in fields} | {"beam_width": width}
    if "end_id" in fields:
        # As in TensorRT-LLM, `end_id` replaces the model's own end tokens. -1, or a token outside the vocabulary, means
        # that no token ends the output.
        given["ignore_eos"] = True
        if fields["end_id"] < -1:
            raise InvalidRequest(f"end_id is {fields['end_id']}; it must be at least -1")
        if 0 <= fields["end_id"] < num_logits:
            given["stop_token_ids"] = (*given.get("stop_token_ids", ()), fields["end_id"])
    if given.get("top_p") == 0:
        # As in TensorRT-LLM: no more than the likeliest token.
        given |= {"top_p": 1.0, "top_k": 1}
    if width == 1 and (outputs.cumulative_logprob or outputs.log_probs):
        given.setdefault("logprobs", 0)
    return SamplingParams(**given, structured_outputs=structured_outputs(fields))


def _options(fields: Mapping[str, Any], request: Any) -> RequestOptions:
    """Read the request options. Triton's own priority is not among them: the Python backend does not expose it."""
    given = {name: fields[name] for name in _OPTIONS if name in fields}
    # Over gRPC `timeout` is a field of Triton's protocol, 0 if not given. Over HTTP it comes like any other field.
    given["timeout"] = request.timeout() or given.get("timeout", 0)
    given.setdefault("client_request_id", request.request_id()[:MAX_NAME_CHARACTERS])
    if "kv_transfer_params" in fields:
        given["kv_transfer_params"] = KVTransferParams.of(fields["kv_transfer_params"])
    return RequestOptions(**given, arrival=time.monotonic(), trace_context=_trace_context(fields, request))


def _trace_context(fields: Mapping[str, Any], request: Any) -> Mapping[str, str] | None:
    """The client's OpenTelemetry context: the one that Triton has made of it, or else the client's own."""
    # Triton provides it from 24.04 on, and only in its OpenTelemetry trace mode.
    get_context = getattr(request.trace(), "get_context", None) if hasattr(request, "trace") else None
    if get_context is not None and (context := get_context()):
        return dict(json.loads(context))
    # W3C Trace Context: what is too long is ignored, as what is invalid is.
    given = {name: fields[name] for name, most in _HEADERS.items() if 0 < len(fields.get(name, "")) <= most}
    return given if "traceparent" in given else None


def _count(fields: Mapping[str, Any]) -> int | None:
    """How many samples or beams to return, if the request says."""
    count: int | None = fields.get("n")
    if count is not None and not 1 <= count <= MAX_SAMPLES:
        raise InvalidRequest(f"n is {count}; it must be at least 1 and at most {MAX_SAMPLES}")
    return count
