"""Converts requests, responses and errors to and from HTTP: Triton's `generate_stream` with server-sent events."""

import json
import math
import socket
import ssl
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
from httpx_sse import ServerSentEvent, SSEError

from inflight_client.errors import (
    AccessDenied,
    InflightError,
    InvalidRequest,
    ModelNotReady,
    ServerFault,
    ServerOverloaded,
    TransportError,
    error_of_model,
)
from inflight_client.options import Options
from inflight_client.request import Request
from inflight_client.response import PERF_OUTPUTS, PerfMetrics, Reply, Usage
from inflight_client.server_info import ModelInfo, ServerInfo, TensorInfo

_T = TypeVar("_T")

# No limit on connections: no request waits until another one releases its connection.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)


def base_url(options: Options) -> str:
    """Return the common start of all URLs."""
    return f"{'http' if options.tls is None else 'https'}://{options.address}"


def headers(options: Options) -> dict[str, str]:
    """Return the headers of every request."""
    return dict(options.headers) if options.authority is None else {"host": options.authority, **options.headers}


def ssl_context(options: Options) -> ssl.SSLContext | bool:
    """Return httpx's argument `verify`. Raises OSError if a file cannot be read."""
    if options.tls is None:
        return False
    context = ssl.create_default_context(cafile=options.tls.root_certificates)
    if options.tls.certificate_chain is not None:
        context.load_cert_chain(options.tls.certificate_chain, options.tls.private_key)
    return context


def socket_options(options: Options) -> list[tuple[int, int, int]]:
    """Return the options of a connection: TCP's own probes, after a quarter of the time and then two more.

    Each request has a connection of its own. It may be dead although the server answers health checks on another one,
    for example behind a router or a load balancer that was started again.
    """
    if math.isinf(options.unreachable):
        return []
    seconds = max(1, round(options.unreachable / 4))
    values = {"TCP_KEEPIDLE": seconds, "TCP_KEEPINTVL": seconds, "TCP_KEEPCNT": 3}
    # Not every system has all of them.
    found = [(getattr(socket, name), value) for name, value in values.items() if hasattr(socket, name)]
    return [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), *((socket.IPPROTO_TCP, name, value) for name, value in found)]


def model_path(model: str) -> str:
    """Return the path of a model's URL."""
    return f"/v2/models/{quote(model, safe='')}"


def path(request: Request) -> str:
    """Return the path of a request's URL."""
    return f"{model_path(request.model)}/generate_stream"


def timeouts(options: Options) -> httpx.Timeout:
    """Return httpx's timeouts: only the one to connect, because its others apply to single reads, not to an answer."""
    return httpx.Timeout(None, connect=options.connect_timeout)


def encode(request: Request, seconds: float) -> dict[str, object]:
    """Make the body for a request with `seconds` of time left.

    Raises InvalidRequest if it has embeddings: Triton takes one dimension alone here.
    """
    if request.embeds is not None:
        raise InvalidRequest("prompt_embeds are given to a client of HTTP; they need gRPC")
    images = {"image": request.image_texts} if request.images else {}
    return {
        **request.flags,
        **images,
        request.prompt_field: request.prompt,
        "sampling_parameters": request.sampling_json(seconds),
        "stream": request.stream,
        "exclude_input_in_output": True,
        "code_in_error": True,
    }


def outputs_of(event: ServerSentEvent) -> dict[str, Any]:
    """Read the model's outputs, or its error, from an event. Raises ServerFault if the event is no JSON object."""
    try:
        outputs = event.json()
    except ValueError:
        outputs = None
    if not isinstance(outputs, dict):
        raise ServerFault(f"the server sent an event that is no JSON object: {event.data[:200]!r}")
    return outputs


def _usage(outputs: Mapping[str, Any]) -> Usage:
    prompt, completion = outputs["usage"]
    return Usage(prompt, completion, outputs.get("num_cached_tokens", 0))


def decode(outputs: dict[str, Any]) -> Reply:
    """Read the reply from an event.

    Triton writes an output with one element as a single value, and flattens an output with two dimensions.
    Raises ServerFault if the reply is not from a model of Inflight.
    """
    try:
        texts, ids = _as_list(outputs["text_output"]), _as_list(outputs.get("token_ids", []))
        width = len(ids) // max(1, len(texts))
        return Reply(
            texts=texts,
            finish_reasons=_as_list(outputs["finish_reason"]) if "finish_reason" in outputs else (),
            stop_reasons=_as_list(outputs["stop_reason"]) if "stop_reason" in outputs else (),
            token_ids=[ids[row * width : (row + 1) * width] for row in range(len(texts))] if ids else (),
            logprobs=_as_list(outputs["logprobs"]) if "logprobs" in outputs else (),
            usage=_usage(outputs) if "usage" in outputs else None,
            prompt=outputs.get("prompt", ""),
            prompt_logprobs=outputs.get("prompt_logprobs", ""),
            embedding=_as_list(outputs.get("embedding", [])),
            kv_transfer_params=outputs.get("kv_transfer_params", ""),
            perf=_perf(outputs) if PERF_OUTPUTS[0] in outputs else (),
        )
    except KeyError as missing:
        raise ServerFault(f"the model's response lacks {missing}; it is no model of Inflight") from None


def _perf(outputs: dict[str, Any]) -> list[PerfMetrics]:
    columns = [_as_list(outputs[name]) for name in PERF_OUTPUTS]
    return [PerfMetrics(*row) for row in zip(*columns, strict=True)]


def _as_list(value: _T | list[_T]) -> list[_T]:
    return value if isinstance(value, list) else [value]


def message_of(body: bytes) -> str:
    """Return the error message in the body of a failed response. If Triton began a stream, the body is an event."""
    try:
        return str(json.loads(body.removeprefix(b"data:"))["error"])
    except (ValueError, KeyError, TypeError):
        return body[:500].decode(errors="replace")


def error_of_response(status: int, message: str, headers: httpx.Headers) -> InflightError | None:
    """Return the error that a failed response means, or None if that depends on whether the model is ready."""
    if (error := error_of_model(message)) is not None:
        return error
    match status:
        case 401 | 403:
            return AccessDenied(message)
        case 404:
            return ModelNotReady(message)
        case 429 | 503:
            return ServerOverloaded(message, retry_after=_seconds(headers.get("retry-after")))
        case 502 | 504:
            return TransportError(message)
        case 400 | 200:
            # Triton sends these if a tensor does not fit the model, and also if there is no such model.
            return None
    return InvalidRequest(message) if 400 <= status < 500 else ServerFault(message)


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isdecimal() else None


def error_of_httpx(error: httpx.HTTPError) -> InflightError:
    """Return the error that an exception of httpx means."""
    if isinstance(error, SSEError):
        return ServerFault(str(error))
    return TransportError(_text_of(error))


def _text_of(error: BaseException) -> str:
    """Return the text of an error, or of what has caused it, or its name. A failed handshake of TLS has no text."""
    cause: BaseException | None = error
    while cause is not None:
        if str(cause):
            return str(cause)
        cause = cause.__cause__ or cause.__context__
    return type(error).__name__


def server_info(document: dict[str, Any]) -> ServerInfo:
    """Read the description of a server."""
    return ServerInfo(document["name"], document["version"], tuple(document["extensions"]))


def model_info(metadata: dict[str, Any], config: dict[str, Any]) -> ModelInfo:
    """Read the description of a model from its metadata and its configuration."""
    return ModelInfo(
        metadata["name"],
        tuple(metadata.get("versions", ())),
        config.get("model_transaction_policy", {}).get("decoupled", False),
        _tensors(metadata["inputs"]),
        _tensors(metadata["outputs"]),
        {name: value["string_value"] for name, value in config.get("parameters", {}).items()},
    )


def _tensors(documents: Sequence[dict[str, Any]]) -> tuple[TensorInfo, ...]:
    return tuple(TensorInfo(tensor["name"], tensor["datatype"], tuple(tensor["shape"])) for tensor in documents)
