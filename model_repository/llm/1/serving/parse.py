"""Converts a Triton request into the engine's arguments. An invalid request does not affect any other."""

import dataclasses
import json
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from inflight import InvalidRequest, PoolingParams, RequestOptions, SamplingParams
from inflight.kv_transfer.kv_transfer_params import KVTransferParams
from inflight.request_options import MAX_NAME_CHARACTERS
from inflight.text.chat import Chat
from serving.beam_fields import beam_width, check_beams
from serving.embeds import read_embeds
from serving.output_options import OutputOptions
from serving.prompt_fields import Prompt, prompt_images, prompt_truncation, read_prompt
from serving.read_request import read_request
from serving.structured_output_fields import structured_outputs
from serving.values import RIGHT

MAX_SAMPLES = 16
_CANCEL_KEY = re.compile("[0-9a-f]{32}")
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

    prompt: Prompt | None
    """Text, two texts, or token ids."""
    chat: Chat | None
    """Exactly one of `prompt` and `chat` is set, unless `embeds` are the prompt."""
    images: tuple[str | bytes, ...]
    """Those of the prompt or the chat, as base64."""
    embeds: NDArray[Any] | None
    """[rows, width] float, which take the place of tokens of the prompt."""
    truncate_prompt_tokens: int | None
    """How many tokens of the prompt to keep, at most; -1: as many as there is room for."""
    keeps_beginning: bool
    """Whether these are its first tokens, and not its last ones."""
    params: SamplingParams
    pooling: PoolingParams | None
    """What to make of the prompt, if an embedding or a classification is asked for."""
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


def parse(request: Any, num_logits: int, max_model_len: int, *, exclude_input: bool = False) -> ParsedRequest:
    """Read a request to generate, for a model whose outputs hold tokens below `num_logits`.

    `exclude_input`: whole answers leave out the prompt, unless the request says otherwise.

    Raises:
        InvalidRequest: the message names the field and what it must be.
    """
    fields, parameters = read_request(request, max_model_len)
    prompt, chat, pooling = read_prompt(fields)
    stream = fields.get("stream", False)
    excluded = fields.get("exclude_input_in_output", exclude_input)
    if stream and fields.get("exclude_input_in_output") is False:
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
        images=prompt_images(fields, pooling),
        embeds=read_embeds(fields),
        truncate_prompt_tokens=prompt_truncation(fields, chat),
        keeps_beginning=fields.get("truncation_side") == RIGHT,
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


def _cancel_key(key: object) -> str | None:
    """Read the key with which another request can cancel this one. Only keys that nobody can guess are accepted."""
    if key is None or (isinstance(key, str) and _CANCEL_KEY.fullmatch(key)):
        return key
    raise InvalidRequest(
        f"cancel_key is {key!r}; it must be 32 random digits from 0-9 and a-f, such as those of a UUID"
    )


def _output_options(fields: Mapping[str, Any]) -> OutputOptions:
    wanted = {option: fields[f"return_{option}"] for option in _OUTPUTS if f"return_{option}" in fields}
    return OutputOptions(
        **wanted,
        has_logprobs=fields.get("logprobs") is not None or "logprob_token_ids" in fields,
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
    if width == 1 and (outputs.cumulative_logprob or outputs.log_probs) and given.get("logprobs") is None:
        given["logprobs"] = 0
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
