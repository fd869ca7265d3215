"""Requests, responses and errors in HTTP's form: Triton's `generate_stream`, which answers with server-sent events."""

import json
import ssl
from collections.abc import Sequence
from typing import Any, TypeVar

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
from inflight_client.response import Reply, Usage
from inflight_client.server_info import ModelInfo, ServerInfo, TensorInfo

_T = TypeVar("_T")

# As many requests at once as somebody starts, and none waits for another's connection.
LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=100)


def base_url(options: Options) -> str:
    """The beginning of all URLs."""
    return f"{'http' if options.tls is None else 'https'}://{options.address}"


def ssl_context(options: Options) -> ssl.SSLContext | bool:
    """What httpx wants to know for `verify`. Raises OSError where a file can't be read."""
    if options.tls is None:
        return False
    context = ssl.create_default_context(cafile=options.tls.root_certificates)
    if options.tls.certificate_chain is not None:
        context.load_cert_chain(options.tls.certificate_chain, options.tls.private_key)
    return context


def path(request: Request) -> str:
    """Where a request goes."""
    return f"/v2/models/{request.model}/generate_stream"


def timeouts(options: Options) -> httpx.Timeout:
    """httpx's part of them: what it has besides bounds single reads and not an answer."""
    return httpx.Timeout(None, connect=options.connect_timeout)


def encode(request: Request, seconds: float) -> dict[str, object]:
    """The body for a request that may take so many seconds."""
    prompt = request.prompt if isinstance(request.prompt, str) else list(request.prompt)
    return {
        **({"list_requests": True} if request.asks_for_requests else {}),
        request.prompt_field: prompt,
        "sampling_parameters": request.sampling_json(seconds),
        "stream": request.stream,
        "exclude_input_in_output": True,
        "code_in_error": True,
    }


def outputs_of(event: ServerSentEvent) -> dict[str, Any]:
    """The model's outputs or its error, as an event of the stream has them. Raises ServerFault for any other event."""
    try:
        outputs = event.json()
    except ValueError:
        outputs = None
    if not isinstance(outputs, dict):
        raise ServerFault(f"the server sent an event that is no JSON object: {event.data[:200]!r}")
    return outputs


def decode(outputs: dict[str, Any], num_samples: int) -> Reply:
    """The reply that an event holds; Triton writes what has one element as it is, and flattens what has two dimensions.

    Raises ServerFault where it is no response of this project's.
    """
    try:
        ids = _as_list(outputs.get("token_ids", []))
        width = len(ids) // num_samples
        return Reply(
            texts=_as_list(outputs["text_output"]),
            finish_reasons=_as_list(outputs["finish_reason"]) if "finish_reason" in outputs else (),
            token_ids=[ids[row * width : (row + 1) * width] for row in range(num_samples)] if ids else (),
            logprobs=_as_list(outputs["logprobs"]) if "logprobs" in outputs else (),
            usage=Usage(*outputs["usage"]) if "usage" in outputs else None,
        )
    except KeyError as missing:
        raise ServerFault(f"the model's response lacks {missing}; it is no model of Inflight") from None


def _as_list(value: _T | list[_T]) -> list[_T]:
    return value if isinstance(value, list) else [value]


def message_of(body: bytes) -> str:
    """What the body of a failed response says, an event where Triton has begun a stream."""
    try:
        return str(json.loads(body.removeprefix(b"data:"))["error"])
    except (ValueError, KeyError, TypeError):
        return body[:500].decode(errors="replace")


def error_of_response(status: int, message: str, headers: httpx.Headers) -> InflightError | None:
    """What a failed response means; None where it depends on whether the model is ready."""
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
            # Triton answers so where a tensor does not fit, and when the model is not there.
            return None
    return InvalidRequest(message) if 400 <= status < 500 else ServerFault(message)


def _seconds(header: str | None) -> float | None:
    return float(header) if header is not None and header.isdecimal() else None


def error_of_httpx(error: httpx.HTTPError) -> InflightError:
    """What a failure of httpx's means."""
    if isinstance(error, SSEError):
        return ServerFault(str(error))
    return TransportError(str(error) or type(error).__name__)


def server_info(document: dict[str, Any]) -> ServerInfo:
    """The server that its metadata describes."""
    return ServerInfo(document["name"], document["version"], tuple(document["extensions"]))


def model_info(metadata: dict[str, Any], config: dict[str, Any]) -> ModelInfo:
    """The model that two documents describe."""
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
